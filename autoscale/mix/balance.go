package mix

import "math"

// phase is what servers are to do.
type phase bool

const (
	prefilling phase = true
	decoding   phase = false
)

// balance shares the classes of a problem among the servers of a role that run, so that
// the kind of hardware that is the busiest is as little busy as can be: so they could do
// the most. shares are by class and variant, without a row for a class that none of them
// may serve. busy is 0..1 where they do the work, and infinite where there is such a class.
func (p *Problem) balance(in phase) (shares [][]float64, busy float64) {
	n, l := len(p.Variants), p.layout()
	shares = make([][]float64, len(p.Classes))
	q, served := p.balanced(in)
	t := newTableau(q)
	if !t.solve(math.Inf(1)) {
		return shares, math.Inf(1)
	}
	x := t.values(len(q.cost))
	busy = x[0]
	for k := range p.Classes {
		if !served[k] {
			busy = math.Inf(1)
			continue
		}
		shares[k] = x[l.balanced(k, 0):][:n]
	}
	return shares, busy
}

// balanced is the number of the part of a class that a variant serves; 0 is how busy the
// busiest is.
func (l layout) balanced(k, g int) int { return 1 + k*l.variants + g }

// balanced writes the balance as inequalities, and says which classes can be served:
//
//	minimise busy, where for each class  sum over variants of share >= 1
//	                for each variant     sum over classes of load x share <= busy x servers
func (p *Problem) balanced(in phase) (q *programme, served []bool) {
	l := p.layout()
	q, served = &programme{cost: make([]float64, l.balanced(len(p.Classes), 0))}, make([]bool, len(p.Classes))
	q.cost[0] = 1
	row := func(limit float64) []float64 {
		q.rows, q.limit = append(q.rows, make([]float64, len(q.cost))), append(q.limit, limit)
		return q.rows[len(q.rows)-1]
	}
	may := func(k, g int) bool { return p.servers(in, g) > 0 && p.allows(in, k, g) }
	for k := range p.Classes {
		for g := range p.Variants {
			served[k] = served[k] || may(k, g)
		}
		if !served[k] {
			continue
		}
		whole := row(-1)
		for g := range p.Variants {
			if may(k, g) {
				whole[l.balanced(k, g)] = -1
			}
		}
	}
	for g := range p.Variants {
		for _, load := range p.loads(in) {
			most := row(0)
			most[0] = -p.Use * float64(p.servers(in, g))
			for k := range p.Classes {
				if may(k, g) {
					most[l.balanced(k, g)] = load(k, g)
					q.cost[l.balanced(k, g)] += leastWork * load(k, g)
				}
			}
		}
	}
	return q, served
}

// leastWork is what a server's worth of work costs, beside how busy the busiest kind is: of
// two ways that are as good the one with less work is taken.
const leastWork = 1e-6

// servers is how many of a variant run in a role.
func (p *Problem) servers(in phase, g int) int {
	if in == prefilling {
		return p.Variants[g].Prefill
	}
	return p.Variants[g].Decode
}

// allows reports whether a variant meets the objectives of a class in a role.
func (p *Problem) allows(in phase, k, g int) bool {
	if in == prefilling {
		return p.prefills(k, g)
	}
	return p.decodes(k, g)
}

// loads are how many servers of a variant a class keeps busy in a role, by what may be
// short there.
func (p *Problem) loads(in phase) []func(k, g int) float64 {
	if in == prefilling {
		return []func(k, g int) float64{p.prefillLoad}
	}
	return []func(k, g int) float64{p.decodeLoad, p.kvLoad, p.sequenceLoad}
}
