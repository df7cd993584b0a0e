package http1

import (
	"context"
	"slices"
	"sync"
)

// Interrupt is a context whose requests can be ended at once; it must not be copied. Who cancels a context has a
// goroutine begin for each request with it (context.AfterFunc), which on a busy machine waits for its turn: at the
// 90th percentile 10 ms. End lets their servers know itself.
type Interrupt struct {
	context.Context

	mu   sync.Mutex // guards all below
	legs []leg      // requests under way
	two  [2]leg     // what legs is where there are no more
}

// leg is a request under way.
type leg struct {
	c   *conn
	ctx context.Context //nolint:containedctx // of the request
}

type interruptKey struct{}

// Value is that of the context; requests find the Interrupt by it in contexts that are made of it.
func (i *Interrupt) Value(key any) any {
	if key == (interruptKey{}) {
		return i
	}
	return i.Context.Value(key)
}

// End ends all requests whose contexts have ended: it comes behind the cancellation. Others were made of the context,
// and go on without it (context.WithoutCancel). It may be called by who has other streams to relay, and waits for no
// reader: that goroutine closes the connection.
func (i *Interrupt) End() {
	i.mu.Lock()
	var ended []leg
	i.legs = slices.DeleteFunc(i.legs, func(l leg) bool {
		over := l.ctx.Err() != nil
		if over {
			ended = append(ended, l)
		}
		return over
	})
	i.mu.Unlock()
	for _, l := range ended {
		l.c.hangUp()
	}
}

// add has End hang up the connection of a request until it is removed.
func (i *Interrupt) add(l leg) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.legs == nil {
		i.legs = i.two[:0]
	}
	i.legs = append(i.legs, l)
}

// remove reports whether End has left a connection open.
func (i *Interrupt) remove(c *conn) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	at := slices.IndexFunc(i.legs, func(l leg) bool { return l.c == c })
	if at < 0 {
		return false
	}
	i.legs = slices.Delete(i.legs, at, at+1)
	return true
}

// afterCancel aborts the connection of a request when its context is cancelled, until it is stopped. stop
// reports whether that has not happened; it is called once.
func afterCancel(ctx context.Context, c *conn) (stop func() bool) {
	if ctx.Done() == nil {
		return func() bool { return true }
	}
	ignore := context.AfterFunc(ctx, c.abortFunc)
	i, is := ctx.Value(interruptKey{}).(*Interrupt)
	if !is {
		return ignore
	}
	i.add(leg{c, ctx})
	return func() bool {
		open := i.remove(c)
		return ignore() && open
	}
}
