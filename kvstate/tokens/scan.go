package tokens

import "bytes"

// The functions here walk JSON that the gateway has found well formed. On anything
// else they stop and say so; they never read outside of raw, and never recurse.

// stringEnd is the offset after the string that opens at raw[at], -1 if it never ends.
func stringEnd(raw []byte, at int) int {
	for from := at + 1; ; {
		i := bytes.IndexByte(raw[from:], '"')
		if i < 0 {
			return -1
		}
		quote := from + i
		slashes := quote
		for slashes > at+1 && raw[slashes-1] == '\\' {
			slashes--
		}
		if (quote-slashes)%2 == 0 {
			return quote + 1
		}
		from = quote + 1
	}
}

// valueEnd is the offset after the value that starts at raw[at], -1 if it never ends.
func valueEnd(raw []byte, at int) int {
	if at >= len(raw) {
		return -1
	}
	switch raw[at] {
	case '"':
		return stringEnd(raw, at)
	case '{', '[':
	default:
		end := at
		for end < len(raw) && !isSpace(raw[end]) && raw[end] != ',' && raw[end] != ']' && raw[end] != '}' {
			end++
		}
		if end == at {
			return -1
		}
		return end
	}
	depth := 0
	for at < len(raw) {
		switch raw[at] {
		case '"':
			if at = stringEnd(raw, at); at < 0 {
				return -1
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return at + 1
			}
		}
		at++
	}
	return -1
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }

func skipSpace(raw []byte, at int) int {
	for at < len(raw) && isSpace(raw[at]) {
		at++
	}
	return at
}

// members calls visit with each key, without its quotes and as it is escaped, and its
// value. It reports whether raw is an object that ends.
func members(raw []byte, visit func(key, value []byte)) bool {
	at := skipSpace(raw, 0)
	if at >= len(raw) || raw[at] != '{' {
		return false
	}
	at = skipSpace(raw, at+1)
	if at < len(raw) && raw[at] == '}' {
		return true
	}
	for at < len(raw) && raw[at] == '"' {
		keyEnd := stringEnd(raw, at)
		if keyEnd < 0 {
			return false
		}
		key := raw[at+1 : keyEnd-1]
		at = skipSpace(raw, keyEnd)
		if at >= len(raw) || raw[at] != ':' {
			return false
		}
		at = skipSpace(raw, at+1)
		end := valueEnd(raw, at)
		if end < 0 {
			return false
		}
		visit(key, raw[at:end])
		at = skipSpace(raw, end)
		if at >= len(raw) || raw[at] != ',' {
			return at < len(raw) && raw[at] == '}'
		}
		at = skipSpace(raw, at+1)
	}
	return false
}

// elements calls visit with each element. It reports whether raw is an array that
// ends.
func elements(raw []byte, visit func(value []byte)) bool {
	at := skipSpace(raw, 0)
	if at >= len(raw) || raw[at] != '[' {
		return false
	}
	at = skipSpace(raw, at+1)
	if at < len(raw) && raw[at] == ']' {
		return true
	}
	for {
		end := valueEnd(raw, at)
		if end < 0 {
			return false
		}
		visit(raw[at:end])
		at = skipSpace(raw, end)
		if at >= len(raw) || raw[at] != ',' {
			return at < len(raw) && raw[at] == ']'
		}
		at = skipSpace(raw, at+1)
	}
}

// present says whether a value was given and is not null.
func present(value []byte) bool { return len(value) > 0 && value[0] != 'n' }

// inner is the inside of a JSON string, still escaped.
func inner(value []byte) (text []byte, ok bool) {
	if len(value) < 2 || value[0] != '"' {
		return nil, false
	}
	return value[1 : len(value)-1], true
}

// appendCompact appends a value without the white space between its parts, and
// without cache_control members: a marker for caches, which clients move along from
// turn to turn, and which no template sees.
func appendCompact(dst, value []byte) []byte {
	for at := 0; at < len(value); {
		if isSpace(value[at]) {
			at++
			continue
		}
		if value[at] != '"' {
			dst = append(dst, value[at])
			at++
			continue
		}
		end := stringEnd(value, at)
		if end < 0 {
			return append(dst, value[at:]...)
		}
		if string(value[at:end]) == `"cache_control"` {
			if after := skipSpace(value, end); after < len(value) && value[after] == ':' {
				at, dst = skipMember(value, skipSpace(value, after+1), dst)
				continue
			}
		}
		dst = append(dst, value[at:end]...)
		at = end
	}
	return dst
}

// skipMember leaves out a member whose value starts at at, with one of the commas
// beside it.
func skipMember(value []byte, at int, dst []byte) (next int, kept []byte) {
	end := valueEnd(value, at)
	if end < 0 {
		return len(value), dst
	}
	end = skipSpace(value, end)
	if end < len(value) && value[end] == ',' {
		return end + 1, dst
	}
	return end, bytes.TrimSuffix(dst, []byte(","))
}
