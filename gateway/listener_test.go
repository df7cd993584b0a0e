package gateway

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/testlog"
)

// scripted is a listener whose errors a test invents.
type scripted struct {
	net.Listener
	errs []error
}

func (s *scripted) Accept() (net.Conn, error) {
	if len(s.errs) == 0 {
		ours, theirs := net.Pipe()
		_ = theirs.Close()
		return ours, nil
	}
	err := s.errs[0]
	s.errs = s.errs[1:]
	return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", err)}
}

// Descriptors that are used up come back, and a client that left was one: neither ends the
// server. It waits longer each time, a second at most.
func TestListener_OutlivesWhatPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testlog.Buffer
		l := newListener(&scripted{errs: []error{syscall.EMFILE, syscall.ENFILE, syscall.ECONNABORTED}}, DefaultConfig(), slog.New(slog.NewTextHandler(&log, nil)))
		began := time.Now()
		conn, err := l.Accept()
		if err != nil || time.Since(began) != 70*time.Millisecond {
			t.Errorf("%v after %v, want a connection after 10, 20 and 40 ms", err, time.Since(began))
		}
		if n := strings.Count(log.String(), "cannot accept"); n != 3 {
			t.Errorf("said %d times: %s", n, &log)
		}
		_ = conn.Close()
		many := make([]error, 20)
		for i := range many {
			many[i] = syscall.EMFILE
		}
		l.Listener = &scripted{errs: many}
		began = time.Now()
		if conn, err = l.Accept(); err != nil || time.Since(began) != 1270*time.Millisecond+13*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		_ = conn.Close()
		l.Listener = &scripted{errs: []error{syscall.EBADF}}
		if _, err := l.Accept(); !errors.Is(err, syscall.EBADF) {
			t.Errorf("its end: %v", err)
		}
		if len(l.conns) != 0 {
			t.Errorf("%d connections are kept", len(l.conns))
		}
	})
}

// pair is a connection as the server has it and its client's end.
func pair(t *testing.T, cfg Config) (*listener, *clientConn, *net.TCPConn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	client, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	l := newListener(ln, cfg, slog.New(slog.DiscardHandler))
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _, _ = client.Close(), conn.Close(), l.Close() })
	return l, conn.(*clientConn), client.(*net.TCPConn)
}

// A drain closes the connections on which nothing was ever sent, also those that are accepted
// while it begins, and no others.
func TestListener_ClosesTheSilent(t *testing.T) {
	l, spoke, client := pair(t, DefaultConfig())
	if _, err := io.WriteString(client, "GET"); err != nil {
		t.Fatal(err)
	}
	if _, err := spoke.Read(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	silent, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	if _, err := l.Accept(); err != nil {
		t.Fatal(err)
	}
	l.closeSilent(time.Time{})
	late, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = late.Close() }()
	if _, err := l.Accept(); err != nil {
		t.Fatal(err)
	}
	_ = late.SetReadDeadline(time.Now().Add(30 * time.Second))
	if _, err := late.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("one that was accepted while the drain began: %v", err)
	}
	_ = silent.SetReadDeadline(time.Now().Add(30 * time.Second))
	if _, err := silent.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the silent one: %v", err)
	}
	if _, err := io.WriteString(client, " /"); err != nil {
		t.Error(err)
	}
	if n, err := spoke.Read(make([]byte, 10)); n != 2 || err != nil {
		t.Errorf("the other: %d bytes, %v", n, err)
	}
	if err := spoke.Close(); err != nil {
		t.Error(err)
	}
	if err := spoke.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed again: %v", err)
	}
	if len(l.conns) != 2 { // the readers of the others forget them
		t.Errorf("%d are kept", len(l.conns))
	}
}

// Those that have waited longest for their clients make room, some at a time, and neither one that is served, nor one
// that began to wait a moment ago, nor the last ones.
func TestListener_MakesRoomByThoseThatWaitLongest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newListener(&scripted{}, DefaultConfig(), slog.New(slog.DiscardHandler))
		l.most = 40
		var clients []net.Conn
		connect := func(waits bool) {
			server, client := net.Pipe()
			clients = append(clients, client)
			if c := l.track(server); waits {
				go func() { _, _ = c.Read(make([]byte, 1)) }()
			}
			time.Sleep(time.Millisecond)
		}
		open := func() (still []int) {
			for i, client := range clients {
				_ = client.SetReadDeadline(time.Now().Add(time.Millisecond))
				if _, err := client.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
					still = append(still, i)
				}
			}
			return still
		}
		for i := range 41 {
			connect(i >= 10) // ten are served
		}
		if l.makeRoom() || len(open()) != 41 {
			t.Errorf("before they have waited for long, %v are open", open())
		}
		time.Sleep(leastWait)
		connect(true)
		if still := open(); len(still) != 39 || still[9] != 9 || still[10] != 13 {
			t.Errorf("behind one more than there may be, %v are open", still)
		}
		for l.makeRoom() {
		}
		if still := open(); len(still) >= 15 || !slices.Equal(still[:10], []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}) || !slices.Contains(still, 40) || !slices.Contains(still, 41) {
			t.Errorf("where there is no more room to be made, %v are open", still)
		}
		for _, client := range clients {
			_ = client.Close()
		}
	})
}

// A client that takes nothing is waited for as long as is configured, for each piece anew.
func TestClientConn_EachWriteHasItsTime(t *testing.T) {
	cfg := DefaultConfig()
	cfg.WriteTimeout = 200 * time.Millisecond
	_, conn, client := pair(t, cfg)
	_ = client.SetReadBuffer(4096)
	began := time.Now()
	for time.Since(began) < 400*time.Millisecond { // longer than one deadline
		if _, err := io.WriteString(conn, "x"); err != nil {
			t.Fatalf("after %v: %v", time.Since(began), err)
		}
		if _, err := client.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	_, err := conn.Write(make([]byte, 64<<20))
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("nothing reads: %v", err)
	}
}

// Malformed bytes behind a good message are refused once that message was read; nothing of
// them comes to the parser.
func TestClientConn_RefusesBehindAGoodMessage(t *testing.T) {
	_, conn, client := pair(t, DefaultConfig())
	const good = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
	if _, err := io.WriteString(client, good+"BAD\r\n"); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 100)
	n, err := conn.Read(buffer)
	if err != nil || string(buffer[:n]) != good || conn.refused != nil || !conn.linger.Load() {
		t.Fatalf("%q, %v", buffer[:n], err)
	}
	if n, err := conn.Read(nil); n != 0 || err == nil {
		t.Errorf("into no buffer: %d, %v", n, err)
	}
	if n, err := conn.Read(buffer); n != 1 || buffer[0] != 0 || err != nil || conn.refused == nil {
		t.Errorf("%d, %v: want a byte that begins no request", n, err)
	}
	if n, err := conn.Read(buffer); n != 0 || err == nil {
		t.Errorf("then an error: %d, %v", n, err)
	}
}

// A client that was refused unread still writes: what it sends is read until it has its answer.
func TestClientConn_LingersForWhoStillWrites(t *testing.T) {
	_, conn, client := pair(t, DefaultConfig())
	if _, err := io.WriteString(client, "BAD\r\n"); err != nil {
		t.Fatal(err)
	}
	_, _ = conn.Read(make([]byte, 100))
	closed := make(chan error, 1)
	go func() {
		_, _ = io.WriteString(conn, "no")
		closed <- conn.Close()
	}()
	_ = client.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := client.Write(make([]byte, 8<<20)); err != nil {
		t.Errorf("it cannot write: %v", err)
	}
	if back, err := io.ReadAll(client); string(back) != "no" || err != nil {
		t.Errorf("%q, %v", back, err)
	}
	_ = client.Close()
	<-closed
	if !conn.receivedAny.Load() || conn.ended.Load() {
		t.Error("it spoke, and its end was not read")
	}
}

// The end of a client's side is seen where more was to be read.
func TestClientConn_SeesTheEnd(t *testing.T) {
	_, conn, client := pair(t, DefaultConfig())
	_ = client.CloseWrite()
	if _, err := conn.Read(make([]byte, 1)); err != io.EOF || !conn.ended.Load() || conn.receivedAny.Load() {
		t.Errorf("%v, ended %v, spoke %v", err, conn.ended.Load(), conn.receivedAny.Load())
	}
}

// leaves is what a client that leaves calls.
type leaves func()

func (f leaves) clientLeft() { f() }

// A watch tells of a client that leaves, once, though it sent more before; stopping it says
// whether it did, and leaves the connection as it was.
func TestWatchClient(t *testing.T) {
	_, conn, client := pair(t, DefaultConfig())
	gone := make(chan struct{})
	conn.watchFor(leaves(func() { close(gone) }))
	if _, err := io.WriteString(client, "GET"); err != nil {
		t.Fatal(err)
	}
	if conn.stopWatch() {
		t.Error("it sent something, and that was taken for its end")
	}
	buffer := make([]byte, 10)
	if n, err := conn.Read(buffer); string(buffer[:n]) != "GET" || err != nil {
		t.Errorf("%q, %v: a watch must take nothing", buffer[:n], err)
	}
	conn.watchFor(leaves(func() { close(gone) }))
	if _, err := io.WriteString(client, "GET"); err != nil {
		t.Fatal(err)
	}
	_ = client.CloseWrite()
	select {
	case <-gone:
	case <-time.After(30 * time.Second):
		t.Error("it is not reported that it left")
	}
	if !conn.stopWatch() {
		t.Error("it left")
	}
	ours, theirs := net.Pipe()
	defer func() { _, _ = ours.Close(), theirs.Close() }()
	bare := &clientConn{Conn: ours, listener: conn.listener}
	if bare.watchFor(leaves(func() { t.Error("what has no descriptor is not watched") })); bare.stopWatch() {
		t.Error("it has no descriptor")
	}
}

// Who writes to clients sees that one has left, though the goroutine that follows them has no turn; again only
// after a while, since each look is a system call, and not where nobody wrote for a while.
func TestWatchClient_IsSeenByWhoWrites(t *testing.T) {
	l, conn, client := pair(t, DefaultConfig())
	watch, err := newClientWatch() // which nobody follows
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = watch.epoll.Close() }()
	l.mu.Lock()
	l.clients = watch
	l.mu.Unlock()
	left := false
	conn.watchFor(leaves(func() { left = true }))
	_ = client.CloseWrite() // which is there at once, on a machine's own network
	now := time.Since(l.begun)
	watch.wrote.Store(int64(now))
	watch.looked.Store(int64(now))
	if watch.look(now + lookEvery/2); left {
		t.Error("it was looked for twice within a millisecond")
	}
	if watch.look(now + lookEvery/2 + lookEvery); left {
		t.Error("it was looked for though nobody had written for a millisecond")
	}
	for deadline := now + 30*time.Second; !left && time.Since(l.begun) < deadline; {
		if _, err := conn.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	if !left {
		t.Error("nobody saw that it left")
	}
	l.mu.Lock()
	l.clients = nil // whose end nobody would tell
	l.mu.Unlock()
}

// One watch tells the clients of a listener apart, also on descriptors that were another's, and says at once of
// one that has left that it did. It ends with the last connection of a listener that is closed.
func TestWatchClient_TellsConnectionsApart(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := newListener(inner, DefaultConfig(), slog.New(slog.DiscardHandler))
	type side struct {
		server *clientConn
		client *net.TCPConn
	}
	open := func() side {
		client, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		server, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		return side{server.(*clientConn), client.(*net.TCPConn)}
	}
	first := open()
	first.server.watchFor(leaves(func() { t.Error("it did not leave") }))
	leave := make(chan struct{})
	for range 20 { // whose descriptors are used again
		c := open()
		c.server.watchFor(leaves(func() { leave <- struct{}{} }))
		_ = c.client.Close()
		<-leave
		if !c.server.stopWatch() {
			t.Error("it left")
		}
		again := false
		c.server.watchFor(leaves(func() { again = true }))
		if !again {
			t.Error("it has left, and that is not said")
		}
		_ = c.server.Close()
	}
	if first.server.stopWatch() {
		t.Error("the first one did not leave")
	}
	watch, late := l.clients, open()
	_, _, _ = l.Close(), late.client.Close(), late.server.Close()
	select {
	case <-watch.ended:
		t.Error("the watch ended before its last connection")
	default:
	}
	_, _ = first.client.Close(), first.server.Close()
	<-watch.ended
	if len(watch.conns) > 1 {
		t.Errorf("%d connections are known to it", len(watch.conns))
	}
	late.server.watchFor(leaves(func() { t.Error("a closed connection is not watched") }))
	if l.clients != nil {
		t.Error("a watch began for a closed connection")
	}
}

// A Shutdown that comes before the server listens ends it all the same, whether its listener
// is known by then or not: Serve returns, and nothing is accepted any more.
func TestServe_AfterShutdown(t *testing.T) {
	for name, known := range map[string]bool{"the listener is not known": false, "it is known": true} {
		g := run(t, usual(t), complete().roundTrip)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		if err := g.stop(ctx); err != nil {
			t.Fatal(err)
		}
		s := New(DefaultConfig(), nil, g.pd, g.server.metrics)
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		clients := newListener(ln, s.cfg, s.log)
		if known {
			s.clients.Store(clients)
		}
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("%s: Shutdown: %v", name, err)
		}
		served := make(chan error, 1)
		go func() {
			if known { // as Serve does once it has stored the listener
				served <- s.app.Listener(connections{clients, s.app.Server()})
				return
			}
			served <- s.Serve(ln)
		}()
		select {
		case err := <-served:
			if err != nil {
				t.Errorf("%s: Serve: %v", name, err)
			}
		case <-ctx.Done():
			t.Fatalf("%s: it serves on", name)
		}
		if _, err := ln.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s: the listener is open: %v", name, err)
		}
	}
}

// Connections come and go while a drain begins, and none is kept.
func TestListener_ManyAtOnce(t *testing.T) {
	l := newListener(&scripted{}, DefaultConfig(), slog.New(slog.DiscardHandler))
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 20 {
				conn, err := l.Accept()
				if err != nil {
					t.Error(err)
					return
				}
				l.closeSilent(time.Time{})
				_ = conn.Close()
			}
		})
	}
	all.Wait()
	if len(l.conns) != 0 {
		t.Errorf("%d are kept", len(l.conns))
	}
}

// deadlines counts the deadlines of reads that a connection gets.
type deadlines struct {
	net.Conn
	set int
}

func (d *deadlines) SetReadDeadline(t time.Time) error {
	d.set++
	return d.Conn.SetReadDeadline(t)
}

// A client that is silent has its time, whichever of two it is, and at most a hundredth of the shorter one more; one whose
// requests follow each other at once has no deadline set for each.
func TestClientConn_LimitsReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, client := net.Pipe()
		defer conn.Close()
		defer client.Close()
		counted := &deadlines{Conn: conn}
		cfg := Config{ConnIdle: 20 * time.Second, ReadTimeout: 10 * time.Second, MaxHeader: 1 << 10, MaxBody: 1 << 10}
		c := newListener(nil, cfg, slog.New(slog.DiscardHandler)).track(counted)
		p := make([]byte, 64)
		for range 100 { // in 100 ms
			go func() { _, _ = io.WriteString(client, "GET / HTTP/1.1\r\nHost: x\r\n\r\n") }()
			_ = c.SetReadDeadline(time.Now().Add(cfg.ConnIdle))
			if _, err := c.Read(p); err != nil {
				t.Fatal(err)
			}
			_ = c.SetReadDeadline(time.Now().Add(cfg.ReadTimeout)) // for more, which does not come
			time.Sleep(time.Millisecond)
		}
		if counted.set > 2 {
			t.Errorf("%d deadlines for 100 requests within the hundredth of a time", counted.set)
		}
		const slack = 100 * time.Millisecond
		for _, timeout := range []time.Duration{cfg.ReadTimeout, cfg.ConnIdle, time.Millisecond} {
			began := time.Now()
			_ = c.SetReadDeadline(began.Add(timeout))
			_, err := c.Read(p)
			if took := time.Since(began); !errors.Is(err, os.ErrDeadlineExceeded) || took < timeout || took > timeout+slack {
				t.Errorf("%v after %v, want the end after %v", err, took, timeout)
			}
		}
		time.AfterFunc(time.Hour, func() { _, _ = io.WriteString(client, "G") })
		_ = c.SetReadDeadline(time.Time{})
		if _, err := c.Read(p); err != nil {
			t.Errorf("without a deadline: %v", err)
		}
	})
}
