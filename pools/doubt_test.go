package pools

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/pools/curve"
)

// What each piece of evidence makes of the doubt about a server, in the order that it comes.
func TestDoubt_EvidenceMovesIt(t *testing.T) {
	at := func(s int) time.Time { return time.Time{}.Add(time.Duration(s) * time.Second) }
	late := func(sent int) func(doubt) doubt { return func(d doubt) doubt { return d.afterLate(at(sent)) } }
	sign := func(s int) func(doubt) doubt { return func(d doubt) doubt { return d.afterSign(at(s)) } }
	for _, c := range []struct {
		name     string
		evidence []func(doubt) doubt
		late     int
		since    time.Time
		silent   bool
		most     bool // silent while most of the fleet is late
	}{
		{name: "none"},
		{name: "one late probe", evidence: []func(doubt) doubt{late(1)}, late: 1, since: at(1)},
		{name: "two", evidence: []func(doubt) doubt{late(1), late(4)}, late: 2, since: at(1), silent: true},
		{name: "a token since the probe was sent", evidence: []func(doubt) doubt{sign(2), late(1)}},
		{name: "a token before it was sent", evidence: []func(doubt) doubt{sign(1), late(2)}, late: 1, since: at(2)},
		{name: "a late answer", evidence: []func(doubt) doubt{late(1), sign(4)}},
		{name: "a late answer, and then none", evidence: []func(doubt) doubt{late(1), late(4), sign(5), late(7)}, late: 1, since: at(7)},
		{name: "four", evidence: []func(doubt) doubt{late(1), late(4), late(7), late(10)}, late: 4, since: at(1), silent: true},
		{name: "five", evidence: []func(doubt) doubt{late(1), late(4), late(7), late(10), late(13)}, late: 5, since: at(1), silent: true, most: true},
	} {
		var d doubt
		for _, then := range c.evidence {
			d = then(d)
		}
		if d.late != c.late || !d.since.Equal(c.since) || d.silent(false) != c.silent || d.silent(true) != c.most {
			t.Errorf("%s: %+v, silent %v, and %v while most are late", c.name, d, d.silent(false), d.silent(true))
		}
	}
}

// A gap longer than two looks is time in which the process did not run.
func TestOwnTime_CountsOnlyWhatThisProcessRan(t *testing.T) {
	for _, c := range []struct {
		name string
		gaps []time.Duration
		want time.Duration
	}{
		{"on time", []time.Duration{100 * time.Millisecond, 100 * time.Millisecond}, 200 * time.Millisecond},
		{"a busy machine", []time.Duration{180 * time.Millisecond}, 180 * time.Millisecond},
		{"stopped for four seconds", []time.Duration{4 * time.Second, 100 * time.Millisecond}, 300 * time.Millisecond},
		{"starved", []time.Duration{time.Second, time.Second, time.Second}, 600 * time.Millisecond},
	} {
		now := time.Time{}
		own := ownTime{step: 100 * time.Millisecond, last: now}
		for _, gap := range c.gaps {
			now = now.Add(gap)
			own.look(now)
		}
		if own.ran != c.want {
			t.Errorf("%s: %v, want %v", c.name, own.ran, c.want)
		}
	}
}

// slowEngines answer each probe after a time, as long as they are not stopped.
type slowEngines struct {
	delay   atomic.Int64 // nanoseconds
	stopped atomic.Bool
	refuses atomic.Bool
}

func (e *slowEngines) RoundTrip(req *http.Request) (*http.Response, error) {
	for e.stopped.Load() {
		if !Pause(req.Context(), 10*time.Millisecond) {
			return nil, req.Context().Err()
		}
	}
	if !Pause(req.Context(), time.Duration(e.delay.Load())) {
		return nil, req.Context().Err()
	}
	return (&fakeEngine{sick: e.refuses.Load(), generate: sings}).RoundTrip(req)
}

// fleetBefore is a fleet of decode servers, each of its own engine, all alive.
func fleetBefore(t *testing.T, n int) ([]*slowEngines, *Fleet) {
	t.Helper()
	engines := make([]*slowEngines, n)
	var specs []Spec
	for i := range engines {
		engines[i] = &slowEngines{}
		specs = append(specs, spec(fmt.Sprintf("http://10.0.0.%d:1", i), Decode))
	}
	f := NewFleet(Default(), roundTripper(func(req *http.Request) (*http.Response, error) {
		var i int
		_, _ = fmt.Sscanf(req.URL.Hostname(), "10.0.0.%d", &i) // the hosts are ours
		return engines[i].RoundTrip(req)
	}), slog.New(slog.DiscardHandler))
	t.Cleanup(f.Close)
	if err := f.Apply(specs); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	return engines, f
}

func states(f *Fleet) (all []State) {
	for _, s := range f.Servers() {
		all = append(all, s.State())
	}
	return all
}

func usableOf(f *Fleet) int {
	usable, _ := Candidates(f.Servers(), "m", Decode, f.EjectShare(), time.Now())
	return len(usable)
}

// One of several that stops is in doubt after one late probe, gets nothing new, and its
// legs are told after two. It is alive again as soon as it answers, and never was down.
func TestDoubt_AServerThatStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engines, f := fleetBefore(t, 4)
		s := f.Servers()[0]
		var silent, other atomic.Int32
		defer s.OnFall(func(why Fall) {
			if why == Silent {
				silent.Add(1)
			} else {
				other.Add(1)
			}
		})()
		engines[0].stopped.Store(true)
		time.Sleep(3500 * time.Millisecond) // a pause and a probe's time
		if s.State() != InDoubt || !s.Health().Up || usableOf(f) != 3 || silent.Load() > 0 {
			t.Errorf("after one late probe: %v, %d usable, silent %d times", states(f), usableOf(f), silent.Load())
		}
		time.Sleep(3200 * time.Millisecond)
		if s.State() != InDoubt || silent.Load() == 0 || other.Load() > 0 {
			t.Errorf("after two: %v, silent %d times, else %d", states(f), silent.Load(), other.Load())
		}
		engines[0].stopped.Store(false)
		time.Sleep(20 * time.Millisecond)
		if s.State() != Alive {
			t.Errorf("it goes on: %v", states(f))
		}
	})
}

// When most are late at once nobody's work is taken for ten seconds, and all get new work: it
// is the gateway's fault as likely as theirs.
func TestDoubt_WhenMostAreLateAtOnceNobodyFalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engines, f := fleetBefore(t, 4)
		var fell atomic.Int32
		for _, s := range f.Servers() {
			defer s.OnFall(func(Fall) { fell.Add(1) })()
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
func TestDoubt_AnEngineThatAnswersLateIsNotSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engines, f := fleetBefore(t, 2)
		s := f.Servers()[0]
		var fell atomic.Bool
		defer s.OnFall(func(Fall) { fell.Store(true) })()
		engines[0].delay.Store(int64(3 * time.Second))
		alive := 0
		for range 120 {
			time.Sleep(500 * time.Millisecond)
			if s.State() == Alive {
				alive++
			}
		}
		if fell.Load() || !s.Health().Up || alive < 30 {
			t.Errorf("fell %v, up %v, alive at %d of 120 looks", fell.Load(), s.Health().Up, alive)
		}
	})
}

// Streams that go on prove a server that starves its probes.
func TestDoubt_ProgressOfLegsIsProofOfLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engines, f := fleetBefore(t, 1)
		s := f.Servers()[0]
		engines[0].stopped.Store(true)
		for range 100 {
			time.Sleep(100 * time.Millisecond)
			s.Worked(time.Now())
			if s.State() != Alive {
				t.Fatal(s.State())
			}
		}
		time.Sleep(5 * time.Second)
		if s.State() != InDoubt || len(Doubted(f.Servers(), "m", Decode, time.Now())) != 1 {
			t.Errorf("no token for five seconds: %v", s.State())
		}
	})
}

// What a server says of itself, and a connection that it refuses, is certain.
func TestDoubt_IsOverWhenThereIsCertainty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engines, f := fleetBefore(t, 1)
		s := f.Servers()[0]
		engines[0].stopped.Store(true)
		time.Sleep(4 * time.Second)
		if s.State() != InDoubt {
			t.Fatal(s.State())
		}
		engines[0].refuses.Store(true)
		engines[0].stopped.Store(false)
		time.Sleep(3 * time.Second)
		if s.State() != Down || s.DownFor(time.Now()) == 0 {
			t.Errorf("it says that it is ill: %v", s.State())
		}
		engines[0].refuses.Store(false)
		time.Sleep(3 * time.Second)
		if s.State() != Alive {
			t.Errorf("it is well: %v", s.State())
		}
		s.MarkDown("connection refused")
		if s.State() != Down {
			t.Errorf("it refuses: %v", s.State())
		}
	})
}

// A connection that was not made in time is doubt, but not where a leg goes on.
func TestLease_Unreached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(Decode)
		l, err := s.Claim(Decode, curve.Work{}, false)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Release()
		l.Sent(0)
		time.Sleep(time.Second)
		s.Worked(time.Now())
		if l.Unreached(); s.State() != Alive {
			t.Errorf("a token came meanwhile: %v", s.State())
		}
		time.Sleep(time.Second)
		l.Sent(0)
		time.Sleep(time.Second)
		if l.Unreached(); s.State() != InDoubt {
			t.Errorf("nothing came: %v", s.State())
		}
	})
}

// A canary that waits while streams of the server go on says that it is busy.
func TestCanary_ThatWaitsWhileStreamsGoOnConvictsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &fakeEngine{generate: func(ctx context.Context) (int, string, error) { return hangs(ctx) }}
		s := watched(t, e, Decode)
		var fell atomic.Bool
		defer s.OnFall(func(Fall) { fell.Store(true) })()
		s.Suspect(Decode)
		for range 100 {
			time.Sleep(100 * time.Millisecond)
			s.Worked(time.Now())
		}
		if state := s.Breaker(Decode, time.Now()); state != Closed || fell.Load() {
			t.Errorf("%s, fell %v", state, fell.Load())
		}
	})
}

// A server that steps with one that is down has been down for as long.
func TestDownFor_CountsTheWholeGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &group{number: 1}
		for range 2 {
			l := newLive(Default())
			l.health.Store(&Health{Up: true})
			l.group.Store(g)
			g.members = append(g.members, l)
		}
		if down := g.members[0].DownFor(time.Now()); down != 0 {
			t.Errorf("both are up: down for %v", down)
		}
		g.members[1].setDown("ill")
		time.Sleep(time.Minute)
		if down := g.members[0].DownFor(time.Now()); down != time.Minute {
			t.Errorf("the other one is down for a minute: down for %v", down)
		}
	})
}
