package breaker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

var errFailed = errors.New("engine failed")

// request asks for a place and gives a verdict, and reports whether there was a place.
func request(b *Breaker, verdict error) bool {
	done, err := b.Allow()
	if err == nil {
		done(verdict)
	}
	return err == nil
}

// ejected returns a breaker that has just opened.
func ejected() *Breaker {
	b := New(Default())
	for range Default().Consecutive {
		request(b, errFailed)
	}
	return b
}

func TestBreaker_OpensAfterFiveFailuresInARow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(Default())
		for range 4 {
			request(b, errFailed)
		}
		if got := b.State(time.Now()); got != Closed {
			t.Fatalf("after four failures: %s", got)
		}
		request(b, errFailed)
		if got := b.State(time.Now()); got != Open {
			t.Fatalf("after five failures: %s", got)
		}
		if request(b, nil) {
			t.Fatal("an open breaker gave a place")
		}
	})
}

func TestBreaker_OpensAfterHalfOfTwentyInTheWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(Default())
		pair := func() {
			request(b, errFailed)
			request(b, nil)
		}
		for range 9 {
			pair()
		}
		time.Sleep(Default().Window + time.Second)
		pair()
		if got := b.State(time.Now()); got != Closed {
			t.Fatalf("twenty verdicts, most of them older than the window: %s", got)
		}
		for range 10 { // the last but one verdict is the twentieth
			pair()
		}
		if got := b.State(time.Now()); got != Open {
			t.Fatalf("half of twenty failed: %s", got)
		}
	})
}

func TestBreaker_EjectionsDoubleUpToTheCap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := ejected()
		want := time.Second
		for i := range 9 {
			start := time.Now()
			for b.State(time.Now()) == Open {
				time.Sleep(10 * time.Millisecond)
			}
			got := time.Since(start)
			if got < want*79/100 || got > want*121/100 {
				t.Errorf("ejection %d took %v, want %v +-20 %%", i+1, got, want)
			}
			want = min(2*want, time.Minute)
			b.RecordProbe(errFailed, time.Now())
		}
	})
}

// However long the ejection is over, no client's request proves the server.
func TestBreaker_OnlyAProbeProvesAServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := ejected()
		time.Sleep(time.Hour)
		if got := b.State(time.Now()); got != HalfOpen {
			t.Fatalf("after the ejection: %s", got)
		}
		if request(b, nil) {
			t.Fatal("a client's request was let through")
		}
		if away := b.RecordProbe(nil, time.Now()); away != time.Hour {
			t.Errorf("away for %v", away)
		}
		for range 4 { // what was counted before is forgotten
			if !request(b, errFailed) {
				t.Fatal("a proved server refuses")
			}
		}
		if got := b.State(time.Now()); got != Closed {
			t.Fatalf("got %s", got)
		}
	})
}

func TestBreaker_ASuspectIsEjectedByItsProbeAlone(t *testing.T) {
	b := New(Default())
	now := time.Now()
	if _, due := b.ProbeDue(time.Second); due {
		t.Fatal("a probe is due for no reason")
	}
	b.Suspect()
	if at, due := b.ProbeDue(time.Second); !due || at.After(now) {
		t.Fatalf("due %v, at %v", due, at)
	}
	b.RecordProbe(nil, now)
	if _, due := b.ProbeDue(time.Second); due || b.Ejected() {
		t.Fatal("a probe that passed left a trace")
	}
	b.Suspect()
	if at, due := b.ProbeDue(time.Second); !due || !at.Equal(now.Add(time.Second)) {
		t.Fatalf("the second within the pause: due %v, at %v", due, at)
	}
	b.RecordProbe(errFailed, now)
	if b.State(now) != Open {
		t.Fatal("a probe that failed did not eject")
	}
}

// Each stream begins well, so that failures are never in a row; the streams are.
func TestBreaker_StreamsThatBreakInARowEject(t *testing.T) {
	b := New(Default())
	stream := func(err error) {
		request(b, nil)
		if err != nil {
			b.RecordBrokenStream(err, time.Now())
			return
		}
		b.RecordEndedStream()
	}
	for range 4 {
		stream(errFailed)
	}
	stream(nil)
	for range 4 {
		stream(errFailed)
	}
	if got := b.State(time.Now()); got != Closed {
		t.Fatalf("four in a row, twice: %s", got)
	}
	if c := b.gate.Load().Counts(); c.TotalSuccesses != 9 || c.TotalFailures != 8 {
		t.Fatalf("a broken stream is no failure beside its good beginning: %+v", c)
	}
	stream(errFailed)
	if got := b.State(time.Now()); got != Open {
		t.Fatalf("five in a row: %s", got)
	}
}

func TestBreaker_NeutralOutcomesNeverCount(t *testing.T) {
	b := New(Default())
	for range 10_000 {
		request(b, fmt.Errorf("refused: %w", ErrNeutral))
		request(b, context.Canceled)
	}
	if got := b.State(time.Now()); got != Closed {
		t.Fatalf("after 20,000 neutral outcomes: %s", got)
	}
	if c := b.gate.Load().Counts(); c.TotalFailures != 0 || c.TotalSuccesses != 0 {
		t.Fatalf("neutral outcomes were counted: %+v", c)
	}
}

// A probe that was under way when the server was ejected, and finds it busy, does not
// shorten the ejection.
func TestBreaker_ABusyProbeShortensNoEjection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(Default())
		for range 6 {
			b.eject(time.Now())
		}
		until := *b.openUntil.Load()
		b.RecordProbe(ErrBusy, time.Now())
		if got := *b.openUntil.Load(); got.Before(until) {
			t.Errorf("out for %v, and for %v after a busy probe", time.Until(until), time.Until(got))
		}
	})
}

// Who charged others with what was this server's fault is told since when, and once more
// when it is well again.
func TestBreaker_AFailedProbeIsToBlameSinceTheLastThatPassed(t *testing.T) {
	b := New(Default())
	var told []time.Time
	b.OnBlame(func(since time.Time) { told = append(told, since) })
	start := time.Now()
	at := func(second int) time.Time { return start.Add(time.Duration(second) * time.Second) }
	b.RecordProbe(nil, at(1))
	b.RecordProbe(ErrBusy, at(2))
	if len(told) != 0 {
		t.Fatalf("blamed for nothing: %v", told)
	}
	for second, verdict := range []error{3: ErrWrongAnswer, 4: ErrWrongAnswer, 5: nil, 6: nil, 7: ErrWrongAnswer} {
		if second >= 3 {
			b.RecordProbe(verdict, at(second))
		}
	}
	if want := []time.Time{at(1), at(1), at(1), at(6)}; !slices.Equal(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}
}

// told reports whether who sends probes is told to look again.
func told(b *Breaker) bool {
	select {
	case <-b.Changed():
		return true
	default:
		return false
	}
}

// The probe of an ejected server that is most likely another process is due at once, each
// time. It is still a probe that proves it.
func TestBreaker_AProbeMayBeDueBeforeTheEjectionEnds(t *testing.T) {
	b := New(Default())
	now := time.Now()
	if b.ProbeNow(now); told(b) || b.Ejected() {
		t.Fatal("a closed breaker has changed")
	}
	for round := range 2 {
		for range 5 {
			b.RecordProbe(errFailed, now)
		}
		told(b)
		now = now.Add(time.Second)
		if b.ProbeNow(now); !told(b) {
			t.Errorf("round %d: who sends probes is not told", round)
		}
		if at, due := b.ProbeDue(time.Minute); !due || !at.Equal(now) {
			t.Errorf("round %d: due %v, in %v", round, due, at.Sub(now))
		}
		if state, open := b.State(now), request(b, nil); state != HalfOpen || open {
			t.Errorf("round %d: %s, a request is let through: %v", round, state, open)
		}
		if b.ProbeNow(now.Add(time.Second)); told(b) {
			t.Errorf("round %d: told again of what is due already", round)
		}
	}
}
