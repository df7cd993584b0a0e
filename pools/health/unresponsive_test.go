package health

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/pools"
)

// slowEngines answer each probe after a time, as long as they are not stopped.
type slowEngines struct {
	delay   atomic.Int64 // nanoseconds
	stopped atomic.Bool
	refuses atomic.Bool
}

func (e *slowEngines) RoundTrip(req *http.Request) (*http.Response, error) {
	for e.stopped.Load() {
		if !pools.Pause(req.Context(), 10*time.Millisecond) {
			return nil, req.Context().Err()
		}
	}
	if !pools.Pause(req.Context(), time.Duration(e.delay.Load())) {
		return nil, req.Context().Err()
	}
	return (&fakeEngine{sick: e.refuses.Load(), generate: sings}).RoundTrip(req)
}

// fleetBefore is a fleet of decode servers, each of its own engine, all alive.
func fleetBefore(t *testing.T, n int) ([]*slowEngines, *pools.Fleet) {
	t.Helper()
	engines := make([]*slowEngines, n)
	var specs []pools.Spec
	for i := range engines {
		engines[i] = &slowEngines{}
		specs = append(specs, spec(fmt.Sprintf("http://10.0.0.%d:1", i), pools.Decode))
	}
	f := fleetOf(t, pools.Default(), roundTripper(func(req *http.Request) (*http.Response, error) {
		var i int
		_, _ = fmt.Sscanf(req.URL.Hostname(), "10.0.0.%d", &i) // the hosts are ours
		return engines[i].RoundTrip(req)
	}), specs...)
	synctest.Wait()
	return engines, f
}

func states(f *pools.Fleet) (all []pools.State) {
	for _, s := range f.Servers() {
		all = append(all, s.State())
	}
	return all
}

func usableOf(f *pools.Fleet) int {
	usable, _ := pools.Candidates(nil, f.Servers(), "m", pools.Decode, f.EjectShare(), time.Now())
	return len(usable)
}

// One of several that stops is unresponsive after one late probe, gets nothing new, and its
// legs are told after two. It is alive again as soon as it answers, and never was down.
func TestUnresponsive_AServerThatStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engines, f := fleetBefore(t, 4)
		s := f.Servers()[0]
		var silent, other atomic.Int32
		defer s.OnDown(new(pools.DownWatch), pools.DownFunc(func(why pools.DownCause) {
			if why == pools.Silent {
				silent.Add(1)
			} else {
				other.Add(1)
			}
		})).Stop()
		engines[0].stopped.Store(true)
		time.Sleep(3500 * time.Millisecond) // a pause and a probe's time
		if s.State() != pools.Unresponsive || !s.Health().Up || usableOf(f) != 3 || silent.Load() > 0 {
			t.Errorf("after one late probe: %v, %d usable, silent %d times", states(f), usableOf(f), silent.Load())
		}
		time.Sleep(3200 * time.Millisecond)
		if s.State() != pools.Unresponsive || silent.Load() == 0 || other.Load() > 0 {
			t.Errorf("after two: %v, silent %d times, else %d", states(f), silent.Load(), other.Load())
		}
		engines[0].stopped.Store(false)
		time.Sleep(20 * time.Millisecond)
		if s.State() != pools.Alive {
			t.Errorf("it goes on: %v", states(f))
		}
	})
}

// When most are late at once no server's work is taken for ten seconds, and all get new work: it
// is the gateway's fault as likely as theirs.
func TestUnresponsive_WhenMostAreLateAtOnceNoneIsTakenOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engines, f := fleetBefore(t, 4)
		var fell atomic.Int32
		for _, s := range f.Servers() {
			defer s.OnDown(new(pools.DownWatch), pools.DownFunc(func(pools.DownCause) { fell.Add(1) })).Stop()
		}
		for _, e := range engines[:3] {
			e.stopped.Store(true)
		}
		time.Sleep(9 * time.Second)
		if fell.Load() > 0 || usableOf(f) != 4 {
			t.Errorf("%d falls, %d usable, %v", fell.Load(), usableOf(f), states(f))
		}
		time.Sleep(8 * time.Second)
		if fell.Load() == 0 || usableOf(f) != 1 {
			t.Errorf("they stayed silent while another one answered: %d falls, %d usable", fell.Load(), usableOf(f))
		}
	})
}

// An engine that takes longer than a probe's time to answer is never silent: its answers
// come, late.
func TestUnresponsive_AnEngineThatAnswersLateIsNotSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engines, f := fleetBefore(t, 2)
		s := f.Servers()[0]
		var fell atomic.Bool
		defer s.OnDown(new(pools.DownWatch), pools.DownFunc(func(pools.DownCause) { fell.Store(true) })).Stop()
		engines[0].delay.Store(int64(3 * time.Second))
		alive := 0
		for range 120 {
			time.Sleep(500 * time.Millisecond)
			if s.State() == pools.Alive {
				alive++
			}
		}
		if fell.Load() || !s.Health().Up || alive < 30 {
			t.Errorf("fell %v, up %v, alive at %d of 120 looks", fell.Load(), s.Health().Up, alive)
		}
	})
}

// Streams that go on prove a server that starves its probes.
func TestUnresponsive_ProgressOfLegsIsProofOfLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engines, f := fleetBefore(t, 1)
		s := f.Servers()[0]
		engines[0].stopped.Store(true)
		for range 100 {
			time.Sleep(100 * time.Millisecond)
			s.RecordProgress(time.Now())
			if s.State() != pools.Alive {
				t.Fatal(s.State())
			}
		}
		// The last token excuses a probe that was sent just before it: that one's time of 2 s, then
		// the longest pause of 1.2 s, and the next one's time.
		time.Sleep(5300 * time.Millisecond)
		if s.State() != pools.Unresponsive || len(pools.UnresponsiveServers(f.Servers(), "m", pools.Decode, time.Now())) != 1 {
			t.Errorf("no token since two probes: %v", s.State())
		}
	})
}

// What a server says of itself, and a connection that it refuses, is certain.
func TestUnresponsive_IsOverWhenThereIsCertainty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engines, f := fleetBefore(t, 1)
		s := f.Servers()[0]
		engines[0].stopped.Store(true)
		time.Sleep(4 * time.Second)
		if s.State() != pools.Unresponsive {
			t.Fatal(s.State())
		}
		engines[0].refuses.Store(true)
		engines[0].stopped.Store(false)
		time.Sleep(3 * time.Second)
		if s.State() != pools.Down || s.DownFor(time.Now()) == 0 {
			t.Errorf("it says that it is ill: %v", s.State())
		}
		engines[0].refuses.Store(false)
		time.Sleep(3 * time.Second)
		if s.State() != pools.Alive {
			t.Errorf("it is well: %v", s.State())
		}
		s.MarkDown("connection refused")
		if s.State() != pools.Down {
			t.Errorf("it refuses: %v", s.State())
		}
	})
}
