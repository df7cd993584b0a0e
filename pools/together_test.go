package pools

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pools/curve"
)

// together runs each of the functions many times, all at once.
func together(times int, all ...func()) {
	var wg sync.WaitGroup
	for _, each := range all {
		wg.Go(func() {
			for range times {
				each()
			}
		})
	}
	wg.Wait()
}

// Requests claim and leave one server at once, while it is looked at: in the end nothing is
// left on it, and nothing was lost meanwhile.
func TestServer_WhatManyRequestsDoAtOnceAddsUp(t *testing.T) {
	f := upFleet(t, func(c *Config) { c.Adapters.Directory = []Adapter{{Name: "ada"}} }, Spec{URL: "http://10.0.0.1:1", Role: Both, GPUs: "a"})
	s := f.Servers()[0]
	s.RecordAdapterLoad(Adapter{Name: "ada"}, Model{ID: "m"}, time.Second)
	request := func() {
		l, err := s.Claim(Decode, curve.Work{Tokens: 3}, true, time.Now())
		if err != nil {
			t.Error(err)
			return
		}
		l.Prepare("ada")
		l.MarkSent(0, time.Now())
		l.BeginLocalPrefill(curve.Work{Tokens: 2}, time.Now())
		l.pauseBacklog(time.Now())
		if s.InFlight(Decode, time.Now()).Requests < 1 || s.InFlight(Prefill, time.Now()).Requests < 1 {
			t.Error("its work is not on the server")
		}
		if s.GPUShare().Unused() {
			t.Error("the server is unused while it works")
		}
		if _, held := s.LoadRequests().LastUse("ada", time.Now()); held < 1 {
			t.Error("its adapter is not held")
		}
		l.EndLocalPrefill(2, 0, 0, time.Now())
		l.RecordResult(nil)
		l.Release()
	}
	look := func() {
		s.FallsTo(time.Second, time.Now())
		s.WakeTime(time.Now())
		s.GPUShare().Occupant(time.Now(), 0)
		s.GPUShare().RecordUse(time.Now())
		s.Serves("ada", time.Now())
		Candidates(nil, f.Servers(), "m", Decode, 0.5, time.Now())
	}
	together(300, request, request, request, look)
	if own := s.InFlight(Decode, time.Now()).Plus(s.InFlight(Prefill, time.Now())); own != (InFlight{}) {
		t.Errorf("left on the server: %+v", own)
	}
	if _, held := s.LoadRequests().LastUse("ada", time.Now()); held != 0 || !s.GPUShare().Unused() {
		t.Errorf("the adapter is held %d times, the server unused %v", held, s.GPUShare().Unused())
	}
}

// A server sleeps, wakes and is observed by one while others ask for it.
func TestGPUShare_IsSafeForConcurrentUse(t *testing.T) {
	var g GPUShare
	var entered, left atomic.Int64
	together(300,
		func() {
			if g.Enter() {
				entered.Add(1)
				g.Leave(time.Now())
				left.Add(1)
			}
		},
		func() { g.SetDraining(true); g.RecordSleep(); g.RecordWake(time.Second, time.Now()) },
		func() { g.Observe(true, g.Version(), time.Now()); g.Observe(false, g.Version(), time.Now()) },
		func() { g.setClosed(true); g.setClosed(false); g.RecordUse(time.Now()) },
		func() { g.Asleep(); g.Unused(); g.Occupant(time.Now(), 0) },
	)
	g.SetDraining(false)
	g.RecordWake(time.Second, time.Now())
	if !g.Unused() || entered.Load() != left.Load() || !g.Enter() {
		t.Errorf("unused %v after %d entered and %d left", g.Unused(), entered.Load(), left.Load())
	}
}

// Each request for an adapter, or for a server to be awake, gets its answer, whichever asks,
// answers and stops answering at the same time.
func TestStandby_EachWhoWaitsIsAnswered(t *testing.T) {
	for range 100 {
		loads, wakes := newLoadRequests(), newWakeRequests()
		var waits sync.Map // of *readiness
		together(3,
			func() {
				if pending, err := loads.take("ada", false, time.Now()); err == nil {
					waits.Store(pending, true)
				}
				loads.release("ada", time.Now())
			},
			func() {
				if pending, err := wakes.take(); err == nil {
					waits.Store(pending, true)
				}
			},
			func() { loads.Finish(loads.Next(), nil, 0, time.Now()); wakes.Finish(errEngine, 0, time.Now()) },
			func() { loads.refuses("ada", time.Now()); wakes.Refuses(time.Now()); loads.LastUse("ada", time.Now()) },
			func() { loads.close(); wakes.close() },
		)
		waits.Range(func(pending, _ any) bool {
			select {
			case <-pending.(*readiness).done:
			default:
				t.Error("one waits for ever")
			}
			return true
		})
		if _, held := loads.LastUse("ada", time.Now()); held != 0 {
			t.Errorf("held %d times", held)
		}
	}
}

// Signs of life, late probes and certainty come at once, and requests that wait are notified.
func TestLiveness_IsSafeForConcurrentUse(t *testing.T) {
	f := upFleet(t, nil, spec("http://10.0.0.1:1", Both), spec("http://10.0.0.2:1", Both))
	s := f.Servers()[0]
	later := time.Now().Add(time.Hour)
	var told atomic.Int64
	together(300,
		func() { s.ProbeLate(later) },
		func() { s.RecordAlive(later); s.RecordProgress(time.Now()) },
		func() { s.MarkDown("connection refused") },
		func() { s.ProbePassed(s.Health(), []Model{{ID: "m"}}, time.Now()) },
		func() {
			defer s.OnDown(new(DownWatch), DownFunc(func(DownCause) { told.Add(1) })).Stop()
			s.reportDown(Silent)
		},
		func() { _, stop := f.Changes(); stop() },
		func() { s.State(); s.vitals.silent(true); f.Missing() },
	)
	if told.Load() < 300 {
		t.Errorf("told %d times, want 300 at least", told.Load())
	}
	if s.MarkDown("connection refused"); s.State() != Down {
		t.Errorf("in the end: %v", s.State())
	}
}

// The fleet is read again, drained, watched and closed at once; none is followed in the end.
func TestFleet_IsSafeForConcurrentUse(t *testing.T) {
	f, w := newTestFleet(t), &follower{racks: make(map[string]string)}
	f.Watch(w.watch)
	both := []Spec{spec("http://10.0.0.1:1", Both), spec("http://10.0.0.2:1", Both)}
	apply := func(specs []Spec) func() {
		return func() {
			if err := f.Apply(specs); err != nil {
				t.Error(err)
			}
		}
	}
	drain := func() { f.SetDrain("10.0.0.2:1", true); f.SetDrain("10.0.0.2:1", false) }
	watch := func() { f.Watch(func() func(context.Context, *Server) { return func(context.Context, *Server) {} }) }
	together(30, apply(both), apply(both[1:]), drain, watch, f.Close)
	f.Close()
	if !w.follows(map[string]string{}) {
		t.Errorf("%v are followed", w.racks)
	}
}
