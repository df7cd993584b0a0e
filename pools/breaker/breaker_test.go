package breaker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

var errFailed = errors.New("engine failed")

// request asks for a place and gives a verdict, and reports whether there was a place.
func request(b *Breaker, verdict error) bool {
	allowed, err := b.Allow()
	if err == nil {
		allowed.Say(verdict)
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

// A caller that charged others with what was this server's fault is told since when, and once more
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

// told reports whether the prober is told to look again.
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
			t.Errorf("round %d: the prober is not told", round)
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

func TestConfig_SettingsAreCheckedAtTheirEdges(t *testing.T) {
	for _, c := range []struct {
		change func(*Config)
		ok     bool
	}{
		{func(*Config) {}, true},
		{func(c *Config) { c.Consecutive = 0 }, false},
		{func(c *Config) { c.Consecutive = 1 }, true},
		{func(c *Config) { c.Ratio = 0 }, false},
		{func(c *Config) { c.Ratio = 0.01 }, true},
		{func(c *Config) { c.Ratio = 1 }, true},
		{func(c *Config) { c.Ratio = 1.01 }, false},
		{func(c *Config) { c.Ejection = 0 }, false},
		{func(c *Config) { c.Ejection = 1 }, true},
		{func(c *Config) { c.MaxEjection = c.Ejection }, true},
		{func(c *Config) { c.MaxEjection = c.Ejection - 1 }, false},
		{func(c *Config) { c.Probe = 0 }, false},
		{func(c *Config) { c.Probe = 1 }, true},
	} {
		cfg := Default()
		c.change(&cfg)
		if err := cfg.Validate(); (err == nil) != c.ok {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

// Only a server that fails soon after it was let in again is ejected for longer than before:
// once it has been well for as long as the longest ejection, it begins with the first again.
func TestBreaker_AServerThatWasWellForLongIsEjectedShortly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(Default())
		out := func() time.Duration {
			for range Default().Consecutive {
				request(b, errFailed)
			}
			at, _ := b.ProbeDue(0)
			defer b.RecordProbe(nil, time.Now())
			return time.Until(at)
		}
		within := func(name string, got, want time.Duration) {
			t.Helper()
			if got < want*79/100 || got > want*121/100 {
				t.Errorf("%s: out for %v, want %v +-20 %%", name, got, want)
			}
		}
		within("first", out(), time.Second)
		within("second, at once", out(), 2*time.Second)
		time.Sleep(Default().MaxEjection)
		within("third, a minute later", out(), 4*time.Second)
		time.Sleep(Default().MaxEjection + 1)
		within("the first in more than a minute", out(), time.Second)
		within("at once", out(), 2*time.Second)
	})
}

// The prober is told of each ejection and suspicion, and finds out what is due.
func TestBreaker_NotifiesWhatSendsProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(Default())
		for round := range 2 {
			time.Sleep(time.Minute)
			if told(b) {
				t.Fatalf("round %d: told of nothing", round)
			}
			if b.Suspect(); !told(b) {
				t.Errorf("round %d: not told of a suspicion", round)
			}
			b.RecordProbe(nil, time.Now())
			request(b, errFailed)
			if _, due := b.ProbeDue(time.Second); !due || !told(b) {
				t.Errorf("round %d: not told of a failure, which is uncertain", round)
			}
			b.RecordProbe(nil, time.Now())
			for range Default().Consecutive {
				b.RecordBrokenStream(errFailed, time.Now())
				request(b, nil)
			}
			if !b.Ejected() || !told(b) {
				t.Errorf("round %d: not told of an ejection", round)
			}
			b.RecordProbe(nil, time.Now())
			if _, due := b.ProbeDue(time.Second); due {
				t.Errorf("round %d: a probe is due after one that passed", round)
			}
		}
	})
}

// Each ejection counts, and each probe by its outcome; one that found the server busy is
// neither.
func TestBreaker_Counts(t *testing.T) {
	b := New(Default())
	now := time.Now()
	for i, c := range []struct {
		verdict error
		want    Counts
	}{
		{nil, Counts{0, 1, 0}},
		{errFailed, Counts{1, 1, 1}},
		{ErrBusy, Counts{1, 1, 1}},
		{context.DeadlineExceeded, Counts{2, 1, 2}},
		{nil, Counts{2, 2, 2}},
		{ErrBusy, Counts{2, 2, 2}},
		{ErrWrongAnswer, Counts{3, 2, 3}},
		{nil, Counts{3, 3, 3}},
	} {
		b.RecordProbe(c.verdict, now)
		if got := b.Counts(); got != c.want {
			t.Errorf("probe %d, %v: %+v, want %+v", i, c.verdict, got, c.want)
		}
	}
}

// A wrong answer is certain until a probe passes, whatever else probes find in between.
func TestBreaker_AFailedCheckLastsUntilAProbePasses(t *testing.T) {
	b := New(Default())
	for round := range 2 {
		if b.RecordProbe(errFailed, time.Now()); b.FailedCheck() {
			t.Errorf("round %d: a cut answer is a wrong one", round)
		}
		for _, verdict := range []error{fmt.Errorf("prefill: %w", ErrWrongAnswer), errFailed, ErrBusy, context.DeadlineExceeded} {
			if b.RecordProbe(verdict, time.Now()); !b.FailedCheck() {
				t.Errorf("round %d: forgotten after %v", round, verdict)
			}
		}
		if b.RecordProbe(nil, time.Now()); b.FailedCheck() {
			t.Errorf("round %d: it passed, and is wrong still", round)
		}
	}
}

// A server that was ejected and has no place for its probe is asked again soon, not at once;
// one that is let in is not ejected for being busy.
func TestBreaker_ABusyServerIsAskedAgainSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(Default())
		if b.RecordProbe(ErrBusy, time.Now()); b.Ejected() {
			t.Fatal("it is ejected because it is busy")
		}
		b = ejected()
		for round := range 3 {
			time.Sleep(time.Minute)
			b.RecordProbe(fmt.Errorf("429: %w", ErrBusy), time.Now())
			at, due := b.ProbeDue(0)
			if in := time.Until(at); !due || in < 790*time.Millisecond || in > 1210*time.Millisecond {
				t.Errorf("round %d: due %v, in %v, want in a second", round, due, in)
			}
			if b.State(time.Now()) != Open {
				t.Errorf("round %d: it is %s", round, b.State(time.Now()))
			}
		}
	})
}

// A good answer counts as one from when it came; that of a request from before the last probe
// counts no more, nor does its failure.
func TestBreaker_AnAnswerFromBeforeTheProbeIsOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(Default())
		start := time.Now()
		time.Sleep(time.Second)
		if b.ServedSince(start) {
			t.Error("served before it was asked")
		}
		request(b, errFailed)
		if b.ServedSince(start) {
			t.Error("a failure is service")
		}
		request(b, nil)
		at := time.Now()
		if !b.ServedSince(start) || b.ServedSince(at) {
			t.Errorf("served since the start %v, since now %v", b.ServedSince(start), b.ServedSince(at))
		}
		var old []Verdict
		for range 2 * Default().Consecutive {
			allowed, err := b.Allow()
			if err != nil {
				t.Fatal(err)
			}
			old = append(old, allowed)
		}
		b.RecordProbe(errFailed, time.Now())
		time.Sleep(time.Second)
		b.RecordProbe(nil, time.Now())
		for _, allowed := range old[1:] {
			allowed.Say(errFailed)
		}
		if old[0].Say(nil); b.Ejected() || b.ServedSince(at) {
			t.Errorf("by answers from before its probe it is ejected %v, serves %v", b.Ejected(), b.ServedSince(at))
		}
	})
}

// Failures in a row eject however far apart; a good answer between them begins anew.
func TestBreaker_FailuresInARowMayBeFarApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(Default())
		fail := func(n int) {
			for range n {
				request(b, errFailed)
				time.Sleep(time.Hour)
			}
		}
		fail(4)
		request(b, nil)
		if fail(4); b.Ejected() {
			t.Error("four in a row, twice")
		}
		if fail(1); !b.Ejected() {
			t.Error("five in a row")
		}
	})
}

// Requests, streams and probes end at once: each is counted, and the breaker is where the last
// verdicts put it.
func TestBreaker_IsSafeForConcurrentUse(t *testing.T) {
	b := New(Default())
	var wg sync.WaitGroup
	for _, each := range []func(){
		func() { request(b, nil); b.RecordEndedStream() },
		func() { request(b, errFailed); b.RecordBrokenStream(errFailed, time.Now()) },
		func() { b.RecordProbe(errFailed, time.Now()) },
		func() { b.RecordProbe(nil, time.Now()); b.ServedSince(time.Now()) },
		func() { b.RecordProbe(ErrBusy, time.Now()); b.ProbeNow(time.Now()) },
		func() { b.Suspect(); b.ProbeDue(time.Second); b.State(time.Now()) },
	} {
		wg.Go(func() {
			for range 200 {
				each()
			}
		})
	}
	wg.Wait()
	if c := b.Counts(); c.ProbesPassed != 200 || c.ProbesFailed != 200 || c.Ejections < 200 {
		t.Errorf("of 200 probes each: %+v", c)
	}
	if b.RecordProbe(nil, time.Now()); b.State(time.Now()) != Closed || !request(b, nil) {
		t.Errorf("proved, it is %s", b.State(time.Now()))
	}
	for range Default().Consecutive {
		b.RecordBrokenStream(errFailed, time.Now())
	}
	if !b.Ejected() {
		t.Error("it does not eject any more")
	}
}

// What a server failed with last is said when it is ejected, once, and for as long as it is; what says nothing of it is
// not what it failed with.
func TestBreaker_SaysWhyItIsOpen(t *testing.T) {
	broken := fmt.Errorf("decode on 10.0.0.1:8000: %w", errors.New("status 500"))
	for name, eject := range map[string]func(*Breaker){
		"in a row": func(b *Breaker) {
			for range Default().Consecutive {
				request(b, broken)
			}
		},
		"half of twenty": func(b *Breaker) {
			for range Default().MinRequests / 2 {
				request(b, nil)
				request(b, broken)
			}
		},
		"broken streams": func(b *Breaker) {
			for range Default().Consecutive {
				request(b, nil)
				b.RecordBrokenStream(broken, time.Now())
			}
		},
		"a probe": func(b *Breaker) { b.RecordProbe(broken, time.Now()) },
	} {
		b := New(Default())
		var said []string
		b.OnEject(func(reason string) { said = append(said, reason) })
		request(b, errFailed)
		if got := b.Reason(); got != "" {
			t.Errorf("%s: it is closed, because of %q", name, got)
		}
		eject(b)
		request(b, fmt.Errorf("%w: busy", ErrNeutral))
		if got := b.Reason(); got != "status 500" {
			t.Errorf("%s: it is open because of %q", name, got)
		}
		b.RecordProbe(errFailed, time.Now())
		if got := b.Reason(); got != "engine failed" || fmt.Sprint(said) != "[status 500]" {
			t.Errorf("%s: after a failed probe because of %q, said was %q", name, got, said)
		}
		b.RecordProbe(nil, time.Now())
		if got := b.Reason(); got != "" {
			t.Errorf("%s: it is proved, and open because of %q", name, got)
		}
		if eject(b); len(said) != 2 {
			t.Errorf("%s: the second time it says %q", name, said)
		}
	}
}
