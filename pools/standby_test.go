package pools

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/pools/curve"
)

// Requests for one adapter wait for one load of it; the one that loads is told once that there is
// something, and when it is loaded, or not, all that wait go on.
func TestLoadRequests_AllWhoWaitForAnAdapterWaitForOneLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := upFleet(t, func(c *Config) { c.Adapters.Directory = []Adapter{{Name: "ada"}, {Name: "eve"}} }, spec("http://10.0.0.1:1", Both)).Servers()[0]
		r := s.LoadRequests()
		for round, verdict := range []error{nil, errEngine, nil} {
			var results []chan error
			var leases []*Lease
			for range 3 {
				l, result := claim(t, s, Decode, curve.Work{}), make(chan error, 1)
				await := l.Prepare("ada")
				go func() { result <- await(context.WithoutCancel(t.Context())) }()
				results, leases = append(results, result), append(leases, l)
			}
			synctest.Wait()
			if !due(r.Due()) || due(r.Due()) || r.Next() != "ada" {
				t.Errorf("round %d: next is %q", round, r.Next())
			}
			for i, result := range results {
				if len(result) > 0 {
					t.Errorf("round %d: %d waits no more", round, i)
				}
			}
			r.Finish("eve", nil, 0, time.Now()) // which no request asked for
			r.Finish("ada", verdict, time.Minute, time.Now())
			r.Finish("ada", errors.New("later"), time.Hour, time.Now())
			for i, result := range results {
				if err := <-result; !errors.Is(err, verdict) {
					t.Errorf("round %d: %d got %v, want %v", round, i, err, verdict)
				}
			}
			if next, refuses := r.Next(), r.refuses("ada", time.Now()); next != "" || refuses != (verdict != nil) {
				t.Errorf("round %d: next is %q, refuses %v", round, next, refuses)
			}
			for _, l := range leases {
				l.Release()
			}
		}
	})
}

// A server may be up before the one who makes it ready has begun: what is requested then waits, and does not fail.
func TestStandby_WhatIsRequestedBeforeItIsWatchedWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := upFleet(t, func(c *Config) { c.Adapters.Directory = []Adapter{{Name: "ada"}} }, Spec{URL: "http://10.0.0.1:1", Role: Both, GPUs: "a"}).Servers()[0]
		s.GPUShare().RecordSleep()
		l, result := claim(t, s, Decode, curve.Work{}), make(chan error, 1)
		await := l.Prepare("ada")
		go func() { result <- await(t.Context()) }()
		synctest.Wait()
		if !due(s.WakeRequests().Due()) || len(result) > 0 {
			t.Fatal("it does not wait to be woken")
		}
		s.GPUShare().Observe(false, s.GPUShare().Version(), time.Now())
		s.WakeRequests().Finish(nil, 0, time.Now())
		synctest.Wait()
		if !due(s.LoadRequests().Due()) || len(result) > 0 {
			t.Fatal("it does not wait for its adapter")
		}
		s.LoadRequests().Finish("ada", nil, 0, time.Now())
		if err := <-result; err != nil {
			t.Error(err)
		}
		l.Release()
	})
}

// A client that leaves waits no longer, with the reason why it left; its place and its use of
// the adapter are given back by the lease.
func TestPrepare_AClientThatLeavesWaitsNoLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := upFleet(t, func(c *Config) { c.Adapters.Directory = []Adapter{{Name: "ada"}} }, spec("http://10.0.0.1:1", Both), Spec{URL: "http://10.0.0.2:1", Role: Both, GPUs: "a"})
		left := errors.New("client left")
		for _, s := range f.Servers() {
			s.GPUShare().RecordSleep()
			l := claim(t, s, Decode, curve.Work{})
			model := "ada"
			if s.GPUs != "" {
				model = "m" // it waits for nothing but the server
			}
			await := l.Prepare(model)
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(left)
			if err := await(ctx); !errors.Is(err, left) {
				t.Errorf("%s: %v", s.ID(), err)
			}
			l.Release()
			if _, held := s.LoadRequests().LastUse("ada", time.Now()); held != 0 || !s.GPUShare().Unused() {
				t.Errorf("%s: held %d times, unused %v", s.ID(), held, s.GPUShare().Unused())
			}
		}
	})
}

// A request for a server that sleeps asks for it to be woken, waits until it is awake, counts
// on it until its end, and has its adapter loaded then.
func TestPrepare_ASleepingServerIsWokenAndHeldAwake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := upFleet(t, func(c *Config) { c.Adapters.Directory = []Adapter{{Name: "ada"}} }, Spec{URL: "http://10.0.0.1:1", Role: Both, GPUs: "a"})
		s := f.Servers()[0]
		for round := range 2 {
			s.GPUShare().RecordSleep()
			l := claim(t, s, Prefill, curve.Work{Estimate: 10 * time.Second})
			await := l.Prepare("ada")
			if await == nil || !due(s.WakeRequests().Due()) {
				t.Fatalf("round %d: no manager is asked to wake it", round)
			}
			result := make(chan error, 1)
			go func() { result <- await(t.Context()) }()
			time.Sleep(4 * time.Second)
			if len(result) > 0 || due(s.LoadRequests().Due()) {
				t.Fatalf("round %d: it waits no more, or an adapter is loaded into what sleeps", round)
			}
			s.WakeRequests().Finish(nil, time.Minute, time.Now())
			synctest.Wait()
			if len(result) > 0 || !due(s.WakeRequests().Due()) { // it sleeps again: another program was faster
				t.Fatalf("round %d: a server that sleeps still is taken to be awake", round)
			}
			s.GPUShare().RecordWake(time.Second, time.Now())
			s.WakeRequests().Finish(nil, time.Minute, time.Now())
			synctest.Wait()
			if s.GPUShare().Unused() || !due(s.LoadRequests().Due()) {
				t.Fatalf("round %d: awake and unused %v, or its adapter is not asked for", round, s.GPUShare().Unused())
			}
			if queue := s.InFlight(Prefill, time.Now()).Queue; queue != 10*time.Second {
				t.Errorf("round %d: it has worked on what it slept through: %v ahead", round, queue)
			}
			time.Sleep(3 * time.Second)
			s.LoadRequests().Finish("ada", nil, 0, time.Now())
			if err := <-result; err != nil {
				t.Errorf("round %d: %v", round, err)
			}
			if queue := s.InFlight(Prefill, time.Now()).Queue; queue != 10*time.Second {
				t.Errorf("round %d: it has worked while the adapter was loaded: %v ahead", round, queue)
			}
			l.Release()
			if !s.GPUShare().Unused() {
				t.Errorf("round %d: it is used after the end", round)
			}
		}
	})
}

// A server that is awake is counted on at once; one with GPUs of its own never sleeps.
func TestPrepare_AnAwakeServerIsReady(t *testing.T) {
	f := upFleet(t, nil, Spec{URL: "http://10.0.0.1:1", Role: Both, GPUs: "a"}, spec("http://10.0.0.2:1", Both))
	for i, s := range f.Servers() {
		first, second := claim(t, s, Decode, curve.Work{}), claim(t, s, Decode, curve.Work{})
		if first.Prepare("m") != nil || second.Prepare("m") != nil || due(s.WakeRequests().Due()) {
			t.Errorf("%s is not ready", s.ID())
		}
		if s.GPUShare().Unused() != (i == 1) {
			t.Errorf("%s is unused: %v", s.ID(), s.GPUShare().Unused())
		}
		first.Release()
		if s.GPUShare().Unused() != (i == 1) {
			t.Errorf("%s after one of two: unused %v", s.ID(), s.GPUShare().Unused())
		}
		if second.Release(); !s.GPUShare().Unused() {
			t.Errorf("%s is used after both", s.ID())
		}
	}
}

// What could not be woken fails for all that wait, and is not asked again for a time.
func TestWakeRequests_ARefusalLastsForATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newWakeRequests()
		r.Finish(errEngine, time.Minute, time.Now()) // for no request
		if r.Refuses(time.Now()) {
			t.Error("it refuses what no request asked for")
		}
		for round := range 2 {
			first, err := r.take()
			second, again := r.take()
			if err != nil || again != nil || first != second || !due(r.Due()) || due(r.Due()) {
				t.Fatalf("round %d: %v, %v, the same: %v", round, err, again, first == second)
			}
			r.Finish(errEngine, time.Minute, time.Now())
			if <-first.done; !errors.Is(first.err, errEngine) || !r.Refuses(time.Now()) {
				t.Errorf("round %d: %v, refuses %v", round, first.err, r.Refuses(time.Now()))
			}
			time.Sleep(time.Minute)
			if r.Refuses(time.Now()) {
				t.Errorf("round %d: it refuses for ever", round)
			}
		}
		r.Ask()
		r.Finish(errEngine, time.Minute, time.Now())
		r.Ask()
		if r.Finish(nil, time.Minute, time.Now()); r.Refuses(time.Now()) {
			t.Error("it was woken and refuses")
		}
		waits, _ := r.take()
		r.close()
		if <-waits.done; !errors.Is(waits.err, errStopped) {
			t.Errorf("it is not woken any more: %v", waits.err)
		}
		if _, err := r.take(); !errors.Is(err, errStopped) {
			t.Errorf("it is not woken any more, for one that comes now: %v", err)
		}
		r.close()
	})
}

// An adapter is in use while leases hold it; what was never seen counts as used when it is
// first looked at, since another gateway may use it. Once nothing loads, only what a server has
// can be had.
func TestLoadRequests_UseIsCountedFromTheFirstLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, start := newLoadRequests(), time.Now()
		if at, held := r.LastUse("ada", start); !at.Equal(start) || held != 0 {
			t.Errorf("at first: %v, held %d times", at, held)
		}
		time.Sleep(time.Minute)
		if at, _ := r.LastUse("ada", time.Now()); !at.Equal(start) {
			t.Errorf("a minute later it was used %v ago", time.Since(at))
		}
		if pending, err := r.take("ada", true, time.Now()); pending != nil || err != nil {
			t.Errorf("one that is there: %v", err)
		}
		waits, err := r.take("eve", false, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		r.close()
		if <-waits.done; !errors.Is(waits.err, errStopped) || r.Next() != "" {
			t.Errorf("nothing loads any more: %v, next %q", waits.err, r.Next())
		}
		if _, err := r.take("eve", false, time.Now()); !errors.Is(err, errStopped) {
			t.Errorf("for one that comes then: %v", err)
		}
	})
}
