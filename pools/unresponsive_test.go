package pools

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/pools/curve"
)

// What each piece of evidence makes of the late probes of a server, in the order that it comes.
func TestUnresponsive_EvidenceMovesIt(t *testing.T) {
	at := func(s int) time.Time { return time.Time{}.Add(time.Duration(s) * time.Second) }
	late := func(sent int) func(lateProbes) lateProbes {
		return func(d lateProbes) lateProbes { return d.afterLate(at(sent)) }
	}
	sign := func(s int) func(lateProbes) lateProbes {
		return func(d lateProbes) lateProbes { return d.afterSign(at(s)) }
	}
	for _, c := range []struct {
		name     string
		evidence []func(lateProbes) lateProbes
		late     int
		since    time.Time
		silent   bool
		most     bool // silent while most of the fleet is late
	}{
		{name: "none"},
		{name: "one late probe", evidence: []func(lateProbes) lateProbes{late(1)}, late: 1, since: at(1)},
		{name: "two", evidence: []func(lateProbes) lateProbes{late(1), late(4)}, late: 2, since: at(1), silent: true},
		{name: "a token since the probe was sent", evidence: []func(lateProbes) lateProbes{sign(2), late(1)}},
		{name: "a token before it was sent", evidence: []func(lateProbes) lateProbes{sign(1), late(2)}, late: 1, since: at(2)},
		{name: "a late answer", evidence: []func(lateProbes) lateProbes{late(1), sign(4)}},
		{name: "a late answer, and then none", evidence: []func(lateProbes) lateProbes{late(1), late(4), sign(5), late(7)}, late: 1, since: at(7)},
		{name: "four", evidence: []func(lateProbes) lateProbes{late(1), late(4), late(7), late(10)}, late: 4, since: at(1), silent: true},
		{name: "five", evidence: []func(lateProbes) lateProbes{late(1), late(4), late(7), late(10), late(13)}, late: 5, since: at(1), silent: true, most: true},
	} {
		var d lateProbes
		for _, then := range c.evidence {
			d = then(d)
		}
		if d.late != c.late || !d.since.Equal(c.since) || d.silent(false) != c.silent || d.silent(true) != c.most {
			t.Errorf("%s: %+v, silent %v, and %v while most are late", c.name, d, d.silent(false), d.silent(true))
		}
	}
}

// A connection that was not made in time makes a server unresponsive, but not where a leg goes on.
func TestLease_RecordUnreachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(Decode)
		l, err := s.Claim(Decode, curve.Work{}, false, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		defer l.Release()
		l.MarkSent(0, time.Now())
		time.Sleep(time.Second)
		s.RecordProgress(time.Now())
		if l.RecordUnreachable(); s.State() != Alive {
			t.Errorf("a token came meanwhile: %v", s.State())
		}
		time.Sleep(time.Second)
		l.MarkSent(0, time.Now())
		time.Sleep(time.Second)
		if l.RecordUnreachable(); s.State() != Unresponsive {
			t.Errorf("nothing came: %v", s.State())
		}
	})
}

// A server that steps with one that is down has been down for as long.
func TestDownFor_CountsTheWholeGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &group{number: 1}
		for range 2 {
			l := newServerState(Default())
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
