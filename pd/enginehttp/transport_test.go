package enginehttp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pd/enginehttp/http1"
)

// serveOnce accepts connections and gives each to a server that dies at the end of it.
func serveOnce(t *testing.T, serve func(*net.TCPConn, *bufio.Reader)) (url string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				serve(conn.(*net.TCPConn), bufio.NewReaderSize(conn, 16))
			}()
		}
	}()
	return "http://" + listener.Addr().String()
}

// posts sends a request with a body of 4 KB.
func posts(ctx context.Context, t *testing.T, transport *Transport, url string) error {
	t.Helper()
	return postsLong(ctx, t, transport, url, 4096)
}

// postsLong sends a request with a body of so many bytes, as a leg is.
func postsLong(ctx context.Context, t *testing.T, transport *Transport, url string, length int) error {
	t.Helper()
	var body http1.Body
	body.Put(slices.Values([][]byte{bytes.Repeat([]byte("a"), length)}))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, &body)
	if err != nil {
		t.Fatal(err)
	}
	req.ContentLength = int64(length)
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return err
}

func readRequest(r *bufio.Reader) {
	req, err := http.ReadRequest(r)
	if err == nil {
		_, _ = io.Copy(io.Discard, req.Body)
	}
}

// Of a server that ends without an answer it is known whether it had read the request: a process
// that had closes its connections in order, and a kernel resets those with something unread.
func TestTransport_ARequestIsUnreadWhereTheConnectionWasReset(t *testing.T) {
	for name, c := range map[string]struct {
		serve  func(*net.TCPConn, *bufio.Reader)
		unread bool
	}{
		"it read all and ended":       {func(_ *net.TCPConn, r *bufio.Reader) { readRequest(r) }, false},
		"it read a part and ended":    {func(_ *net.TCPConn, r *bufio.Reader) { _, _ = r.ReadByte() }, true},
		"it answers what is not HTTP": {func(c *net.TCPConn, r *bufio.Reader) { readRequest(r); _, _ = io.WriteString(c, "no\r\n\r\n") }, false},
	} {
		for _, length := range []int{4096, 100_000, 6 << 20} { // by the goroutine that asks; by another; more than sockets take
			transport := NewTransport(time.Second)
			err := postsLong(t.Context(), t, transport, serveOnce(t, c.serve), length)
			if err == nil || errors.Is(err, ErrUnread) != c.unread {
				t.Errorf("%s of %d bytes: unread %v: %v", name, length, !c.unread, err)
			}
			transport.CloseIdleConnections()
		}
	}
}

// Once an answer has begun its engine has read something of the request, and may die of it.
func TestTransport_WhatWasAnsweredWasRead(t *testing.T) {
	began := make(chan struct{})
	url := serveOnce(t, func(c *net.TCPConn, r *bufio.Reader) {
		_, _ = r.ReadByte()
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n")
		<-began // the client has it, and a reset does not overtake it
	})
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotFirstResponseByte: func() { close(began) }})
	if err := posts(ctx, t, NewTransport(time.Second), url); err == nil || errors.Is(err, ErrUnread) {
		t.Errorf("%v", err)
	}
}

// A client that leaves says nothing of the engine.
func TestTransport_AClientThatLeftSaysNothing(t *testing.T) {
	ctx, leave := context.WithCancel(t.Context())
	url := serveOnce(t, func(_ *net.TCPConn, r *bufio.Reader) {
		_, _ = r.ReadByte()
		leave()
	})
	if err := posts(ctx, t, NewTransport(time.Second), url); err == nil || errors.Is(err, ErrUnread) {
		t.Errorf("%v", err)
	}
}

// A kept connection that its engine closed before the next request takes that request to no server:
// a new one is made.
func TestTransport_AConnectionThatWasDeadIsNotUsed(t *testing.T) {
	closed := make(chan struct{}, 2)
	url := serveOnce(t, func(c *net.TCPConn, r *bufio.Reader) {
		readRequest(r)
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		_ = c.Close()
		closed <- struct{}{}
	})
	transport := NewTransport(time.Second)
	dialed := 0
	through := transport.DialContext
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		dialed++
		return through(ctx, network, address)
	}
	for range 2 {
		if err := posts(t.Context(), t, transport, url); err != nil {
			t.Fatal(err)
		}
		<-closed
	}
	if dialed != 2 {
		t.Errorf("%d connections", dialed)
	}
}

// A request that an engine read on a kept connection, and left without an answer, was read.
func TestTransport_ARequestOnAKeptConnectionMayBeRead(t *testing.T) {
	url := serveOnce(t, func(c *net.TCPConn, r *bufio.Reader) {
		readRequest(r)
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		readRequest(r)
	})
	transport := NewTransport(time.Second)
	dialed := 0
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		dialed++
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	if err := posts(t.Context(), t, transport, url); err != nil {
		t.Fatal(err)
	}
	if err := posts(t.Context(), t, transport, url); err == nil || errors.Is(err, ErrUnread) || dialed != 1 {
		t.Errorf("on the first of %d connections: %v", dialed, err)
	}
}
