package queue

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

func TestLine_ByClassThenByTenantInTurnThenByArrival(t *testing.T) {
	var l fairQueue
	for _, entry := range strings.Fields("1:a1 1:a2 1:a3 1:b1 0:z1 1:c1 2:x1 1:b2 0:y1 0:z2") {
		l.push(&Entry{class: int(entry[0] - '0'), tenant: entry[2:3], bytes: int64(entry[3])})
	}
	var got []string
	for p := l.pop(); p != nil; p = l.pop() {
		got = append(got, fmt.Sprintf("%d:%s%c", p.class, p.tenant, rune(p.bytes)))
	}
	if want := "0:z1 0:y1 0:z2 1:a1 1:b1 1:c1 1:a2 1:b2 1:a3 2:x1"; strings.Join(got, " ") != want {
		t.Errorf("served %s\n  want %s", strings.Join(got, " "), want)
	}
}

func TestLine_TheVictimIsTheNewestOfTheLastClassAndLongestTenant(t *testing.T) {
	var l fairQueue
	for i, entry := range strings.Fields("1:a 1:a 1:a 1:b 0:z") {
		l.push(&Entry{class: int(entry[0] - '0'), tenant: entry[2:], bytes: int64(i)})
	}
	for _, c := range []struct {
		class  int
		tenant string
		want   int64 // which of those above, -1 none
	}{
		{0, "z", 2}, {0, "new", 2}, // a higher class
		{1, "b", 2}, {1, "new", 2}, // the same class, a tenant with fewer
		{1, "a", -1},               // the longest itself
		{2, "a", -1}, {2, "z", -1}, // a lower class
	} {
		got := int64(-1)
		if v := l.displaceable(c.class, c.tenant); v != nil {
			got = v.bytes
		}
		if got != c.want {
			t.Errorf("class %d of %s displaces %d, want %d", c.class, c.tenant, got, c.want)
		}
	}
}

// However places come and go, the queue keeps count, serves no class before a better
// one, and lets no tenant of a class be served twice while another of it waits.
func TestLine_KeepsItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l fairQueue
		waiting := make(map[*Entry]bool)
		passed := make(map[string]int) // by tenant: how often others of its class were served before it
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "do") {
			case 0, 1:
				p := &Entry{class: rapid.IntRange(0, 2).Draw(t, "class"), tenant: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "tenant")}
				l.push(p)
				waiting[p] = true
			case 2:
				for p := range waiting {
					if !l.remove(p) || l.remove(p) {
						t.Fatal("a place cannot be removed once")
					}
					delete(waiting, p)
					break
				}
				clear(passed)
			case 3:
				p := l.pop()
				if (p == nil) != (len(waiting) == 0) {
					t.Fatalf("%d wait, popped %v", len(waiting), p)
				}
				if p == nil {
					continue
				}
				delete(waiting, p)
				others := make(map[string]bool)
				for o := range waiting {
					if o.class < p.class {
						t.Fatalf("class %d served before %d", p.class, o.class)
					}
					if o.class == p.class && o.tenant != p.tenant {
						others[fmt.Sprint(o.class, o.tenant)] = true
					}
				}
				delete(passed, fmt.Sprint(p.class, p.tenant))
				for o := range others {
					if passed[o]++; passed[o] > 2 {
						t.Fatalf("%s was passed over %d times by two other tenants", o, passed[o])
					}
				}
			}
			if l.size != len(waiting) {
				t.Fatalf("size %d, %d wait", l.size, len(waiting))
			}
		}
	})
}

func TestQueue_AHigherClassTakesThePlaceOfTheNewestOfTheLowest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(Config{MaxInFlight: 1, MaxWaiting: 2, MaxBytes: 100, MaxWait: time.Minute})
		p, err := q.Enter(t.Context(), Request{Bytes: 1})
		if err != nil {
			t.Fatal(err)
		}
		enter := func(class int, tenant string) <-chan error {
			r := Request{Class: class, Tenant: tenant, Bytes: 1}
			ended := make(chan error, 1)
			go func() {
				p, err := q.Enter(t.Context(), r)
				if err == nil {
					q.Leave(p)
				}
				ended <- err
			}()
			synctest.Wait()
			return ended
		}
		old, young := enter(2, "a"), enter(2, "a")
		if err := <-enter(2, "a"); !errors.Is(err, ErrFull) {
			t.Errorf("one of the same class and tenant: %v", err)
		}
		high := enter(0, "b")
		if err := <-young; !errors.Is(err, ErrDisplaced) {
			t.Errorf("the newest of the lowest class: %v", err)
		}
		q.Leave(p)
		if a, b := <-high, <-old; a != nil || b != nil {
			t.Errorf("the higher class: %v, the older: %v", a, b)
		}
		if q.Displaced() != 1 || q.bytes != 0 || q.waiting.size != 0 {
			t.Errorf("%d displaced, %d bytes, %d waiting", q.Displaced(), q.bytes, q.waiting.size)
		}
	})
}

func TestQueue_WhatCannotBeServedInTimeIsToldSoAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(Config{MaxInFlight: 1, MaxWaiting: 100, MaxBytes: 1000, MaxWait: time.Minute})
		for range 20 { // each holds its place for a second
			go func() {
				p, err := q.Enter(t.Context(), Request{Bytes: 1})
				if err != nil {
					t.Error(err)
					return
				}
				time.Sleep(time.Second)
				q.Leave(p)
			}()
		}
		time.Sleep(5*time.Second + time.Millisecond) // 14 wait, one more is being served
		if n := q.Waiting()[""]; n != 14 {
			t.Errorf("%d wait, want 14", n)
		}
		tight := Request{Bytes: 1, Deadline: time.Now().Add(10 * time.Second)}
		loose := Request{Bytes: 1, Deadline: time.Now().Add(20 * time.Second)}
		start := time.Now()
		if _, err := q.Enter(t.Context(), tight); !errors.Is(err, ErrDeadline) || time.Since(start) != 0 {
			t.Errorf("15 s of work ahead and 10 s of time: %v after %v", err, time.Since(start))
		}
		p, err := q.Enter(t.Context(), loose)
		if err != nil {
			t.Fatalf("15 s of work ahead and 20 s of time: %v", err)
		}
		q.Leave(p)
		if waiting, inFlight := q.Len(); waiting != 0 || inFlight != 0 {
			t.Errorf("%d waiting, %d in flight", waiting, inFlight)
		}
	})
}

// A request that gave way to a newcomer which has no room all the same has not given way: it
// waits on, where it stood, with its bytes.
func TestQueue_WhoGaveWayInVainWaitsOn(t *testing.T) {
	q := New(Config{MaxInFlight: 1, MaxWaiting: 4, MaxBytes: 100, MaxWait: time.Minute})
	now := time.Now()
	join := func(class int, tenant string, bytes int64) (*Entry, error) {
		p := &Entry{Model: "m", class: class, tenant: tenant, bytes: bytes, gone: make(chan struct{})}
		return p, q.join(p, LimitedBy(time.Time{}, now.Add(time.Minute), ErrTimeout), now)
	}
	runs, _ := join(0, "r", 10)
	first, _ := join(1, "a", 20)
	second, _ := join(1, "b", 20)
	if _, err := join(0, "z", 95); !errors.Is(err, ErrBytes) {
		t.Errorf("a newcomer of more bytes than there is room for: %v", err)
	}
	if waiting, _ := q.Len(); waiting != 2 || q.bytes != 50 || q.Displaced() != 0 || first.displaced || second.displaced {
		t.Fatalf("%d wait, %d bytes are held, %d gave way", waiting, q.bytes, q.Displaced())
	}
	for _, next := range []*Entry{first, second} {
		q.Leave(runs)
		select {
		case <-next.gone:
		default:
			t.Fatalf("the request of %s does not go on", next.tenant)
		}
		runs = next
	}
	if q.Leave(runs); q.bytes != 0 {
		t.Errorf("%d bytes are held in the end", q.bytes)
	}
}

// A newcomer's wait is that of those before it and its own turn. It is let in to wait for just as
// long as it is ready to.
func TestQueue_AWaitThatIsTooLongIsRefusedAtOnce(t *testing.T) {
	for patience, want := range map[time.Duration]bool{3 * time.Second: true, 3*time.Second - 1: false} {
		q := New(Config{MaxInFlight: 1, MaxWaiting: 9, MaxBytes: 100, MaxWait: time.Minute})
		q.inFlight, q.interval = 1, time.Second
		now := time.Now()
		join := func(patience time.Duration) error {
			return q.join(&Entry{tenant: "a", gone: make(chan struct{})}, LimitedBy(time.Time{}, now.Add(patience), ErrTimeout), now)
		}
		if err := errors.Join(join(time.Minute), join(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if err := join(patience); (err == nil) != want || !want && !errors.Is(err, ErrTimeout) {
			t.Errorf("with %v of patience: %v", patience, err)
		}
	}
}

// How many are served before a newcomer: all of better classes, its tenant's own, and of each
// other tenant of its class as many as it has, and one.
func TestLine_AheadOfANewcomerAreThoseWhoseTurnIsBefore(t *testing.T) {
	var l fairQueue
	for _, entry := range strings.Fields("0:z 0:z 1:a 1:a 1:a 1:b 1:c 1:c 2:x") {
		l.push(&Entry{class: int(entry[0] - '0'), tenant: entry[2:]})
	}
	for _, c := range []struct {
		class  int
		tenant string
		want   int
	}{{0, "z", 2}, {0, "new", 1}, {1, "new", 2 + 3}, {1, "b", 2 + 1 + 2 + 2}, {1, "a", 2 + 3 + 1 + 2}, {2, "x", 8 + 1}, {3, "a", 9}} {
		if got := l.ahead(c.class, c.tenant); got != c.want {
			t.Errorf("%d are ahead of class %d of %s, want %d", got, c.class, c.tenant, c.want)
		}
	}
}

func TestQueue_FirstComeFirstServedWithinItsBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(Config{MaxInFlight: 1, MaxWaiting: 2, MaxBytes: 100, MaxWait: time.Minute})
		p, err := q.Enter(t.Context(), Request{Bytes: 10})
		if err != nil {
			t.Fatal(err)
		}
		order := make(chan string, 2)
		for _, name := range []string{"first", "second"} {
			go func() {
				p, err := q.Enter(t.Context(), Request{Bytes: 10})
				if err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
				order <- name
				q.Leave(p)
			}()
			synctest.Wait()
		}
		if waiting, inFlight := q.Len(); waiting != 2 || inFlight != 1 {
			t.Errorf("%d waiting, %d in flight", waiting, inFlight)
		}
		if _, err := q.Enter(t.Context(), Request{Bytes: 10}); !errors.Is(err, ErrFull) || errors.Is(err, ErrBytes) {
			t.Errorf("a third waiting request: %v", err)
		}
		q.Leave(p)
		q.Leave(p) // counts once
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
		q := New(Config{MaxInFlight: 1, MaxWaiting: 10, MaxBytes: 100, MaxWait: time.Minute})
		p, err := q.Enter(t.Context(), Request{Bytes: 60})
		if err != nil {
			t.Fatal(err)
		}
		defer q.Leave(p)
		if _, err := q.Enter(t.Context(), Request{Bytes: 60}); !errors.Is(err, ErrBytes) {
			t.Errorf("too many bytes: %v", err)
		}
		start := time.Now()
		if _, err := q.Enter(t.Context(), Request{Bytes: 10}); !errors.Is(err, ErrTimeout) || time.Since(start) != time.Minute {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := q.Enter(ctx, Request{Bytes: 10}); !errors.Is(err, context.Canceled) {
			t.Errorf("a client that left: %v", err)
		}
		if waiting, _ := q.Len(); waiting != 0 || q.bytes != 60 {
			t.Errorf("%d waiting, %d bytes", waiting, q.bytes)
		}
	})
}
