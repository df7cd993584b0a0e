package pd

import (
	"time"

	"github.com/tandem-gateway/tandem/pools"
)

// Candidate is what the choice knows of one server for one leg.
type Candidate struct {
	ID      string
	Place   Place
	Queue   time.Duration // predicted time until its outstanding prefill work is done
	Cached  int           // leading tokens of the request that it holds
	Prefill pools.Curve   // time of a prefill on it
	Step    pools.Curve   // time of a decode step on it
	Running int           // sequences in its batch
	KVUsed  int           // tokens of KV in use
	Waiting int           // requests that wait on it for KV
	KVFree  int           // tokens; meaningful when KVKnown
	KVKnown bool
}

// Demand is what the choice knows of the request.
type Demand struct {
	PromptTokens int
	OutputTokens int
}

// Field is the servers that a request may still use, by leg. Alone are those
// that may prefill and decode it by themselves.
type Field struct {
	Prefill []Candidate
	Decode  []Candidate
	Alone   []Candidate
	Links   LinkView
}

// Alternative is one way to run a request and what it is predicted to cost.
// Prefill is empty when the decode server runs alone.
type Alternative struct {
	Prefill string
	Decode  string
	Terms   Terms
}

// Alternatives prices every way to run the request, in the order of the field:
// all pairs, then all servers alone.
func (m *CostModel) Alternatives(r Demand, f Field) []Alternative {
	all := make([]Alternative, 0, len(f.Prefill)*len(f.Decode)+len(f.Alone))
	m.each(r, f, func(a Alternative) { all = append(all, a) })
	return all
}

// Choose returns the alternative with the least predicted time, false if there
// is none. Equal ones share by tie, which returns a number below n.
func (m *CostModel) Choose(r Demand, f Field, tie func(n int) int) (Alternative, bool) {
	var best Alternative
	equals := 0
	m.each(r, f, func(a Alternative) {
		total := a.Terms.Total()
		switch {
		case equals == 0 || total < best.Terms.Total():
			best, equals = a, 1
		case total == best.Terms.Total():
			equals++
			if tie(equals) == 0 {
				best = a
			}
		}
	})
	return best, equals > 0
}

func (m *CostModel) each(r Demand, f Field, visit func(Alternative)) {
	need := r.PromptTokens + r.OutputTokens
	// Less than one block cannot be handed over: decode would compute it again.
	if r.PromptTokens >= m.BlockTokens {
		for i := range f.Decode {
			d := &f.Decode[i]
			step := m.step(d, need)
			room := m.room(d, need, r.OutputTokens, step)
			for j := range f.Prefill {
				p := &f.Prefill[j]
				visit(Alternative{Prefill: p.ID, Decode: d.ID, Terms: Terms{
					Queue:    p.Queue,
					Prefill:  m.prefill(p, r.PromptTokens),
					Transfer: m.transfer(f.Links.Between(p, d), r.PromptTokens-d.Cached),
					Room:     room,
					Step:     step,
				}})
			}
		}
	}
	for i := range f.Alone {
		d := &f.Alone[i]
		prefill, step := m.prefill(d, r.PromptTokens), m.step(d, need)
		visit(Alternative{Decode: d.ID, Terms: Terms{
			Prefill: prefill,
			Room:    m.room(d, need, r.OutputTokens, step),
			Step:    step,
			Burden:  m.burden(d, prefill),
		}})
	}
}
