package policy

import (
	"math"
	"slices"
)

// decodeGroup is the servers that step together: one, or the ranks of an engine
// with wide expert parallelism, where each step takes as long as on the slowest.
//
// Between two changes of the batches a step only grows by the tokens that the
// last one added, so a run of steps is one event: step i takes first + i*slope.
type decodeGroup struct {
	cluster *cluster
	servers []*decodeServer
	running bool
	started float64
	steps   int     // of the run under way
	first   float64 // seconds of its first step
	slope   float64 // seconds that each further step takes more
	version int     // of the run; an older end is void
	worked  float64 // seconds of steps so far
}

// elapsed is the time of the first k steps of the run.
func (g *decodeGroup) elapsed(k int) float64 {
	n := float64(k)
	return n*g.first + g.slope*n*(n-1)/2
}

// interrupt makes the run end with the step under way, for requests that wait to join.
func (g *decodeGroup) interrupt() {
	if !g.running {
		g.begin()
		return
	}
	if done := g.stepsAt(g.cluster.cal.now) + 1; done < g.steps {
		g.steps = done
		g.schedule()
	}
}

// stepsAt is how many steps of the run are complete at a time.
func (g *decodeGroup) stepsAt(now float64) int {
	passed := now - g.started
	// first*n + slope*n*(n-1)/2 = passed, solved for n.
	n := passed / g.first
	if g.slope > 0 {
		b := g.first - g.slope/2
		n = (math.Sqrt(b*b+2*g.slope*passed) - b) / g.slope
	}
	k := max(0, int(n))
	for g.elapsed(k+1) <= passed { // rounding
		k++
	}
	for k > 0 && g.elapsed(k) > passed {
		k--
	}
	return k
}

// stepEnds is when the step under way ends, now if there is none.
func (g *decodeGroup) stepEnds() float64 {
	now := g.cluster.cal.now
	if !g.running {
		return now
	}
	return g.started + g.elapsed(min(g.steps, g.stepsAt(now)+1))
}

func (g *decodeGroup) schedule() {
	g.version++
	version := g.version
	g.cluster.cal.at(g.started+g.elapsed(g.steps), func() {
		if version == g.version {
			g.end()
		}
	})
}

// begin starts a run with those that have joined.
func (g *decodeGroup) begin() {
	for _, d := range g.servers {
		for _, j := range d.joining {
			j.fresh = true
			d.batch = append(d.batch, j)
			d.context += j.context()
		}
		d.joining = d.joining[:0]
		d.grow()
		d.observe()
	}
	g.started = g.cluster.cal.now
	g.first, g.slope, g.steps = 0, 0, g.cluster.longestRun
	var soonest float64
	if g.running, soonest = g.hasWork(); !g.running {
		if !math.IsInf(soonest, 1) {
			g.cluster.cal.at(soonest, func() {
				if !g.running {
					g.begin()
				}
			})
		}
		return
	}
	g.measure()
	g.schedule()
	for _, d := range g.servers {
		for _, j := range d.batch {
			if j.fresh && j.compute == 0 {
				g.cluster.firstToken(j, g.started+g.first)
			}
		}
	}
}

// hasWork reports whether a step would do anything, and when there is the next piece of a prompt to
// compute: infinite if there is none.
func (g *decodeGroup) hasWork() (any bool, soonest float64) {
	soonest = math.Inf(1)
	for _, d := range g.servers {
		for _, j := range d.batch {
			if j.compute == 0 || j.nextPiece <= g.started {
				any = true
				continue
			}
			soonest = min(soonest, j.nextPiece)
		}
	}
	return any, soonest
}

// computes reports whether the server has prompts to compute, now or when their next piece comes.
func (d *decodeServer) computes() bool {
	return slices.ContainsFunc(d.batch, func(j *job) bool { return j.compute > 0 })
}

// measure sets the length of the steps and of the run: to the first sequence that
// ends, the first server that overtakes the slowest, or the end of sure KV room.
func (g *decodeGroup) measure() {
	hw := g.cluster.hw
	for _, d := range g.servers {
		first := hw.step(len(d.batch), d.context) * d.speed
		slope := hw.DecodePerContext * float64(len(d.batch)) * d.speed
		if d.computes() {
			first += d.localPrefill()
			g.steps = 1
		}
		if first > g.first || (first == g.first && slope > g.slope) {
			g.first, g.slope = first, slope
		}
		g.steps = min(g.steps, d.growth())
		for _, j := range d.batch {
			if j.compute == 0 {
				g.steps = min(g.steps, j.req.Output-j.generated)
			}
		}
	}
	for _, d := range g.servers {
		first := hw.step(len(d.batch), d.context) * d.speed
		slope := hw.DecodePerContext * float64(len(d.batch)) * d.speed
		if slope > g.slope && g.steps > 1 {
			g.steps = min(g.steps, 1+int((g.first-first)/(slope-g.slope)))
		}
	}
}

// localPrefill plans the prompt tokens that the next step computes here, for
// requests without a prefill server and for preempted ones, and returns its time.
func (d *decodeServer) localPrefill() float64 {
	hw := d.cluster.hw
	budget := max(1, hw.DecodeTokens-len(d.batch))
	seconds := 0.0
	for _, j := range d.batch {
		j.chunk = 0
		if j.compute == 0 || budget == 0 || j.nextPiece > d.cluster.cal.now {
			continue
		}
		from := j.context() - j.compute
		j.chunk = min(j.decodePieces.End(from, j.context())-from, budget)
		budget -= j.chunk
		seconds += hw.work(from, from+j.chunk) * j.noise * d.speed
	}
	if seconds > 0 {
		seconds += hw.DecodePrefillStep * d.speed
	}
	return seconds
}

// end finishes the run and starts the next.
func (g *decodeGroup) end() {
	g.worked += g.elapsed(g.steps)
	g.cluster.gaps(g)
	now := g.cluster.cal.now
	longest := g.first + g.slope*float64(g.steps-1)
	for _, d := range g.servers {
		ended := false
		for _, j := range d.batch {
			if j.compute > 0 {
				j.compute -= j.chunk
				if j.compute > 0 {
					if j.chunk > 0 && j.decodePieces.Seconds > 0 {
						j.nextPiece = now + g.cluster.scenario.RoundTrip
					}
					continue
				}
				d.publish(j)
				g.cluster.finishLocalPrefill(j, now)
			}
			if !j.fresh || g.steps > 1 {
				j.longestGap = max(j.longestGap, longest)
			}
			j.fresh = false
			j.lastToken = now
			j.generated += g.steps
			d.context += g.steps
			ended = ended || j.generated >= j.req.Output
		}
		if !ended {
			continue
		}
		d.batch = slices.DeleteFunc(d.batch, func(j *job) bool {
			if j.compute > 0 || j.generated < j.req.Output {
				return false
			}
			d.leave(j)
			g.cluster.finish(j)
			return true
		})
		d.admit()
	}
	g.begin()
}
