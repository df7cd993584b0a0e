package pools

import (
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/pools/curve"
)

// A request that waits for more to be possible, or for a server's state, is notified of each
// change of it, and of nothing else.
func TestChanges_WhatNotifiesOfThem(t *testing.T) {
	m := []Model{{ID: "m"}}
	for _, c := range []struct {
		name          string
		before, event func(*Fleet, *Server)
		more, state   bool // those that wait for more, for the state of a server, are notified
	}{
		{"a server goes down", nil, func(_ *Fleet, s *Server) { s.MarkDown("refused") }, true, true},
		{"it is down already", func(_ *Fleet, s *Server) { s.MarkDown("refused") }, func(_ *Fleet, s *Server) { s.MarkDown("refused") }, false, false},
		{"it comes up", func(_ *Fleet, s *Server) { s.MarkDown("refused") }, func(_ *Fleet, s *Server) { s.ProbePassed(s.Health(), m, time.Now()) }, true, true},
		{"it is up already", nil, func(_ *Fleet, s *Server) { s.ProbePassed(s.Health(), m, time.Now()) }, false, false},
		{"it is late", nil, func(_ *Fleet, s *Server) { s.RecordLate(time.Now()) }, false, true},
		{"it is late again", func(_ *Fleet, s *Server) { s.RecordLate(time.Now()) }, func(_ *Fleet, s *Server) { s.RecordLate(time.Now()) }, false, false},
		{"it answers after all", func(_ *Fleet, s *Server) { s.RecordLate(time.Now()) }, func(_ *Fleet, s *Server) { s.RecordAlive(time.Now()) }, true, true},
		{"a probe is answered after all", func(_ *Fleet, s *Server) { s.RecordLate(time.Now()) }, func(_ *Fleet, s *Server) { s.ProbePassed(s.Health(), m, time.Now()) }, true, true},
		{"it answers as ever", nil, func(_ *Fleet, s *Server) { s.RecordAlive(time.Now()) }, false, false},
		{"a sign of one that is down", func(_ *Fleet, s *Server) { s.MarkDown("refused") }, func(_ *Fleet, s *Server) { s.RecordAlive(time.Now()) }, false, false},
		{"it has another model", nil, func(_ *Fleet, s *Server) { s.ProbePassed(s.Health(), append(m, Model{ID: "n"}), time.Now()) }, false, true},
		{"servers are read again", nil, func(f *Fleet, s *Server) { _ = f.Apply([]Spec{s.Spec}) }, true, true},
		{"other replicas' work is less", nil, func(f *Fleet, _ *Server) { f.NotifyChange() }, true, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := upFleet(t, nil, spec("http://10.0.0.1:1", Both))
			s := f.Servers()[0]
			time.Sleep(time.Second)
			if c.before != nil {
				c.before(f, s)
			}
			time.Sleep(time.Second)
			more, stop := f.Changes()
			defer stop()
			states, stop := f.StateChanges()
			defer stop()
			c.event(f, s)
			if more, state := due(more), due(states); more != c.more || state != c.state {
				t.Errorf("%s: told of more %v, of the state %v", c.name, more, state)
			}
		})
	}
}

// Each of many that wait is notified, and none any more that has stopped.
func TestChanges_AllThatWaitAreNotified(t *testing.T) {
	f := newTestFleet(t)
	var channels []<-chan struct{}
	var stops []func()
	for range 3 {
		c, stop := f.Changes()
		channels, stops = append(channels, c), append(stops, stop)
	}
	f.NotifyChange()
	f.NotifyChange() // a burst wakes them once
	for i, c := range channels {
		if !due(c) || due(c) {
			t.Errorf("%d of three is not told once", i)
		}
	}
	stops[1]()
	f.NotifyChange()
	for i, c := range channels {
		if told := due(c); told != (i != 1) {
			t.Errorf("the second one has stopped: %d is told: %v", i, told)
		}
	}
}

// Work that ends makes room, however it ends, and is news for other replicas, as is work that
// begins.
func TestLease_WhatChangesWorkIsReported(t *testing.T) {
	f := upFleet(t, nil, spec("http://10.0.0.1:1", Both))
	s := f.Servers()[0]
	more, stop := f.Changes()
	defer stop()
	worked, stopped := f.WorkChanges()
	defer stopped()
	var l *Lease
	for _, step := range []struct {
		name       string
		do         func()
		more, work bool
	}{
		{"a claim", func() { l = claim(t, s, Decode, curve.Work{Tokens: 1}) }, false, true},
		{"its prompt", func() { l.BeginLocalPrefill(curve.Work{Tokens: 1}, time.Now()) }, false, true},
		{"its first token", func() { l.EndLocalPrefill(1, 0, 0, time.Now()) }, true, true},
		{"its verdict", func() { l.RecordResult(nil) }, false, false},
		{"its end", func() { l.Release() }, true, true},
		{"its end, again", func() { l.Release() }, false, false},
		{"a prefill", func() { l = claim(t, s, Prefill, curve.Work{Tokens: 1}); l.MarkSent(0, time.Now()) }, false, true},
		{"its answer", func() { l.ReleasePrefilled(1, 0, 0) }, true, true},
		{"its end", func() { l.Release() }, false, false},
	} {
		due(more)
		due(worked)
		step.do()
		if more, work := due(more), due(worked); more != step.more || work != step.work {
			t.Errorf("%s: told of room %v, of work %v", step.name, more, work)
		}
	}
}

// A server that was away returns gradually for as long as it was away, and one that is new
// like one that was long away. So does one that was unresponsive.
func TestLiveness_AServerThatReturnsStartsSlowly(t *testing.T) {
	models := []Model{{ID: "m"}}
	for name, c := range map[string]struct {
		lost, back func(*Server)
		away, slow time.Duration
	}{
		"down for 4 s": {func(s *Server) { s.MarkDown("refused") }, func(s *Server) { s.ProbePassed(s.Health(), models, time.Now()) }, 4 * time.Second, 4 * time.Second},
		"down twice": {func(s *Server) {
			s.MarkDown("refused")
			s.ProbeFailed(s.Health(), "ill")
		}, func(s *Server) { s.ProbePassed(s.Health(), models, time.Now()) }, 4 * time.Second, 4 * time.Second},
		"down for a minute":       {func(s *Server) { s.MarkDown("refused") }, func(s *Server) { s.ProbePassed(s.Health(), models, time.Now()) }, time.Minute, 10 * time.Second},
		"unresponsive for 4 s":    {func(s *Server) { s.RecordLate(time.Now()) }, func(s *Server) { s.RecordAlive(time.Now()) }, 4 * time.Second, 4 * time.Second},
		"unresponsive for a week": {func(s *Server) { s.RecordLate(time.Now()) }, func(s *Server) { s.RecordProgress(time.Now()) }, 7 * 24 * time.Hour, 10 * time.Second},
		"unresponsive and probed": {func(s *Server) { s.ProbeLate(time.Now()) }, func(s *Server) { s.ProbePassed(s.Health(), models, time.Now()) }, 4 * time.Second, 4 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := upFleet(t, nil, spec("http://10.0.0.1:1", Both)).Servers()[0]
			starts := func(leg Role) bool { return s.slowStarts[LegIndex(leg)].Load().share(time.Now()) < 1 }
			time.Sleep(10*time.Second - 1)
			if !starts(Prefill) || !starts(Decode) {
				t.Errorf("%s: a new server is not spared for the whole slow start", name)
			}
			time.Sleep(time.Minute)
			if starts(Prefill) || starts(Decode) {
				t.Errorf("%s: it starts slowly for ever", name)
			}
			for round := range 2 {
				c.lost(s)
				time.Sleep(c.away)
				c.back(s)
				if s.State() != Alive || !s.DownSince().IsZero() || s.DownFor(time.Now()) != 0 {
					t.Errorf("%s, round %d: it is %v, down since %v", name, round, s.State(), s.DownSince())
				}
				time.Sleep(c.slow - 1)
				if !starts(Prefill) || !starts(Decode) {
					t.Errorf("%s, round %d: it is not spared for %v", name, round, c.slow)
				}
				time.Sleep(time.Nanosecond)
				if starts(Prefill) || starts(Decode) {
					t.Errorf("%s, round %d: it is spared beyond %v", name, round, c.slow)
				}
				time.Sleep(time.Minute)
			}
		})
	}
}

// A server is down since it was found so first, whatever is found after; one that was never up
// has been down for ever.
func TestLiveness_DownSinceItWasFoundSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewServer(spec("http://10.0.0.1:1", Both))
		s.ProbeFailed(s.Health(), "ill")
		if !s.DownSince().IsZero() || s.DownFor(time.Now()) < time.Hour {
			t.Errorf("never up: down since %v, for %v", s.DownSince(), s.DownFor(time.Now()))
		}
		s.ProbePassed(s.Health(), []Model{{ID: "m"}}, time.Now())
		time.Sleep(time.Second)
		at := time.Now()
		s.MarkDown("connection refused")
		time.Sleep(time.Minute)
		s.ProbeFailed(s.Health(), "ill")
		if since := s.DownSince(); !since.Equal(at) || s.DownFor(time.Now()) != time.Minute {
			t.Errorf("down since %v, for %v", since, s.DownFor(time.Now()))
		}
		if h := s.Health(); h.Up || h.Reason != "ill" || !h.Serves("m") {
			t.Errorf("its health is %+v", h)
		}
	})
}

// A server that is down is not unresponsive too, and comes back without late probes.
func TestLiveness_WhatIsDownIsNotUnresponsiveToo(t *testing.T) {
	s := upFleet(t, nil, spec("http://10.0.0.1:1", Both)).Servers()[0]
	if unresponsive := s.ProbeLate(time.Now().Add(time.Second)); !unresponsive || s.State() != Unresponsive {
		t.Errorf("a late probe: %v, %v", unresponsive, s.State())
	}
	s.MarkDown("connection refused")
	if s.State() != Down {
		t.Errorf("a refused connection: %v", s.State())
	}
	if s.ProbeLate(time.Now().Add(2 * time.Second)); len(UnresponsiveServers([]*Server{s}, "m", Decode, time.Now())) > 0 {
		t.Error("one that is down is unresponsive")
	}
	s.MarkDown("connection refused")
	if s.ProbePassed(s.Health(), []Model{{ID: "m"}}, time.Now()); s.State() != Alive {
		t.Errorf("it came back: %v", s.State())
	}
}

// What waits on a server is told when it may not be answered: at the second late probe in a
// row, and at the second probe that fails, each time. While most servers are late it is told
// later, since then the fault is more likely the gateway's.
func TestOnDown_WhatItIsCalledFor(t *testing.T) {
	later := time.Now().Add(time.Hour)
	late := func(s *Server) { s.ProbeLate(later) }
	fail := func(s *Server) { s.ProbeFailed(s.Health(), "ill") }
	for name, c := range map[string]struct {
		others int // that are late too, of four
		events []func(*Server)
		want   []DownCause
	}{
		"one late probe":           {0, []func(*Server){late}, nil},
		"two":                      {0, []func(*Server){late, late}, []DownCause{Silent}},
		"three":                    {0, []func(*Server){late, late, late}, []DownCause{Silent, Silent}},
		"two, half are late":       {1, []func(*Server){late, late}, []DownCause{Silent}},
		"four, most are late":      {2, []func(*Server){late, late, late, late}, nil},
		"five, most are late":      {2, []func(*Server){late, late, late, late, late}, []DownCause{Silent}},
		"one failed probe":         {0, []func(*Server){fail}, nil},
		"two in a row":             {0, []func(*Server){fail, fail}, []DownCause{ProbesFailed}},
		"three in a row":           {0, []func(*Server){fail, fail, fail}, []DownCause{ProbesFailed, ProbesFailed}},
		"a late and a failed one":  {0, []func(*Server){late, fail}, nil},
		"two with one that passed": {0, []func(*Server){fail, func(s *Server) { s.ProbePassed(s.Health(), nil, time.Now()) }, fail}, nil},
	} {
		f := upFleet(t, nil, spec("http://10.0.0.1:1", Both), spec("http://10.0.0.2:1", Both), spec("http://10.0.0.3:1", Both), spec("http://10.0.0.4:1", Both))
		for _, s := range f.Servers()[1 : 1+c.others] {
			s.ProbeLate(later)
		}
		s := f.Servers()[0]
		var got []DownCause
		stop := s.OnDown(new(DownWatch), DownFunc(func(why DownCause) { got = append(got, why) })).Stop
		for _, event := range c.events {
			event(s)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: told %v, want %v", name, got, c.want)
		}
		stop()
	}
}

// Who has stopped waiting is called no more, once or twice, and all others are.
func TestDownWatch_StopsAlone(t *testing.T) {
	s := upFleet(t, nil, spec("http://10.0.0.1:1", Both)).Servers()[0]
	called := make([]int, 4)
	watches := make([]DownWatch, len(called))
	for i := range watches {
		s.OnDown(&watches[i], DownFunc(func(DownCause) { called[i]++ }))
	}
	for _, i := range []int{1, 3, 1, 0, 2} {
		watches[i].Stop()
		s.reportDown(Silent)
	}
	if want := []int{3, 0, 4, 1}; !slices.Equal(called, want) {
		t.Errorf("called %v times, want %v", called, want)
	}
}

// Servers that are down are no part of those of which most are late, and of one server alone
// nothing is said of most.
func TestMostLate_IsOfThoseThatAreUp(t *testing.T) {
	for _, c := range []struct {
		alive, late, down int
		want              bool
	}{{2, 2, 0, false}, {1, 2, 0, true}, {2, 3, 9, true}, {3, 2, 9, false}, {0, 1, 9, false}, {0, 2, 0, true}, {0, 0, 2, false}} {
		var specs []Spec
		for i := range c.alive + c.late + c.down {
			specs = append(specs, spec("http://10.0.0."+string(rune('1'+i%9))+":"+string(rune('1'+i/9)), Both))
		}
		f := upFleet(t, nil, specs...)
		for _, s := range f.Servers()[:c.late] {
			s.ProbeLate(time.Now().Add(time.Hour))
		}
		for _, s := range f.Servers()[c.late : c.late+c.down] {
			s.MarkDown("connection refused")
		}
		if got := f.mostLate(); got != c.want {
			t.Errorf("%+v: most are late: %v", c, got)
		}
	}
}

// A failed probe blames the server at those that charged others with its failures.
func TestFleet_OnBlameGetsTheServer(t *testing.T) {
	f := newTestFleet(t)
	told := map[string]int{}
	f.OnBlame = func(server string, _ time.Time) { told[server]++ }
	if err := f.Apply([]Spec{spec("http://10.0.0.1:1", Both), spec("http://10.0.0.2:1", Both)}); err != nil {
		t.Fatal(err)
	}
	s := f.Servers()[1]
	s.BeginProbeRequest(Prefill, time.Now()).End(errEngine, time.Now())
	s.BeginProbeRequest(Decode, time.Now()).End(errEngine, time.Now())
	s.BeginProbeRequest(Decode, time.Now()).End(nil, time.Now())
	if !maps.Equal(told, map[string]int{"10.0.0.2:1": 3}) {
		t.Errorf("told of %v", told)
	}
}

// An ejected server that a probe request proves returns gradually, for as long as it was out;
// one that was not ejected loses nothing by a probe.
func TestProof_AnEjectedServerReturnsSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := upFleet(t, nil, spec("http://10.0.0.1:1", Both)).Servers()[0]
		time.Sleep(time.Minute)
		share := func() float64 { return s.slowStarts[LegIndex(Decode)].Load().share(time.Now()) }
		if away, err := s.BeginProbeRequest(Decode, time.Now()).End(nil, time.Now()); away != 0 || err != nil || share() < 1 {
			t.Errorf("not ejected: away for %v, %v, share %v", away, err, share())
		}
		trip(t, s)
		time.Sleep(6 * time.Second)
		proof := s.BeginProbeRequest(Decode, time.Now())
		if !proof.Ejected() {
			t.Error("it was not ejected when the probe was sent")
		}
		away, err := proof.End(nil, time.Now())
		if away != 6*time.Second || err != nil {
			t.Errorf("away for %v, %v", away, err)
		}
		time.Sleep(3 * time.Second)
		if got := share(); got != 0.5 {
			t.Errorf("halfway its share is %v", got)
		}
	})
}
