package pd

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-gateway/tandem/pools"
)

// crossing is the transfer that a decode leg begins with.
type crossing struct {
	links     *Links
	server    *pools.Server // that decodes
	from, to  Candidate
	bytes     float64
	own       time.Duration // what the decode server needs itself until its first event
	end       func()        // says that it is no longer under way
	teachable bool
}

// beginTransfer notes that a decode leg, which is sent now, moves KV over the link of its
// pair. Where the decode server has to wait for room, or computes prompts itself, its
// time says nothing of the link; nor where decode is sent off before prefill is
// done, since it is prefill's then too.
func (o *Orchestrator) beginTransfer(a assignment, now time.Time) crossing {
	by := connectorOf(a.decode.Server())
	if by.together || by.carried || !a.handoff.carries() || a.handoff.coverage().tokens == 0 || a.chosen.Terms.Room > 0 ||
		computesPrompts(a.decode.Server(), now) {
		return crossing{end: func() {}}
	}
	moved := a.handoff.coverage().tokens
	if o.Cost.DecodeReuse {
		moved -= min(moved, a.held)
	}
	c := crossing{
		links: o.Links, server: a.decode.Server(), from: o.present(a.handoff.From, now), to: o.present(a.decode.Server(), now),
		bytes: float64(moved) * float64(o.Cost.KVBytesPerToken), own: o.Cost.HandOff + a.chosen.Terms.Step, teachable: true,
	}
	c.end = o.Links.Begin(&c.from, &c.to, c.bytes, now)
	return c
}

// learn teaches the link the time between decode's dispatch and its first event.
func (c *crossing) learn(took time.Duration, now time.Time) {
	if c.teachable && !computesPrompts(c.server, now) {
		c.links.Observe(&c.from, &c.to, c.bytes, took-c.own, now)
	}
}

// computesPrompts reports whether a server has prompts to compute, between the steps of
// its batch.
func computesPrompts(s *pools.Server, now time.Time) bool {
	return s.InFlight(pools.Prefill, now).Requests > 0
}

// learnOutput learns from an answer that came to its end how long answers are, and keeps
// how far off the prediction was. One that another stream began is not a whole answer.
func (o *Orchestrator) learnOutput(j *journey, u Usage) {
	tokens := u.Output.Tokens / max(1, j.req.Answers)
	if j.resumed || j.req.OutputTokens <= 0 || tokens <= 0 {
		return
	}
	o.Metrics.outputRatio.WithLabelValues(j.req.Model).Observe(float64(j.req.OutputTokens) / float64(tokens))
	o.Outputs.Ended(j.req, tokens, time.Now())
}

// paceGaps is how many gaps between tokens make one sample of a decode step:
// events that travel together have gaps of nothing and of twice the step.
const paceGaps = 16

// pace measures the gaps between the tokens of one stream.
type pace struct {
	o      *Orchestrator
	server *pools.Server
	itl    prometheus.Observer
	sum    time.Duration
	gaps   int
}

func (p *pace) gap(gap time.Duration) {
	p.itl.Observe(gap.Seconds())
	p.sum += gap
	if p.gaps++; p.gaps < paceGaps {
		return
	}
	now := time.Now()
	c := p.o.present(p.server, now)
	p.server.ObserveStep(p.sum/paceGaps, max(c.Running, 1), c.KVUsed, now)
	p.sum, p.gaps = 0, 0
}
