//go:build linux

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
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// followed is how a body was read whose rest came behind its first chunk.
type followed struct {
	Body, Failed string
	Trailer      http.Header
	Times        int  // that something was read by following
	UsedAgain    bool // the connection
}

// readRest reads an answer whose rest the engine sends once its first chunk was read, by following it or not.
func readRest(t *testing.T, head, rest string, end error, follow bool) (got followed) {
	t.Helper()
	begin := make(chan struct{})
	e := newEngine(t, func(e *engine, number int32, conn *net.TCPConn, in *bufio.Reader) {
		for first := number == 1; e.take(in); first = false {
			if !first {
				_, _ = io.WriteString(conn, plainAnswer)
				continue
			}
			_, _ = io.WriteString(conn, head+"5\r\nhello\r\n")
			<-begin
			_, _ = io.WriteString(conn, rest)
			if errors.Is(end, syscall.ECONNRESET) {
				_ = conn.SetLinger(0)
			}
			if end != nil {
				return
			}
		}
	})
	transport := new(Transport)
	defer transport.CloseIdleConnections()
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, e.url, http.NoBody)
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	from, p := resp.Body.(*body), make([]byte, 600)
	n, err := from.ReadLate(room(p))
	if err != nil || n != 5 {
		t.Fatalf("%d bytes, %v", n, err)
	}
	close(begin)
	if follow {
		small := make([]byte, 7)
		if !from.Follow(room(small), func(n int, err error) bool {
			got.Body += string(small[:n])
			got.Times++
			return err == nil
		}) {
			t.Errorf("%q: it is not followed", rest)
		}
	}
	text, err := io.ReadAll(from)
	got.Body, got.Trailer = got.Body+string(text), resp.Trailer
	if err != nil {
		got.Failed = fmt.Sprintf("%T", err)
		for _, known := range []error{io.ErrUnexpectedEOF, syscall.ECONNRESET} {
			if errors.Is(err, known) {
				got.Failed = known.Error()
			}
		}
	}
	_ = resp.Body.Close()
	if text, err := ask(t, transport, http.MethodGet, e.url, "", nil); text != "ok" || err != nil {
		t.Errorf("%q: the next request: %q, %v", rest, text, err)
	}
	got.UsedAgain = e.connections.Load() == 1
	return got
}

// A body that is followed comes to the same as one that is read: whole, cut anywhere, with trailers or wrong; its
// connection is used again where it was whole.
func TestFollow_ReadsWhatReadReads(t *testing.T) {
	const trailers = ok + "Transfer-Encoding: chunked\r\nTrailer: X-Usage\r\n\r\n"
	compare := func(head, rest string, end error) followed {
		read, got := readRest(t, head, rest, end, false), readRest(t, head, rest, end, true)
		times := got.Times
		if got.Times = 0; fmt.Sprint(got) != fmt.Sprint(read) {
			t.Errorf("%q, then %v: %+v, read %+v", rest, end, got, read)
		}
		if got.Times = times; times == 0 {
			t.Errorf("%q, then %v: nothing was followed", rest, end)
		}
		return got
	}
	for _, c := range []struct{ head, rest string }{
		{chunked, "3\r\nyou\r\n0\r\n\r\n"},
		{chunked, "0\r\n\r\n"},
		{chunked, "1e\r\n012345678901234567890123456789\r\n2;ext=\"1\"\r\nab\r\n0\r\n\r\n"},
		{trailers, "0\r\nX-Usage: 5\r\n\r\n"},
	} {
		got := compare(c.head, c.rest, nil)
		if got.Failed != "" || !got.UsedAgain {
			t.Errorf("%q: %+v", c.rest, got)
		}
		for i := range len(c.rest) {
			if cut := compare(c.head, c.rest[:i], io.EOF); cut.Failed == "" || cut.UsedAgain {
				t.Errorf("%q is whole: %+v", c.rest[:i], cut)
			}
		}
	}
	compare(chunked, "0\r\n\r\nHTTP/1.1 200 OK\r\n", nil)
	compare(chunked, "nothing like it", nil)
	if got := compare(chunked, "", syscall.ECONNRESET); got.Failed != syscall.ECONNRESET.Error() {
		t.Errorf("%+v", got)
	}
}

// Whoever ends a request ends one that is followed: the engine hears of it at once, and who follows it of the reason.
func TestFollow_EndsWithTheRequest(t *testing.T) {
	why := errors.New("enough")
	for name, c := range map[string]struct {
		end  func(b *body, cancel context.CancelCauseFunc)
		want error
	}{
		"the context": {func(_ *body, cancel context.CancelCauseFunc) { cancel(why) }, why},
		"a close":     {func(b *body, _ context.CancelCauseFunc) { _ = b.Close() }, http.ErrBodyReadAfterClose},
	} {
		gone := make(chan struct{})
		e := newEngine(t, func(e *engine, _ int32, conn *net.TCPConn, in *bufio.Reader) {
			e.take(in)
			_, _ = io.WriteString(conn, chunked+"5\r\nhello\r\n")
			_, _ = io.Copy(io.Discard, in)
			close(gone)
		})
		before := descriptors(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		req, _ := http.NewRequestWithContext(ctx, http.MethodGet, e.url, http.NoBody)
		b, p := greeted(t, new(Transport), req)
		ended := make(chan error)
		go func() {
			b.Follow(room(p), func(_ int, err error) bool { return err == nil })
			_, err := b.Read(p)
			ended <- err
		}()
		eventually(t, "it is followed", func() bool {
			b.c.mu.Lock()
			defer b.c.mu.Unlock()
			return b.c.taken != nil
		})
		c.end(b, cancel)
		<-gone
		if err := <-ended; !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
		_ = b.Close()
		cancel(nil)
		eventually(t, name+": its connection is closed", func() bool { return descriptors(t) <= before })
	}
}

// greeted sends a request and returns its body behind the first piece, which is "hello", with room to read on.
func greeted(t *testing.T, transport *Transport, req *http.Request) (b *body, p []byte) {
	t.Helper()
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	b, p = resp.Body.(*body), make([]byte, 600)
	if n, err := b.ReadLate(room(p)); err != nil || n != 5 {
		t.Fatalf("%d bytes, %v", n, err)
	}
	return b, p
}

// descriptors is how many of them the process has open.
func descriptors(t *testing.T) int {
	t.Helper()
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(open)
}

// A panic of who deals with what comes leaves no connection behind.
func TestFollow_APanicClosesTheConnection(t *testing.T) {
	begin := make(chan struct{})
	e := newEngine(t, func(e *engine, _ int32, conn *net.TCPConn, in *bufio.Reader) {
		e.take(in)
		_, _ = io.WriteString(conn, chunked+"5\r\nhello\r\n")
		<-begin
		_, _ = io.WriteString(conn, "3\r\nyou\r\n")
		_, _ = io.Copy(io.Discard, in)
	})
	before := descriptors(t)
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, e.url, http.NoBody)
	b, p := greeted(t, new(Transport), req)
	close(begin)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("it did not come here")
			}
		}()
		b.Follow(room(p), func(int, error) bool { panic("of one stream") })
	}()
	_ = b.Close()
	eventually(t, "its connection is closed", func() bool { return descriptors(t) <= before })
}

// A body that cannot be given back, since no descriptor is left, is read as it is; its connection is not used again.
func TestFollow_CannotBeGivenBack(t *testing.T) {
	begin, end := make(chan struct{}), make(chan struct{})
	e := newEngine(t, func(e *engine, number int32, conn *net.TCPConn, in *bufio.Reader) {
		e.take(in)
		if number > 1 {
			_, _ = io.WriteString(conn, plainAnswer)
			return
		}
		_, _ = io.WriteString(conn, chunked+"5\r\nhello\r\n")
		<-begin
		_, _ = io.WriteString(conn, "3\r\nyou\r\n")
		<-end
		_, _ = io.WriteString(conn, "2\r\nup\r\n0\r\n\r\n")
		_, _ = io.Copy(io.Discard, in)
	})
	before := descriptors(t)
	transport := new(Transport)
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, e.url, http.NoBody)
	b, p := greeted(t, transport, req)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	close(begin)
	b.Follow(room(p), func(n int, err error) bool {
		if string(p[:n]) != "you" || err != nil {
			t.Errorf("%q, %v", p[:n], err)
		}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: limit.Max}); err != nil {
			t.Error(err)
		}
		return false
	})
	close(end)
	rest, err := io.ReadAll(b)
	if failed := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); failed != nil {
		t.Fatal(failed)
	}
	if string(rest) != "up" || err != nil {
		t.Errorf("%q, %v", rest, err)
	}
	_ = b.Close()
	if text, err := ask(t, transport, http.MethodGet, e.url, "", nil); text != "ok" || err != nil || e.connections.Load() != 2 {
		t.Errorf("%q, %v, %d connections", text, err, e.connections.Load())
	}
	transport.CloseIdleConnections()
	eventually(t, "its connection is closed", func() bool { return descriptors(t) <= before })
}

// A body is not followed while its request is still being written.
func TestFollow_NotBeforeTheRequestIsWritten(t *testing.T) {
	answered := make(chan struct{})
	e := newEngine(t, func(_ *engine, _ int32, conn *net.TCPConn, in *bufio.Reader) {
		req, err := http.ReadRequest(in)
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(conn, chunked+"5\r\nhello\r\n")
		<-answered
		_, _ = io.Copy(io.Discard, req.Body)
		_, _ = io.WriteString(conn, "0\r\n\r\n")
	})
	transport := new(Transport)
	defer transport.CloseIdleConnections()
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, e.url, bytes.NewReader(make([]byte, 32<<20)))
	b, p := greeted(t, transport, req)
	if b.Follow(room(p), func(int, error) bool { return false }) {
		t.Error("it is followed")
	}
	close(answered)
	if rest, err := io.ReadAll(b); err != nil || len(rest) > 0 {
		t.Errorf("%q, %v", rest, err)
	}
	_ = b.Close()
}
