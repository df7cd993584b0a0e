package curve

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

var origin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const second = time.Second

func lasting(estimate time.Duration) Work { return Work{Estimate: estimate} }

func TestBacklog_OnlyTheOldestWearsOff(t *testing.T) {
	var b Backlog
	b.Begin(1, lasting(10*second), origin)
	b.Begin(2, lasting(4*second), origin.Add(second))
	for _, c := range []struct{ now, want time.Duration }{
		{1 * second, 13 * second}, // 9 of the oldest, 4
		{7 * second, 7 * second},
		{60 * second, 7 * second}, // 0.3 of the oldest remains, however long it runs
	} {
		if got := b.Ahead(origin.Add(c.now)); got != c.want {
			t.Errorf("ahead at %v: %v, want %v", c.now, got, c.want)
		}
	}
}

// One that runs over does not make the next look done.
func TestBacklog_AnAnswerStartsTheNext(t *testing.T) {
	var b Backlog
	at := func(d time.Duration) time.Time { return origin.Add(d) }
	b.Begin(1, lasting(2*second), origin)
	b.Begin(2, lasting(5*second), origin)
	if ended, known := b.End(1, at(9*second)); !known || ended.Served != 9*second || ended.Alone {
		t.Errorf("ended %+v, known %v, want 9 s, not alone", ended, known)
	}
	if got := b.Ahead(at(10 * second)); got != 4*second {
		t.Errorf("ahead %v, want 4 s: the second began at 9 s", got)
	}
	if ended, _ := b.End(2, at(12*second)); ended.Served != 3*second {
		t.Errorf("served %v, want 3 s: since the answer before", ended.Served)
	}
	if _, known := b.End(2, at(13*second)); known || b.Ahead(at(13*second)) != 0 || b.Len() != 0 {
		t.Error("an ended request is still there")
	}
	b.Begin(3, lasting(second), at(20*second))
	if ended, _ := b.End(3, at(21*second)); ended.Served != second || !ended.Alone {
		t.Errorf("alone on an idle server: %+v", ended)
	}
}

func TestBacklog_FallsToIsWhenAheadGetsThere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b Backlog
		seconds := rapid.Int64Range(0, 20_000)
		now := origin
		for id := range rapid.Uint64Range(0, 5).Draw(t, "requests") {
			now = now.Add(time.Duration(seconds.Draw(t, "later")) * time.Millisecond)
			b.Begin(id, lasting(time.Duration(seconds.Draw(t, "estimate"))*time.Millisecond), now)
		}
		limit := time.Duration(rapid.Int64Range(-1000, 20_000).Draw(t, "limit")) * time.Millisecond
		in, ok := b.FallsTo(limit, now)
		at := now.Add(in)
		switch {
		case ok && (in < 0 || b.Ahead(at) > limit):
			t.Fatalf("in %v it is %v, above %v", in, b.Ahead(at), limit)
		case ok && in > 0 && b.Ahead(at.Add(-time.Millisecond)) <= limit:
			t.Fatalf("it is %v before that already", b.Ahead(at.Add(-time.Millisecond)))
		case !ok && b.Ahead(now.Add(time.Hour)) <= limit:
			t.Fatalf("it never falls to %v, but in an hour it is %v", limit, b.Ahead(now.Add(time.Hour)))
		}
	})
}

// What a whole answer was computed for is taken to be done in its time: a server that decodes for a minute
// does not seem to prefill for a minute.
func TestBacklog_WhatEndsUnseenIsDoneInItsTime(t *testing.T) {
	var b Backlog
	at := func(s int) time.Time { return origin.Add(time.Duration(s) * second) }
	for id, estimate := range []time.Duration{2 * second, 5 * second, 3 * second} {
		b.Begin(uint64(id), lasting(estimate), origin)
	}
	b.EndsUnseen(0)
	b.EndsUnseen(1)
	for _, c := range []struct {
		now, works   int
		ahead, stays time.Duration
	}{
		{1, 3, 9 * second, 8 * second}, // 1 of the first, 5, 3
		{3, 2, 7 * second, 3 * second}, // the first is done
		{7, 1, 3 * second, 900 * time.Millisecond},
		{60, 1, 900 * time.Millisecond, 900 * time.Millisecond}, // of the last one something will be heard
	} {
		if got := b.Ahead(at(c.now)); got != c.ahead || b.Len() != c.works || b.Floor() != c.stays {
			t.Errorf("after %d s: %v ahead of %d works, %v stay, want %v of %d and %v", c.now, got, b.Len(), b.Floor(), c.ahead, c.works, c.stays)
		}
	}
	b.EndsUnseen(2)
	if b.Ahead(at(60)) != 0 || b.Floor() != 0 {
		t.Errorf("%v ahead when all are done", b.Ahead(at(60)))
	}
	for _, c := range []struct{ id, now, served int }{{1, 70, 70}, {0, 71, 1}, {2, 80, 9}} {
		if ended, known := b.End(uint64(c.id), at(c.now)); !known || ended.Served != time.Duration(c.served)*second || ended.Alone {
			t.Errorf("answer of %d: %+v, known %v, want %d s, not alone", c.id, ended, known, c.served)
		}
	}
	if _, known := b.End(1, at(90)); known {
		t.Error("an ended request is still there")
	}
}

// Those of one step are done together; one of it of which something will be heard is not.
func TestBacklog_AStepEndsUnseen(t *testing.T) {
	const ms = time.Millisecond
	b := Backlog{StepTokens: 100}
	for id := range uint64(4) { // each has a second one in its step
		b.Begin(id, Work{Computed: 50, Estimate: 10 * ms, Shared: 4 * ms}, testNow)
	}
	for _, id := range []uint64{0, 2, 3} {
		b.EndsUnseen(id)
	}
	if b.Ahead(testNow.Add(5*ms)) != 27*ms || b.Len() != 4 { // 11 of 16, and 16
		t.Errorf("%v ahead of %d works while the first step runs", b.Ahead(testNow.Add(5*ms)), b.Len())
	}
	if b.Ahead(testNow.Add(20 * ms)); b.Len() != 3 {
		t.Errorf("%d works are left behind the first step, want 3", b.Len())
	}
	b.End(1, testNow.Add(20*ms))
	if b.Ahead(testNow.Add(30*ms)) != 6*ms || b.Ahead(testNow.Add(36*ms)) != 0 || b.Len() != 0 {
		t.Errorf("%v ahead of %d works behind the second step", b.Ahead(testNow.Add(36*ms)), b.Len())
	}
}

// Who waits for work that ends unseen is told to look again, in time and not at once for ever.
func TestBacklog_FallsToWhereStepsEndUnseen(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := Backlog{StepTokens: rapid.SampledFrom([]int{0, 1000}).Draw(t, "budget")}
		ms := rapid.Int64Range(0, 2000)
		now := origin
		for id := range rapid.Uint64Range(1, 6).Draw(t, "requests") {
			now = now.Add(time.Duration(ms.Draw(t, "later")) * time.Millisecond)
			b.Begin(id, Work{Computed: rapid.IntRange(1, 600).Draw(t, "computed"), Estimate: time.Duration(ms.Draw(t, "estimate")) * time.Millisecond}, now)
			b.EndsUnseen(id)
		}
		limit := time.Duration(ms.Draw(t, "limit")) * time.Millisecond
		for range 10 {
			next := b.Ahead(now) - b.Forming() // what is done in the next step does not keep others from it
			if b.Floor() != 0 || next < 0 {
				t.Fatalf("%v ahead, %v stay", next, b.Floor())
			}
			in, ok := b.FallsTo(limit, now)
			switch {
			case !ok || in < 0 || in == 0 && next > limit:
				t.Fatalf("%v ahead, limit %v: in %v, %v", next, limit, in, ok)
			case next <= limit:
				return
			}
			if before := now.Add(in - 1); b.Ahead(before)-b.Forming() <= limit {
				t.Fatalf("it is %v before that already", b.Ahead(before)-b.Forming())
			}
			now = now.Add(in)
		}
		t.Fatal("it never falls")
	})
}

// The oldest request is done by the part of its estimate that has passed since it was sent, or
// since the answer before it.
func TestBacklog_ProgressIsOfTheOldest(t *testing.T) {
	var b Backlog
	start := time.Now()
	at := func(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }
	expect := func(when, want float64) {
		t.Helper()
		if got := b.Progress(at(when)); got != want {
			t.Errorf("after %v s: %v, want %v", when, got, want)
		}
	}
	expect(0, 0)
	b.Begin(1, Work{Estimate: 4 * time.Second}, at(0))
	b.Begin(2, Work{Estimate: 2 * time.Second}, at(0))
	b.Begin(3, Work{}, at(0))
	expect(0, 0)
	expect(1, 0.25)
	expect(9, 1)
	b.End(1, at(9))
	expect(9, 0)
	expect(10, 0.5)
	b.Pause(at(10))
	expect(11, 0.5)
	b.End(2, at(12))
	expect(13, 0)
}

// Where a step takes several works, those that wait fill steps in their order, as far as the tokens
// of each go; what a step takes whatever is in it counts once, and that of the step that is not
// full is what a new work would share.
func TestBacklog_WorksThatShareSteps(t *testing.T) {
	const ms = time.Millisecond
	b := Backlog{StepTokens: 100}
	for i, x := range []struct {
		computed       int
		at             time.Duration
		ahead, forming time.Duration
	}{
		{60, 0, 10 * ms, 0},           // it runs
		{60, 1 * ms, 15 * ms, 6 * ms}, // 9 ms of it are left, and the second adds 6 to the next step
		{40, 1 * ms, 25 * ms, 0},      // the next step is full: 4 ms of its own and 6 of each
		{1, 1 * ms, 31 * ms, 6 * ms},
		{500, 1 * ms, 45 * ms, 0}, // a step of its own, and the one before ends as it is
		{99, 1 * ms, 51 * ms, 6 * ms},
	} {
		b.Begin(uint64(i), Work{Computed: x.computed, Estimate: 10 * ms, Shared: 4 * ms}, testNow.Add(x.at))
		if ahead, forming := b.Ahead(testNow.Add(x.at)), b.Forming(); ahead != x.ahead || forming != x.forming {
			t.Errorf("with work %d of %d tokens: %v ahead, %v of it in the step that forms, want %v and %v", i, x.computed, ahead, forming, x.ahead, x.forming)
		}
	}
	none := Backlog{}
	for i := range 3 {
		none.Begin(uint64(i), Work{Computed: 1, Estimate: 10 * ms, Shared: 4 * ms}, testNow)
	}
	if none.Ahead(testNow) != 30*ms || none.Forming() != 0 {
		t.Errorf("where each work is a step: %v ahead, %v forms", none.Ahead(testNow), none.Forming())
	}
}

// What is left of prompts counts until their pieces are answered, and not as work ahead.
func TestBacklog_RestIsOfWhatIsOutstanding(t *testing.T) {
	var b Backlog
	b.Begin(1, Work{Estimate: 2 * second, Rest: 3 * second}, origin)
	b.Begin(2, Work{Estimate: second, Rest: second}, origin)
	if b.Rest() != 4*second || b.Ahead(origin) != 3*second {
		t.Errorf("%v are left, %v ahead", b.Rest(), b.Ahead(origin))
	}
	b.End(1, origin.Add(2*second))
	if b.Rest() != second {
		t.Errorf("%v are left when the first is answered", b.Rest())
	}
}

// Steps are kept up as works come and go: they are what arranging all works anew makes of them.
func TestBacklog_StepsFollowFromTheWorks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := Backlog{StepTokens: rapid.SampledFrom([]int{0, 1000}).Draw(t, "budget")}
		now := time.Unix(0, 0)
		for id := range uint64(40) {
			now = now.Add(time.Duration(rapid.IntRange(0, 50).Draw(t, "ms")) * time.Millisecond)
			if ends := uint64(rapid.IntRange(0, 80).Draw(t, "ends")); ends < id {
				b.End(ends, now)
			}
			b.Begin(id, Work{
				Computed: rapid.IntRange(1, 600).Draw(t, "computed"), Estimate: time.Duration(rapid.IntRange(0, 200).Draw(t, "estimate")) * time.Millisecond,
				Shared: time.Duration(rapid.IntRange(0, 60).Draw(t, "shared")) * time.Millisecond,
			}, now)
			anew := b
			anew.arrange()
			if b.running != anew.running || b.full != anew.full || b.forming != anew.forming || b.Ahead(now) != anew.Ahead(now) {
				t.Fatalf("a step of %v runs, %v are full and %+v forms; arranged anew %v, %v and %+v", b.running, b.full, b.forming, anew.running, anew.full, anew.forming)
			}
			for i := range b.items {
				if len(b.items) > 1 && !b.items[i].beside {
					t.Fatalf("work %d is beside others", b.items[i].id)
				}
			}
		}
	})
}
