package cost

import (
	"math"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/kvstate/cached"
	"github.com/tandem-gateway/tandem/pools"
)

// What moves is priced by the bytes of a token that are configured, else by those that servers show, else by
// an assumption: what decode lacks, what a third server holds, and what lies in slower memory.
func TestModel_ThePriceOfMovingIsOfWhatATokenHas(t *testing.T) {
	for name, c := range map[string]struct {
		configured int
		shown      float64
		want       float64
	}{
		"nothing is known":      {0, 0, 128 << 10},
		"servers show it":       {0, 2310.5, 2310.5},
		"it is configured":      {4096, 0, 4096},
		"configured, and shown": {4096, 2310.5, 4096},
	} {
		m := Default()
		m.KVBytesPerToken = c.configured
		d := &Candidate{Prefill: pools.Default().Prefill, KVBytesPerToken: c.shown}
		w := newWork(8000)
		if got := m.missing(d, &w); got != 8000*c.want {
			t.Errorf("%s: %v bytes are missing, want %v", name, got, 8000*c.want)
		}
		d.Remote = Remote{Server: "r", Tokens: 8000, PerByte: 1e-9}
		computed := w.behind(8000).On(&d.Prefill)
		if got, want := m.pull(d, &w), 8000*c.want*1e-9+computed; !near(got, want) {
			t.Errorf("%s: a pull takes %v s, want %v", name, got, want)
		}
		d.Cached = cached.Tokens{CPU: 8000}
		if got, want := m.load(d, &w), 8000*c.want/m.CPULoad+computed; !near(got, want) {
			t.Errorf("%s: a load takes %v s, want %v", name, got, want)
		}
	}
}

// Servers of two models are priced one after the other.
func TestMissing_OfAnotherModelIsPricedAnew(t *testing.T) {
	m, w := Default(), newWork(160)
	for _, each := range []float64{1000, 2000, 1000} {
		if got := m.missing(&Candidate{KVBytesPerToken: each}, &w); got != 160*each {
			t.Errorf("%v bytes, want %v", got, 160*each)
		}
	}
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*math.Abs(b) }

// Links learn their speed by the bytes that a transfer is taken to have: whatever is assumed of a token, the time
// that a transfer is predicted to take comes out right, where it is wrong by more than ten times after a step of
// 64 samples (curve.Learned).
func TestLinks_AWrongSizeOfATokenCancelsOut(t *testing.T) {
	const tokens = 8000
	p, d, prior := &Candidate{ID: "p"}, &Candidate{ID: "d"}, DefaultLinks()
	took := func(each float64) time.Duration {
		return prior[SameZone].Latency + Duration(tokens*each/prior[SameZone].BytesPerSecond)
	}
	for _, c := range []struct {
		has, assumed float64
		transfers    int
	}{{70272, assumedKVBytes, 16}, {327680, assumedKVBytes, 16}, {2304, assumedKVBytes, 80}} {
		links, now := NewLinks(prior), time.Now()
		for range c.transfers {
			now = now.Add(time.Second)
			links.Observe(p.LinkEnd(), d.LinkEnd(), tokens*c.assumed, took(c.has), 0, now)
		}
		latency, perByte := links.Estimate(&p.Topology, &d.Topology, now)
		if got := latency + tokens*c.assumed*perByte; math.Abs(got/took(c.has).Seconds()-1) > 0.1 {
			t.Errorf("a token of %v bytes, taken to have %v: %v s, want %v", c.has, c.assumed, got, took(c.has))
		}
	}
}
