package pd

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/pd/api"
)

// heldStream is a stream whose beginning is held, in a bubble of synctest.
type heldStream struct {
	*Stream
	mayAsk  chan struct{} // closed: for the rest
	given   time.Duration // that was said; 0: nothing was
	opened  bool          // the rest was looked at
	closed  []string      // legs, in order
	legs    sync.WaitGroup
	started time.Time
}

// newHeldStream is one whose rest takes so long, and then fails with an error or panics, if one is said.
func newHeldStream(longer, takes time.Duration, failed *LegError, panics any) *heldStream {
	h := &heldStream{mayAsk: make(chan struct{}), started: time.Now()}
	leg := func(name, text string) *legStream {
		return &legStream{
			dialect: api.Completions, events: api.NewEventReader(http.NoBody), body: http.NoBody, cancel: func(error) {},
			idle: time.AfterFunc(time.Hour, func() {}), pending: []byte(text), opened: true, ended: true, result: StreamResult{Events: 1},
			onEnd: func(StreamResult) { h.closed = append(h.closed, name) },
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	h.Stream = &Stream{leg: leg("beginning", "first"), leave: func() { h.closed = append(h.closed, "queue") }}
	h.hold = &hold{asked: make(chan struct{}), longer: func() time.Duration { return longer }, legs: &h.legs, cancel: cancel, onGiven: func(at time.Time) { h.given = at.Sub(h.started) }}
	h.behind = &restOfStream{
		send: func() *LegError {
			select {
			case <-h.mayAsk:
			case <-ctx.Done():
				return &LegError{Leg: DecodeLeg, Kind: Gone, Err: ctx.Err()}
			}
			h.hold.ask()
			select {
			case <-time.After(takes):
			case <-ctx.Done():
				return &LegError{Leg: DecodeLeg, Kind: Gone, Err: ctx.Err()}
			}
			if panics != nil {
				panic(panics)
			}
			return failed
		},
		open: func(failed *LegError) (*legStream, error) {
			if h.opened = true; failed != nil {
				return nil, failed
			}
			return leg("rest", "second"), nil
		},
	}
	return h
}

// The beginning of a stream is held from when the rest is asked for, and no longer than until that is there.
func TestHold_UntilItsTimeOrTheRest(t *testing.T) {
	const ms = time.Millisecond
	for _, of := range []struct{ askedAfter, longer, takes, first, second time.Duration }{
		{0, 30 * ms, 100 * ms, 30 * ms, 100 * ms},
		{0, 300 * ms, 100 * ms, 100 * ms, 100 * ms},
		{0, 0, 100 * ms, 0, 100 * ms},
		{50 * ms, 30 * ms, 100 * ms, 80 * ms, 150 * ms},
		{50 * ms, 0, 100 * ms, 50 * ms, 150 * ms},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := newHeldStream(of.longer, of.takes, nil, nil)
			time.AfterFunc(of.askedAfter, func() { close(h.mayAsk) })
			var said []string
			var at []time.Duration
			for {
				out, err := h.Next()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				said, at = append(said, string(out)), append(at, time.Since(h.started))
				if h.AtEnd() && len(said) == 1 {
					t.Error("the rest is not there yet")
				}
			}
			h.Close()
			if strings.Join(said, " ") != "first second" || at[0] != of.first || at[1] != of.second || h.given != of.first {
				t.Errorf("%+v: %q at %v, given at %v", of, said, at, h.given)
			}
			if strings.Join(h.closed, " ") != "beginning rest queue" {
				t.Errorf("%+v: closed are %q", of, h.closed)
			}
		})
	}
}

// A stream that is closed while its rest is asked for waits for that, and closes a leg that nobody has
// read; one that was never read asks for none.
func TestHold_Closed(t *testing.T) {
	for name, of := range map[string]struct {
		read    bool
		takes   time.Duration
		waits   time.Duration // before Close
		opened  bool
		closed  string
		measure bool
	}{
		"never read":             {closed: "beginning queue"},
		"before the rest":        {read: true, takes: time.Hour, opened: true, closed: "beginning queue", measure: true},
		"when the rest is there": {read: true, takes: time.Second, waits: 2 * time.Second, opened: true, closed: "beginning rest queue", measure: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := newHeldStream(time.Millisecond, of.takes, nil, nil)
			close(h.mayAsk)
			if of.read {
				if out, err := h.Next(); string(out) != "first" || err != nil {
					t.Fatalf("%q, %v", out, err)
				}
			}
			time.Sleep(of.waits)
			h.Close()
			h.Close()
			h.legs.Wait()
			if strings.Join(h.closed, " ") != of.closed || h.opened != of.opened || (h.given > 0) != of.measure {
				t.Errorf("%s: closed are %q, the rest was opened: %v, given at %v", name, h.closed, h.opened, h.given)
			}
		})
	}
}

// A client that leaves while the beginning is held was not given it, so that no time to a first token is
// measured; where decode fails it is given at once, and the stream breaks behind it.
func TestHold_TheRestFails(t *testing.T) {
	for kind, given := range map[Kind]bool{Gone: false, Broken: true} {
		synctest.Test(t, func(t *testing.T) {
			h := newHeldStream(time.Hour, time.Second, &LegError{Leg: DecodeLeg, Kind: kind, Err: io.ErrUnexpectedEOF}, nil)
			close(h.mayAsk)
			out, err := h.Next()
			if string(out) != "first" || err != nil || time.Since(h.started) != time.Second {
				t.Fatalf("%q, %v after %v", out, err, time.Since(h.started))
			}
			if _, err = h.Next(); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%s: %v", kind, err)
			}
			h.Close()
			if (h.given > 0) != given {
				t.Errorf("%s: given at %v", kind, h.given)
			}
		})
	}
}

// A panic in the goroutine that asks for the rest would end the process: who reads or closes the stream
// gets it, and what the stream holds is given back.
func TestHold_APanicReachesTheReader(t *testing.T) {
	for _, reads := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			h := newHeldStream(time.Millisecond, time.Second, nil, whileSent)
			close(h.mayAsk)
			if _, err := h.Next(); err != nil {
				t.Fatal(err)
			}
			catch := func(do func()) (said any) {
				defer func() { said = recover() }()
				do()
				return nil
			}
			time.Sleep(2 * time.Second)
			var said any
			if reads {
				said = catch(func() { _, _ = h.Next() })
				h.Close()
			} else {
				said = catch(h.Close)
			}
			if said != whileSent || strings.Join(h.closed, " ") != "beginning queue" {
				t.Errorf("reads %v: it panicked with %v, closed are %q", reads, said, h.closed)
			}
		})
	}
}
