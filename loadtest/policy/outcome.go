package policy

import (
	"fmt"
	"math"
	"slices"
)

// Outcome is what came of one run. Times are in seconds.
type Outcome struct {
	Policy   string
	Scenario string
	Seed     uint64

	TTFT    Distribution
	ITL     Distribution
	Deciles [10]DecileOutcome
	Wait    float64 // longest from arrival to the first step of prefill
	// IdleWait is the longest for which a request waited though a prefill server that could
	// have begun it was idle; IdleShare the longest as a share of what it may wait so at most.
	IdleWait, IdleShare float64
	// MeanWait and MeanPrefill are parts of the mean TTFT: until the first step of the
	// prefill, and from then to its end. The rest is transfer and decode's step.
	MeanWait, MeanPrefill float64
	// MeanAgain and MeanBeside are parts of MeanPrefill, MeanStep is of what is behind it: see ttftParts.
	MeanAgain, MeanBeside, MeanStep float64

	Goodput     float64 // part of the requests that met their SLOs, ITL with every gap
	MeanGoodput float64 // part that met them, ITL with the mean of its gaps
	HitRate     float64 // part of the prompt tokens found on the prefill server
	SameRack    float64 // bytes moved
	Cross       float64 // bytes moved between racks
	Transfer    float64 // p99 of transfers

	PrefillBusy      float64 // part of the time, mean of the servers
	PrefillImbalance float64 // busiest server over the mean
	DecodeImbalance  float64 // tokens of the server that made most over the mean
	Preemptions      int
	Aggregated       int     // requests that decode served without a prefill server
	OutputError      float64 // mean |expected - true| output tokens over the mean output
	DecisionNS       float64 // wall time of one decision
	RunSeconds       float64 // wall time of the run
	Span             float64 // from the first arrival to the last token
}

// Distribution is a distribution in short.
type Distribution struct{ Mean, P50, P90, P99, P999, Max float64 }

// DecileOutcome is a tenth of the requests, by prompt length.
type DecileOutcome struct {
	Requests          int
	Shortest, Longest int // prompt tokens
	TTFT, ITL         Distribution
	Wait              float64 // longest
}

// distributionOf sorts values and sums them up.
func distributionOf(values []float64) Distribution {
	if len(values) == 0 {
		return Distribution{}
	}
	slices.Sort(values)
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	at := func(q float64) float64 { return values[max(0, int(math.Ceil(q*float64(len(values))))-1)] }
	return Distribution{Mean: sum / float64(len(values)), P50: at(0.5), P90: at(0.9), P99: at(0.99), P999: at(0.999), Max: values[len(values)-1]}
}

func (h *gapHistogram) distribution() Distribution {
	return Distribution{Mean: h.mean(), P50: h.quantile(0.5), P90: h.quantile(0.9), P99: h.quantile(0.99), P999: h.quantile(0.999), Max: h.quantile(1)}
}

func (c *cluster) outcome(policy *Policy, seed uint64) *Outcome {
	o := &Outcome{Policy: policy.Name, Scenario: c.scenario.Name, Seed: seed}
	c.times(o)
	c.parts(o)
	c.moved(o)
	c.shares(o)
	if n := c.tally.decisions; n > 0 {
		o.DecisionNS = float64(c.tally.deciding.Nanoseconds()) / float64(n)
	}
	return o
}

// times fills TTFT, ITL, waits and goodput, overall and by prompt length.
func (c *cluster) times(o *Outcome) {
	var byDecile [10][]float64
	var all []float64
	good, goodInMean := 0, 0
	for i := range c.jobs {
		j := &c.jobs[i]
		ttft, wait := j.firstAt+c.scenario.trip()-j.arrived, j.waited
		all = append(all, ttft)
		byDecile[j.decile] = append(byDecile[j.decile], ttft)
		o.IdleWait, o.IdleShare = max(o.IdleWait, j.idleWait), max(o.IdleShare, j.idleWait/c.idleAllowed(j))
		d := &o.Deciles[j.decile]
		d.Wait, o.Wait = max(d.Wait, wait), max(o.Wait, wait)
		if d.Requests == 0 || j.req.Prompt < d.Shortest {
			d.Shortest = j.req.Prompt
		}
		d.Longest = max(d.Longest, j.req.Prompt)
		d.Requests++
		if ttft > c.scenario.SLO.TTFT {
			continue
		}
		if j.longestGap <= c.scenario.SLO.ITL {
			good++
		}
		if j.meanGap() <= c.scenario.SLO.ITL {
			goodInMean++
		}
	}
	o.Goodput, o.MeanGoodput = float64(good)/float64(len(c.jobs)), float64(goodInMean)/float64(len(c.jobs))
	o.TTFT = distributionOf(all)
	var gaps gapHistogram
	for k := range byDecile {
		o.Deciles[k].TTFT = distributionOf(byDecile[k])
		o.Deciles[k].ITL = c.tally.gaps[k].distribution()
		gaps.merge(&c.tally.gaps[k])
	}
	o.ITL = gaps.distribution()
}

// parts fills what the mean TTFT is made of.
func (c *cluster) parts(o *Outcome) {
	least := c.leastWork()
	came := make([]bool, c.blocks)
	for i := range c.jobs {
		j := &c.jobs[i]
		known := 0
		for _, block := range j.req.whole() {
			if !came[block] {
				break
			}
			known++
		}
		for _, block := range j.req.whole() {
			came[block] = true
		}
		fresh := j.noise * least.seconds(min(known*blockTokens, j.req.Prompt-1), j.req.Prompt)
		computed := j.noise * least.seconds(min(j.prefillHit, j.req.Prompt-1), j.req.Prompt)
		prefill, step := j.prefillEnd()-j.arrived-j.waited, c.hw.step(1, j.req.Prompt)
		switch {
		case j.pair.Prefill == Aggregated:
			prefill -= step
		case c.scenario.saysFirst(j.req):
			step = 0
		}
		o.MeanWait += j.waited
		o.MeanPrefill += prefill
		o.MeanAgain += computed - fresh
		o.MeanBeside += prefill - computed
		o.MeanStep += step
	}
	for _, part := range []*float64{&o.MeanWait, &o.MeanPrefill, &o.MeanAgain, &o.MeanBeside, &o.MeanStep} {
		*part /= float64(len(c.jobs))
	}
}

// moved fills what went over the network and was saved by caches.
func (c *cluster) moved(o *Outcome) {
	prompts, hits, outputs, missed := 0.0, 0.0, 0.0, 0.0
	for i := range c.jobs {
		j := &c.jobs[i]
		prompts += float64(j.req.Prompt)
		hits += float64(j.prefillHit)
		outputs += float64(j.req.Output)
		missed += math.Abs(float64(j.estimate.output - j.req.Output))
		o.Preemptions += j.preempted
		if j.pair.Prefill == Aggregated {
			o.Aggregated++
		}
	}
	o.HitRate, o.OutputError = hits/prompts, missed/outputs
	o.SameRack, o.Cross = c.tally.sameRack, c.tally.crossRack
	o.Transfer = distributionOf(c.tally.transfers).P99
}

// shares fills how evenly the servers worked.
func (c *cluster) shares(o *Outcome) {
	o.Span = c.cal.now - c.jobs[0].arrived
	var worked, made []float64
	for _, p := range c.prefills {
		worked = append(worked, p.worked)
	}
	made = make([]float64, len(c.decodes))
	for i := range c.jobs {
		made[c.jobs[i].pair.Decode] += float64(c.jobs[i].req.Output)
	}
	w, m := distributionOf(worked), distributionOf(made)
	o.PrefillBusy = w.Mean / o.Span
	o.PrefillImbalance, o.DecodeImbalance = w.Max/max(w.Mean, 1e-9), m.Max/max(m.Mean, 1e-9)
}

// String is an outcome in a few words.
func (o *Outcome) String() string {
	return fmt.Sprintf("%s %s seed %d: mean TTFT %.2f s", o.Scenario, o.Policy, o.Seed, o.TTFT.Mean)
}
