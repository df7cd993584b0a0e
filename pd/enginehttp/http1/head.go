package http1

import (
	"bytes"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
)

// isText reports whether a byte may stand in a header's value.
func isText(b byte) bool { return b >= ' ' && b != 0x7f || b == '\t' }

// tokenBytes are those that a header's name and a method may have.
var tokenBytes = func() (is [256]bool) {
	for _, b := range []byte("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") {
		is[b] = true
	}
	return is
}()

// hostBytes are those that the host of a request may have.
var hostBytes = func() (is [256]bool) {
	for b := '!'; b < 0x7f; b++ {
		is[b] = !strings.ContainsRune("/@\\,?#\"<>", b)
	}
	return is
}()

func isToken(s string) bool {
	for i := range len(s) {
		if !tokenBytes[s[i]] {
			return false
		}
	}
	return s != ""
}

func isValue(s string) bool {
	for i := range len(s) {
		if !isText(s[i]) {
			return false
		}
	}
	return true
}

// endOfHead looks for the end of a head in data, from the line that begins at start on. It returns where the
// head ends, 0 if it goes on, and where the line begins that is not complete.
func endOfHead(data []byte, start int) (end, line int, err error) {
	for {
		i := bytes.IndexByte(data[start:], '\n')
		if i < 0 {
			return 0, start, nil
		}
		if i == 0 || data[start+i-1] != '\r' {
			return 0, start, ProtocolError("a line that ends in LF alone")
		}
		if start == 0 { // what is not HTTP may never send an empty line
			if _, err := readStatus(data[:i-1]); err != nil {
				return 0, start, err
			}
		}
		start += i + 1
		if i == 1 {
			return start, start, nil
		}
	}
}

// status is the first line of an answer.
type status struct {
	minor int // of HTTP/1
	code  int
}

func readStatus(line []byte) (s status, err error) {
	const code = len("HTTP/1.1 ")
	if len(line) < code+3 || string(line[:7]) != "HTTP/1." || line[7] != '0' && line[7] != '1' || line[8] != ' ' {
		return s, ProtocolError("no status line of HTTP/1.0 or 1.1")
	}
	s.minor = int(line[7] - '0')
	for _, b := range line[code : code+3] {
		if b < '0' || b > '9' {
			return s, ProtocolError("the status is not a number")
		}
		s.code = s.code*10 + int(b-'0')
	}
	rest := line[code+3:]
	if s.code < 100 || len(rest) > 0 && rest[0] != ' ' {
		return s, ProtocolError("the status is not a number of three digits")
	}
	for _, b := range rest {
		if !isText(b) {
			return s, ProtocolError("a control character in the status line")
		}
	}
	return s, nil
}

// readFields reads lines of names and values, which it changes: it puts names in their canonical form. The values of the
// header are in room, where that is enough.
func readFields(lines []byte, room []string) (http.Header, error) {
	count := 0
	for rest := lines; len(rest) > 0; count++ {
		end := bytes.IndexByte(rest, '\n')
		if err := canonicalize(rest[:end-1]); err != nil {
			return nil, err
		}
		rest = rest[end+1:]
	}
	text := string(lines)
	header, values := make(http.Header, count), slices.Grow(room, count)
	for len(text) > 0 {
		line, rest, _ := strings.Cut(text, "\n")
		text = rest
		name, value, _ := strings.Cut(line, ":")
		value = textproto.TrimString(value) // with the CR of the line
		if before, is := header[name]; is {
			header[name] = append(before, value)
			continue
		}
		values = append(values, value)
		header[name] = values[len(values)-1 : len(values) : len(values)]
	}
	return header, nil
}

// canonicalize puts the name of a line in its canonical form, after it has proved the line valid.
func canonicalize(line []byte) error {
	colon := bytes.IndexByte(line, ':')
	switch {
	case len(line) > 0 && (line[0] == ' ' || line[0] == '\t'):
		return ProtocolError("a header that goes on in the next line")
	case colon <= 0:
		return ProtocolError("a header without a name")
	}
	first := true
	for i, b := range line[:colon] {
		if !tokenBytes[b] {
			return ProtocolError("a header's name is not a token")
		}
		switch {
		case first && 'a' <= b && b <= 'z':
			line[i] = b - ('a' - 'A')
		case !first && 'A' <= b && b <= 'Z':
			line[i] = b + ('a' - 'A')
		}
		first = b == '-'
	}
	for _, b := range line[colon+1:] {
		if !isText(b) {
			return ProtocolError("a control character in a header")
		}
	}
	return nil
}

// framing is how the body of an answer ends.
type framing uint8

const (
	noBody framing = iota
	byLength
	byChunks
	byClose
)

// frame says how the body of an answer ends, and sets what an http.Response says of that as net/http does.
func frame(resp *http.Response, method string) (framing, error) {
	lengths := resp.Header["Content-Length"]
	length, err := contentLength(lengths)
	if err != nil {
		return noBody, err
	}
	if len(lengths) > 1 {
		resp.Header["Content-Length"] = lengths[:1] // the others are equal
	}
	encodings, encoded := resp.Header["Transfer-Encoding"]
	if encoded {
		switch {
		case resp.ProtoMinor == 0:
			return noBody, ProtocolError("HTTP/1.0 with a transfer encoding")
		case len(encodings) != 1 || !strings.EqualFold(encodings[0], "chunked"):
			return noBody, ProtocolError("a transfer encoding other than chunked")
		case length >= 0:
			return noBody, ProtocolError("both a length and a transfer encoding")
		}
		delete(resp.Header, "Transfer-Encoding")
		resp.TransferEncoding = []string{"chunked"}
	}
	if err := announceTrailers(resp); err != nil {
		return noBody, err
	}
	connection := resp.Header["Connection"]
	resp.Close = hasToken(connection, "close") || resp.ProtoMinor == 0 && !hasToken(connection, "keep-alive")
	if resp.Close && resp.ProtoMinor > 0 {
		delete(resp.Header, "Connection")
	}
	resp.ContentLength = length
	switch {
	case !bodyAllowed(method, resp.StatusCode):
		if method != http.MethodHead {
			resp.ContentLength = 0
		}
		return noBody, nil
	case encoded:
		return byChunks, nil
	case length == 0:
		return noBody, nil
	case length > 0:
		return byLength, nil
	}
	resp.Close = true
	return byClose, nil
}

// contentLength reads what an answer announces, -1 if it announces none.
func contentLength(values []string) (int64, error) {
	if len(values) == 0 {
		return -1, nil
	}
	for _, value := range values[1:] {
		if value != values[0] {
			return 0, ProtocolError("different lengths")
		}
	}
	for _, b := range []byte(values[0]) {
		if b < '0' || b > '9' {
			return 0, ProtocolError("the length is not a number")
		}
	}
	length, err := strconv.ParseInt(values[0], 10, 64)
	if err != nil {
		return 0, ProtocolError("the length is not a number")
	}
	return length, nil
}

// announceTrailers makes room for the trailers that an answer in chunks announces.
func announceTrailers(resp *http.Response) error {
	if resp.TransferEncoding == nil {
		return nil
	}
	names, announced := resp.Header["Trailer"]
	if !announced {
		return nil
	}
	delete(resp.Header, "Trailer")
	for _, list := range names {
		for name := range strings.SplitSeq(list, ",") {
			name = http.CanonicalHeaderKey(strings.Trim(name, " \t"))
			switch name {
			case "":
				continue
			case "Transfer-Encoding", "Trailer", "Content-Length":
				return ProtocolError("a trailer that says where the answer ends")
			}
			if resp.Trailer == nil {
				resp.Trailer = http.Header{}
			}
			resp.Trailer[name] = nil
		}
	}
	return nil
}

// listsToken reports whether a list has a token, in upper or lower case.
func listsToken(list, token string) bool {
	for one := range strings.SplitSeq(list, ",") {
		if strings.EqualFold(strings.Trim(one, " \t"), token) {
			return true
		}
	}
	return false
}
