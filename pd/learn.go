package pd

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-gateway/tandem/pools"
)

// learnTransfer teaches the link of a pair from the time between decode's dispatch
// and its first event. Where the decode server had to wait for room, or computed
// the prompt itself, the time says nothing of the link; nor where both legs run at once,
// since it is prefill's then too.
func (o *Orchestrator) learnTransfer(a assignment, took time.Duration, now time.Time) {
	together := connectorOf(a.decode.Server()).together
	if together || !a.handoff.carries() || a.handoff.coverage().tokens == 0 || a.chosen.Terms.Room > 0 {
		return
	}
	p, d := o.present(a.handoff.From, now), o.present(a.decode.Server(), now)
	own := o.Cost.HandOff + a.chosen.Terms.Step
	moved := a.handoff.coverage().tokens
	if o.Cost.DecodeReuse {
		moved -= min(moved, a.held)
	}
	o.Links.Observe(&p, &d, float64(moved)*float64(o.Cost.KVBytesPerToken), took-own, now)
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
