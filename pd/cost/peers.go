package cost

import "github.com/tandem-gateway/tandem/pools/curve"

// JudgeByPeers lets servers that have shown little of their speed lately be believed as
// fast as those that have: one that is new, or that is avoided because it was slow, is
// tried again, and not for longer than it takes to know better. Decode servers that never
// computed a prompt are taken to do it like prefill servers. Of two that are believed
// alike the one that is less known goes first: an idle fleet would never try the others.
func JudgeByPeers(f *Candidates) {
	var prefill, step peers
	for _, servers := range [][]Candidate{f.Prefill, f.Decode} {
		for i := range servers {
			prefill.add(servers[i].Prefill, servers[i].PrefillKnown)
			step.add(servers[i].Step, servers[i].StepKnown)
		}
	}
	for _, servers := range [][]Candidate{f.Prefill, f.Decode} {
		for i := range servers {
			c := &servers[i]
			c.Prefill, c.Step = prefill.judge(c.Prefill, c.PrefillKnown), step.judge(c.Step, c.StepKnown)
		}
	}
}

// untried is what a server is believed to take that nothing is known of, of what its peers
// do. It bounds the cost of trying: one that is three times as slow is tried some six
// minutes after it was avoided and then every three, by the request of that moment, and
// sooner where its peers are busy.
const untried = 0.97

// peers is the mean of curves, by how much of each is known.
type peers struct {
	sum   curve.Curve
	known float64
}

func (p *peers) add(c curve.Curve, known float64) {
	for i := range c {
		p.sum[i] += known * c[i]
	}
	p.known += known
}

// judge is what to believe of a server: its own curve as far as that is known, its peers'
// for the rest. Where no server has shown anything it is the prior.
func (p *peers) judge(own curve.Curve, known float64) curve.Curve {
	if p.known == 0 {
		return own
	}
	for i := range own {
		own[i] = known*own[i] + (1-known)*untried*p.sum[i]/p.known
	}
	return own
}
