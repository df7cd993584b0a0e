package http1

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

// engine is a server whose connections are served by a function each, which says what was asked.
type engine struct {
	url         string
	connections atomic.Int32
	requests    atomic.Int32
	left        chan struct{} // closed when the client has its answer
}

// newEngine serves connections, numbered from 1 on. They are closed when serve returns.
func newEngine(t *testing.T, serve func(e *engine, number int32, conn *net.TCPConn, in *bufio.Reader)) *engine {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &engine{url: "http://" + listener.Addr().String()}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			number := e.connections.Add(1)
			serving.Go(func() {
				defer func() { _ = conn.Close() }()
				serve(e, number, conn.(*net.TCPConn), bufio.NewReaderSize(conn, 64))
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		serving.Wait()
	})
	return e
}

// take reads a request. It reports false at the end of the connection.
func (e *engine) take(in *bufio.Reader) bool {
	req, err := http.ReadRequest(in)
	if err != nil {
		return false
	}
	e.requests.Add(1)
	_, err = io.Copy(io.Discard, req.Body)
	return err == nil
}

// ask sends a request and reads the answer whole.
func ask(t *testing.T, transport http.RoundTripper, method, url, body string, change func(*http.Request)) (string, error) {
	t.Helper()
	var from io.Reader
	if body != "" {
		from = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, url, from)
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(req)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return string(text), err
}

func closeIdle(t *testing.T, transport http.RoundTripper) {
	t.Cleanup(transport.(interface{ CloseIdleConnections() }).CloseIdleConnections)
}

// A request whose kept connection ends without an answer goes out again on another one where it may be sent
// twice, and where nothing of an answer came; and then only.
func TestKeepAlive_RepeatsWhatNetHTTPRepeats(t *testing.T) {
	withKey := func(r *http.Request) { r.Header.Set("Idempotency-Key", "1") }
	withoutCopy := func(r *http.Request) {
		withKey(r)
		r.GetBody = nil
	}
	for name, c := range map[string]struct {
		method, body string
		change       func(*http.Request)
		answer       string // before the end
		reset        bool
		repeated     bool
	}{
		"GET":                                {method: "GET", repeated: true},
		"GET, reset":                         {method: "GET", reset: true, repeated: true},
		"GET, begun":                         {method: "GET", answer: "H"},
		"GET, a head and no body":            {method: "GET", answer: ok + "Content-Length: 5\r\n\r\n"},
		"HEAD":                               {method: "HEAD", repeated: true},
		"DELETE":                             {method: "DELETE"},
		"POST":                               {method: "POST", body: "a"},
		"POST, reset":                        {method: "POST", body: "a", reset: true},
		"POST with a key":                    {method: "POST", body: "a", change: withKey, repeated: true},
		"POST with a key, begun":             {method: "POST", body: "a", change: withKey, answer: "HTTP/1.1 "},
		"POST with a key, and one body only": {method: "POST", body: "a", change: withoutCopy},
		"POST with a key and no body":        {method: "POST", change: withKey, repeated: true},
	} {
		for _, client := range []string{"own", "net/http"} {
			e := newEngine(t, func(e *engine, number int32, conn *net.TCPConn, in *bufio.Reader) {
				for served := 0; e.take(in); served++ {
					if number == 1 && served == 1 {
						_, _ = io.WriteString(conn, c.answer)
						if c.reset {
							_ = conn.SetLinger(0)
						}
						return
					}
					_, _ = io.WriteString(conn, plainAnswer)
				}
			})
			transport := clients(nil)[client]
			closeIdle(t, transport)
			if _, err := ask(t, transport, "GET", e.url, "", nil); err != nil {
				t.Fatal(err)
			}
			_, err := ask(t, transport, c.method, e.url, c.body, c.change)
			want := int32(2)
			if c.repeated {
				want = 3
			}
			if (err == nil) != c.repeated || e.requests.Load() != want {
				t.Errorf("%s, by %s: %v after %d requests", name, client, err, e.requests.Load())
			}
		}
	}
}

// What fails on a new connection is not repeated: nothing says that another one would fare better.
func TestKeepAlive_ANewConnectionIsNotRepeated(t *testing.T) {
	for _, client := range []string{"own", "net/http"} {
		e := newEngine(t, func(e *engine, _ int32, _ *net.TCPConn, in *bufio.Reader) { e.take(in) })
		transport := clients(nil)[client]
		closeIdle(t, transport)
		if _, err := ask(t, transport, "GET", e.url, "", nil); err == nil || e.requests.Load() != 1 {
			t.Errorf("%s: %v after %d requests", client, err, e.requests.Load())
		}
	}
}

// A connection that its server has closed or reset, or on which it has sent what nobody asked for, is not used
// again, whatever the request.
func TestKeepAlive_ADeadConnectionIsNotUsed(t *testing.T) {
	for name, end := range map[string]func(*net.TCPConn){
		"closed":       func(c *net.TCPConn) { _ = c.Close() },
		"half closed":  func(c *net.TCPConn) { _ = c.CloseWrite() },
		"reset":        func(c *net.TCPConn) { _ = c.SetLinger(0); _ = c.Close() },
		"it goes on":   func(c *net.TCPConn) { _, _ = io.WriteString(c, "x") },
		"it times out": func(c *net.TCPConn) { _, _ = io.WriteString(c, "HTTP/1.1 408 Request Timeout\r\n\r\n"); _ = c.Close() },
	} {
		for _, method := range []string{"POST", "GET"} {
			ended := make(chan struct{}, 1)
			done := make(chan struct{})
			e := newEngine(t, func(e *engine, number int32, conn *net.TCPConn, in *bufio.Reader) {
				for e.take(in) {
					_, _ = io.WriteString(conn, plainAnswer)
					if number == 1 {
						<-ended // it is idle
						end(conn)
						close(done)
						ended = nil
					}
				}
			})
			transport := new(Transport)
			closeIdle(t, transport)
			if _, err := ask(t, transport, method, e.url, "a", nil); err != nil {
				t.Fatal(err)
			}
			ended <- struct{}{}
			<-done
			text, err := ask(t, transport, method, e.url, "b", nil)
			if err != nil || text != "ok" || e.connections.Load() != 2 || e.requests.Load() != 2 {
				t.Errorf("%s, %s: %q, %v, %d connections", name, method, text, err, e.connections.Load())
			}
		}
	}
}

// An error says whether something of an answer came, and whether the connection had been used before.
func TestError_SaysWhatIsKnown(t *testing.T) {
	for name, c := range map[string]struct {
		first, answer   string // the first: on the same connection
		answered, other bool
	}{
		"no answer":                          {"", "", false, false},
		"a part":                             {"", "HTTP/1.1", true, false},
		"no answer on a kept connection":     {plainAnswer, "", false, true},
		"a part on a kept connection":        {plainAnswer, "HTTP/1.1", true, true},
		"no HTTP on a kept connection":       {plainAnswer, "hello\r\n", true, true},
		"only 100 on a kept connection":      {plainAnswer, "HTTP/1.1 100 Continue\r\n\r\n", true, true},
		"two lengths on a kept connection":   {plainAnswer, ok + "Content-Length: 5\r\nContent-Length: 6\r\n\r\n", true, true},
		"another protocol where it was kept": {plainAnswer, "HTTP/1.1 101 Switching Protocols\r\n\r\n", true, true},
	} {
		e := newEngine(t, func(e *engine, _ int32, conn *net.TCPConn, in *bufio.Reader) {
			if c.first != "" && e.take(in) {
				_, _ = io.WriteString(conn, c.first)
			}
			if e.take(in) {
				_, _ = io.WriteString(conn, c.answer)
			}
		})
		transport := new(Transport)
		if c.first != "" {
			if _, err := ask(t, transport, "POST", e.url, "a", nil); err != nil {
				t.Fatal(err)
			}
		}
		_, err := ask(t, transport, "POST", e.url, "b", nil)
		var failed *Error
		if !errors.As(err, &failed) || failed.Answered != c.answered || failed.Reused != c.other {
			t.Errorf("%s: %+v", name, err)
			continue
		}
		if errors.Is(err, io.EOF) || failed.Error() == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A connection that cannot be made is no failure on a connection.
func TestError_NotOfDialling(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = listener.Close()
	_, err = ask(t, new(Transport), "GET", "http://"+listener.Addr().String(), "", nil)
	var failed *Error
	var dial *net.OpError
	if errors.As(err, &failed) || !errors.As(err, &dial) || dial.Op != "dial" || !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("%v", err)
	}
}
