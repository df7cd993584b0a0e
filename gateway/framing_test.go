package gateway

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"
)

const typicalHead = "POST /v1/chat/completions HTTP/1.1\r\n" +
	"Host: llm.example.com\r\n" +
	"Accept: application/json\r\n" +
	"Accept-Encoding: gzip, deflate\r\n" +
	"Connection: keep-alive\r\n" +
	"Content-Type: application/json\r\n" +
	"User-Agent: OpenAI/Python 1.99.1\r\n" +
	"X-Stainless-Lang: python\r\n" +
	"X-Stainless-Package-Version: 1.99.1\r\n" +
	"X-Stainless-OS: Linux\r\n" +
	"X-Stainless-Arch: x64\r\n" +
	"X-Stainless-Runtime: CPython\r\n" +
	"Authorization: Bearer sk-0123456789abcdef0123456789abcdef0123456789abcdef\r\n" +
	"X-Stainless-Async: false\r\n" +
	"X-Stainless-Retry-Count: 0\r\n" +
	"Content-Length: 4\r\n\r\n"

// Budget: 1 us for the head that OpenAI's SDK sends, without an allocation.
func BenchmarkFraming(b *testing.B) {
	message := []byte(typicalHead + "body")
	f := framing{maxHead: 64 << 10, maxBody: 1 << 20}
	b.ReportAllocs()
	b.SetBytes(int64(len(message)))
	for b.Loop() {
		if _, wrong := f.follow(message); wrong != nil {
			b.Fatal(wrong)
		}
	}
}

// A body costs nothing to follow, whatever its length.
func BenchmarkFraming_Body(b *testing.B) {
	piece := make([]byte, 64<<10)
	f := framing{maxHead: 64 << 10, maxBody: 1 << 40}
	b.ReportAllocs()
	for b.Loop() {
		f.at, f.left = inBody, int64(len(piece))
		if _, wrong := f.follow(piece); wrong != nil {
			b.Fatal(wrong)
		}
	}
}

// parsedRequest is a message as one of the parsers read it.
type parsedRequest struct {
	method, target, host, body string
}

// readByFraming lets framing follow bytes one by one, so that every end of a message is
// seen. It returns what it lets pass, and how many whole messages that is.
func readByFraming(input []byte) (passed []byte, messages int, wrong *badMessage) {
	f := framing{maxHead: fuzzLimit, maxBody: fuzzLimit}
	for _, b := range input {
		if _, wrong = f.follow([]byte{b}); wrong != nil {
			break
		}
		passed = append(passed, b)
		if f.at == inRequestLine && len(f.held) == 0 && !f.head.skipped {
			messages++
		}
	}
	return passed, messages, wrong
}

const fuzzLimit = 16 << 10

// pieces is a connection whose bytes come in pieces; what is written to it is dropped.
type pieces struct {
	input []byte
	size  int
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.input) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.input[:min(p.size, len(p.input))])
	p.input = p.input[n:]
	return n, nil
}
func (p *pieces) Write(b []byte) (int, error)      { return len(b), nil }
func (p *pieces) Close() error                     { return nil }
func (p *pieces) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (p *pieces) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (p *pieces) SetDeadline(time.Time) error      { return nil }
func (p *pieces) SetReadDeadline(time.Time) error  { return nil }
func (p *pieces) SetWriteDeadline(time.Time) error { return nil }

// readByFasthttp is what handlers get of a client's connection.
func readByFasthttp(input []byte, size int) (all []parsedRequest) {
	ln := newListener(nil, Config{MaxHeader: fuzzLimit, MaxBody: fuzzLimit, WriteTimeout: time.Second}, slog.New(slog.DiscardHandler))
	server := fasthttp.Server{
		StreamRequestBody: true, DisablePreParseMultipartForm: true, ReadBufferSize: fuzzLimit, MaxRequestBodySize: fuzzLimit,
		Logger: quiet{},
		Handler: func(ctx *fasthttp.RequestCtx) {
			var body []byte
			if stream := ctx.RequestBodyStream(); stream != nil {
				var err error
				if body, err = io.ReadAll(stream); err != nil || ctx.Conn().(*clientConn).refused != nil || ctx.Conn().(*clientConn).ended.Load() && ctx.Request.Header.ContentLength() < 0 {
					ctx.SetConnectionClose()
					return
				}
				if length := ctx.Request.Header.ContentLength(); length >= 0 && len(body) != length {
					ctx.SetConnectionClose()
					return
				}
				_ = ctx.Request.CloseBodyStream()
			}
			all = append(all, parsedRequest{string(ctx.Method()), string(ctx.Request.Header.RequestURI()), string(ctx.Request.Header.Host()), string(body)})
		},
	}
	_ = server.ServeConn(ln.track(&pieces{input: input, size: size}))
	return all
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}

// readByNetHTTP is what Go's own server, a parser of another making, reads of bytes.
func readByNetHTTP(input []byte, most int) (all []parsedRequest, err error) {
	in := bufio.NewReaderSize(bytes.NewReader(input), fuzzLimit)
	for range most {
		if empty, _ := in.Peek(2); string(empty) == "\r\n" {
			_, _ = in.Discard(2) // of what was peeked
		}
		r, err := http.ReadRequest(in)
		if err != nil {
			return all, err
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return all, err
		}
		all = append(all, parsedRequest{r.Method, r.RequestURI, r.Host, string(body)})
	}
	return all, nil
}

// Whatever comes, in whatever pieces: the server handles the messages that framing counts,
// and no other parser reads what framing lets through in another way.
func FuzzFraming(f *testing.F) {
	body := "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody"
	chunks := "POST /b HTTP/1.1\r\nHost: x:80\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n1\r\nd\r\n0\r\nX: y\r\n\r\n"
	for _, seed := range []string{
		typicalHead + "body", body, chunks, body + chunks + body, chunks + "\r\n" + body,
		strings.Replace(body, "\r\nContent", "\r\nTransfer-Encoding: chunked\r\nContent", 1) + "0\r\n\r\n",
		strings.Replace(chunks, ": chunked", ":\r\n chunked", 1), strings.Replace(chunks, "1.1", "1.0", 1),
		"GET http://x/v1/models?a=http://y HTTP/1.1\r\nHost: x\r\n\r\n", "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" + body,
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\n" + body, body + "\x00", strings.ReplaceAll(body, "\r\n", "\n"),
	} {
		f.Add([]byte(seed), uint8(200))
		f.Add([]byte(seed), uint8(1))
	}
	f.Fuzz(func(t *testing.T, input []byte, piece uint8) {
		if bytes.Contains(bytes.ToLower(input), []byte("100-continue")) || bytes.Contains(bytes.ToLower(input), []byte("connection")) {
			return // which side ends a connection is not the question
		}
		size := int(piece) + 1
		passed, messages, wrong := readByFraming(input)
		served := readByFasthttp(input, size)
		others, err := readByNetHTTP(passed, messages)
		if err != nil && !stricter(err) {
			t.Fatalf("net/http: %v, of %q, that framing takes", err, passed)
		}
		if len(served) > messages {
			t.Fatalf("fasthttp served %d messages, framing counts %d (%v): %q", len(served), messages, wrong, served)
		}
		for i := range min(len(served), len(others)) {
			if !reflect.DeepEqual(served[i], others[i]) && !strings.HasPrefix(served[i].target, "http") {
				t.Fatalf("message %d: fasthttp %q, net/http %q", i, served[i], others[i])
			}
		}
	})
}

// stricter reports that net/http refuses what is well-formed: escapes that are none.
func stricter(err error) bool {
	return strings.Contains(err.Error(), "invalid URL escape") || strings.Contains(err.Error(), "parse ")
}

func TestFraming_InPiecesAsAtOnce(t *testing.T) {
	message := typicalHead + "body" + "POST /b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\nX: y\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n"
	for size := 1; size < len(message); size++ {
		if got := readByFasthttp([]byte(message), size); len(got) != 3 || got[1].body != "abc" {
			t.Fatalf("in pieces of %d bytes: %q", size, got)
		}
	}
}

// What is wrong with a message is found in the byte that shows it, and what was before it
// is served.
func TestFraming_StopsAtTheMessageThatIsWrong(t *testing.T) {
	good := "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
	for bad, want := range map[string]*badMessage{
		"GET / HTTP/1.1\r\nHost : x\r\n\r\n":      errFieldLine,
		"GET / HTTP/1.1\r\nHost: x\r\n y\r\n\r\n": errFieldLine,
		"GET / HTTP/1.1\nHost: x\r\n\r\n":         errLineEnd,
		"GET / HTTP/1.1\r\n\r\n":                  errHost,
		"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n": errBothLengths,
		"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n":         errBodyLength,
		"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n":           errChunkEnd,
		"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nHost: y\r\n\r\n":  errTrailer,
		"GET http://y/ HTTP/1.1\r\nHost: x\r\n\r\n":                                            errOtherHost,
		"\r\n\r\n": errRequestLine,
		"\x00":     errControl,
	} {
		passed, messages, wrong := readByFraming([]byte(good + bad + good))
		if messages != 1 || wrong != want || !strings.HasPrefix(good+bad, string(passed)) {
			t.Errorf("%q: %d messages before, %v, want %v", bad, messages, wrong, want)
		}
		for _, size := range []int{1, 7, 1000} {
			if got := readByFasthttp([]byte(good+bad+good), size); len(got) != 1 {
				t.Errorf("%q in pieces of %d bytes: %d requests were served", bad, size, len(got))
			}
		}
	}
}

// The parser of a second message gets a byte to refuse: for an error alone it closes the
// connection without an answer.
func TestClientConn_ARefusalIsReadAsAByteAndAnError(t *testing.T) {
	good, bad := "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "GET / HTTP/9.9\r\n"
	ln := newListener(nil, Config{MaxHeader: fuzzLimit, MaxBody: fuzzLimit}, slog.New(slog.DiscardHandler))
	c := ln.track(&pieces{input: []byte(good + bad), size: 1000})
	p := make([]byte, 1000)
	if n, err := c.Read(p); string(p[:n]) != good || err != nil || c.refused != nil {
		t.Fatalf("first %q, %v, refused %v", p[:n], err, c.refused)
	}
	if n, err := c.Read(p); string(p[:n]) != "\x00" || err != nil || c.refused != errVersion {
		t.Fatalf("then %q, %v, refused %v", p[:n], err, c.refused)
	}
	var wrong *badMessage
	if n, err := c.Read(p); n != 0 || !errors.As(err, &wrong) {
		t.Fatalf("at last %q, %v", p[:n], err)
	}
	if !c.linger.Load() {
		t.Error("the answer may be lost to a client that still writes")
	}
}

// A head is refused before it fills the parser's buffer: then that would refuse it, and the
// answer be lost to a client that still writes.
func TestFraming_HeadsFillNoBuffer(t *testing.T) {
	for _, x := range []struct {
		name string
		text func(n int) string // of n bytes
		most int
		want *badMessage
	}{
		{"a request line", func(n int) string { return strings.Repeat("x", n) }, 1023, errTarget},
		{"a header", func(n int) string { return "GET / HTTP/1.1\r\n" + strings.Repeat("x", n-16) }, 1023, errHeadSize},
	} {
		for size, want := range map[int]*badMessage{x.most: nil, x.most + 1: x.want} {
			f := framing{maxHead: 1024, maxBody: 1024}
			if _, wrong := f.follow([]byte(x.text(size))); wrong != want {
				t.Errorf("%s of %d bytes: %v, want %v", x.name, size, wrong, want)
			}
		}
	}
}
