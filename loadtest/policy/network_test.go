package policy

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

// Max-min fair means: no link carries more than it can, and every flow crosses a
// full link on which no other has more than it.
func TestNetwork_RatesAreMaxMinFair(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		links := rapid.IntRange(1, 8).Draw(t, "links")
		capacity := rapid.SliceOfN(rapid.Float64Range(1, 100), links, links).Draw(t, "capacity")
		n := newNetwork(&calendar{}, capacity)
		for range rapid.IntRange(1, 20).Draw(t, "flows") {
			route := rapid.SliceOfNDistinct(rapid.Int32Range(0, int32(links-1)), 1, min(4, links), rapid.ID).Draw(t, "route")
			n.flows = append(n.flows, &flow{links: route, left: 1})
		}
		n.share()
		load, most := make([]float64, links), make([]float64, links)
		for _, f := range n.flows {
			for _, l := range f.links {
				load[l] += f.rate
				most[l] = max(most[l], f.rate)
			}
		}
		for l := range load {
			if load[l] > capacity[l]*(1+1e-9) {
				t.Fatalf("link %d carries %f of %f", l, load[l], capacity[l])
			}
		}
		for i, f := range n.flows {
			tight := false
			for _, l := range f.links {
				tight = tight || (load[l] >= capacity[l]*(1-1e-9) && f.rate >= most[l]*(1-1e-9))
			}
			if !tight {
				t.Fatalf("flow %d could have more than %f", i, f.rate)
			}
		}
	})
}

// Water filling in small steps, as a second opinion on the rates.
func TestNetwork_RatesAreThoseOfFillingDropByDrop(t *testing.T) {
	capacity := []float64{10, 6, 9, 20}
	routes := [][]int32{{0, 3}, {0, 1}, {1, 2}, {2}, {2, 3}, {3}}
	n := newNetwork(&calendar{}, capacity)
	for _, r := range routes {
		n.flows = append(n.flows, &flow{links: r, left: 1})
	}
	n.share()
	rates, left := make([]float64, len(routes)), append([]float64(nil), capacity...)
	const drop = 1e-4
	for stuck := false; !stuck; {
		stuck = true
		for i, r := range routes {
			full := false
			for _, l := range r {
				full = full || left[l] < drop*float64(len(routes))
			}
			if full {
				continue
			}
			stuck = false
			rates[i] += drop
			for _, l := range r {
				left[l] -= drop
			}
		}
	}
	for i, f := range n.flows {
		if math.Abs(f.rate-rates[i]) > 0.01 {
			t.Errorf("flow %d: rate %f, filling gives %f", i, f.rate, rates[i])
		}
	}
}

func TestNetwork_FlowsShareAndEndInTurn(t *testing.T) {
	cal := &calendar{}
	n := newNetwork(cal, []float64{10, 100})
	ends := make(map[string]float64)
	begin := func(name string, at, bytes float64, links ...int32) {
		cal.at(at, func() { n.start(bytes, links, func() { ends[name] = cal.now }) })
	}
	begin("long", 0, 100, 0)   // alone until 5 with 50 left, half of the link until 9
	begin("short", 5, 20, 0)   // 20 bytes at 5
	begin("other", 0, 1000, 1) // on a link of its own
	for cal.step() {
	}
	want := map[string]float64{"short": 9, "long": 12, "other": 10}
	for name, at := range want {
		if math.Abs(ends[name]-at) > 1e-3 {
			t.Errorf("%s ended at %f, want %f", name, ends[name], at)
		}
	}
}

func TestNetwork_ASickLinkSlowsWhatIsUnderWay(t *testing.T) {
	cal := &calendar{}
	n := newNetwork(cal, []float64{10})
	ended := 0.0
	n.start(100, []int32{0}, func() { ended = cal.now })
	cal.at(5, func() { n.setCapacity(0, 1) })
	cal.at(25, func() { n.setCapacity(0, 10) })
	for cal.step() {
	}
	if math.Abs(ended-28) > 1e-3 { // 50 bytes by 5, 20 more by 25, 30 at full speed
		t.Errorf("ended at %f, want 28", ended)
	}
}
