package gateway

import (
	"bytes"

	"github.com/tandem-gateway/tandem/pd/api"
)

// head is what the lines of a request's head have so far, as far as it decides where the
// message ends and which host it is for (RFC 9112 and 9110, without what they only tolerate).
type head struct {
	http10    bool
	authority []byte       // of a target in absolute form; Host must say the same
	origin    []byte       // of the page that asks, as a browser names it
	messages  bool         // it is for Anthropic's API
	dialect   *api.Dialect // of the path; nil: there is none
	fields    int
	host      bool // there is one, and it is valid
	sized     bool // there is a Content-Length
	length    int64
	chunked   bool
	skipped   bool // an empty line before it
}

// reset makes it the next message's. The line that was skipped is before this one.
func (h *head) reset() { *h = head{authority: h.authority[:0], origin: h.origin[:0]} }

var (
	errRequestLine = malformed("its first line is no request line of HTTP/1.1")
	errVersion     = &badMessage{status: 505, why: "only HTTP/1.1 and HTTP/1.0 are served"}
	errMethod      = &badMessage{status: 405, why: "the method is not served"}
	errTargetForm  = malformed("its target is neither a path nor a URL of this host")
	errTargetByte  = malformed("its target contains a character that must be escaped")
	errNoPath      = &badMessage{status: 404, why: "there is nothing at a path that begins with two slashes"}
	errFieldLine   = malformed("a header line has no valid name")
	errTwoHosts    = malformed("it has two Host headers")
	errHost        = malformed("its Host is missing or is not a host")
	errOtherHost   = malformed("its target names another host than its Host header")
	errTwoLengths  = malformed("it has two Content-Length headers")
	errLength      = malformed("its Content-Length is not a number")
	errTwoCodings  = malformed("it has two Transfer-Encoding headers")
	errCoding      = malformed("chunked is the only Transfer-Encoding that is served")
	errBothLengths = malformed("it has both a Content-Length and a Transfer-Encoding")
	errOldChunks   = malformed("HTTP/1.0 has no Transfer-Encoding")
	errExpect      = &badMessage{status: 417, why: "it expects something other than 100-continue"}
	errTrailer     = malformed("a trailer line names what may not be in trailers")
)

// requestLine takes a first line without its end.
func (h *head) requestLine(line []byte) *badMessage {
	method, rest, found := bytes.Cut(line, []byte{' '})
	space := bytes.LastIndexByte(rest, ' ')
	if !found || space < 0 || !isToken(method) {
		return errRequestLine
	}
	target, version := rest[:space], rest[space+1:]
	switch {
	case string(version) == "HTTP/1.1":
	case string(version) == "HTTP/1.0":
		h.http10 = true
	case len(version) == 8 && string(version[:5]) == "HTTP/" && version[5] > '0' && version[5] <= '9' && version[6] == '.':
		return errVersion
	default:
		return errRequestLine
	}
	if string(method) == "CONNECT" || string(method) == "TRACE" {
		return errMethod
	}
	if len(target) > maxTarget {
		return errTarget
	}
	return h.target(target)
}

// target takes a request target in origin or absolute form. Two slashes at its beginning
// are no path: fasthttp takes what follows for a host where Host is missing, and proxies
// merge them, so that what they forbid would be another path here.
func (h *head) target(target []byte) *badMessage {
	for _, c := range target {
		if c <= ' ' || c >= 0x7f || c == '#' {
			return errTargetByte
		}
	}
	path := target
	for _, scheme := range []string{"http://", "https://"} {
		if len(target) > len(scheme) && bytes.EqualFold(target[:len(scheme)], []byte(scheme)) {
			path = target[len(scheme):]
			end := bytes.IndexAny(path, "/?")
			if end < 0 {
				end = len(path)
			}
			h.authority, path = append(h.authority, path[:end]...), path[end:]
			if !isHost(h.authority) {
				return errTargetForm
			}
			break
		}
	}
	if len(h.authority) == 0 && (len(path) == 0 || path[0] != '/') {
		return errTargetForm
	}
	if bytes.HasPrefix(path, []byte("//")) {
		return errNoPath
	}
	h.messages = bytes.HasPrefix(path, []byte("/v1/messages"))
	path, _, _ = bytes.Cut(path, []byte{'?'})
	h.dialect = dialectAt[string(path)]
	return nil
}

// dialectAt is the API of each path.
var dialectAt = dialectsByPath()

func dialectsByPath() map[string]*api.Dialect {
	at := make(map[string]*api.Dialect)
	for _, d := range api.Dialects() {
		at[d.Path] = d
	}
	return at
}

// field takes a header line without its end.
func (h *head) field(line []byte) *badMessage {
	name, value, wrong := h.split(line)
	if wrong != nil {
		return wrong
	}
	switch len(name) {
	case len("Host"):
		if bytes.EqualFold(name, []byte("Host")) {
			return h.setHost(value)
		}
	case len("Expect"):
		if bytes.EqualFold(name, []byte("Expect")) && !bytes.EqualFold(value, expectsContinue) {
			return errExpect
		}
		if bytes.EqualFold(name, []byte("Origin")) {
			h.origin = append(h.origin[:0], value...)
		}
	case len("Content-Length"):
		if bytes.EqualFold(name, []byte("Content-Length")) {
			return h.setLength(value)
		}
	case len("Transfer-Encoding"):
		if bytes.EqualFold(name, []byte("Transfer-Encoding")) {
			return h.setCoding(value)
		}
	}
	return nil
}

// trailer takes a line after the last chunk. What says how long a message is, or which host it is
// for, came too late.
func (h *head) trailer(line []byte) *badMessage {
	name, _, wrong := h.split(line)
	if wrong == errFields {
		return errTrailers
	}
	if wrong != nil {
		return wrong
	}
	for _, late := range []string{"Host", "Content-Length", "Transfer-Encoding"} {
		if bytes.EqualFold(name, []byte(late)) {
			return errTrailer
		}
	}
	return nil
}

// split takes a line apart. A line that begins with a space continues the one before it in
// old HTTP; here it has no name.
func (h *head) split(line []byte) (name, value []byte, wrong *badMessage) {
	if h.fields++; h.fields > maxFields {
		return nil, nil, errFields
	}
	name, value, found := bytes.Cut(line, []byte{':'})
	if !found || !isToken(name) {
		return nil, nil, errFieldLine
	}
	if wrong := plain(value); wrong != nil {
		return nil, nil, wrong
	}
	return name, trimBlank(value), nil
}

func (h *head) setHost(value []byte) *badMessage {
	if h.host {
		return errTwoHosts
	}
	if !isHost(value) {
		return errHost
	}
	if len(h.authority) > 0 && !bytes.EqualFold(h.authority, value) {
		return errOtherHost
	}
	h.host = true
	return nil
}

// hugeLength stands for any Content-Length beyond all limits, in bytes.
const hugeLength = 1 << 50

// setLength takes a Content-Length.
func (h *head) setLength(value []byte) *badMessage {
	if h.sized {
		return errTwoLengths
	}
	if len(value) == 0 {
		return errLength
	}
	h.sized = true
	for _, c := range value {
		if c < '0' || c > '9' {
			return errLength
		}
		h.length = min(h.length*10+int64(c-'0'), hugeLength)
	}
	return nil
}

func (h *head) setCoding(value []byte) *badMessage {
	switch {
	case h.chunked:
		return errTwoCodings
	case h.http10:
		return errOldChunks
	case !bytes.EqualFold(value, []byte("chunked")):
		return errCoding
	}
	h.chunked = true
	return nil
}

// end judges the head as a whole.
func (h *head) end() *badMessage {
	switch {
	case h.chunked && h.sized:
		return errBothLengths
	case !h.host && !h.http10, !h.host && len(h.authority) > 0:
		return errHost
	}
	return nil
}

// isHost reports whether a text is a host as Host has it: a name, an IPv4 address or an
// IPv6 address in brackets, and perhaps a port.
func isHost(text []byte) bool {
	name, port := text, []byte(nil)
	if len(text) > 0 && text[0] == '[' {
		end := bytes.IndexByte(text, ']')
		if end < 3 {
			return false
		}
		for _, c := range text[1:end] {
			if hexDigit(c) < 0 && c != ':' && c != '.' {
				return false
			}
		}
		name, port = text[:end+1], text[end+1:]
	} else {
		if colon := bytes.IndexByte(text, ':'); colon >= 0 {
			name, port = text[:colon], text[colon:]
		}
		for _, c := range name {
			if byteKind[c]&hostByte == 0 {
				return false
			}
		}
	}
	return len(name) > 0 && (len(port) == 0 || isPort(port))
}

// isPort reports whether a text is a colon and at most five digits.
func isPort(text []byte) bool {
	if text[0] != ':' || len(text) > 6 {
		return false
	}
	for _, c := range text[1:] {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

// isToken reports whether a text can be a method or a header's name.
func isToken(text []byte) bool {
	for _, c := range text {
		if byteKind[c]&tokenByte == 0 {
			return false
		}
	}
	return len(text) > 0
}

// plain refuses control bytes; a tab is a space.
func plain(text []byte) *badMessage {
	for _, c := range text {
		if byteKind[c]&controlByte != 0 {
			return errControl
		}
	}
	return nil
}

func trimBlank(text []byte) []byte {
	for len(text) > 0 && (text[0] == ' ' || text[0] == '\t') {
		text = text[1:]
	}
	for len(text) > 0 && (text[len(text)-1] == ' ' || text[len(text)-1] == '\t') {
		text = text[:len(text)-1]
	}
	return text
}

// What a byte may be part of.
const (
	tokenByte   = 1 << iota
	hostByte    // of a host's name
	controlByte // of nothing
)

var byteKind = kinds()

func kinds() (table [256]byte) {
	for c := range table {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if letter || c < 0x80 && bytes.IndexByte([]byte("!#$%&'*+-.^_`|~"), byte(c)) >= 0 {
			table[c] |= tokenByte
		}
		if letter || c == '-' || c == '.' || c == '_' || c == '~' {
			table[c] |= hostByte
		}
		if c < ' ' && c != '\t' || c == 0x7f {
			table[c] |= controlByte
		}
	}
	return table
}
