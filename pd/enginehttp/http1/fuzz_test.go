package http1

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// stricter are the errors of this client for what net/http takes.
var stricter = []ProtocolError{
	"a line that ends in LF alone", "a header that goes on in the next line", "a header's name is not a token",
	"both a length and a transfer encoding", "HTTP/1.0 with a transfer encoding",
	"no status line of HTTP/1.0 or 1.1", "the status is not a number", "the status is not a number of three digits",
	"a control character in the status line", "another protocol, which was not asked for",
	"a control character in a chunk's extension", "a chunk's size is not a number", "the head is too long",
	"a header without a name",         // of a line that goes on in the next
	"a control character in a header", // of a trailer that nobody announced
}

// read is what a client makes of an answer.
type read struct {
	status int
	header http.Header
	body   []byte
	err    error
	inHead bool
}

// readOwn reads an answer that comes in pieces of so many bytes, 0 for at once; late: into room that is taken late.
func readOwn(answer []byte, method string, step int, late bool) (got read) {
	conn := newScripted(string(answer), io.EOF, step)
	transport := &Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil }}
	req, _ := http.NewRequest(method, "http://engine/", http.NoBody)
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return read{err: err, inHead: true}
	}
	got.status, got.header = resp.StatusCode, resp.Header
	from := io.Reader(resp.Body)
	if b, is := from.(*body); is && late {
		from = lateReader{b}
	}
	got.body, got.err = io.ReadAll(from)
	_ = resp.Body.Close()
	transport.CloseIdleConnections()
	return got
}

// lateReader reads a body into room that is taken late.
type lateReader struct{ *body }

func (r lateReader) Read(p []byte) (int, error) { return r.ReadLate(room(p)) }

// room is given, and so it may be taken at any time.
type room []byte

func (r room) Take() []byte { return r }
func (r room) Release()     {}

func readOracle(answer []byte, method string) (got read) {
	in := bufio.NewReader(bytes.NewReader(answer))
	for {
		resp, err := http.ReadResponse(in, &http.Request{Method: method})
		if err != nil {
			return read{err: err, inHead: true}
		}
		if resp.StatusCode >= 100 && resp.StatusCode < 200 && resp.StatusCode != http.StatusSwitchingProtocols {
			continue
		}
		got.status, got.header = resp.StatusCode, resp.Header
		got.body, got.err = io.ReadAll(resp.Body)
		return got
	}
}

// This client takes nothing that net/http refuses, makes the same of what both take, and refuses beyond that
// what is written down; however the answer is cut into pieces.
func FuzzResponse(f *testing.F) {
	for _, s := range scripts {
		if len(s.answer) < 4000 {
			f.Add([]byte(s.answer), s.method == http.MethodHead)
		}
	}
	f.Fuzz(func(t *testing.T, answer []byte, head bool) {
		method := http.MethodGet
		if head {
			method = http.MethodHead
		}
		own, oracle := readOwn(answer, method, 0, false), readOracle(answer, method)
		for how, again := range map[string]read{"byte by byte": readOwn(answer, method, 1, false), "late": readOwn(answer, method, 0, true), "late, byte by byte": readOwn(answer, method, 1, true)} {
			if again.status != own.status || !reflect.DeepEqual(again.header, own.header) || !bytes.Equal(again.body, own.body) || (again.err == nil) != (own.err == nil) {
				t.Errorf("at once %+v\n%s %+v", own, how, again)
			}
		}
		if oracle.err != nil && own.err == nil {
			t.Errorf("it takes %d %q; net/http: %v", own.status, own.body, oracle.err)
		}
		if oracle.err == nil && own.err != nil {
			var invalid ProtocolError
			if !errors.As(own.err, &invalid) || !slices.Contains(stricter, invalid) {
				t.Errorf("it refuses what net/http takes: %v", own.err)
			}
		}
		if own.inHead || oracle.inHead {
			return
		}
		if pragma := oracle.header["Pragma"]; len(pragma) > 0 {
			delete(own.header, "Cache-Control")
			delete(oracle.header, "Cache-Control")
		}
		if own.status != oracle.status || !reflect.DeepEqual(own.header, oracle.header) {
			t.Errorf("%d %v, net/http: %d %v", own.status, own.header, oracle.status, oracle.header)
		}
		if own.err == nil && oracle.err == nil && !bytes.Equal(own.body, oracle.body) || !bytes.HasPrefix(own.body, oracle.body) && !bytes.HasPrefix(oracle.body, own.body) {
			t.Errorf("%q, net/http: %q", own.body, oracle.body)
		}
	})
}

// Chunks that were written come out as they went in, however they are cut, and into buffers of any size.
func FuzzChunks(f *testing.F) {
	f.Add([]byte("hello, world"), uint64(1))
	f.Add(bytes.Repeat([]byte("0123456789"), 2000), uint64(2))
	f.Add([]byte{}, uint64(3))
	f.Fuzz(func(t *testing.T, data []byte, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 0))
		var wire []byte
		for left := data; len(left) > 0; {
			n := 1 + random.IntN(len(left))
			wire = append(wire, strings.Repeat("0", random.IntN(3))+hexOf(n)...)
			if random.IntN(4) == 0 {
				wire = append(wire, ";a=\"b\""...)
			}
			wire = append(append(append(wire, "\r\n"...), left[:n]...), "\r\n"...)
			left = left[n:]
		}
		wire = append(wire, "0\r\n"...)
		if random.IntN(2) == 0 {
			wire = append(wire, "X-A: b\r\nX-C: d\r\n"...)
		}
		wire = append(wire, "\r\nmore"...)
		var c chunks
		var out []byte
		rest := wire
		for c.state != chunksEnd {
			piece := bytes.Clone(rest[:1+random.IntN(len(rest))])
			into := piece // the same memory
			if random.IntN(2) == 0 {
				into = make([]byte, random.IntN(20))
			}
			n, used, err := c.decode(into, piece)
			if err != nil || n == 0 && used == 0 && len(into) > 0 {
				t.Fatalf("%d, %d, %v of %q", n, used, err, piece)
			}
			out, rest = append(out, into[:n]...), rest[used:]
		}
		if !bytes.Equal(out, data) || string(rest) != "more" {
			t.Errorf("%q came out of %q, %q is left", out, wire, rest)
		}
	})
}

func hexOf(n int) string {
	const digits = "0123456789aBcDeF"
	if n < 16 {
		return digits[n : n+1]
	}
	return hexOf(n/16) + digits[n%16:n%16+1]
}
