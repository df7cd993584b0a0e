package http1

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// cancelled is a context that has ended, of which nobody was told.
type cancelled struct{ context.Context }

func (cancelled) Err() error { return context.Canceled }

// End itself ends the connection of a request whose context has ended, and that connection is not kept. One whose
// context goes on is left alone, and so is one that was given back.
func TestInterrupt_EndsWhatIsOver(t *testing.T) {
	i := &Interrupt{Context: t.Context()}
	goesOn, cancel := context.WithCancel(context.WithoutCancel(i))
	defer cancel()
	for name, c := range map[string]struct {
		ctx           context.Context
		before        bool // it is stopped before End
		kept, aborted bool
	}{
		"over":               {cancelled{i}, false, false, true},
		"over, given back":   {cancelled{i}, true, true, false},
		"it goes on":         {goesOn, false, true, false},
		"without a deadline": {context.WithoutCancel(i), false, true, false},
	} {
		ours, theirs := net.Pipe()
		conn := &conn{Conn: ours, socket: ours}
		conn.abortFunc = conn.abort
		stop, kept := afterCancel(c.ctx, conn), false
		if c.before {
			kept = stop()
		}
		i.End()
		if !c.before {
			kept = stop()
		}
		if kept != c.kept || conn.aborted.Load() != c.aborted {
			t.Errorf("%s: kept %v, aborted %v", name, kept, conn.aborted.Load())
		}
		if len(i.legs) > 0 {
			t.Errorf("%s: %d requests are under way", name, len(i.legs))
		}
		_, _ = ours.Close(), theirs.Close()
	}
}

// The error of what End has ended is the context's, wherever the context was made of the Interrupt.
func TestInterrupt_TheErrorIsTheContexts(t *testing.T) {
	e := newEngine(t, func(_ *engine, _ int32, conn *net.TCPConn, in *bufio.Reader) {
		readAll(in)
		_, _ = io.WriteString(conn, chunked+"2\r\nab\r\n")
		_, _ = io.Copy(io.Discard, in)
	})
	root, leave := context.WithCancelCause(t.Context())
	i := &Interrupt{Context: root}
	ctx, cancel := context.WithCancel(i)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := new(Transport).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if _, err := io.ReadFull(resp.Body, make([]byte, 2)); err != nil {
		t.Fatal(err)
	}
	leave(errLeft)
	i.End()
	if _, err := resp.Body.Read(make([]byte, 1)); !errors.Is(err, errLeft) {
		t.Error(err)
	}
}

// lingering is a connection that is closed only once its reader lets go of it.
type lingering struct {
	net.Conn
	letGo, closed, hungUp chan struct{}
}

func (l lingering) CloseWrite() error {
	l.hungUp <- struct{}{}
	return nil
}

func (l lingering) Close() error {
	<-l.letGo
	close(l.closed)
	return l.Conn.Close()
}

// End lets the server know, and does not wait until the connection is closed, nor for who closes it.
func TestInterrupt_EndWaitsForNoReader(t *testing.T) {
	ours, theirs := net.Pipe()
	defer func() { _ = theirs.Close() }()
	l := lingering{ours, make(chan struct{}), make(chan struct{}), make(chan struct{}, 2)}
	c := &conn{Conn: l, socket: l}
	c.abortFunc = c.abort
	i := &Interrupt{Context: t.Context()}
	stop := afterCancel(cancelled{i}, c)
	ended := make(chan struct{})
	go func() {
		i.End()
		close(ended)
	}()
	select {
	case <-ended:
		if len(l.hungUp) == 0 {
			t.Error("the server does not know")
		}
	case <-time.After(10 * time.Second):
		t.Error("it waits for the reader")
	}
	if stop() {
		t.Error("the connection is kept")
	}
	close(l.letGo)
	c.abort()
	<-l.closed
}
