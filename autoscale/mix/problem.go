package mix

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/tandem-gateway/tandem/autoscale/sizing"
)

// Class is requests of like lengths and objectives.
type Class struct {
	Name string
	Rate float64 // requests per second
	// DecodeRate is of those that decode, where it is another; 0: Rate.
	DecodeRate float64
	Uncached   float64 // tokens of the prompt to compute
	Prompt     float64 // tokens of the whole prompt
	Output     float64 // tokens of the answer
	Context    float64 // tokens of KV of a sequence at any moment; 0: the mean over the life of one
	TTFT       time.Duration
	ITL        time.Duration
	Weight     float64 // where not all can be served: 2 is shed later than 1; 0 counts as 1
}

// context is the tokens of KV of a sequence.
func (c *Class) context() float64 {
	if c.Context > 0 {
		return c.Context
	}
	return c.Prompt + c.Output/2
}

// Variant is a kind of hardware.
type Variant struct {
	Name     string
	Capacity sizing.Capacity
	Cost     float64 // of a server for an hour
	GPUs     int     // of a server
	Have     int     // GPUs there are; 0: any number
	// Kind is the GPUs of a server. Variants of one kind are its parallel layouts, and share the
	// GPUs there are; "" is a kind of its own.
	Kind string
	// Prefill and Decode are the servers that run now: others cost Problem.Switch.
	Prefill, Decode int
}

// Problem is what is to be served, and with what.
type Problem struct {
	Classes  []Class
	Variants []Variant
	Use      float64 // share of a server's capacity that is planned with, more than 0 and at most 1
	Switch   float64 // cost of starting a server
}

// Mix is a solution.
type Mix struct {
	Prefill, Decode []int     // servers of each variant
	Cost            float64   // an hour, starts included, without what is not served
	Unmet           []float64 // part of each class that is not served
	// PrefillShare and DecodeShare are the part of a class (first index) that a
	// variant prefills and decodes: a prior for routing.
	PrefillShare, DecodeShare [][]float64
	// Prices say where capacity is short: what an hour would cost less with one more
	// server's worth of it.
	Prices []Price
	// Bound is the least that any solution costs, what is not served included; Proven
	// that this one is the cheapest, within gap.
	Bound, Objective float64
	Proven           bool
}

// gap is the part by which another solution must be cheaper to be looked for.
const gap = 0.002

// Validate reports what is wrong with the problem, nil if nothing.
func (p *Problem) Validate() error {
	if len(p.Classes) == 0 || len(p.Variants) == 0 {
		return errors.New("mix: want at least one class and one variant")
	}
	if !(p.Use > 0 && p.Use <= 1) {
		return fmt.Errorf("mix: use %v: want more than 0 and at most 1", p.Use)
	}
	if p.Switch < 0 {
		return fmt.Errorf("mix: the cost of a start, %v, is negative", p.Switch)
	}
	for i := range p.Classes {
		c := &p.Classes[i]
		for _, v := range []float64{c.Rate, c.Uncached, c.Prompt, c.Output, c.TTFT.Seconds(), c.ITL.Seconds()} {
			if !(v > 0) || math.IsInf(v, 0) {
				return fmt.Errorf("mix: class %s: rate, tokens and objectives must be positive", c.Name)
			}
		}
		if c.Weight < 0 || c.DecodeRate < 0 {
			return fmt.Errorf("mix: class %s: weight or decode rate is negative", c.Name)
		}
	}
	for i := range p.Variants {
		v := &p.Variants[i]
		if err := v.Capacity.Validate(); err != nil {
			return fmt.Errorf("mix: variant %s: %w", v.Name, err)
		}
		if err := v.validate(); err != nil {
			return fmt.Errorf("mix: variant %s: %w", v.Name, err)
		}
		if v.Prefill < 0 || v.Decode < 0 {
			return fmt.Errorf("mix: variant %s: servers must not be negative", v.Name)
		}
	}
	return nil
}

// Solve finds the cheapest mix, or the best within the time.
func (p *Problem) Solve(within time.Duration) (*Mix, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	deadline := time.Now().Add(within)
	l := p.layout()
	programme := p.programme(l)
	x, cost, root, proven := programme.minimise(deadline, gap)
	if x == nil {
		return nil, errors.New("mix: rounding left no solution")
	}
	return p.read(l, programme, x, cost, root, proven), nil
}

// layout numbers the variables of the programme. The integers come first.
type layout struct{ classes, variants int }

func (p *Problem) layout() layout { return layout{len(p.Classes), len(p.Variants)} }

func (l layout) prefill(g int) int         { return g }
func (l layout) decode(g int) int          { return l.variants + g }
func (l layout) startPrefill(g int) int    { return 2*l.variants + g }
func (l layout) startDecode(g int) int     { return 3*l.variants + g }
func (l layout) prefillShare(k, g int) int { return 4*l.variants + k*l.variants + g }
func (l layout) decodeShare(k, g int) int {
	return 4*l.variants + l.classes*l.variants + k*l.variants + g
}
func (l layout) unmet(k int) int { return 4*l.variants + 2*l.classes*l.variants + k }
func (l layout) size() int       { return l.unmet(l.classes) }

// perVariant is the number of rows of capacity that each variant has, in this order.
var perVariant = []string{"prefill", "decode", "kv", "sequences", "gpus"}

// programme writes the problem as inequalities. First come the rows of capacity,
// perVariant for each.
func (p *Problem) programme(l layout) *programme {
	q := &programme{cost: make([]float64, l.size()), integers: 2 * l.variants}
	row := func(limit float64) []float64 {
		q.rows, q.limit = append(q.rows, make([]float64, l.size())), append(q.limit, limit)
		return q.rows[len(q.rows)-1]
	}
	for g := range p.Variants {
		p.capacityRows(l, g, row)
	}
	for g := range p.Variants {
		v := &p.Variants[g]
		q.cost[l.prefill(g)], q.cost[l.decode(g)] = v.Cost, v.Cost
		q.cost[l.startPrefill(g)], q.cost[l.startDecode(g)] = p.Switch, p.Switch
		start := row(float64(v.Prefill))
		start[l.prefill(g)], start[l.startPrefill(g)] = 1, -1
		start = row(float64(v.Decode))
		start[l.decode(g)], start[l.startDecode(g)] = 1, -1
	}
	for k := range p.Classes {
		prefilled, decoded := row(-1), row(-1)
		prefilled[l.unmet(k)], decoded[l.unmet(k)] = -1, -1
		for g := range p.Variants {
			if p.prefills(k, g) {
				prefilled[l.prefillShare(k, g)] = -1
			}
			if p.decodes(k, g) {
				decoded[l.decodeShare(k, g)] = -1
			}
		}
		q.cost[l.unmet(k)] = p.penalty(k)
	}
	q.most = p.most()
	return q
}

// leastLoad is the part of a server that a whole class keeps busy at least: less would pass
// for rounding, and be served by no server at all. See search.round and programme.holds.
const leastLoad = 1e-5

// capacityRows: what classes ask of a variant is no more than its servers give.
func (p *Problem) capacityRows(l layout, g int, row func(limit float64) []float64) {
	v := &p.Variants[g]
	prefill, decode, kv, sequences := row(0), row(0), row(0), row(0)
	for k := range p.Classes {
		if p.prefills(k, g) {
			prefill[l.prefillShare(k, g)] = max(p.prefillLoad(k, g), leastLoad)
		}
		if !p.decodes(k, g) {
			continue
		}
		at := l.decodeShare(k, g)
		decode[at] = p.decodeLoad(k, g)
		kv[at] = max(p.kvLoad(k, g), leastLoad)
		sequences[at] = p.sequenceLoad(k, g)
	}
	prefill[l.prefill(g)] = -p.Use
	for _, r := range [][]float64{decode, kv, sequences} {
		r[l.decode(g)] = -p.Use
	}
	gpus := row(float64(v.Have))
	if v.Have > 0 {
		for h := range p.Variants {
			if other := &p.Variants[h]; h == g || v.Kind != "" && other.Kind == v.Kind {
				gpus[l.prefill(h)], gpus[l.decode(h)] = float64(other.GPUs), float64(other.GPUs)
			}
		}
	}
}

// prefills says whether a variant can meet a class's objective for TTFT at all.
func (p *Problem) prefills(k, g int) bool {
	c := &p.Classes[k]
	return p.Variants[g].Capacity.PrefillSeconds(c.Uncached, c.Prompt-c.Uncached) <= c.TTFT.Seconds()
}

func (p *Problem) decodes(k, g int) bool {
	c := &p.Classes[k]
	return p.Variants[g].Capacity.Sequences(c.ITL, c.context()) >= 1
}

// prefillLoad is how many servers of a variant the whole class keeps busy.
func (p *Problem) prefillLoad(k, g int) float64 {
	c := &p.Classes[k]
	return c.Rate * p.Variants[g].Capacity.PrefillSeconds(c.Uncached, c.Prompt-c.Uncached)
}

// plannedStep is the step time in seconds that a class is planned with on a variant: that of
// a server which is full of the classes' mean, within the class's objective. Slower
// steps would only keep requests, and their KV, for longer.
func (p *Problem) plannedStep(k, g int) float64 {
	v := &p.Variants[g]
	tokens, contexts, itl := 0.0, 0.0, time.Duration(0)
	for i := range p.Classes {
		c := &p.Classes[i]
		tokens += c.Rate * c.Output
		contexts += c.Rate * c.Output * c.context()
		itl = max(itl, c.ITL)
	}
	mean := contexts / tokens
	n := v.Capacity.Sequences(itl, mean)
	full := v.Capacity.Step[0] + n*(v.Capacity.Step[1]+v.Capacity.Step[2]*mean/1e6)
	if n == 0 {
		full = itl.Seconds()
	}
	one := v.Capacity.Step[0] + 2*p.perSequence(k, g) // a long context alone may take longer
	return min(p.Classes[k].ITL.Seconds(), max(full, one))
}

// perSequence is what one sequence of a class adds to a step, in seconds.
func (p *Problem) perSequence(k, g int) float64 {
	step := p.Variants[g].Capacity.Step
	return step[1] + step[2]*p.Classes[k].context()/1e6
}

// decoding is how many requests of a class decode at one time, if a variant decodes
// all of them.
func (p *Problem) decoding(k, g int) float64 {
	c := &p.Classes[k]
	rate := c.Rate
	if c.DecodeRate > 0 {
		rate = c.DecodeRate
	}
	return rate * c.Output * p.plannedStep(k, g)
}

// decodeLoad is likewise of the time of decode steps: a step of the pace has time for
// so many sequences, and classes share it in proportion. It is 0 where steps take as long
// whatever is in the batch.
func (p *Problem) decodeLoad(k, g int) float64 {
	each := p.perSequence(k, g)
	if each == 0 {
		return 0
	}
	return p.decoding(k, g) * each / (p.plannedStep(k, g) - p.Variants[g].Capacity.Step[0])
}

// kvLoad is how many servers' KV the class's requests hold.
func (p *Problem) kvLoad(k, g int) float64 {
	return p.decoding(k, g) * p.Classes[k].context() / float64(p.Variants[g].Capacity.KVTokens)
}

// sequenceLoad is how many servers' batches they fill, 0 where these have no bound.
func (p *Problem) sequenceLoad(k, g int) float64 {
	most := p.Variants[g].Capacity.MaxSequences
	if most == 0 {
		return 0
	}
	return p.decoding(k, g) / float64(most)
}

// penalty is what not serving a class costs: more than any servers for it.
func (p *Problem) penalty(k int) float64 {
	dearest, whole := 0.0, 0.0
	for g := range p.Variants {
		cost := p.Variants[g].Cost + p.Switch
		dearest = max(dearest, cost)
		load := 0.0
		if p.prefills(k, g) {
			load += p.prefillLoad(k, g)
		}
		if p.decodes(k, g) {
			load += max(p.decodeLoad(k, g), p.kvLoad(k, g))
		}
		whole = max(whole, load/p.Use*cost)
	}
	weight := p.Classes[k].Weight
	if weight == 0 {
		weight = 1
	}
	return 10 * weight * (whole + 2*dearest)
}

// most is a bound for the servers of each role and variant: what there is, or what
// all classes together would need of it.
func (p *Problem) most() []int {
	n := len(p.Variants)
	all := make([]int, 2*n)
	for g := range p.Variants {
		v := &p.Variants[g]
		prefill, time, kv, sequences := 0.0, 0.0, 0.0, 0.0
		for k := range p.Classes {
			if p.prefills(k, g) {
				prefill += p.prefillLoad(k, g)
			}
			if p.decodes(k, g) {
				time += p.decodeLoad(k, g)
				kv += p.kvLoad(k, g)
				sequences += p.sequenceLoad(k, g)
			}
		}
		all[g] = int(math.Ceil(prefill/p.Use)) + 1
		all[n+g] = int(math.Ceil(max(time, kv, sequences)/p.Use)) + 1
		if v.Have > 0 {
			all[g], all[n+g] = min(all[g], v.Have/v.GPUs), min(all[n+g], v.Have/v.GPUs)
		}
	}
	return all
}

// read turns a solution of the programme into a mix.
func (p *Problem) read(l layout, q *programme, x []float64, objective float64, root *tableau, proven bool) *Mix {
	m := &Mix{Objective: objective, Bound: root.objective, Proven: proven, Cost: objective}
	for g := range p.Variants {
		m.Prefill, m.Decode = append(m.Prefill, int(x[l.prefill(g)])), append(m.Decode, int(x[l.decode(g)]))
	}
	for k := range p.Classes {
		prefill, decode := make([]float64, l.variants), make([]float64, l.variants)
		for g := range p.Variants {
			prefill[g], decode[g] = x[l.prefillShare(k, g)], x[l.decodeShare(k, g)]
		}
		m.PrefillShare, m.DecodeShare = append(m.PrefillShare, prefill), append(m.DecodeShare, decode)
		m.Unmet = append(m.Unmet, x[l.unmet(k)])
		m.Cost -= x[l.unmet(k)] * q.cost[l.unmet(k)]
	}
	prices := root.prices(len(perVariant) * l.variants)
	for i, price := range prices {
		what := perVariant[i%len(perVariant)]
		if what != "gpus" {
			price *= p.Use
		}
		if price > tolerance {
			m.Prices = append(m.Prices, Price{Variant: p.Variants[i/len(perVariant)].Name, What: what, PerHour: price})
		}
	}
	return m
}
