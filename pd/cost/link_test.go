package cost

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pd/order"
)

// linkTime is when links are first asked about.
var linkTime = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(id, rack string) *Candidate { return &Candidate{ID: id, Topology: Topology{Rack: rack}} }

// seconds is what a link is believed to take for a gigabyte.
func seconds(l *Links, p, d *Candidate, now time.Time) float64 {
	var t order.LinkTable
	l.Fill(&t, []Candidate{*p}, []Candidate{*d}, now)
	return t.Latency[0] + 1e9*t.SecondsPerByte[0]
}

// transfers teaches n transfers at a bandwidth, with noise.
func transfers(l *Links, p, d *Candidate, bytesPerSecond float64, n int, now time.Time) {
	r := rand.New(rand.NewPCG(1, uint64(n)))
	for range n {
		bytes := math.Exp(17 + 5*r.Float64())
		took := 0.0005 + bytes/bytesPerSecond*math.Exp(0.1*r.NormFloat64())
		l.Observe(p.LinkEnd(), d.LinkEnd(), bytes, time.Duration(took*float64(time.Second)), 0, now)
	}
}

func within(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if math.Abs(got/want-1) > tolerance {
		t.Errorf("%s: a gigabyte takes %.3f s, want %.3f", what, got, want)
	}
}

func TestLinks_AClassIsLearnedFromAllItsPairs(t *testing.T) {
	l := NewLinks(DefaultLinks())
	within(t, "prior", seconds(l, at("p", "r1"), at("d", "r1"), linkTime), 1/50.0, 0.05)
	for i := range 10 {
		p, d := at(fmt.Sprint("p", i), "r1"), at(fmt.Sprint("d", i), "r1")
		transfers(l, p, d, 5e9, 4, linkTime) // the rack is ten times slower than assumed
	}
	within(t, "a pair never seen", seconds(l, at("new", "r1"), at("other", "r1"), linkTime), 1/5.0, 0.4)
	within(t, "another class", seconds(l, at("new", "r1"), at("other", "r2"), linkTime), 1/12.5, 0.05)
}

// mixed teaches a transfer of 50 GB/s on each well pair, and one at a bandwidth on the
// sick one, n times.
func mixed(l *Links, well [][2]*Candidate, sick [2]*Candidate, bytesPerSecond float64, n int, now time.Time) {
	for range n {
		for _, pair := range well {
			transfers(l, pair[0], pair[1], 50e9, 1, now)
		}
		transfers(l, sick[0], sick[1], bytesPerSecond, 1, now)
	}
}

func TestLinks_ASickPairIsSeenWithinFiftyAndTriedAgainWhenItMayHaveHealed(t *testing.T) {
	l := NewLinks(DefaultLinks())
	p, q, d, e := at("p", "r1"), at("q", "r1"), at("d", "r1"), at("e", "r1")
	well, sick := [][2]*Candidate{{p, e}, {q, d}, {q, e}}, [2]*Candidate{p, d}
	mixed(l, well, sick, 50e9, 30, linkTime)
	within(t, "well", seconds(l, p, d, linkTime), 1/50.0, 0.3)

	mixed(l, well, sick, 5e9, 20, linkTime) // a silent fallback to TCP
	if got := seconds(l, p, d, linkTime); got < 4/50.0 {
		t.Errorf("20 slow transfers later a gigabyte is believed to take %.3f s", got)
	}
	for _, pair := range well {
		within(t, pair[0].ID+pair[1].ID, seconds(l, pair[0], pair[1], linkTime), 1/50.0, 0.7)
	}
	if got := seconds(l, p, d, linkTime.Add(10*slowHalf)); got > 1.5/50.0 {
		t.Errorf("long without a sample it is still believed to take %.3f s", got)
	}
	mixed(l, well, sick, 50e9, 25, linkTime.Add(time.Minute))
	within(t, "healed", seconds(l, p, d, linkTime.Add(time.Minute)), 1/50.0, 0.4)
}

func TestLinks_ASlowServerIsBlamedForAllItsPairs(t *testing.T) {
	l := NewLinks(DefaultLinks())
	p, others := at("p", "r1"), []*Candidate{at("q", "r1"), at("r", "r1"), at("s", "r1")}
	now := linkTime
	for i := range 50 {
		d := at(fmt.Sprint("d", i%3), "r1")
		transfers(l, p, d, 5e9, 1, now)
		for _, q := range others {
			transfers(l, q, d, 50e9, 1, now)
		}
		now = now.Add(time.Second)
	}
	if got := seconds(l, p, at("d9", "r1"), now); got < 4/50.0 {
		t.Errorf("to a server that it never met a gigabyte is believed to take %.3f s", got)
	}
	within(t, "another server", seconds(l, others[0], at("d0", "r1"), now), 1/50.0, 0.7)
}

// A transfer that should have ended long ago says so before it ends, and of two servers
// it is the one with late transfers to several others.
func TestLinks_AnOverdueTransferSpeaksAtOnce(t *testing.T) {
	l := NewLinks(DefaultLinks())
	p, q, d, e := at("p", "r1"), at("q", "r1"), at("d", "r1"), at("e", "r1")
	first := l.Begin(p.LinkEnd(), d.LinkEnd(), 1e9, linkTime)
	later := linkTime.Add(10 * time.Second)
	if got := seconds(l, p, d, later); got < 5 {
		t.Errorf("one is overdue, and its pair is believed to take %.3f s", got)
	}
	var table order.LinkTable
	l.Fill(&table, []Candidate{*p}, []Candidate{*d, *e}, later)
	within(t, "its server, when one is overdue", table.SecondsPerByte[1]*1e9, 1/50.0, 0.1)
	l.Begin(p.LinkEnd(), e.LinkEnd(), 1e9, linkTime)
	within(t, "after half a second it may be chance", seconds(l, p, d, linkTime.Add(time.Second/2)), 1/50.0, 0.1)
	l.Fill(&table, []Candidate{*p, *q}, []Candidate{*d, *e}, later)
	for i, slow := range []bool{true, true, false, false} {
		_, perByte := table.Row(i/2, 2)
		if got := perByte[i%2] * 1e9; slow != (got > 5) {
			t.Errorf("pair %d: a gigabyte is believed to take %.3f s", i, got)
		}
	}
	first.End(later)
	within(t, "it has ended", seconds(l, p, d, later), 1/50.0, 0.1)
	if got := seconds(l, p, e, later); got < 5 {
		t.Errorf("the other has not, and says %.3f s", got)
	}
}

func TestLinks_AFailedTransferCountsAtOnceAndOnlyForItsPair(t *testing.T) {
	l := NewLinks(DefaultLinks())
	p, d, other := at("p", "r1"), at("d", "r1"), at("other", "r1")
	before := seconds(l, p, d, linkTime)
	l.Blame("p", "d", linkTime)
	if got := seconds(l, p, d, linkTime); got < 5*before {
		t.Errorf("after a fault: %.3f s, before %.3f s", got, before)
	}
	within(t, "another pair", seconds(l, p, other, linkTime), before, 0.01)
	for range 100 {
		l.Blame("p", "d", linkTime)
	}
	if got := seconds(l, p, d, linkTime); got > 100*before {
		t.Errorf("many faults have no end: %.3f s", got)
	}
}

func TestLinks_AcquittedOfWhatAServerDid(t *testing.T) {
	l := NewLinks(DefaultLinks())
	p, d, e, other := at("p", "r1"), at("d", "r1"), at("e", "r1"), at("other", "r1")
	transfers(l, p, d, 5e9, 30, linkTime.Add(-time.Minute)) // this link is slow by itself
	before := seconds(l, p, d, linkTime)
	l.Blame("p", "e", linkTime.Add(-time.Second))
	for _, decode := range []string{"d", "other"} {
		l.Blame("p", decode, linkTime)
	}
	l.Clear("d", linkTime)
	l.Clear("e", linkTime) // blamedAt before that
	within(t, "cleared, it is as slow as before", seconds(l, p, d, linkTime), before, 0.01)
	for _, decode := range []*Candidate{e, other} {
		if got := seconds(l, p, decode, linkTime); got < 5/50.0 {
			t.Errorf("%s: a gigabyte is believed to take %.3f s", decode.ID, got)
		}
	}
}

func TestLinks_MemoryIsBounded(t *testing.T) {
	l := NewLinks(DefaultLinks())
	for i := range maxSlow + 1000 {
		l.Observe(at(fmt.Sprint("p", i), "").LinkEnd(), at("d", "").LinkEnd(), 1e9, time.Second, 0, linkTime)
	}
	if n := len(l.pairs); n > maxSlow {
		t.Errorf("%d pairs", n)
	}
}

// Of a transfer that is only known within bounds the nearest to the belief counts.
func TestLinks_WhatIsNotKnownExactlyOnlyTeachesWhatIsCertain(t *testing.T) {
	p, d, e := at("p", "r1"), at("d", "r1"), at("e", "r1")
	observe := func(took, slack time.Duration) float64 {
		l := NewLinks(DefaultLinks())
		for range 20 {
			l.Observe(p.LinkEnd(), d.LinkEnd(), 1e9, took, slack, linkTime)
			l.Observe(p.LinkEnd(), e.LinkEnd(), 1e9, 20200*time.Microsecond, 0, linkTime)
		}
		return seconds(l, p, d, linkTime)
	}
	within(t, "it may have been as believed", observe(300*time.Millisecond, 290*time.Millisecond), 0.0202, 0.1)
	within(t, "or faster", observe(-time.Second, 2*time.Second), 0.0202, 0.1)
	if got := observe(2*time.Second, time.Second); got < 0.1 {
		t.Errorf("it took a second at least, and a gigabyte is believed to take %.3f s", got)
	}
}
