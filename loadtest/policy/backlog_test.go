package policy

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

const second = time.Second

func TestBacklog_OnlyTheOldestWearsOff(t *testing.T) {
	var b Backlog
	b.Begin(1, 10*second, 0)
	b.Begin(2, 4*second, 1*second)
	for _, c := range []struct{ now, want time.Duration }{
		{1 * second, 13 * second}, // 9 of the oldest, 4
		{7 * second, 7 * second},
		{60 * second, 7 * second}, // 0.3 of the oldest remains, however long it runs
	} {
		if got := b.Ahead(c.now); got != c.want {
			t.Errorf("ahead at %v: %v, want %v", c.now, got, c.want)
		}
	}
}

// One that runs over does not make the next look done.
func TestBacklog_AnAnswerStartsTheNext(t *testing.T) {
	var b Backlog
	b.Begin(1, 2*second, 0)
	b.Begin(2, 5*second, 0)
	if served, known := b.End(1, 9*second); !known || served != 9*second {
		t.Errorf("served %v, known %v, want 9 s", served, known)
	}
	if got := b.Ahead(10 * second); got != 4*second {
		t.Errorf("ahead %v, want 4 s: the second began at 9 s", got)
	}
	if served, _ := b.End(2, 12*second); served != 3*second {
		t.Errorf("served %v, want 3 s: since the answer before", served)
	}
	if _, known := b.End(2, 13*second); known || b.Ahead(13*second) != 0 || b.Len() != 0 {
		t.Error("an ended request is still there")
	}
}

func TestBacklog_FallsToIsWhenAheadGetsThere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b Backlog
		seconds := rapid.Int64Range(0, 20_000)
		now := time.Duration(0)
		for id := range rapid.Int64Range(1, 5).Draw(t, "requests") {
			now += time.Duration(seconds.Draw(t, "later")) * time.Millisecond
			b.Begin(id, time.Duration(seconds.Draw(t, "estimate"))*time.Millisecond, now)
		}
		limit := time.Duration(seconds.Draw(t, "limit")) * time.Millisecond
		at, ok := b.FallsTo(limit, now)
		switch {
		case ok && (at < now || b.Ahead(at) > limit):
			t.Fatalf("at %v it is %v, above %v", at, b.Ahead(at), limit)
		case ok && at > now && b.Ahead(at-time.Millisecond) <= limit:
			t.Fatalf("it is %v before %v already", b.Ahead(at-time.Millisecond), at)
		case !ok && b.Ahead(now+time.Hour) <= limit:
			t.Fatalf("it never falls to %v, but in an hour it is %v", limit, b.Ahead(now+time.Hour))
		}
	})
}
