package http1

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// pipe is a connection of a client to nobody, which is closed with the test.
func pipe(t *testing.T) *conn {
	t.Helper()
	ours, theirs := net.Pipe()
	t.Cleanup(func() { _, _ = ours.Close(), theirs.Close() })
	c := &conn{Conn: ours, socket: ours}
	c.abortFunc = c.abort
	return c
}

type traced struct{}

// End itself ends the connections of requests that are under way with an Interrupt, with one that was begun with it, and
// with contexts that add values to either. It leaves alone what goes on without it, and what was given back.
func TestInterrupt_EndsWhatIsUnderWayWithIt(t *testing.T) {
	i := NewInterrupt(t.Context())
	within := NewInterrupt(context.WithValue(i, traced{}, 1))
	goesOn := NewInterrupt(context.WithoutCancel(i))
	defer goesOn.End(nil)
	var checks []func()
	for name, c := range map[string]struct {
		ctx           context.Context
		before        bool // it is stopped before End
		kept, aborted bool
	}{
		"itself":             {i, false, false, true},
		"one begun with it":  {within, false, false, true},
		"with a value":       {context.WithValue(NewInterrupt(within), traced{}, 2), false, false, true},
		"given back":         {NewInterrupt(i), true, true, false},
		"it goes on":         {goesOn, false, true, false},
		"without a deadline": {context.WithoutCancel(i), false, true, false},
	} {
		conn := pipe(t)
		watch, kept := watchOf(c.ctx, conn), false
		if c.before {
			kept = watch.stop()
		}
		checks = append(checks, func() {
			if !c.before {
				kept = watch.stop()
			}
			if kept != c.kept || conn.aborted.Load() != c.aborted {
				t.Errorf("%s: kept %v, aborted %v", name, kept, conn.aborted.Load())
			}
		})
	}
	i.End(nil)
	i.End(errLeft)
	for _, check := range checks {
		check()
	}
	if i.Err() != context.Canceled || within.Err() != context.Canceled || goesOn.Err() != nil { //nolint:errorlint // the very error
		t.Error("errors:", i.Err(), within.Err(), goesOn.Err())
	}
	if NewInterrupt(i).Err() == nil {
		t.Error("one that is begun later goes on")
	}
}

// What is detached goes on when what it was begun with ends, an Interrupt or another context, and ends with its own End.
func TestInterrupt_DetachedGoesOn(t *testing.T) {
	i := NewInterrupt(t.Context())
	other, leave := context.WithCancelCause(t.Context())
	for name, c := range map[string]struct {
		ctx   context.Context
		leave func(error)
	}{
		"an Interrupt":    {i, i.End},
		"another context": {other, leave},
	} {
		detached, below, conn := NewInterrupt(c.ctx), NewInterrupt(context.WithValue(c.ctx, traced{}, 1)), pipe(t)
		watch := watchOf(detached, conn)
		detached.Detach()
		c.leave(errLeft)
		select {
		case <-below.Done(): // by which the other one would have ended as well
		case <-time.After(time.Minute):
			t.Fatal(name, "goes on")
		}
		if detached.Err() != nil || conn.aborted.Load() {
			t.Errorf("%s: what was detached ends with it: %v", name, detached.Err())
		}
		detached.End(errLeft)
		if !errors.Is(detached.Err(), errLeft) || !conn.aborted.Load() || watch.stop() {
			t.Errorf("%s: what was detached cannot be ended: %v", name, detached.Err())
		}
	}
}

// A second request with the same Interrupt ends with it as well.
func TestInterrupt_TwoRequestsAtOnce(t *testing.T) {
	i := NewInterrupt(t.Context())
	first, second := pipe(t), pipe(t)
	watchOf(i, first)
	watch := watchOf(i, second)
	i.End(nil)
	for deadline := time.Now().Add(10 * time.Second); !second.aborted.Load(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal("it goes on")
		}
	}
	if watch.stop() || !first.aborted.Load() {
		t.Error("kept", first.aborted.Load())
	}
}

// Contexts of the standard library end with an Interrupt and its cause, and it with them and theirs.
func TestInterrupt_BesideOtherContexts(t *testing.T) {
	above, leave := context.WithCancelCause(t.Context())
	i := NewInterrupt(above)
	below, cancel := context.WithTimeout(context.WithValue(i, traced{}, 1), time.Hour)
	defer cancel()
	last := NewInterrupt(below)
	leave(errLeft)
	for _, ctx := range []context.Context{i, below, last} {
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Second):
			t.Fatal("it goes on")
		}
		if !errors.Is(context.Cause(ctx), errLeft) {
			t.Error("cause", context.Cause(ctx))
		}
	}
	if late := NewInterrupt(above); !errors.Is(late.Err(), errLeft) {
		t.Error("one that is begun behind the end:", late.Err())
	}
	called := make(chan struct{})
	defer context.AfterFunc(i, func() { close(called) })()
	<-called
}

// What has ended is known to nobody: neither to an Interrupt that goes on, nor to a context.
func TestInterrupt_KeepsNoneThatHasEnded(t *testing.T) {
	above, leave := context.WithCancel(t.Context())
	defer leave()
	i := NewInterrupt(above)
	var three [3]*Interrupt
	for at := range three {
		three[at] = NewInterrupt(i)
	}
	three[0].End(nil)
	three[2].End(nil)
	if len(i.begun) != 1 || i.begun[0] != three[1] || three[1].at != 0 {
		t.Error("kept:", i.begun)
	}
	_, cancel := context.WithCancel(i)
	cancel()
	if len(i.after) > 0 {
		t.Error("a context that has ended is kept")
	}
	three[1].End(nil)
	i.End(nil)
	if len(i.begun) > 0 || i.unwatch() {
		t.Error("it is watched still")
	}
}

// A context may end while one is begun with it.
func TestInterrupt_BeginsAsItsContextEnds(t *testing.T) {
	for range 2000 {
		above, leave := context.WithCancelCause(t.Context())
		var ends sync.WaitGroup
		ends.Go(func() { leave(errLeft) })
		i := NewInterrupt(above)
		<-i.Done()
		if !errors.Is(i.Err(), errLeft) {
			t.Fatal(i.Err())
		}
		ends.Wait()
	}
}

// Any goroutine may begin, end and ask.
func TestInterrupt_ByManyAtOnce(t *testing.T) {
	i := NewInterrupt(t.Context())
	var all sync.WaitGroup
	var asked atomic.Int32
	for range 8 {
		all.Go(func() {
			for range 1000 {
				one := NewInterrupt(i)
				c := &conn{Conn: nil}
				watched := one.watch(c)
				_, cancel := context.WithCancel(one)
				if watched {
					one.leave()
				}
				cancel()
				one.End(nil)
				<-one.Done()
				asked.Add(1)
			}
		})
	}
	for asked.Load() < 500 {
		runtime.Gosched()
	}
	_ = i.Err()
	all.Wait()
	i.End(nil)
	if len(i.begun)+len(i.after) > 0 {
		t.Error(len(i.begun), len(i.after))
	}
}

// The error of what End has ended is the cause, wherever the context was made of the Interrupt.
func TestInterrupt_TheErrorIsTheCause(t *testing.T) {
	e := newEngine(t, func(_ *engine, _ int32, conn *net.TCPConn, in *bufio.Reader) {
		readAll(in)
		_, _ = io.WriteString(conn, chunked+"2\r\nab\r\n")
		_, _ = io.Copy(io.Discard, in)
	})
	i := NewInterrupt(t.Context())
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
	i.End(errLeft)
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
	i := NewInterrupt(t.Context())
	watch := watchOf(i, c)
	ended := make(chan struct{})
	go func() {
		i.End(nil)
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
	if watch.stop() {
		t.Error("the connection is kept")
	}
	close(l.letGo)
	<-l.closed
}
