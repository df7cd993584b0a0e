package pools

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/pools/curve"
	"github.com/tandem-gateway/tandem/pools/load"
)

// replicaWork is what others have on each server, and how many of them have anything.
type replicaWork struct {
	each InFlight
	busy int
}

func (w replicaWork) InFlight(_ string, leg Role, _ time.Time) InFlight {
	if leg == Decode {
		return InFlight{}
	}
	return w.each
}
func (w replicaWork) Busy(time.Time) int { return w.busy }

// The work on a server is this gateway's and that of others, until they are not known any more.
func TestFleet_OthersWorkCountsToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := upFleet(t, nil, spec("http://10.0.0.1:1", Both))
		s := f.Servers()[0]
		claim(t, s, Prefill, curve.Work{Tokens: 10, Estimate: 4 * time.Second})
		own := InFlight{Requests: 1, Tokens: 10, Computing: 10, Queue: 4 * time.Second, Stays: 1200 * time.Millisecond}
		if got := s.InFlight(Prefill, time.Now()); got != own || f.OthersBusy(time.Now()) {
			t.Errorf("others are not known: %+v, busy %v", got, f.OthersBusy(time.Now()))
		}
		f.SetReplicaWork(replicaWork{InFlight{Requests: 2, Tokens: 300, Queue: 3 * time.Second, Stays: time.Second}, 1})
		want := InFlight{Requests: 3, Tokens: 310, Computing: 10, Queue: 7 * time.Second, Stays: 2200 * time.Millisecond}
		if got := s.InFlight(Prefill, time.Now()); got != want || !f.OthersBusy(time.Now()) {
			t.Errorf("with others: %+v, busy %v", got, f.OthersBusy(time.Now()))
		}
		if got := s.OwnInFlight(Prefill, time.Now()); got != own {
			t.Errorf("its own: %+v", got)
		}
		if got := s.InFlight(Decode, time.Now()); got != (InFlight{}) {
			t.Errorf("of decode: %+v", got)
		}
		f.SetReplicaWork(replicaWork{})
		if f.OthersBusy(time.Now()) {
			t.Error("none of the others is busy")
		}
		f.SetReplicaWork(nil)
		if got := s.InFlight(Prefill, time.Now()); got != own || f.OthersBusy(time.Now()) {
			t.Errorf("others are not known any more: %+v", got)
		}
	})
}

// The work ahead falls as time passes, but only this gateway's, and only so far.
func TestServer_FallsTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := upFleet(t, nil, spec("http://10.0.0.1:1", Both))
		s := f.Servers()[0]
		claim(t, s, Prefill, curve.Work{Estimate: 10 * time.Second}) // of which 3 s stay
		for _, c := range []struct {
			limit, others time.Duration
			in            time.Duration
			ok            bool
		}{
			{6 * time.Second, 0, 4 * time.Second, true},
			{3 * time.Second, 0, 7 * time.Second, true},
			{3*time.Second - 1, 0, 0, false},
			{10 * time.Second, 0, 0, false}, // it is there already
			{6 * time.Second, time.Second, 5 * time.Second, true},
			{6 * time.Second, 4 * time.Second, 0, false},
			{6 * time.Second, time.Hour, 0, false},
		} {
			f.SetReplicaWork(replicaWork{each: InFlight{Queue: c.others}})
			if in, ok := s.FallsTo(c.limit, time.Now()); in != c.in || ok != c.ok {
				t.Errorf("to %v with %v of others: in %v, %v; want %v, %v", c.limit, c.others, in, ok, c.in, c.ok)
			}
		}
	})
}

// A prefill alone on the server teaches what it took since it was sent, less what it waited
// for beside its work; of one beside others' requests only a share is its own.
func TestReleasePrefilled_TeachesWhatTheServerTook(t *testing.T) {
	x := curve.PrefillFeatures(4096, 0)
	for name, c := range map[string]struct {
		others       int
		took         float64 // times what was believed
		held, beside time.Duration
		want         float64
	}{
		"as believed":                  {0, 1, 0, 0, 1},
		"twice as long":                {0, 2, 0, 0, 2},
		"its place was held before":    {0, 2, time.Second, 0, 2},
		"it waited for something else": {0, 2, 0, time.Second, 2},
		"that was nearly all of it":    {0, 2, 0, 5 * time.Second, 1}, // all that is known is that it took no longer
		"half as long":                 {0, 0.5, 0, 0, 0.5},
		"beside three of others'":      {3, 4, 0, 0, 1},
		"beside one of others'":        {1, 4, 0, 0, 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := upFleet(t, nil, spec("http://10.0.0.1:1", Both))
			s := f.Servers()[0]
			f.SetReplicaWork(replicaWork{each: InFlight{Requests: c.others}})
			before := s.PrefillCurve().Seconds(x)
			for range 60 {
				l := claim(t, s, Prefill, curve.Work{Tokens: 4096})
				time.Sleep(c.held)
				l.MarkSent(0, time.Now())
				time.Sleep(time.Duration(c.took*before*float64(time.Second)) + c.beside)
				l.ReleasePrefilled(4096, 0, c.beside)
				time.Sleep(time.Second)
			}
			if got := s.PrefillCurve().Seconds(x) / before; got < 0.9*c.want || got > 1.1*c.want {
				t.Errorf("%s: believed %.2f times as long, want %.1f", name, got, c.want)
			}
		})
	}
}

// Gaps of several streams make a mean once they are enough: those beside prompts apart from the others, and none that
// came long before.
func TestJoinGaps_OfOneTimeAndKind(t *testing.T) {
	s, now := NewServer(spec("http://10.0.0.1:1", Both)), time.Now()
	for i, c := range []struct {
		after  time.Duration // the gaps before
		sum    time.Duration
		gaps   int
		beside bool
		want   time.Duration
	}{
		{0, 30, 3, false, 0},
		{gapsLast, 50, 1, true, 0},
		{0, 50, 1, false, 20},
		{0, 10, 3, false, 0},
		{gapsLast + 1, 90, 3, false, 0}, // those of before are forgotten
		{0, 30, 1, false, 30},
		{0, 70, 7, true, 10}, // as that beside a prompt is by now
	} {
		now = now.Add(c.after)
		if got := s.JoinGaps(c.sum, c.gaps, c.beside, 4, now); got != c.want {
			t.Errorf("%d: %v, want %v", i, got, c.want)
		}
	}
}

// A prefill that ends before what it is predicted to wait for beside its work teaches all the same: else a server would
// be believed to be slow for as long as the prediction is wrong.
func TestReleasePrefilled_TeachesThoughTheWaitWasShorter(t *testing.T) {
	for _, beside := range []float64{0.19, 0.21, 1e6} { // times the prefill as believed
		synctest.Test(t, func(t *testing.T) {
			s := upFleet(t, nil, spec("http://10.0.0.1:1", Both)).Servers()[0]
			x := curve.PrefillFeatures(4096, 0)
			before := s.PrefillCurve().Seconds(x)
			for range 100 {
				l := claim(t, s, Prefill, curve.Work{Tokens: 4096})
				l.MarkSent(0, time.Now())
				time.Sleep(time.Duration(0.2 * before * float64(time.Second)))
				l.ReleasePrefilled(4096, 0, time.Duration(beside*before*float64(time.Second)))
				time.Sleep(time.Second)
			}
			if got := s.PrefillCurve().Seconds(x) / before; got < 0.15 || got > 0.3 {
				t.Errorf("predicted to wait for %v of it: believed %.2f times as long", beside, got)
			}
		})
	}
}

// The step curve and the confidence in both follow what the server shows; another replica is
// told of it and believes it.
func TestSpeed_IsShownToOtherReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := NewServer(spec("http://10.0.0.1:1", Both)), NewServer(spec("http://10.0.0.1:1", Both))
		x := curve.StepFeatures(32, 100_000)
		before := here.StepCurve().Seconds(x)
		if p, s := here.Beliefs(time.Now()); p.Confidence != 0 || s.Confidence != 0 {
			t.Errorf("confident of nothing: %v, %v", p, s)
		}
		for range 60 {
			time.Sleep(time.Second)
			here.ObserveStep(time.Duration(3*before*float64(time.Second)), 32, 100_000, time.Now())
		}
		if p, s := here.Beliefs(time.Now()); p.Confidence != 0 || s.Confidence != 1 {
			t.Errorf("confident of decode alone: %v, %v", p, s)
		}
		p, s := here.Report(time.Now())
		there.ReceivePrefill(nil, p, 0, time.Now())
		there.ReceiveStep(nil, s, 0, time.Now())
		for name, server := range map[string]*Server{"here": here, "there": there} {
			if times := server.StepCurve().Seconds(x) / before; times < 2.6 || times > 3.2 {
				t.Errorf("%s a step that takes three times as long is believed to take %.2f", name, times)
			}
			if server.PrefillCurve() != NewServer(spec("http://10.0.0.1:1", Both)).PrefillCurve() {
				t.Errorf("%s prefill has changed", name)
			}
		}
	})
}

// What is waiting at an engine beyond the gateways' own counts as others'.
func TestReportLoad_CountsWhatOthersSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := upFleet(t, nil, spec("http://10.0.0.1:1", Both)).Servers()[0]
		claim(t, s, Prefill, curve.Work{Tokens: 100})
		claim(t, s, Decode, curve.Work{Tokens: 20})
		l := s.Load()
		l.WaitingTokens, l.At = reading(700), time.Now()
		s.ReportLoad(l)
		if got := s.Load().External; got != reading(580) {
			t.Errorf("of 700 tokens waiting 120 are ours: %+v", got)
		}
	})
}

// A server that has given whole answers alone has shown how long its prompts take at least: what refuses
// for a deadline rests on that.
func TestEndLocalWhole_ShowsWhatAPromptTakesAtLeast(t *testing.T) {
	for tokens, want := range map[int]float64{0: 0, 1: 0.2, 4: 0.05} { // twice what was shown
		synctest.Test(t, func(t *testing.T) {
			s := upFleet(t, nil, spec("http://10.0.0.1:1", Both)).Servers()[0]
			l := claim(t, s, Decode, curve.Work{Tokens: 100})
			l.BeginLocalPrefill(curve.Work{Tokens: 100, Estimate: 10 * time.Second}, time.Now())
			l.MarkSent(0, time.Now())
			time.Sleep(100 * time.Millisecond)
			before := s.PrefillCurve()
			l.EndLocalWhole(100, 0, tokens, time.Now())
			l.Release()
			var shown curve.Shown
			shown.Add(s.Evidence(), 0)
			support := shown.Support()
			if got := support.Seconds(10); math.Abs(got-want) > 1e-9 || support.None() != (want == 0) {
				t.Errorf("an answer of %d tokens supports %v s of 10, want %v", tokens, got, want)
			}
			if s.PrefillCurve() != before || s.InFlight(Prefill, time.Now()).Requests != 0 {
				t.Error("the curve has changed, or the prompt is still being computed")
			}
		})
	}
}

// An answer of one token says when its prompt was computed, though it comes whole: the prompt may be taken to be done
// before, and be the last on the server.
func TestEndLocalPrefill_OfAPromptThatWasTakenToBeDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := upFleet(t, nil, spec("http://10.0.0.1:1", Both)).Servers()[0]
		x := curve.PrefillFeatures(4096, 0)
		before := s.PrefillCurve().Seconds(x)
		for range 60 {
			var both [2]*Lease // beside each other
			for i := range both {
				both[i] = claim(t, s, Decode, curve.Work{Tokens: 4096})
				both[i].BeginLocalPrefill(curve.Work{Tokens: 4096, Estimate: time.Millisecond}, time.Now())
				both[i].MarkSent(0, time.Now())
				both[i].EndsUnseen()
			}
			for _, l := range both {
				time.Sleep(time.Duration(2 * before * float64(time.Second)))
				l.EndLocalPrefill(4096, 0, 0, time.Now())
				l.Release()
			}
		}
		if got := s.PrefillCurve().Seconds(x) / before; got < 1.8 || got > 2.2 {
			t.Errorf("believed %.2f times as long, want 2", got)
		}
		if n := s.InFlight(Prefill, time.Now()).Requests; n != 0 {
			t.Errorf("%d are left", n)
		}
	})
}

// A server that only gives whole answers, or that only decode asks, is believed to be as fast as these show
// at the least.
func TestLease_WhatEndsUnseenBoundsTheCurve(t *testing.T) {
	const prompt = 2000
	for how, serve := range map[string]func(*Server){
		"whole answers": func(s *Server) {
			l := claim(t, s, Decode, curve.Work{Tokens: 2 * prompt})
			l.BeginLocalPrefill(curve.Work{Tokens: prompt, Estimate: 10 * time.Second}, time.Now())
			l.MarkSent(0, time.Now())
			l.EndsUnseen()
			time.Sleep(5 * time.Millisecond)
			l.EndLocalWhole(prompt, 0, 10, time.Now())
			l.Release()
		},
		"prefills that decode asks for": func(s *Server) {
			l := claim(t, s, Prefill, curve.Work{Tokens: prompt, Estimate: 10 * time.Second})
			l.MarkSent(0, time.Now())
			l.EndsUnseen()
			time.Sleep(5 * time.Millisecond)
			l.ReleasePrefilledBy(prompt, 0)
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := upFleet(t, nil, spec("http://10.0.0.1:1", Both)).Servers()[0]
			x := curve.PrefillFeatures(prompt, 0)
			if s.PrefillCurve().Seconds(x) < 0.02 {
				t.Fatal("the prior is no slower than what it is shown")
			}
			for range 200 {
				serve(s)
			}
			if got := s.PrefillCurve().Seconds(x); got < 0.004 || got > 0.006 {
				t.Errorf("%s of 5 ms: a prompt is believed to take %v s", how, got)
			}
			if n := s.InFlight(Prefill, time.Now()).Requests; n != 0 {
				t.Errorf("%s: %d are left", how, n)
			}
		})
	}
}

// Sent one behind the other, each when the one before is believed to be computed, whole answers show nothing that
// contradicts the belief: of four prompts in a second each answer comes a quarter of a second behind the one before.
// The engine's clock shows that their prompts took 20 ms.
func TestReportLoad_TheEnginesClockSaysWhatPromptsOfWholeAnswersTook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := upFleet(t, nil, spec("http://10.0.0.1:1", Both)).Servers()[0]
		x := curve.PrefillFeatures(3000, 0)
		believed := s.PrefillCurve().Seconds(x)
		page := func(prompts int) {
			l := load.Load{Engine: "vllm", Running: reading(0), At: time.Now()}
			l.Prefills, l.PrefillSeconds = reading(float64(prompts)), reading(0.02*float64(prompts))
			s.ReportLoad(l)
		}
		page(0)
		for n := 1; n <= 40; n++ {
			l := claim(t, s, Decode, curve.Work{Tokens: 3060})
			l.BeginLocalPrefill(curve.Work{Tokens: 3000, Estimate: 250 * time.Millisecond}, time.Now())
			l.MarkSent(0, time.Now())
			l.EndsUnseen()
			time.Sleep(250 * time.Millisecond)
			l.EndLocalWhole(3000, 0, 60, time.Now())
			l.Release()
			if n == 4 && s.PrefillCurve().Seconds(x) < 0.9*believed {
				t.Error("it is believed to be faster before its clock was read")
			}
			if n%4 == 0 {
				page(n)
			}
		}
		if got := s.PrefillCurve().Seconds(x); got < 0.018 || got > 0.022 {
			t.Errorf("prompts of 20 ms are believed to take %v s (before: %v)", got, believed)
		}
	})
}

// What the batch took meanwhile is not the prompt's: prompts that come between the steps of streams are not believed
// to take the time of these.
func TestEndLocalPrefill_WhatTheBatchTookIsNotThePrompts(t *testing.T) {
	for _, others := range []int{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			s := upFleet(t, nil, spec("http://10.0.0.1:1", Both)).Servers()[0]
			x := curve.PrefillFeatures(1000, 0)
			before := s.PrefillCurve().Seconds(x)
			own := time.Duration(before * float64(time.Second))
			for range 60 {
				leases := make([]*Lease, 1+others)
				for i := range leases {
					leases[i] = claim(t, s, Decode, curve.Work{Tokens: 1000})
					leases[i].BeginLocalPrefill(curve.Work{Tokens: 1000, Estimate: own}, time.Now())
					leases[i].MarkSent(0, time.Now())
				}
				for _, l := range leases {
					time.Sleep(own + 50*time.Millisecond)
					l.EndLocalPrefill(1000, 0, 50*time.Millisecond, time.Now())
					l.Release()
				}
			}
			if got := s.PrefillCurve().Seconds(x) / before; math.Abs(got-1) > 0.01 {
				t.Errorf("with %d beside it: believed %.2f times as long", others, got)
			}
		})
	}
}

// A batch that is predicted to take more than all of it leaves the prompt a part.
func TestEndLocalPrefill_APartIsThePromptsOwn(t *testing.T) {
	for batch, want := range map[time.Duration]time.Duration{0: 100, 60: 40, 95: 10, 500: 10} {
		if got := withoutBatch(100*time.Millisecond, batch*time.Millisecond); got != want*time.Millisecond {
			t.Errorf("without a batch of %d ms: %v, want %d ms", batch, got, want)
		}
	}
}
