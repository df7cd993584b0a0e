package pd

import (
	"iter"
	"math"
	"time"

	"github.com/tandem-gateway/tandem/kvstate"
	"github.com/tandem-gateway/tandem/pools"
)

// Candidate is what the choice knows of one server for one leg.
type Candidate struct {
	ID      string
	Class   uint64 // only servers of one class make a pair
	Place   Place
	Queue   time.Duration // predicted time until its outstanding prefill work is done
	Queued  int           // requests of that work
	Cached  kvstate.Held  // leading tokens of the request that it holds, by tier
	Prefill pools.Curve   // time of a prefill on it
	Step    pools.Curve   // time of a decode step on it
	Running int           // sequences in its batch
	Decodes int           // of them, decodes that a prefill on it would stall
	KVUsed  int           // tokens of KV in use
	Waiting int           // requests that wait on it for KV
	KVFree  int           // tokens; meaningful when KVKnown
	KVKnown bool
}

// Demand is what the choice knows of the request.
type Demand struct {
	PromptTokens int
	OutputTokens int
	TTFT         time.Duration // objectives; 0 is none
	ITL          time.Duration
}

// Field is the servers that a request may still use, by leg. Alone are those
// that may prefill and decode it by themselves.
type Field struct {
	Prefill []Candidate
	Decode  []Candidate
	Alone   []Candidate
	Links   LinkView
}

// handsOver reports whether a pair is worth pricing. Less than one block cannot be
// handed over, decode would compute it again; where no server runs alone it is, since
// those engines hand over any number of tokens.
func (f *Field) handsOver(r Demand, blockTokens int) bool {
	return r.PromptTokens >= blockTokens || len(f.Alone) == 0
}

// compatible reports whether two servers can be a pair. With itself a server runs alone.
func compatible(p, d *Candidate) bool { return p.Class == d.Class && p.ID != d.ID }

// Alternative is one way to run a request and what it is predicted to cost.
// Prefill is empty when the decode server runs alone.
type Alternative struct {
	Prefill string
	Decode  string
	Terms   Terms
	// Misses is how many of the request's objectives it is predicted to miss. One
	// that misses fewer wins, whatever the times.
	Misses int
}

// before reports whether a is the better one.
func (a *Alternative) before(b *Alternative) bool {
	if a.Misses != b.Misses {
		return a.Misses < b.Misses
	}
	return a.Terms.Total() < b.Terms.Total()
}

// Alternatives prices every way to run the request, in the order of the field:
// all pairs, then all servers alone. It is for people; Choose does not use it.
func (m *CostModel) Alternatives(r Demand, f Field) []Alternative {
	all := make([]Alternative, 0, len(f.Prefill)*len(f.Decode)+len(f.Alone))
	price := m.price(f.Prefill)
	if f.handsOver(r, m.BlockTokens) {
		for i := range f.Prefill {
			first := m.first(r, &f.Prefill[i], price)
			for j := range f.Decode {
				if !compatible(&f.Prefill[i], &f.Decode[j]) {
					continue
				}
				last := m.last(r, &f.Decode[j], &f.Links)
				all = append(all, m.pair(r, &f, &first, &last))
			}
		}
	}
	for i := range f.Alone {
		all = append(all, m.alone(r, &f.Alone[i]))
	}
	return all
}

// inline is how many servers of a role are handled without an allocation.
const inline = 256

// Choose returns the alternative with the least predicted time among those that
// miss the fewest objectives, false if there is none. Equal ones share: tie, which
// returns a number below n, says where the search begins, and the first of equals
// is kept. The search begins with the cheapest prefill server; what could not win
// even over the nearest link is passed over, so that few pairs are priced.
func (m *CostModel) Choose(r Demand, f Field, tie func(n int) int) (best Alternative, found bool) {
	for i := range rotated(len(f.Alone), tie) {
		if a := m.alone(r, &f.Alone[i]); !found || a.before(&best) {
			best, found = a, true
		}
	}
	if !f.handsOver(r, m.BlockTokens) || len(f.Prefill) == 0 || len(f.Decode) == 0 {
		return best, found
	}
	var lastArray [inline]lastHalf
	lasts := lastArray[:0]
	least := time.Duration(math.MaxInt64) // of the second half, over all decode servers
	for i := range rotated(len(f.Decode), tie) {
		last := m.last(r, &f.Decode[i], &f.Links)
		lasts = append(lasts, last)
		least = min(least, last.least)
	}
	var firstArray [inline]firstHalf
	firsts, price := firstArray[:0], m.price(f.Prefill)
	cheapest := 0
	for i := range rotated(len(f.Prefill), tie) {
		firsts = append(firsts, m.first(r, &f.Prefill[i], price))
		if firsts[len(firsts)-1].total() < firsts[cheapest].total() {
			cheapest = len(firsts) - 1
		}
	}
	firsts[0], firsts[cheapest] = firsts[cheapest], firsts[0]
	for i := range firsts {
		half := firsts[i].total()
		if found && best.Misses == 0 && half+least >= best.Terms.Total() {
			continue
		}
		for j := range lasts {
			if found && best.Misses == 0 && half+lasts[j].least >= best.Terms.Total() || !compatible(firsts[i].p, lasts[j].d) {
				continue
			}
			if a := m.pair(r, &f, &firsts[i], &lasts[j]); !found || a.before(&best) {
				best, found = a, true
			}
		}
	}
	return best, found
}

// rotated yields the numbers below n once each, from a random one on.
func rotated(n int, tie func(int) int) iter.Seq[int] {
	return func(yield func(int) bool) {
		if n == 0 {
			return
		}
		start := tie(n)
		for i := range n {
			if k := start + i; !yield(k % n) {
				return
			}
		}
	}
}

// firstHalf is what a pair costs on the side of its prefill server.
type firstHalf struct {
	p                      *Candidate
	queue, prefill, burden time.Duration
}

func (h *firstHalf) total() time.Duration { return h.queue + h.prefill + h.burden }

func (m *CostModel) first(r Demand, p *Candidate, price float64) firstHalf {
	prefill := m.prefill(p, r.PromptTokens)
	return firstHalf{
		p: p, queue: p.Queue, prefill: prefill,
		burden: time.Duration(price*float64(m.reference(p, r.PromptTokens))) + prefill*time.Duration(p.Decodes),
	}
}

// lastHalf is what a pair costs on the side of its decode server: the transfer by
// distance, since the bytes that it lacks are the same from everywhere.
type lastHalf struct {
	d          *Candidate
	room, step time.Duration
	transfer   [distances]time.Duration
	least      time.Duration // of all of it, over the distances
}

func (m *CostModel) last(r Demand, d *Candidate, links *LinkView) lastHalf {
	need := r.PromptTokens + r.OutputTokens
	h := lastHalf{d: d, step: m.step(d, need)}
	h.room = m.room(d, need, r.OutputTokens, h.step)
	nearest := time.Duration(math.MaxInt64)
	for class, link := range links.classes {
		h.transfer[class] = m.transfer(link, r.PromptTokens-m.reused(d))
		nearest = min(nearest, h.transfer[class])
	}
	if len(links.odd) > 0 {
		nearest = m.HandOff // a single pair may be faster than its class
	}
	h.least = nearest + h.room + h.step
	return h
}

func (m *CostModel) pair(r Demand, f *Field, first *firstHalf, last *lastHalf) Alternative {
	transfer := last.transfer[DistanceOf(&first.p.Place, &last.d.Place)]
	if factor, odd := f.Links.factor(first.p.ID, last.d.ID); odd {
		transfer = m.HandOff + time.Duration(float64(transfer-m.HandOff)*factor)
	}
	return r.judge(Alternative{Prefill: first.p.ID, Decode: last.d.ID, Terms: Terms{
		Queue: first.queue, Prefill: first.prefill, Transfer: transfer,
		Room: last.room, Step: last.step, Burden: first.burden,
	}})
}

func (m *CostModel) alone(r Demand, d *Candidate) Alternative {
	need := r.PromptTokens + r.OutputTokens
	prefill, step := m.prefill(d, r.PromptTokens), m.step(d, need)
	return r.judge(Alternative{Decode: d.ID, Terms: Terms{
		Prefill: prefill,
		Room:    m.room(d, need, r.OutputTokens, step),
		Step:    step,
		Burden:  m.burden(d, prefill),
	}})
}

// judge counts the objectives that an alternative is predicted to miss.
func (r *Demand) judge(a Alternative) Alternative {
	if r.ITL > 0 && a.Terms.Step > r.ITL {
		a.Misses++
	}
	if r.TTFT > 0 && a.Terms.TTFT() > r.TTFT {
		a.Misses++
	}
	return a
}
