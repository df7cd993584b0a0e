package proxybench

import (
	"math"
	"slices"
	"time"
)

// durations are how long each measure of each proxy took at the longest, with the start of the proxy where it was
// started for it, and how long such starts took: what another round will take is foretold from that.
type durations map[string]map[string]time.Duration // by measure, or starting, and proxy

// starting stands for the start of a proxy where a measure would.
const starting = "start"

func (t durations) add(measure, proxy string, took time.Duration) {
	if t[measure] == nil {
		t[measure] = map[string]time.Duration{}
	}
	t[measure][proxy] = max(t[measure][proxy], took)
}

// of is how long a measure took of all proxies in turn.
func (t durations) of(measure string, order []*Proxy) (all time.Duration) {
	for _, p := range order {
		all += t[measure][p.Name]
	}
	return all
}

// nextRound returns the measures of the next round, none where the run is over: all until there are as many rounds as
// are wanted, then those of which rounds do not count, as far as the time lasts. On a machine that is never steady no
// more rounds are made anew than were wanted.
func (c *Config) nextRound(r *Report, took durations, order []*Proxy, gone time.Duration) (names []string) {
	left := c.Within - gone
	if c.Within == 0 {
		left = math.MaxInt64
	}
	if r.Rounds < c.Rounds {
		for i := range measures {
			if name := measures[i].name; len(c.Measures) == 0 || slices.Contains(c.Measures, name) {
				names, left = append(names, name), left-took.of(name, order)
			}
		}
		if left < 0 {
			return nil
		}
		return names
	}
	if r.Again == c.Rounds {
		return nil
	}
	left -= took.of(starting, order)
	for i := range measures {
		m := &measures[i]
		if r.lacksRounds(m) && took.of(m.name, order) <= left {
			names, left = append(names, m.name), left-took.of(m.name, order)
		}
	}
	return names
}

// lacksRounds reports whether fewer rounds of a measure count than are wanted.
func (r *Report) lacksRounds(m *measure) bool {
	made, steady := 0, 0
	for round := range r.made() {
		if differs, known := r.differs(m, round); known {
			made++
			if differs <= r.steady {
				steady++
			}
		}
	}
	return made > 0 && steady < r.Wanted
}

// beginRound counts a round, and returns its number, from 0.
func (r *Report) beginRound() int {
	if r.Rounds < r.Wanted {
		r.Rounds++
	} else {
		r.Again++
	}
	return r.made() - 1
}

// made is how many rounds there are in all.
func (r *Report) made() int { return r.Rounds + r.Again }
