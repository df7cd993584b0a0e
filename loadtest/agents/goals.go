package agents

import "fmt"

// Goal is what all runs of the gateway's own policy are to reach.
type Goal struct {
	Text    string
	Met, Of int // runs
}

// Reached reports whether all of them did.
func (g *Goal) Reached() bool { return g.Met == g.Of }

const (
	leastOfOracle = 0.97
	mostChanged   = 0.05
)

// Goals are counted over the runs of the gateway's own policy.
func (r *Report) Goals() []*Goal {
	cached := &Goal{Text: fmt.Sprintf("%.0f%% of what the oracle has cached", 100*leastOfOracle)}
	stays := &Goal{Text: fmt.Sprintf("at most %.0f%% of turns that need not change their server do", 100*mostChanged)}
	needed := &Goal{Text: fmt.Sprintf("needless changes of server at most %.0f%% of them", 100*mostChanged)}
	asChat := &Goal{Text: "p99 of later turns' TTFT not above chat's"}
	for i := range r.Results {
		x := &r.Results[i]
		if x.Policy != policies[0].name {
			continue
		}
		cached.count(x.OfOracle >= leastOfOracle)
		stays.count(float64(x.Changed) <= mostChanged*float64(x.NeedNot))
		needed.count(float64(x.Needless) <= mostChanged*float64(x.NeedNot))
		if of := r.chatOf(x); of != nil && of != x {
			asChat.count(x.TTFT99 <= of.TTFT99)
		}
	}
	return []*Goal{cached, stays, needed, asChat}
}

func (g *Goal) count(met bool) {
	g.Of++
	if met {
		g.Met++
	}
}

// chatOf is the run of chat with the same servers, caches and policy; nil if there is none.
func (r *Report) chatOf(x *Result) *Result {
	for i := range r.Results {
		if y := &r.Results[i]; y.API == chat.name && y.Servers == x.Servers && y.Cache == x.Cache && y.Policy == x.Policy {
			return y
		}
	}
	return nil
}

// Totals are what the runs of the gateway's own policy come to on one API.
type Totals struct {
	API              string
	Changed, NeedNot int
	TTFT50, TTFT99   float64 // means over the runs
}

func (t *Totals) String() string {
	return fmt.Sprintf("%s: %d of %d turns changed their server that need not; TTFT p50 %.2f s, p99 %.2f s in the mean of the runs", t.API, t.Changed, t.NeedNot, t.TTFT50, t.TTFT99)
}

// Totals are those of each API of which there is a run.
func (r *Report) Totals() (all []*Totals) {
	for _, a := range apis {
		t, runs := &Totals{API: a.name}, 0.0
		for i := range r.Results {
			x := &r.Results[i]
			if x.Policy != policies[0].name || x.API != a.name {
				continue
			}
			runs++
			t.Changed, t.NeedNot, t.TTFT50, t.TTFT99 = t.Changed+x.Changed, t.NeedNot+x.NeedNot, t.TTFT50+x.TTFT50, t.TTFT99+x.TTFT99
		}
		if runs > 0 {
			t.TTFT50, t.TTFT99 = t.TTFT50/runs, t.TTFT99/runs
			all = append(all, t)
		}
	}
	return all
}
