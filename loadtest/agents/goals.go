package agents

import "fmt"

// Goal is what all runs of the gateway's own policy are to reach.
type Goal struct {
	Text    string
	Met, Of int // runs, by the figure
	// Reached and Missed are runs that do so beyond chance, of goals where chance counts. What is
	// left of Of is not told apart.
	Reached, Missed int
	chance          bool
}

// Verdict is what all runs together say: one that misses by the figure misses it, and where chance
// counts, one that misses beyond it.
func (g *Goal) Verdict() string {
	switch {
	case !g.chance && g.Met == g.Of, g.chance && g.Reached == g.Of:
		return reached
	case !g.chance, g.Missed > 0:
		return missed
	}
	return notToldApart
}

func (g *Goal) String() string {
	text := fmt.Sprintf("%s: %s, in %d of %d runs by the figure", g.Text, g.Verdict(), g.Met, g.Of)
	if g.chance {
		text += fmt.Sprintf("; beyond chance reached in %d, missed in %d, not told apart in %d", g.Reached, g.Missed, g.Of-g.Reached-g.Missed)
	}
	return text
}

const (
	leastOfOracle = 0.97
	mostChanged   = 0.05
)

// Goals are counted over the runs of the gateway's own policy.
func (r *Report) Goals() []*Goal {
	cached := &Goal{Text: fmt.Sprintf("%.0f%% of what the oracle has cached", 100*leastOfOracle)}
	stays := &Goal{Text: fmt.Sprintf("at most %.0f%% of turns that need not change their server do", 100*mostChanged), chance: true}
	needed := &Goal{Text: fmt.Sprintf("needless changes of server at most %.0f%% of them", 100*mostChanged), chance: true}
	asChat := &Goal{Text: "p99 of later turns' TTFT not above chat's", chance: true}
	for i := range r.Results {
		x := &r.Results[i]
		if x.Policy != policies[0].name {
			continue
		}
		cached.count(x.OfOracle >= leastOfOracle, "")
		stays.count(float64(x.Changed) <= mostChanged*float64(x.NeedNot), shareVerdict(x.Changed, x.NeedNot, mostChanged))
		needed.count(float64(x.Needless) <= mostChanged*float64(x.NeedNot), shareVerdict(x.Needless, x.NeedNot, mostChanged))
		if x.AboveChat != nil {
			asChat.count(x.AboveChat.Seconds <= 0, x.AboveChat.verdict())
		}
	}
	return []*Goal{cached, stays, needed, asChat}
}

func (g *Goal) count(met bool, verdict string) {
	g.Of++
	if met {
		g.Met++
	}
	switch verdict {
	case reached:
		g.Reached++
	case missed:
		g.Missed++
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

// Totals are what the runs of the gateway's own policy come to on one API, the later turns of all
// taken together.
type Totals struct {
	API              string
	Changed, NeedNot int
	TTFT50, TTFT99   float64
	AboveChat        *Difference // nil for chat itself
	Slowest          breakdown   // of the slowest of them

	later laterTurns
}

func (t *Totals) String() string {
	text := fmt.Sprintf("%s: %d of %d turns changed their server that need not (%s); TTFT p50 %.2f s, p99 %.2f s of all later turns",
		t.API, t.Changed, t.NeedNot, shareVerdict(t.Changed, t.NeedNot, mostChanged), t.TTFT50, t.TTFT99)
	if t.AboveChat != nil {
		text += fmt.Sprintf(", above chat's by %s", t.AboveChat)
	}
	return text + "; " + t.Slowest.String()
}

// Totals are those of each API of which there is a run, chat first.
func (r *Report) Totals() (all []*Totals) {
	for _, a := range apis {
		t := &Totals{API: a.name, later: make(laterTurns)}
		for i := range r.Results {
			if x := &r.Results[i]; x.Policy == policies[0].name && x.API == a.name {
				t.Changed, t.NeedNot = t.Changed+x.Changed, t.NeedNot+x.NeedNot
				t.later.add(x.later)
			}
		}
		if len(t.later) == 0 {
			continue
		}
		t.TTFT50, t.TTFT99 = t.later.quantile(0.5, r.Speed), t.later.quantile(0.99, r.Speed)
		if len(all) > 0 && all[0].API == chat.name {
			t.AboveChat = p99Above(t.later, all[0].later, r.Speed)
		}
		t.Slowest = newBreakdown(t.later.slowest(), r.Speed)
		all = append(all, t)
	}
	return all
}
