package http1

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// told is a request as a server reads it.
type told struct {
	Method, Target, Host string
	Header               http.Header
	Length               int64
	Encoding             []string
	Close                bool
	Body                 string
}

// tell sends a request by a client, and returns what a server reads of it.
func tell(t *testing.T, transport func(dialer) http.RoundTripper, request func() *http.Request) (got told, err error) {
	t.Helper()
	var conn *scripted
	through := transport(func(context.Context, string, string) (net.Conn, error) {
		conn = newScripted(plainAnswer, io.EOF, 0)
		conn.keeps = true
		return conn, nil
	})
	resp, err := through.RoundTrip(request())
	if err != nil {
		return got, err
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	req, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(conn.request)))
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		t.Fatal(err)
	}
	return told{req.Method, req.RequestURI, req.Host, req.Header, req.ContentLength, req.TransferEncoding, req.Close, string(body)}, nil
}

// A server reads of each request what it reads of net/http's, and what net/http refuses is refused.
func TestRequest_SaysWhatNetHTTPSays(t *testing.T) {
	long := strings.Repeat("a sentence of a prompt. ", 10_000)
	of := func(method, url string, body func() io.Reader, change ...func(*http.Request)) func() *http.Request {
		return func() *http.Request {
			var from io.Reader
			if body != nil {
				from = body()
			}
			req, err := http.NewRequest(method, url, from)
			if err != nil {
				t.Fatal(err)
			}
			for _, change := range change {
				change(req)
			}
			return req
		}
	}
	text := func(s string) func() io.Reader { return func() io.Reader { return strings.NewReader(s) } }
	unknown := func(s string) func() io.Reader {
		return func() io.Reader { return struct{ io.Reader }{strings.NewReader(s)} }
	}
	header := func(name string, values ...string) func(*http.Request) {
		return func(r *http.Request) { r.Header[name] = values }
	}
	length := func(n int64) func(*http.Request) { return func(r *http.Request) { r.ContentLength = n } }
	for name, request := range map[string]func() *http.Request{
		"GET":                           of("GET", "http://engine/", nil),
		"no method":                     of("", "http://engine/", nil),
		"HEAD":                          of("HEAD", "http://engine/x", nil),
		"DELETE":                        of("DELETE", "http://engine/x", nil),
		"POST of nothing":               of("POST", "http://engine/v1/sleep?level=1", nil),
		"PUT of nothing":                of("PUT", "http://engine/", nil),
		"POST":                          of("POST", "http://engine:8000/v1/chat/completions", text("{}")),
		"GET with a body":               of("GET", "http://engine/", text("{}")),
		"a long body":                   of("POST", "http://engine/", text(long)),
		"a body of unknown length":      of("POST", "http://engine/", unknown("a question")),
		"a long body of unknown length": of("POST", "http://engine/", unknown(long)),
		"a reader of a known length":    of("POST", "http://engine/", unknown("a question"), length(10)),
		"a body that is too short":      of("POST", "http://engine/", unknown("a question"), length(11)),
		"text that is too short":        of("POST", "http://engine/", text("a question"), length(11)),
		"a long body that is too short": of("POST", "http://engine/", unknown(long), length(int64(len(long)+1))),
		"a path with all":               of("GET", "http://engine/a%20b/%2e%2e/c;d?e=f&g=%0a#h", nil),
		"no path":                       of("GET", "http://engine?x", nil),
		"opaque":                        of("GET", "http://engine/", nil, func(r *http.Request) { r.URL = &url.URL{Scheme: "http", Host: "engine", Opaque: "/a/%2f"} }),
		"a port":                        of("GET", "http://127.0.0.1:80/", nil),
		"IPv6":                          of("GET", "http://[::1]:8000/", nil),
		"IPv6 without a port":           of("GET", "http://[::1]/", nil),
		"IPv6 with a zone":              of("GET", "http://[fe80::1%25eth0]:8000/", nil),
		"another host":                  of("GET", "http://engine/", nil, func(r *http.Request) { r.Host = "other:1" }),
		"user":                          of("GET", "http://user:word@engine/", nil),
		"headers":                       of("GET", "http://engine/", nil, header("X-A", "1", "2", ""), header("X-B", " spaces ", "\ttabs\t"), header("X-Bytes", "\xff\x80")),
		"user agent":                    of("GET", "http://engine/", nil, header("User-Agent", "tandem")),
		"no user agent":                 of("GET", "http://engine/", nil, header("User-Agent", "")),
		"headers that are ours":         of("POST", "http://engine/", text("{}"), header("Host", "x"), header("Content-Length", "7"), header("Transfer-Encoding", "chunked"), header("Trailer", "X")),
		"closes":                        of("GET", "http://engine/", nil, func(r *http.Request) { r.Close = true }),
		"closes by a header":            of("GET", "http://engine/", nil, header("Connection", "close")),
		"keeps by a header":             of("GET", "http://engine/", nil, header("Connection", "keep-alive")),
		"a header that injects":         of("GET", "http://engine/", nil, header("X-A", "1\r\nX-B: 2")),
		"a header with LF":              of("GET", "http://engine/", nil, header("X-A", "1\nX-B: 2")),
		"a header with NUL":             of("GET", "http://engine/", nil, header("X-A", "1\x00")),
		"a name that injects":           of("GET", "http://engine/", nil, header("X-A: 1\r\nX-B", "2")),
		"a name with a space":           of("GET", "http://engine/", nil, header("X A", "2")),
		"no name":                       of("GET", "http://engine/", nil, header("", "2")),
		"a method that injects":         of("GET", "http://engine/", nil, func(r *http.Request) { r.Method = "GET / HTTP/1.1\r\nX:" }),
		"a target that injects":         of("GET", "http://engine/", nil, func(r *http.Request) { r.URL = &url.URL{Scheme: "http", Host: "engine", Opaque: "/ HTTP/1.1\r\nX: y"} }),
		"a query that injects":          of("GET", "http://engine/", nil, func(r *http.Request) { r.URL.RawQuery = "a\r\nb" }),
		"no host":                       of("GET", "http://engine/", nil, func(r *http.Request) { r.URL.Host = "" }),
		"no URL":                        of("GET", "http://engine/", nil, func(r *http.Request) { r.URL = nil }),
		"another scheme":                of("GET", "ftp://engine/", nil),
	} {
		own, ownErr := tell(t, func(d dialer) http.RoundTripper { return &Transport{DialContext: d} }, request)
		oracle, err := tell(t, func(d dialer) http.RoundTripper { return &http.Transport{DialContext: d, DisableCompression: true} }, request)
		if (ownErr == nil) != (err == nil) || !reflect.DeepEqual(own, oracle) {
			t.Errorf("%s:\n     own %.300s, %v\nnet/http %.300s, %v", name, fmt.Sprintf("%+v", own), ownErr, fmt.Sprintf("%+v", oracle), err)
		}
	}
}

// What this client refuses beyond that.
func TestRequest_IsRefused(t *testing.T) {
	for name, change := range map[string]func(*http.Request){
		"CONNECT":           func(r *http.Request) { r.Method = http.MethodConnect },
		"trailers":          func(r *http.Request) { r.Trailer = http.Header{"X": nil} },
		"a host's space":    func(r *http.Request) { r.Host = "a b" },
		"a host's path":     func(r *http.Request) { r.Host = "a/b" },
		"a host with CRLF":  func(r *http.Request) { r.Host = "a\r\nX: y" },
		"a host's user":     func(r *http.Request) { r.Host = "user@a" },
		"a list of hosts":   func(r *http.Request) { r.Host = "a,b" },
		"a host beyond us":  func(r *http.Request) { r.Host = "\xc3\xa4" },
		"a space in target": func(r *http.Request) { r.URL.Opaque = "/a b" },
	} {
		body := &closing{Reader: strings.NewReader("a")}
		req, err := http.NewRequest(http.MethodPost, "http://engine/", body)
		if err != nil {
			t.Fatal(err)
		}
		change(req)
		transport := &Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
			t.Errorf("%s: it connects", name)
			return nil, io.EOF
		}}
		if _, err := transport.RoundTrip(req); err == nil || body.closed == 0 {
			t.Errorf("%s: %v, body closed %d times", name, err, body.closed)
		}
	}
}

// A body in memory comes whole, short or long, in few parts or many, again on the same connection, and is let
// go of.
func TestBody_ComesWholeToTheEngine(t *testing.T) {
	got := make(chan []byte, 1)
	e := newEngine(t, func(_ *engine, _ int32, conn *net.TCPConn, in *bufio.Reader) {
		for {
			req, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			body, err := io.ReadAll(req.Body)
			if err != nil || int64(len(body)) != req.ContentLength {
				t.Errorf("%d bytes of %d, %v", len(body), req.ContentLength, err)
			}
			got <- body
			_, _ = io.WriteString(conn, plainAnswer)
		}
	})
	transport := new(Transport)
	closeIdle(t, transport)
	for _, length := range []int{1, 1000, shortRequest - 500, shortRequest, shortRequest + 1, 64 << 10, 1 << 20} {
		for _, parts := range []int{1, 3, 2000} {
			text := []byte(strings.Repeat("a sentence of a prompt. ", length/24+1))[:length]
			body := bodyOf(slices.Chunk(text, max(1, length/parts)))
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, e.url, body)
			if err != nil {
				t.Fatal(err)
			}
			req.ContentLength = int64(length)
			resp, err := transport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			if !bytes.Equal(<-got, text) {
				t.Errorf("%d bytes in %d parts came as others", length, parts)
			}
			if len(body.parts) > 0 {
				t.Errorf("%d bytes in %d parts are held when they are sent", length, parts)
			}
		}
	}
	if n := e.connections.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// Who reads a body gets it in pieces of any size.
func TestBody_IsRead(t *testing.T) {
	text := bytes.Repeat([]byte("ab"), 5000)
	body := bodyOf(slices.Chunk(text, 3))
	var all []byte
	for piece := make([]byte, 7); ; {
		n, err := body.Read(piece)
		all = append(all, piece[:n]...)
		if err != nil {
			break
		}
	}
	if !bytes.Equal(all, text) || body.left() != 0 || body.Close() != nil {
		t.Errorf("%d bytes of %d", len(all), len(text))
	}
}

// A body that announces another length than it has sends no request that a server could take for whole, and
// what its reader fails with is what the request fails with.
func TestRequest_ABodyThatFails(t *testing.T) {
	errBroken := errors.New("broken")
	long := strings.Repeat("a", 1<<20)
	broken := func(text string) io.Reader {
		return io.MultiReader(strings.NewReader(text), readerFunc(func([]byte) (int, error) { return 0, errBroken }))
	}
	for name, c := range map[string]struct {
		body   io.ReadCloser
		length int64
		want   error
	}{
		"broken":                  {io.NopCloser(broken("a")), 5, errBroken},
		"broken, long":            {io.NopCloser(broken(long)), 2 << 20, errBroken},
		"broken, without length":  {io.NopCloser(broken(long)), -1, errBroken},
		"parts that are too few":  {bodyOf(slices.Values([][]byte{[]byte("ab")})), 3, errBodyTooShort},
		"parts that are too many": {bodyOf(slices.Values([][]byte{[]byte("ab")})), 1, errBodyTooLong},
		"text that is too long":   {io.NopCloser(strings.NewReader("ab")), 1, errBodyTooLong},
		"too long":                {io.NopCloser(strings.NewReader(long)), 1<<20 - 1, errBodyTooLong},
		"closing fails":           {&closing{Reader: strings.NewReader(long), err: errBroken}, 1 << 20, errBroken},
	} {
		whole, all := make(chan bool, 1), errors.Is(c.want, errBodyTooLong) || name == "closing fails"
		e := newEngine(t, func(e *engine, _ int32, conn *net.TCPConn, in *bufio.Reader) {
			whole <- e.take(in)
			if all {
				_, _ = io.Copy(io.Discard, in) // for the client's end
			}
		})
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, e.url, c.body)
		req.ContentLength = c.length
		transport := new(Transport)
		_, err := transport.RoundTrip(req)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if got := <-whole; got != all {
			t.Errorf("%s: the server has it whole: %v", name, got)
		}
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// An answer that comes before the request was read is returned, whatever the server does with the rest; the
// connection serves another request only if the server took all of this one.
func TestRequest_AnEarlyAnswer(t *testing.T) {
	long := strings.Repeat("a", 64<<20)
	const refusal = "HTTP/1.1 413 Content Too Large\r\nContent-Length: 8\r\n\r\ntoo long"
	for name, c := range map[string]struct {
		then   func(e *engine, conn *net.TCPConn, in *bufio.Reader, rest io.Reader)
		again  bool
		oracle bool // net/http is sure to have the answer too
	}{
		"and it waits": {func(e *engine, conn *net.TCPConn, _ *bufio.Reader, _ io.Reader) {
			_, _ = io.WriteString(conn, refusal)
			<-e.left
		}, false, true},
		"and it takes the rest": {func(e *engine, conn *net.TCPConn, in *bufio.Reader, rest io.Reader) {
			_, _ = io.WriteString(conn, strings.TrimSuffix(refusal, "g"))
			_, _ = io.Copy(io.Discard, rest)
			_, _ = io.WriteString(conn, "g")
			for e.take(in) {
				_, _ = io.WriteString(conn, plainAnswer)
			}
		}, true, true},
		"and it closes": {func(_ *engine, conn *net.TCPConn, _ *bufio.Reader, _ io.Reader) {
			_, _ = io.WriteString(conn, refusal)
		}, false, false},
		"in chunks, and it closes": {func(_ *engine, conn *net.TCPConn, _ *bufio.Reader, _ io.Reader) {
			_, _ = io.WriteString(conn, "HTTP/1.1 413 Content Too Large\r\nTransfer-Encoding: chunked\r\n\r\n8\r\ntoo long\r\n0\r\n\r\n")
		}, false, false},
	} {
		for _, client := range []string{"own", "net/http"} {
			if client != "own" && !c.oracle {
				continue
			}
			e := newEngine(t, func(e *engine, number int32, conn *net.TCPConn, in *bufio.Reader) {
				if number > 1 {
					for e.take(in) {
						_, _ = io.WriteString(conn, plainAnswer)
					}
					return
				}
				if req, err := http.ReadRequest(in); err == nil {
					c.then(e, conn, in, req.Body)
				}
			})
			e.left = make(chan struct{})
			transport := clients(nil)[client]
			closeIdle(t, transport)
			text, err := ask(t, transport, http.MethodPost, e.url, long, nil)
			if err != nil || text != "too long" {
				t.Errorf("%s, by %s: %q, %v", name, client, text, err)
			}
			close(e.left)
			if text, err := ask(t, transport, http.MethodPost, e.url, "a", nil); err != nil || text != "ok" || (e.connections.Load() == 1) != c.again {
				t.Errorf("%s, by %s: then %q, %v on %d connections", name, client, text, err, e.connections.Load())
			}
		}
	}
}
