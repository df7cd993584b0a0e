package retry

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var testTime = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// request is one by its fingerprint.
type request uint64

func (r request) Fingerprint() uint64 { return uint64(r) }

func TestBudget_ARatioOfTheRequestsAndAFloor(t *testing.T) {
	b := NewBudget(0.2, 10)
	now := testTime
	take := func() (n int) {
		for {
			if _, ok := b.TakeRetry("", false, now); !ok {
				return n
			}
			n++
		}
	}
	if got := take(); got != 10 {
		t.Errorf("without traffic: %d retries", got)
	}
	for range 1000 {
		b.CountRequest("", now)
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

// Of those that are suspected the oldest make room, and all whose time is over.
func TestQuarantine_TheOldestMakeRoom(t *testing.T) {
	q, now := NewQuarantine(), testTime
	for i := range uint64(maxSuspects) {
		q.RecordDeath(i+1, Death{Server: "s"}, now.Add(time.Duration(i)*time.Second/maxSuspects))
	}
	now = now.Add(time.Second)
	q.RecordDeath(1, Death{Server: "t"}, now) // the oldest, again: it is the latest now
	q.RecordDeath(maxSuspects+1, Death{Server: "s"}, now)
	if _, kept := q.suspects[2]; kept || len(q.suspects) != maxSuspects || q.suspects[1] == nil || q.suspects[3] == nil {
		t.Errorf("%d are suspected, the oldest is kept: %v", len(q.suspects), kept)
	}
	now = now.Add(quarantineTime)
	q.RecordDeath(9999, Death{Server: "s"}, now.Add(1))
	if len(q.suspects) != 1 {
		t.Errorf("when the time of all is over %d are suspected", len(q.suspects))
	}
}

// A request that is answered did not kill the servers that died with it. What died of loading a hand-off may have died of
// that, though it is answered without one.
func TestQuarantine_AnAnswerAcquits(t *testing.T) {
	for name, c := range map[string]struct {
		handoff, answeredBehindOne bool
		held                       bool // when the next server dies
	}{
		"without a hand-off":            {false, false, false},
		"died without, answered behind": {false, true, false},
		"died of one, answered behind":  {true, true, false},
		"died of one, answered alone":   {true, false, true},
	} {
		q, r := NewQuarantine(), request(10)
		q.Acquit(r, true) // nothing is suspected
		q.RecordDeath(r.Fingerprint(), Death{Server: "s", Handoff: c.handoff}, testTime)
		q.RecordDeath(11, Death{Server: "s"}, testTime)
		q.Acquit(r, c.answeredBehindOne)
		if held := q.RecordDeath(r.Fingerprint(), Death{Server: "t", Sent: testTime.Add(1)}, testTime); held != c.held {
			t.Errorf("%s: held back %v", name, held)
		}
		if !q.RecordDeath(11, Death{Server: "t", Sent: testTime.Add(1)}, testTime) {
			t.Errorf("%s: another request is acquitted", name)
		}
	}
}

// The death of one server twice is one death; a request is held back from the second server's
// on, until its time is over.
func TestQuarantine_HoldsBackAfterTwoServers(t *testing.T) {
	q, r, other, now := NewQuarantine(), request(10), request(11), testTime
	is := func(when string, at time.Time, held, alone bool) {
		t.Helper()
		if got := q.IsQuarantined(r, at); got != held {
			t.Errorf("%s: held back %v", when, got)
		}
		if got := q.DiedOfHandoff(r, at); got != alone {
			t.Errorf("%s: without a hand-off %v", when, got)
		}
		if q.IsQuarantined(other, at) {
			t.Errorf("%s: another request is held back", when)
		}
	}
	is("at first", now, false, false)
	for range 3 {
		if q.RecordDeath(r.Fingerprint(), Death{Server: "s", Cause: "why", Handoff: true}, now) {
			t.Error("one server died")
		}
	}
	is("one server died", now, false, true)
	if !q.RecordDeath(r.Fingerprint(), Death{Server: "t", Cause: "so", Sent: now.Add(1)}, now) {
		t.Error("two servers died, and it is not said")
	}
	is("two servers died", now, true, true)
	list := q.List(now)
	if len(list) != 1 || !list[0].Quarantined || fmt.Sprint(list[0].Servers, list[0].Causes) != "[s t] [why so]" || list[0].Fingerprint != fmt.Sprintf("%016x", r.Fingerprint()) {
		t.Errorf("people see %+v", list)
	}
	if n := q.Quarantined(now); n != 1 {
		t.Errorf("%d are in quarantine", n)
	}
	is("at the end of its time", now.Add(quarantineTime), true, true)
	is("after it", now.Add(quarantineTime+1), false, false)
	if n := len(q.List(now.Add(quarantineTime + 1))); n != 0 {
		t.Errorf("people see %d", n)
	}
}

// Servers that die together, each with the same body on it, did not die of that. One that is tried again behind them
// and dies did.
func TestQuarantine_ServersThatDieTogetherAreOneDeath(t *testing.T) {
	q, now := NewQuarantine(), testTime
	for i, server := range []string{"a", "b", "c"} {
		if q.RecordDeath(7, Death{Server: server, Sent: now.Add(-time.Second)}, now.Add(time.Duration(i)*time.Millisecond)) {
			t.Errorf("it is held back when %s has died too", server)
		}
	}
	if !q.RecordDeath(7, Death{Server: "d", Sent: now.Add(time.Millisecond)}, now.Add(time.Second)) {
		t.Error("it killed another one when it was tried again, and is not held back")
	}
	if list := q.List(now); fmt.Sprint(list[0].Servers) != "[a d]" {
		t.Errorf("people see %+v", list)
	}
}

// Deaths of one request count together as long as one follows the other within the time of a
// quarantine; later ones are another story.
func TestQuarantine_CountsDeathsThatFollowEachOther(t *testing.T) {
	for later, want := range map[time.Duration]bool{quarantineTime: true, quarantineTime + 1: false} {
		q, now := NewQuarantine(), time.Now()
		q.RecordDeath(7, Death{Server: "a"}, now)
		if got := q.RecordDeath(7, Death{Server: "b", Sent: now.Add(1)}, now.Add(later)); got != want {
			t.Errorf("the second one %v later: quarantined %v", later, got)
		}
	}
}

// People see suspects latest first, each to the end of its time and no longer; one whose time is
// not over is remembered when another is added.
func TestQuarantine_ListsTheLatestFirst(t *testing.T) {
	q := NewQuarantine()
	for i, f := range []uint64{3, 1, 2} {
		q.RecordDeath(f, Death{Server: "s"}, testTime.Add(time.Duration(i)*time.Second))
	}
	seen := func(now time.Time) (all string) {
		for _, s := range q.List(now) {
			all += s.Fingerprint[15:]
		}
		return all
	}
	end := testTime.Add(quarantineTime)
	if got := seen(end); got != "213" {
		t.Errorf("at the end of the first one's time people see %s", got)
	}
	q.RecordDeath(4, Death{Server: "s"}, end)
	if q.suspects[3] == nil {
		t.Error("one is forgotten at the end of its time")
	}
	if got := seen(end.Add(1)); got != "421" {
		t.Errorf("after it people see %s", got)
	}
}

// takeAll takes retries for a tenant until there is none.
func (b *Budget) takeAll(tenant string, engineFault bool, now time.Time) (taken int) {
	for {
		if _, ok := b.TakeRetry(tenant, engineFault, now); !ok {
			return taken
		}
		taken++
	}
}

// One tenant whose requests all fail leaves retries for the others: what the others' requests come to, or half.
func TestBudget_NoTenantTakesWhatOthersNeed(t *testing.T) {
	type step struct {
		tenant          string
		requests, taken int
	}
	for name, steps := range map[string][]step{
		"one alone has all":                     {{"eve", 100, 30}},
		"a few of one, and many of another":     {{"ada", 450, -1}, {"eve", 50, 55}, {"ada", 0, 55}},
		"one that has most requests, its share": {{"ada", 10, -1}, {"eve", 990, 198}, {"ada", 0, 6}},
		"what is left is shared again":          {{"ada", 30, -1}, {"bob", 30, -1}, {"eve", 40, 15}, {"ada", 0, 7}, {"bob", 0, 6}},
		"clients without keys are one tenant":   {{"", 100, 30}},
	} {
		b := NewBudget(0.2, 10)
		for _, s := range steps {
			for range s.requests {
				b.CountRequest(s.tenant, testTime)
			}
		}
		for i, s := range steps {
			if s.taken < 0 {
				continue
			}
			if taken := b.takeAll(s.tenant, false, testTime); taken != s.taken {
				t.Errorf("%s: %s takes %d in step %d, want %d", name, s.tenant, taken, i, s.taken)
			}
		}
	}
}

// A hundred tenants with one request each have a retry each while there are any: none has taken what others need.
func TestBudget_ManyTenantsWithOneRequest(t *testing.T) {
	b, taken := NewBudget(0.2, 10), 0
	for i := range 100 {
		b.CountRequest(fmt.Sprint(i), testTime)
	}
	for i := range 100 {
		if _, ok := b.TakeRetry(fmt.Sprint(i), false, testTime); ok {
			taken++
		}
	}
	if taken != 30 {
		t.Errorf("%d retries", taken)
	}
	b.CountRequest("0", testTime.Add(time.Minute))
	if len(b.ofTenants) != 1 {
		t.Errorf("%d tenants are remembered a minute later", len(b.ofTenants))
	}
}

// Requests at which each engine fails leave half of the retries for those whose servers die.
func TestBudget_WhatEnginesFailAtTakesHalf(t *testing.T) {
	b := NewBudget(0.2, 10)
	for range 50 {
		b.CountRequest("", testTime)
	}
	if taken := b.takeAll("", true, testTime); taken != 10 {
		t.Errorf("%d retries of what engines failed at, of 20", taken)
	}
	if taken := b.takeAll("", false, testTime); taken != 10 {
		t.Errorf("%d retries are left", taken)
	}
	if taken := b.takeAll("", true, testTime.Add(11*time.Second)); taken != 5 {
		t.Errorf("%d retries of what engines failed at, once the requests are forgotten", taken)
	}
}

// A retry that is given back is there again, for as long as it counted.
func TestBudget_GiveBack(t *testing.T) {
	b := NewBudget(0, 1)
	now := testTime
	first, _ := b.TakeRetry("", false, now)
	if _, ok := b.TakeRetry("", false, now); ok {
		t.Error("there is a second one")
	}
	now = now.Add(3 * time.Second)
	_, early := b.TakeRetry("", false, now)
	b.GiveBack(first)
	second, again := b.TakeRetry("", false, now)
	if early || !again {
		t.Errorf("before it is given back %v, afterwards %v", early, again)
	}
	now = now.Add(10 * time.Second)
	third, _ := b.TakeRetry("", false, now)
	b.GiveBack(second)
	if _, ok := b.TakeRetry("", false, now); ok {
		t.Error("one that counts no more is given back, and there is one more")
	}
	b.GiveBack(third)
	if _, ok := b.TakeRetry("", false, now); !ok {
		t.Error("there is none again")
	}
}

// Requests that come and fail at once take no more retries than there are, and lose no death.
func TestBudgetAndQuarantine_ManyAtOnce(t *testing.T) {
	const each = 50
	b, q := NewBudget(0, each), NewQuarantine()
	var taken atomic.Int64
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for i := range uint64(each) {
				b.CountRequest("", testTime)
				if _, ok := b.TakeRetry("", false, testTime); ok {
					taken.Add(1)
				}
				q.RecordDeath(i, Death{Server: "s"}, testTime)
				q.IsQuarantined(request(i), testTime)
				q.Quarantined(testTime)
			}
		})
	}
	all.Wait()
	if taken.Load() != each || len(q.List(testTime)) != each {
		t.Errorf("%d retries taken, %d suspects, want %d of each", taken.Load(), len(q.List(testTime)), each)
	}
}

// counted is a request of which is counted how often its text was hashed.
type counted struct{ hashed int }

func (c *counted) Fingerprint() uint64 {
	c.hashed++
	return 7
}

// Requests are hashed while one is suspected, and no more once the time of the last death is over, though no other
// server dies.
func TestQuarantine_HashesNothingOnceItsTimeIsOver(t *testing.T) {
	q, at, r := NewQuarantine(), testTime, new(counted)
	q.RecordDeath(1, Death{Server: "a"}, at)
	for _, x := range []struct {
		after  time.Duration
		hashed int
	}{{0, 1}, {quarantineTime, 1}, {quarantineTime + 1, 0}, {0, 0}} {
		r.hashed = 0
		q.IsQuarantined(r, at.Add(x.after))
		if r.hashed != x.hashed {
			t.Errorf("after %v: hashed %d times, want %d", x.after, r.hashed, x.hashed)
		}
	}
}
