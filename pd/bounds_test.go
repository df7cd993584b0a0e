package pd

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/pd/api"
)

var testTime = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func TestBudget_ARatioOfTheRequestsAndAFloor(t *testing.T) {
	b := NewBudget(0.2, 10)
	now := testTime
	take := func() (n int) {
		for b.TakeRetry(now) {
			n++
		}
		return n
	}
	if got := take(); got != 10 {
		t.Errorf("without traffic: %d retries", got)
	}
	for range 1000 {
		b.CountRequest(now)
	}
	if got := take(); got != 200 {
		t.Errorf("after 1,000 requests: %d more", got)
	}
	now = now.Add(9 * time.Second)
	if got := take(); got != 0 {
		t.Errorf("9 s later: %d more", got)
	}
	now = now.Add(time.Second)
	if got := take(); got != 10 {
		t.Errorf("10 s later: %d more", got)
	}
	now = now.Add(-time.Hour) // a clock that is set back
	if got := take(); got != 0 {
		t.Errorf("an hour earlier: %d more", got)
	}
}

// bodyOf is a request whose body has so many bytes, at least two.
func bodyOf(n int) *Request {
	body, err := api.ParseBody(append([]byte("{}"), bytes.Repeat([]byte(" "), max(0, n-len("{}")))...))
	if err != nil {
		panic(err)
	}
	return &Request{Body: body}
}

func TestQueue_FirstComeFirstServedWithinItsBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(QueueConfig{MaxInFlight: 1, MaxWaiting: 2, MaxBytes: 100, MaxWait: time.Minute})
		p, err := q.Enter(t.Context(), bodyOf(10))
		if err != nil {
			t.Fatal(err)
		}
		order := make(chan string, 2)
		for _, name := range []string{"first", "second"} {
			go func() {
				p, err := q.Enter(t.Context(), bodyOf(10))
				if err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
				order <- name
				q.leave(p)
			}()
			synctest.Wait()
		}
		if waiting, inFlight := q.Len(); waiting != 2 || inFlight != 1 {
			t.Errorf("%d waiting, %d in flight", waiting, inFlight)
		}
		if _, err := q.Enter(t.Context(), bodyOf(10)); !errors.Is(err, ErrQueueFull) {
			t.Errorf("a third waiting request: %v", err)
		}
		q.leave(p)
		q.leave(p) // counts once
		if a, b := <-order, <-order; a != "first" || b != "second" {
			t.Errorf("order: %s, %s", a, b)
		}
		synctest.Wait()
		if waiting, inFlight := q.Len(); waiting != 0 || inFlight != 0 || q.bytes != 0 {
			t.Errorf("at the end: %d waiting, %d in flight, %d bytes", waiting, inFlight, q.bytes)
		}
	})
}

func TestQueue_BytesTimeAndLeavingEndTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(QueueConfig{MaxInFlight: 1, MaxWaiting: 10, MaxBytes: 100, MaxWait: time.Minute})
		p, err := q.Enter(t.Context(), bodyOf(60))
		if err != nil {
			t.Fatal(err)
		}
		defer q.leave(p)
		if _, err := q.Enter(t.Context(), bodyOf(60)); !errors.Is(err, ErrQueueFull) {
			t.Errorf("too many bytes: %v", err)
		}
		start := time.Now()
		if _, err := q.Enter(t.Context(), bodyOf(10)); !errors.Is(err, ErrQueueTimeout) || time.Since(start) != time.Minute {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := q.Enter(ctx, bodyOf(10)); !errors.Is(err, context.Canceled) {
			t.Errorf("a client that left: %v", err)
		}
		if waiting, _ := q.Len(); waiting != 0 || q.bytes != 60 {
			t.Errorf("%d waiting, %d bytes", waiting, q.bytes)
		}
	})
}

func TestDecisions_RememberTheLast(t *testing.T) {
	d := NewDecisions(3)
	for _, id := range []string{"a", "b", "c", "d", "b"} {
		d.Add(Decision{RequestID: id, Outcome: id + "!"})
	}
	if _, found := d.Find("a"); found {
		t.Error("the oldest is still there")
	}
	for _, id := range []string{"c", "d", "b"} {
		if got, found := d.Find(id); !found || got.Outcome != id+"!" {
			t.Errorf("%s: %+v, %v", id, got, found)
		}
	}
}
