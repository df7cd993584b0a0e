package cost

import "github.com/tandem-gateway/tandem/pools/curve"

// JudgeByPeers lets servers that have shown little of their speed lately be believed as
// fast as those that have: one that is new, or that is avoided because it was slow, is
// tried again, and not for longer than it takes to know better. Decode servers that never
// computed a prompt are taken to do it like prefill servers. Of two that are believed
// alike the one that is less known goes first: an idle fleet would never try the others.
//
// Nor is one believed to differ from its peers where the scatter of what it has shown explains
// that: of equal servers each learns another speed from its own requests, and by such differences
// conversations would leave the servers that hold them.
func JudgeByPeers(f *Candidates) {
	prefill, step := peers{works: prefillWorks}, peers{works: stepWorks}
	for _, servers := range [][]Candidate{f.Prefill, f.Decode} {
		for i := range servers {
			c := &servers[i]
			prefill.add(&c.Prefill, c.PrefillKnown, c.PrefillError)
			step.add(&c.Step, c.StepKnown, c.StepError)
		}
	}
	prefill.average()
	step.average()
	for _, servers := range [][]Candidate{f.Prefill, f.Decode} {
		for i := range servers {
			c := &servers[i]
			prefill.judge(&c.Prefill, c.PrefillKnown, c.PrefillError)
			step.judge(&c.Step, c.StepKnown, c.StepError)
		}
	}
}

// untried is what a server is believed to take that nothing is known of, of what its peers
// do. It bounds the cost of trying: one that is three times as slow is tried some six
// minutes after it was avoided and then every three, by the request of that moment, and
// sooner where its peers are busy.
const untried = 0.97

// chance is how many standard errors of difference are taken for chance: one server in some 400
// differs by more without being different.
const chance = 3

// The works by which curves are compared, a small and a large one: what either shows counts.
var (
	prefillWorks = [2]curve.Features{curve.PrefillFeatures(512, 0), curve.PrefillFeatures(8192, 0)}
	stepWorks    = [2]curve.Features{curve.StepFeatures(1, 4000), curve.StepFeatures(32, 100_000)}
)

// peers is the mean of curves, by how much of each is known.
type peers struct {
	works   [2]curve.Features
	sum     curve.Curve
	known   float64
	squares float64 // of the errors of what was added, as parts of the sum

	mean  curve.Curve // by average, as what follows
	usual [2]float64  // what the works take by it
	noise float64     // the square of its error, as a part of it
}

func (p *peers) add(c *curve.Curve, known, stdErr float64) {
	if known == 0 { // half of all: decode servers compute few prompts, and prefill servers make no steps
		return
	}
	for i := range c {
		p.sum[i] += known * c[i]
	}
	p.known += known
	p.squares += known * stdErr * known * stdErr
}

// average works out the mean once all are added.
func (p *peers) average() {
	if p.known == 0 {
		return
	}
	for i := range p.mean {
		p.mean[i] = p.sum[i] / p.known
	}
	for i := range p.works {
		p.usual[i] = p.works[i].On(&p.mean)
	}
	p.noise = p.squares / (p.known * p.known)
}

// judge makes a server's own curve what to believe of it: that as far as it is known and differs from
// its peers' by more than chance, theirs for the rest. Where no server has shown anything it is
// the prior.
func (p *peers) judge(own *curve.Curve, known, stdErr float64) {
	switch {
	case p.known == 0:
		return
	case known == 0:
		for i := range own {
			own[i] = untried * p.mean[i]
		}
		return
	}
	differs := p.differs(own, stdErr)
	for i := range own {
		own[i] = known*(differs*own[i]+(1-differs)*p.mean[i]) + (1-known)*untried*p.mean[i]
	}
}

// differs is how much of the difference between a server's curve and the mean is believed, 0..1:
// none of what is within chance, nearly all of what is several times as much (James and Stein's
// estimate, its positive part).
func (p *peers) differs(own *curve.Curve, stdErr float64) float64 {
	noise := stdErr*stdErr + p.noise
	if noise == 0 {
		return 1
	}
	difference := 0.0
	for i, usual := range p.usual {
		if usual > 0 {
			by := p.works[i].On(own)/usual - 1
			difference += by * by / float64(len(p.works))
		}
	}
	return max(0, 1-chance*chance*noise/max(difference, 1e-12))
}
