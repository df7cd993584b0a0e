package agents

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// session is one of a seed. All runs with that seed and as many servers have the same ones,
// whatever their API and their caches, so that they can be compared session by session.
type session struct {
	seed    uint64
	servers int
	number  int
}

// laterTurns are the later turns of sessions.
type laterTurns map[session][]*turn

// Difference is how far a quantile of later turns' TTFT is above chat's, in seconds, and the
// interval in which 95 of 100 draws of as many sessions have it.
type Difference struct {
	Seconds float64 `json:"s"`
	Low     float64 `json:"low_s"`
	High    float64 `json:"high_s"`
}

// What a difference or a share shows of a limit. Half of the comparisons of two that are equal
// are above zero by the figure alone.
const (
	reached      = "reached"        // all of the interval is within the limit
	missed       = "missed"         // all of it is beyond
	notToldApart = "not told apart" // the limit lies within it
)

func (d *Difference) verdict() string {
	switch {
	case d == nil:
		return ""
	case d.High <= 0:
		return reached
	case d.Low > 0:
		return missed
	}
	return notToldApart
}

func (d *Difference) String() string {
	if d == nil {
		return ""
	}
	return fmt.Sprintf("%+.2f s (%+.2f to %+.2f), %s", d.Seconds, d.Low, d.High, d.verdict())
}

const (
	draws    = 2000
	outside  = 0.025 // of the draws, on each side of an interval
	drawSeed = 20    // equal times have equal intervals
)

// p99Above is how far the p99 of x is above that of chat, by the percentile bootstrap: as many seeds
// as there are are drawn with replacement, and of each as many sessions as it has; each draw has
// the difference of the two p99s of all their turns. The turns of a session, its sub-agents'
// too, are drawn together, since they wait for each other and have each other's prompts cached, and
// the sessions of a seed share servers and what the machine did meanwhile. A session counts for both, since it
// has the same prompts: what its turns take by themselves cancels out. Of one seed the interval
// knows nothing of what differs between rounds, and is too narrow. nil without a session of both.
func p99Above(x, chat laterTurns, speed float64) *Difference {
	seeds := common(x, chat)
	if len(seeds) == 0 {
		return nil
	}
	both := slices.Concat(seeds...)
	chance := rand.New(rand.NewPCG(drawSeed, uint64(len(both))))
	above := func(of []session) float64 { return x.p99(of, speed) - chat.p99(of, speed) }
	all := make([]float64, draws)
	for i := range all {
		var drawn []session
		for range seeds {
			of := seeds[chance.IntN(len(seeds))]
			for range of {
				drawn = append(drawn, of[chance.IntN(len(of))])
			}
		}
		all[i] = above(drawn)
	}
	slices.Sort(all)
	low := int(outside * draws)
	return &Difference{Seconds: above(both), Low: all[low], High: all[draws-1-low]}
}

// common are the sessions of both, by seed.
func common(x, y laterTurns) (seeds [][]session) {
	var both []session
	for s := range x {
		if y[s] != nil {
			both = append(both, s)
		}
	}
	slices.SortFunc(both, session.compare)
	for i, s := range both {
		if i == 0 || s.seed != both[i-1].seed {
			seeds = append(seeds, nil)
		}
		seeds[len(seeds)-1] = append(seeds[len(seeds)-1], s)
	}
	return seeds
}

// p99 is that of all turns of sessions, each as often as it is named.
func (l laterTurns) p99(of []session, speed float64) float64 {
	var all []time.Duration
	for _, s := range of {
		for _, t := range l[s] {
			all = append(all, t.ttft)
		}
	}
	slices.Sort(all)
	return quantile(all, 0.99, speed)
}

func (s session) compare(other session) int {
	return slices.Compare([]int{int(s.seed), s.servers, s.number}, []int{int(other.seed), other.servers, other.number})
}

// forget drops what is not needed once a round is done: the bodies of requests and the
// alternatives that were not taken would fill the memory.
func (l laterTurns) forget() {
	for _, of := range l {
		for _, t := range of {
			t.request, t.decision.text = nil, nil
			if a := t.decision.last(); a != nil {
				last := *a
				last.Alternatives = []alternative{a.chosen()}
				last.Alternatives[0].Chosen = true
				t.decision.Attempts = []attempt{last}
			}
		}
	}
}

// slowestFirst are the turns of all sessions.
func (l laterTurns) slowestFirst() []*turn {
	var all []*turn
	for _, of := range l {
		all = append(all, of...)
	}
	slices.SortFunc(all, func(a, b *turn) int { return cmp.Compare(b.ttft, a.ttft) })
	return all
}

// quantile is that of the turns of all sessions, in seconds of the engines.
func (l laterTurns) quantile(q, speed float64) float64 {
	var all []time.Duration
	for _, t := range l.slowestFirst() {
		all = append(all, t.ttft)
	}
	slices.Reverse(all)
	return quantile(all, q, speed)
}

// add adds those of other runs, whose sessions may be the same.
func (l laterTurns) add(other laterTurns) {
	for s, of := range other {
		l[s] = append(l[s], of...)
	}
}

// shareVerdict is what so many of so many turns show of a limit to their share: by the interval of
// Wilson, in which the true share lies in 95 of 100 cases where each turn is drawn by itself.
func shareVerdict(count, of int, limit float64) string {
	if of == 0 {
		return notToldApart
	}
	const z = 1.96
	n, p := float64(of), float64(count)/float64(of)
	middle, half := p+z*z/(2*n), z*math.Sqrt(p*(1-p)/n+z*z/(4*n*n))
	switch scale := 1 + z*z/n; {
	case (middle+half)/scale <= limit:
		return reached
	case (middle-half)/scale > limit:
		return missed
	}
	return notToldApart
}
