package tokens

import (
	"bytes"

	"github.com/tandem-gateway/tandem/kvstate/jsonscan"
)

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
	for at := jsonscan.SkipSpace(value, 0); at < len(value); at = jsonscan.SkipSpace(value, at) {
		if value[at] != '"' {
			dst = append(dst, value[at])
			at++
			continue
		}
		end, err := jsonscan.ValueEnd(value, at)
		if err != nil {
			return append(dst, value[at:]...)
		}
		if string(value[at:end]) == `"cache_control"` {
			if after := jsonscan.SkipSpace(value, end); after < len(value) && value[after] == ':' {
				at, dst = skipMember(value, after+1, dst)
				continue
			}
		}
		dst = append(dst, value[at:end]...)
		at = end
	}
	return dst
}

// isCompact reports whether appendCompact appends a value as it stands. Its long strings may be known.
func isCompact(value []byte, long jsonscan.Long) bool {
	for at := 0; at < len(value); {
		if value[at] != '"' {
			if jsonscan.SkipSpace(value, at) != at {
				return false
			}
			at++
			continue
		}
		end, err := long.ValueEnd(value, at)
		if err != nil {
			return true
		}
		if string(value[at:end]) == `"cache_control"` {
			return false
		}
		at = end
	}
	return true
}

// skipMember leaves out a member whose value starts after at, with one of the commas
// beside it.
func skipMember(value []byte, at int, dst []byte) (next int, kept []byte) {
	end, err := jsonscan.ValueEnd(value, at)
	if err != nil {
		return len(value), dst
	}
	end = jsonscan.SkipSpace(value, end)
	if end < len(value) && value[end] == ',' {
		return end + 1, dst
	}
	return end, bytes.TrimSuffix(dst, []byte(","))
}

// firstOf is the first element of an array, nil where there is none.
func firstOf(array []byte) []byte {
	for element, err := range jsonscan.Elements(array) {
		if err == nil {
			return element
		}
	}
	return nil
}

// memberOf is the value of an object's member, nil where there is none.
func memberOf(object []byte, key string) (value []byte) {
	for m, err := range jsonscan.Members(object) {
		if err == nil && string(m.Key) == key {
			value = m.Value
		}
	}
	return value
}
