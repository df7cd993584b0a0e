package gateway

import (
	"strings"
	"testing"
)

// A message as framing takes or refuses it: one reading only, or none.
func TestFraming_Messages(t *testing.T) {
	long := func(n int) string { return strings.Repeat("x", n) }
	const host = "Host: x\r\n"
	for _, x := range []struct {
		name, text string
		want       *badMessage // nil: one whole message
	}{
		{"origin form", "GET /a?b=c HTTP/1.1\r\nHost: x\r\n\r\n", nil},
		{"lower case host header", "GET / HTTP/1.1\r\nhost: x\r\n\r\n", nil},
		{"absolute form", "GET http://x:80/a HTTP/1.1\r\nHost: X:80\r\n\r\n", nil},
		{"absolute form without a path", "GET HTTPS://x HTTP/1.1\r\nHost: x\r\n\r\n", nil},
		{"absolute form with a query alone", "GET http://x?a HTTP/1.1\r\nHost: x\r\n\r\n", nil},
		{"absolute form of no host", "GET http:///a HTTP/1.1\r\nHost: x\r\n\r\n", errTargetForm},
		{"absolute form of a bad host", "GET http://x@y/a HTTP/1.1\r\nHost: x\r\n\r\n", errTargetForm},
		{"a scheme alone", "GET http:// HTTP/1.1\r\nHost: x\r\n\r\n", errTargetForm},
		{"another scheme", "GET ftp://x/ HTTP/1.1\r\nHost: x\r\n\r\n", errTargetForm},
		{"asterisk form", "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", errTargetForm},
		{"no target", "GET  HTTP/1.1\r\nHost: x\r\n\r\n", errTargetForm},
		{"a relative target", "GET a HTTP/1.1\r\nHost: x\r\n\r\n", errTargetForm},
		{"two slashes", "GET //a HTTP/1.1\r\nHost: x\r\n\r\n", errNoPath},
		{"a space in the target", "GET /a b HTTP/1.1\r\nHost: x\r\n\r\n", errTargetByte},
		{"a fragment", "GET /a#b HTTP/1.1\r\nHost: x\r\n\r\n", errTargetByte},
		{"a byte beyond ASCII", "GET /\x80 HTTP/1.1\r\nHost: x\r\n\r\n", errTargetByte},
		{"the last printable byte", "GET /~ HTTP/1.1\r\nHost: x\r\n\r\n", nil},
		{"one word", "GET\r\n", errRequestLine},
		{"two words", "GET /\r\n", errRequestLine},
		{"a method that is no token", "G(T / HTTP/1.1\r\n", errRequestLine},
		{"no method", " / HTTP/1.1\r\n", errRequestLine},
		{"another protocol", "GET / HTTPS/1.1\r\n", errRequestLine},
		{"a version of one digit", "GET / HTTP/1\r\n", errRequestLine},
		{"HTTP/0.9", "GET / HTTP/0.9\r\n", errRequestLine},
		{"HTTP/2.0", "GET / HTTP/2.0\r\n", errVersion},
		{"HTTP/9.9", "GET / HTTP/9.9\r\n", errVersion},
		{"HTTP/1.2", "GET / HTTP/1.2\r\n", errVersion},
		{"HTTP/:.1", "GET / HTTP/:.1\r\n", errRequestLine},
		{"HTTP/1-1", "GET / HTTP/1-1\r\n", errRequestLine},
		{"CONNECT", "CONNECT /x HTTP/1.1\r\n", errMethod},
		{"TRACE", "TRACE / HTTP/1.1\r\n", errMethod},
		{"the longest target", "GET /" + long(maxTarget-1) + " HTTP/1.1\r\nHost: x\r\n\r\n", nil},
		{"a longer target", "GET /" + long(maxTarget) + " HTTP/1.1\r\nHost: x\r\n\r\n", errTarget},

		{"HTTP/1.0 without a host", "GET / HTTP/1.0\r\n\r\n", nil},
		{"HTTP/1.0 in absolute form without a host", "GET http://x/ HTTP/1.0\r\n\r\n", errHost},
		{"two hosts", "GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n", errTwoHosts},
		{"another host than the target's", "GET http://y/ HTTP/1.1\r\nHost: x\r\n\r\n", errOtherHost},
		{"a name with a space", "GET / HTTP/1.1\r\nHo st: x\r\n\r\n", errFieldLine},
		{"no name", "GET / HTTP/1.1\r\n: x\r\n\r\n", errFieldLine},
		{"no colon", "GET / HTTP/1.1\r\nHost\r\n\r\n", errFieldLine},
		{"a tab in a value", "GET / HTTP/1.1\r\n" + host + "A: \tb\tc \t\r\n\r\n", nil},
		{"a control byte in a value", "GET / HTTP/1.1\r\n" + host + "A: b\x02\r\n\r\n", errControl},
		{"a carriage return in a value", "GET / HTTP/1.1\r\n" + host + "A: b\rc\r\n\r\n", errControl},
		{"DEL in a value", "GET / HTTP/1.1\r\n" + host + "A: \x7f\r\n\r\n", errControl},
		{"bytes beyond ASCII in a value", "GET / HTTP/1.1\r\n" + host + "A: \xff\r\n\r\n", nil},
		{"the most headers", "GET / HTTP/1.1\r\n" + host + strings.Repeat("A: b\r\n", maxFields-1) + "\r\n", nil},
		{"one header more", "GET / HTTP/1.1\r\n" + host + strings.Repeat("A: b\r\n", maxFields) + "\r\n", errFields},

		{"to be continued", "POST / HTTP/1.1\r\n" + host + "Expect: 100-Continue\r\n\r\n", nil},
		{"another expectation", "POST / HTTP/1.1\r\n" + host + "expect: gold\r\n\r\n", errExpect},
		{"a header as long as Expect", "POST / HTTP/1.1\r\n" + host + "Accept: gold\r\n\r\n", nil},
		{"a body", "POST / HTTP/1.1\r\n" + host + "Content-Length: 3\r\n\r\nabc", nil},
		{"a body of nothing", "POST / HTTP/1.1\r\n" + host + "Content-Length: 0\r\n\r\n", nil},
		{"two lengths", "POST / HTTP/1.1\r\n" + host + "Content-Length: 3\r\ncontent-length: 3\r\n\r\nabc", errTwoLengths},
		{"no length", "POST / HTTP/1.1\r\n" + host + "Content-Length: \r\n\r\n", errLength},
		{"a signed length", "POST / HTTP/1.1\r\n" + host + "Content-Length: +3\r\n\r\nabc", errLength},
		{"a length in words", "POST / HTTP/1.1\r\n" + host + "Content-Length: 3:\r\n\r\nabc", errLength},
		{"digits up to nine", "POST / HTTP/1.1\r\n" + host + "Content-Length: 09\r\n\r\n" + long(9), nil},
		{"the largest body", "POST / HTTP/1.1\r\n" + host + "Content-Length: 16384\r\n\r\n" + long(fuzzLimit), nil},
		{"a larger body", "POST / HTTP/1.1\r\n" + host + "Content-Length: 16385\r\n\r\n", errBodyLength},

		{"chunks", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: Chunked\r\n\r\n3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n", nil},
		{"chunks twice", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", errTwoCodings},
		{"another coding", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", errCoding},
		{"chunks in HTTP/1.0", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", errOldChunks},
		{"chunks and a length", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n", errBothLengths},
		{"no size", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n\r\n", errChunkSize},
		{"no digit", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\ng\r\n", errChunkSize},
		{"digits and letters at their ends", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0000000000000009\r\n012345678\r\nf\r\n" + long(15) + "\r\nF\r\n" + long(15) + "\r\na\r\n" + long(10) + "\r\n0\r\n\r\n", nil},
		{"too many digits", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n00000000000000001\r\na\r\n0\r\n\r\n", errChunkSize},
		{"a negative size", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n", errChunkSize},
		{"the largest chunk", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n4000\r\n" + long(fuzzLimit) + "\r\n0\r\n\r\n", nil},
		{"a larger chunk", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n4001\r\n", errBodyLength},
		{"an extension", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0;a=\"b\"\r\n\r\n", nil},
		{"a control byte in one", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0;a=\x01\r\n\r\n", errControl},
		{"the longest line of a chunk", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0;" + long(maxChunkLine-4) + "\r\n\r\n", nil},
		{"a longer one", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0;" + long(maxChunkLine-3) + "\r\n\r\n", errChunkLine},
		{"a chunk that goes on", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n", errChunkEnd},
		{"trailers", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0\r\nA: b\r\n\r\n", nil},
		{"a trailer without a name", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0\r\nA\r\n\r\n", errFieldLine},
		{"a length in the trailers", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0\r\ncontent-length: 5\r\n\r\n", errTrailer},
		{"a coding in the trailers", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0\r\nTransfer-Encoding: x\r\n\r\n", errTrailer},
		{"the most trailers", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0\r\n" + strings.Repeat("A: b\r\n", maxFields) + "\r\n", nil},
		{"one more", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0\r\n" + strings.Repeat("A: b\r\n", maxFields+1) + "\r\n", errTrailers},
		{"the largest trailers", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0\r\nA: " + long(maxTrailers-7) + "\r\n\r\n", nil},
		{"a byte more", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0\r\nA: " + long(maxTrailers-6) + "\r\n\r\n", errTrailers},

		{"an empty line before", "\r\nGET / HTTP/1.1\r\n" + host + "\r\n", nil},
		{"two empty lines before", "\r\n\r\n", errRequestLine},
		{"a line feed alone", "GET / HTTP/1.1\n", errLineEnd},
	} {
		passed, messages, wrong := readByFraming([]byte(x.text))
		if wrong != x.want || x.want == nil && (messages != 1 || string(passed) != x.text) {
			t.Errorf("%s: %d messages, %v, want %v", x.name, messages, wrong, x.want)
		}
		f := framing{maxHead: fuzzLimit, maxBody: fuzzLimit} // all at once
		if n, wrong := f.follow([]byte(x.text)); wrong != x.want || x.want == nil && n != len(x.text) {
			t.Errorf("%s at once: %d bytes, %v, want %v", x.name, n, wrong, x.want)
		}
	}
}

func TestIsHost(t *testing.T) {
	for text, want := range map[string]bool{
		"x": true, "a-b.c_d~e": true, "x:": true, "x:0": true, "x:65535": true, "x:123456": false, "x:8a": false, "x:-1": false, "": false, ":80": false,
		"127.0.0.1:80": true, "[::1]": true, "[::1]:80": true, "[::ffff:1.2.3.4]": true, "[::]": true, "[:]": false, "[]": false, "[::1": false, "[::g]": false, "[::1]x": false, "[::1]:": true,
		"a b": false, "a/b": false, "a@b": false, "a,b": false, "x:8:9": false, "ä": false, "[::1]:80:": false,
	} {
		if got := isHost([]byte(text)); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}
