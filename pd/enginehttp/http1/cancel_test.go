package http1

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pd/enginehttp/socket"
)

var errLeft = errors.New("the client left")

// eventually waits for a condition.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
		runtime.Gosched()
	}
}

// A request that is given up ends at once, wherever it is, with the cause; its connection is closed, and no
// goroutine is left.
func TestCancel_AnywhereEndsAtOnce(t *testing.T) {
	long := strings.Repeat("a", 64<<20) // more than sockets take
	for name, c := range map[string]struct {
		body   string
		until  func(conn net.Conn, in *bufio.Reader) // the server's part before the client leaves
		answer bool
	}{
		"while the request is written": {long, func(_ net.Conn, in *bufio.Reader) { _, _ = in.ReadByte() }, false},
		"before the answer":            {"a", func(_ net.Conn, in *bufio.Reader) { readAll(in) }, false},
		"within the head": {"a", func(conn net.Conn, in *bufio.Reader) {
			readAll(in)
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Le")
		}, false},
		"behind the head": {"a", func(conn net.Conn, in *bufio.Reader) {
			readAll(in)
			_, _ = io.WriteString(conn, ok+"Content-Length: 5\r\n\r\n")
		}, true},
		"within a chunk": {"a", func(conn net.Conn, in *bufio.Reader) {
			readAll(in)
			_, _ = io.WriteString(conn, chunked+"5\r\nhel")
		}, true},
		"while the request is written, behind the head": {long, func(conn net.Conn, in *bufio.Reader) {
			_, _ = in.ReadByte()
			_, _ = io.WriteString(conn, ok+"Content-Length: 5\r\n\r\n")
		}, true},
	} {
		before := runtime.NumGoroutine()
		ctx, leave := context.WithCancelCause(t.Context())
		there, gone, answered := make(chan struct{}), make(chan struct{}), make(chan struct{})
		e := newEngine(t, func(_ *engine, _ int32, conn *net.TCPConn, in *bufio.Reader) {
			c.until(conn, in)
			close(there)
			_, _ = io.Copy(io.Discard, in) // until the client closes or resets it
			close(gone)
		})
		go func() {
			<-there
			if c.answer {
				<-answered
			}
			leave(errLeft)
		}()
		transport := new(Transport)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := transport.RoundTrip(req)
		close(answered)
		if err == nil {
			_, err = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
		if !errors.Is(err, errLeft) || c.answer != (resp != nil) {
			t.Errorf("%s: %v, an answer: %v", name, err, resp != nil)
		}
		<-gone
		leave(nil)
		// The server's goroutines go on: one accepts, and none serves.
		eventually(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before+1 })
	}
}

// A server hears at once that its client has gone, though a goroutine still holds the connection, as one does that
// waits for an answer and has no turn.
func TestAbort_IsHeardBeforeTheReaderRuns(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	dialed, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	raw, err := dialed.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	c := &conn{Conn: dialed, socket: socket.Of(dialed)}
	var aborting sync.WaitGroup
	err = raw.Control(func(uintptr) { // the descriptor is not closed while this runs, and abort waits for that
		aborting.Go(c.abort)
		_ = server.SetReadDeadline(time.Now().Add(30 * time.Second))
		if _, err := server.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("the server reads %v, not the end", err)
		}
	})
	aborting.Wait()
	if err != nil {
		t.Fatal(err)
	}
}

// answered is a connection whose server answers as soon as it is half closed.
type answered struct {
	net.Conn
	half chan struct{}
}

func (c *answered) CloseWrite() error { close(c.half); return nil }
func (c *answered) Close() error      { return nil }
func (c *answered) Read(p []byte) (int, error) {
	<-c.half
	return copy(p, "HTTP/1.1 200 OK"), nil
}

// What a server answers to the end of its client is not read: net/http's sends an empty success where a handler
// returns without a word.
func TestAbort_NothingIsReadBehindIt(t *testing.T) {
	socket := &answered{half: make(chan struct{})}
	c := &conn{Conn: socket, socket: socket}
	go c.abort()
	if n, err := c.Read(make([]byte, 100)); n != 0 || !errors.Is(err, net.ErrClosed) {
		t.Errorf("%d bytes, %v", n, err)
	}
}

func readAll(in *bufio.Reader) {
	if req, err := http.ReadRequest(in); err == nil {
		_, _ = io.Copy(io.Discard, req.Body)
	}
}

// Who has left before asks for no connection, nor waits for one.
func TestCancel_BeforeAndWhileItConnects(t *testing.T) {
	ctx, leave := context.WithCancelCause(t.Context())
	dialled := 0
	transport := &Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		dialled++
		leave(errLeft)
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	body := &closing{Reader: strings.NewReader("a")}
	req, _ := http.NewRequestWithContext(ctx, http.MethodPost, "http://engine/", body)
	for range 2 {
		body.closed = 0
		if _, err := transport.RoundTrip(req); !errors.Is(err, errLeft) || dialled != 1 || body.closed != 1 {
			t.Errorf("%v, dialled %d times, body closed %d times", err, dialled, body.closed)
		}
	}
}

// closing counts how often it is closed.
type closing struct {
	io.Reader
	closed int
	err    error
}

func (c *closing) Close() error { c.closed++; return c.err }

// A context that ends behind an answer does nothing to its connection.
func TestCancel_BehindTheAnswerIsTooLate(t *testing.T) {
	e := newEngine(t, func(e *engine, _ int32, conn *net.TCPConn, in *bufio.Reader) {
		for e.take(in) {
			_, _ = io.WriteString(conn, plainAnswer)
		}
	})
	transport := new(Transport)
	closeIdle(t, transport)
	for range 50 {
		ctx, leave := context.WithCancel(t.Context())
		if text, err := ask(t, transport, "POST", e.url, "a", func(r *http.Request) { *r = *r.WithContext(ctx) }); err != nil || text != "ok" {
			t.Errorf("%q, %v", text, err)
		}
		leave()
	}
	if n := e.connections.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// A body may be closed while another goroutine reads it, which then ends. Closed early, its connection is
// not used again.
func TestBody_ClosedWhileItIsRead(t *testing.T) {
	gone := make(chan struct{}, 2)
	e := newEngine(t, func(e *engine, _ int32, conn *net.TCPConn, in *bufio.Reader) {
		e.take(in)
		_, _ = io.WriteString(conn, chunked+"5\r\nhello\r\n")
		_, _ = io.Copy(io.Discard, in)
		gone <- struct{}{}
	})
	transport := new(Transport)
	for _, concurrently := range []bool{true, false} {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, e.url, http.NoBody)
		resp, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(resp.Body, make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
		if concurrently {
			read := make(chan error, 1)
			go func() {
				_, err := resp.Body.Read(make([]byte, 600))
				read <- err
			}()
			_ = resp.Body.Close()
			if err := <-read; !errors.Is(err, http.ErrBodyReadAfterClose) {
				t.Errorf("%v", err)
			}
		} else {
			_, _ = resp.Body.Close(), resp.Body.Close()
		}
		if _, err := resp.Body.Read(make([]byte, 1)); !errors.Is(err, http.ErrBodyReadAfterClose) {
			t.Errorf("read behind the end: %v", err)
		}
		<-gone
	}
	if n := e.connections.Load(); n != 2 {
		t.Errorf("%d connections", n)
	}
}

// What ended a body ends it for good, and its connection is used again when it was whole.
func TestBody_EndsOnce(t *testing.T) {
	for _, answer := range []string{plainAnswer, chunked + "2\r\nok\r\n0\r\n\r\n", ok + "\r\nok"} {
		e := newEngine(t, func(e *engine, _ int32, conn *net.TCPConn, in *bufio.Reader) {
			for e.take(in) {
				_, _ = io.WriteString(conn, answer)
				if strings.HasPrefix(answer, ok+"\r\n") {
					return
				}
			}
		})
		transport := new(Transport)
		closeIdle(t, transport)
		for range 3 {
			req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, e.url, http.NoBody)
			resp, err := transport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			if n, err := resp.Body.Read(nil); n != 0 || err != nil {
				t.Errorf("into nothing: %d, %v", n, err)
			}
			text, err := io.ReadAll(resp.Body)
			if string(text) != "ok" || err != nil {
				t.Errorf("%q, %v", text, err)
			}
			for range 2 {
				if n, err := resp.Body.Read(make([]byte, 5)); n != 0 || !errors.Is(err, io.EOF) {
					t.Errorf("behind the end: %d, %v", n, err)
				}
			}
			_ = resp.Body.Close()
		}
		want := int32(1)
		if strings.HasPrefix(answer, ok+"\r\n") {
			want = 3
		}
		if n := e.connections.Load(); n != want {
			t.Errorf("%q: %d connections", answer, n)
		}
	}
}

// A read says something each time: bytes, or an error.
func TestBody_NeverReadsNothing(t *testing.T) {
	for _, answer := range []string{plainAnswer, ok + "Content-Length: 5\r\n\r\nhel", chunked + "2\r\nok\r\n0\r\n\r\n", chunked + "2\r\nok\r\n", chunked + "2\r\nok\r\nx", ok + "\r\nok"} {
		for _, step := range []int{0, 1} {
			for _, room := range []int{1, directRead - 1, directRead, 8 << 10} {
				transport := &Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
					return newScripted(answer, io.EOF, step), nil
				}}
				req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://engine/", http.NoBody)
				resp, err := transport.RoundTrip(req)
				if err != nil {
					t.Fatal(err)
				}
				for into := make([]byte, room); err == nil; {
					var n int
					if n, err = resp.Body.Read(into); n == 0 && err == nil {
						t.Fatalf("%q, into %d bytes: nothing", answer, room)
					}
				}
				_ = resp.Body.Close()
			}
		}
	}
}

// What fills a reader's small room goes through a buffer, and a long one is filled at once again.
func TestBody_ReadsIntoLongRoomAtOnce(t *testing.T) {
	const long = 64 << 10
	answer := chunked + "10000\r\n" + strings.Repeat("x", long) + "\r\n0\r\n\r\n"
	transport := &Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		return newScripted(answer, io.EOF, 0), nil
	}}
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://engine/", http.NoBody)
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	read, most := 0, 0
	for into := make([]byte, directRead); err == nil; into = make([]byte, long) {
		if read < 2*bufferSize { // still what came with the head, and what fills small room
			into = into[:directRead]
		}
		var n int
		n, err = resp.Body.Read(into)
		read, most = read+n, max(most, n)
	}
	if read != long || most <= bufferSize {
		t.Errorf("%d bytes in pieces of %d at most", read, most)
	}
	_ = resp.Body.Close()
}
