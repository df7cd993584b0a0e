package queue

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A newcomer of a higher class to a full queue displaces the one of the last class, also where
// that is past the queue and waits for its servers; of one class, the one that is not past it.
func TestQueue_OneThatWaitsForServersIsDisplacedByItsClass(t *testing.T) {
	for _, c := range []struct {
		name          string
		held, waiting int // classes
		heldGoes      bool
	}{
		{"the held one is of the last class", 2, 1, true},
		{"both are of one class", 1, 1, false},
		{"the one in the queue is of the last class", 1, 2, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			q := New(Config{MaxInFlight: 1, MaxWaiting: 2, MaxBytes: 100, MaxWait: time.Minute})
			p, err := q.Enter(t.Context(), Request{Model: "m", Class: c.held, Bytes: 1})
			if err != nil {
				t.Fatal(err)
			}
			held, release := q.CountWaiting(t.Context(), p)
			enter := func(class int) <-chan error {
				ended := make(chan error, 1)
				go func() {
					p, err := q.Enter(t.Context(), Request{Model: "m", Class: class, Bytes: 1})
					if err == nil {
						q.Leave(p)
					}
					ended <- err
				}()
				synctest.Wait()
				return ended
			}
			waiting := enter(c.waiting)
			if n := q.Waiting()["m"]; n != 2 {
				t.Errorf("%s: %d wait", c.name, n)
			}
			newcomer := enter(0)
			if goes := errors.Is(context.Cause(held), ErrDisplaced); goes != c.heldGoes {
				t.Errorf("%s: it is displaced: %v, %v", c.name, goes, context.Cause(held))
			}
			if displaced := release(); displaced != c.heldGoes || q.Displaced() != 1 {
				t.Errorf("%s: its release says %v; %d displaced", c.name, displaced, q.Displaced())
			}
			q.Leave(p)
			if err := <-waiting; errors.Is(err, ErrDisplaced) == c.heldGoes {
				t.Errorf("%s: the one in the queue: %v", c.name, err)
			}
			if err := <-newcomer; err != nil {
				t.Errorf("%s: the newcomer: %v", c.name, err)
			}
			if waiting, inFlight := q.Len(); waiting != 0 || inFlight != 0 || q.Bytes() != 0 {
				t.Errorf("%s: left are %d waiting, %d in flight, %d bytes", c.name, waiting, inFlight, q.Bytes())
			}
		})
	}
}

// Bodies may fill the bound to its last byte.
func TestQueue_BytesUpToTheBoundFit(t *testing.T) {
	q := New(Config{MaxInFlight: 2, MaxWaiting: 2, MaxBytes: 100, MaxWait: time.Minute})
	for _, bytes := range []int{60, 40} {
		p, err := q.Enter(t.Context(), Request{Bytes: bytes})
		if err != nil {
			t.Fatalf("%d bytes: %v", bytes, err)
		}
		defer q.Leave(p)
	}
}

// Each bound of the configuration has its own least value.
func TestConfig_RefusesWhatNothingCouldPass(t *testing.T) {
	if err := (Config{MaxInFlight: 1, MaxWaiting: 0, MaxBytes: 1, MaxWait: 1}).Validate(); err != nil {
		t.Errorf("the least: %v", err)
	}
	for name, change := range map[string]func(*Config){
		"in flight": func(c *Config) { c.MaxInFlight = 0 },
		"waiting":   func(c *Config) { c.MaxWaiting = -1 },
		"bytes":     func(c *Config) { c.MaxBytes = 0 },
		"wait":      func(c *Config) { c.MaxWait = 0 },
	} {
		c := Default()
		if change(&c); c.Validate() == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
