package http1

import (
	"context"
	"slices"
	"sync"
)

// Interrupt is a context of requests that can be ended at once: End has hung up the connections of those that are under
// way with it, or with an Interrupt that was begun with it, when it returns. Who cancels a context of the standard
// library has a goroutine begin for each request with it (context.AfterFunc), which on a busy machine waits for its
// turn: at the 90th percentile 10 ms. And there each context keeps what was made of it in a map; of three for each
// request that is 4 % of what the gateway does.
//
// Err is why it has ended, not only that it has. The zero value is to be begun before it is used, and none may be
// copied. Whoever begins one ends it: until then the context that it was begun with knows it.
type Interrupt struct {
	context.Context // that it was begun with

	up *Interrupt // that Context is, but for its values; nil: it is another one

	mu      sync.Mutex  // guards all below, but at; that of up is never taken with it
	unwatch func() bool // of another context; nil: it does not end
	cause   error       // nil: it has not ended
	done    chan struct{}
	begun   []*Interrupt  // with it
	room    [1]*Interrupt // for begun: mostly there is one
	conn    *conn         // of the request that is under way with it; nil: there is none
	after   []*afterEnd

	at int // in up.begun; up.mu guards it
}

// afterEnd is what End calls.
type afterEnd struct{ f func() }

type interruptKey struct{}

// Value is that of the context that it was begun with; by it the Interrupt is found below contexts that add values.
func (i *Interrupt) Value(key any) any {
	if key == (interruptKey{}) {
		return i
	}
	return i.Context.Value(key)
}

// interruptIn is the Interrupt that a context is, but for its values; nil: it is another one, made of one or not.
func interruptIn(ctx context.Context) *Interrupt {
	if i, is := ctx.(*Interrupt); is {
		return i
	}
	i, is := ctx.Value(interruptKey{}).(*Interrupt)
	if !is || i.Done() != ctx.Done() {
		return nil
	}
	return i
}

// NewInterrupt is an Interrupt that has begun.
func NewInterrupt(ctx context.Context) *Interrupt {
	i := new(Interrupt)
	i.Begin(ctx)
	return i
}

// Begin has it end when a context does, with the same cause.
func (i *Interrupt) Begin(with context.Context) {
	i.Context = with
	if i.up = interruptIn(with); i.up != nil {
		if cause := i.up.add(i); cause != nil {
			i.End(cause)
		}
		return
	}
	switch {
	case with.Done() == nil:
	case with.Err() != nil:
		i.End(context.Cause(with))
	default:
		i.mu.Lock()
		defer i.mu.Unlock() // the context may end now, and End asks for it
		i.unwatch = context.AfterFunc(with, func() { i.End(context.Cause(with)) })
	}
}

// add keeps one that was begun with it until it is removed, unless it has ended: then it says why.
func (i *Interrupt) add(one *Interrupt) (cause error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.cause == nil {
		if i.begun == nil {
			i.begun = i.room[:0]
		}
		one.at = len(i.begun)
		i.begun = append(i.begun, one)
	}
	return i.cause
}

// remove lets go of one that was begun with it.
func (i *Interrupt) remove(one *Interrupt) {
	i.mu.Lock()
	defer i.mu.Unlock()
	last := len(i.begun) - 1
	if one.at > last || i.begun[one.at] != one {
		return // it ends as well
	}
	i.begun[one.at], i.begun[last].at = i.begun[last], one.at
	i.begun[last] = nil
	i.begun = i.begun[:last]
}

// End ends it and all that was begun with it, with a cause: context.Canceled where that is nil. What has ended keeps its
// first cause. It may be called by who has other streams to relay, and waits for no reader.
func (i *Interrupt) End(cause error) {
	if cause == nil {
		cause = context.Canceled
	}
	i.mu.Lock()
	if i.cause != nil {
		i.mu.Unlock()
		return
	}
	i.cause = cause
	if i.done != nil {
		close(i.done)
	}
	begun, c, after, unwatch := i.begun, i.conn, i.after, i.unwatch
	i.begun, i.conn, i.after = nil, nil, nil
	i.mu.Unlock()
	if i.up != nil {
		i.up.remove(i)
	}
	if unwatch != nil {
		unwatch()
	}
	if c != nil {
		if open := c.hangUp(); open != nil {
			go func() { _ = open.Close() }()
		}
	}
	for _, one := range begun {
		one.End(cause)
	}
	for _, a := range after {
		a.f()
	}
}

// Detach has it go on when the context that it was begun with ends.
func (i *Interrupt) Detach() {
	if i.up != nil {
		i.up.remove(i)
		return
	}
	i.mu.Lock()
	unwatch := i.unwatch
	i.mu.Unlock()
	if unwatch != nil {
		unwatch()
	}
}

// Done is closed when it has ended.
func (i *Interrupt) Done() <-chan struct{} {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.done == nil {
		i.done = make(chan struct{})
		if i.cause != nil {
			close(i.done)
		}
	}
	return i.done
}

// Err is the cause with which it has ended, nil until then.
func (i *Interrupt) Err() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.cause
}

// AfterFunc has End call a function, which waits for nothing: the standard library has contexts that are made of this
// one end by it.
func (i *Interrupt) AfterFunc(f func()) (stop func() bool) {
	a := &afterEnd{f}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.cause != nil {
		go f()
		return func() bool { return false }
	}
	i.after = append(i.after, a)
	return func() bool {
		i.mu.Lock()
		defer i.mu.Unlock()
		at := slices.Index(i.after, a)
		if at >= 0 {
			i.after = slices.Delete(i.after, at, at+1)
		}
		return at >= 0
	}
}

// watch has End hang up the connection of a request until it is left; false: another one is under way.
func (i *Interrupt) watch(c *conn) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.conn != nil || i.cause != nil {
		return false
	}
	i.conn = c
	return true
}

// leave reports whether End has left the connection of its request open.
func (i *Interrupt) leave() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	open := i.conn != nil
	i.conn = nil
	return open
}

// watch aborts the connection of a request when its context is cancelled, until it is stopped.
type watch struct {
	by    *Interrupt  // nil: it is another context
	other func() bool // stops the watch on it
}

func watchOf(ctx context.Context, c *conn) watch {
	if i := interruptIn(ctx); i != nil && i.watch(c) {
		return watch{by: i}
	}
	return watch{other: context.AfterFunc(ctx, c.abortFunc)}
}

// stop ends the watch, and reports whether the connection was not aborted. It is called once.
func (w *watch) stop() bool {
	if w.by != nil {
		return w.by.leave()
	}
	return w.other()
}
