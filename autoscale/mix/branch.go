package mix

import (
	"math"
	"time"
)

// search is a branch and bound.
type search struct {
	p        *programme
	deadline time.Time
	late     bool
	nodes    int
	spare    []*tableau // for reuse

	best      []float64 // nil before the first
	bestCost  float64
	tolerable float64 // a branch must promise to be cheaper by this part
}

// bounds are those of the integer variables.
type bounds struct{ low, high []int }

// minimise finds the cheapest whole-numbered solution, or the best before the
// deadline; proven says that it is the cheapest within the gap. root is the solution
// without whole numbers.
func (p *programme) minimise(deadline time.Time, gap float64) (best []float64, cost float64, root *tableau, proven bool) {
	s := &search{p: p, deadline: deadline, bestCost: math.Inf(1), tolerable: gap}
	root = newTableau(p)
	if !root.solve(math.Inf(1)) {
		return nil, 0, nil, false
	}
	all := bounds{make([]int, p.integers), append([]int(nil), p.most...)}
	s.none(root, all)
	s.round(root, all)
	s.branch(root, all)
	return s.best, s.bestCost, root, !s.late
}

// none tries no server at all: what is then not served is known to the programme, so
// that there always is a solution.
func (s *search) none(t *tableau, b bounds) {
	n := s.take(t)
	defer s.release(n)
	for k := range s.p.integers {
		s.atMost(n, k, -b.high[k])
	}
	if n.solve(math.Inf(1)) {
		s.keep(n)
	}
}

// round tries the whole numbers above those of a solution: more servers always
// serve, where there are as many.
func (s *search) round(t *tableau, b bounds) {
	n := s.take(t)
	defer s.release(n)
	for k, v := range t.values(s.p.integers) {
		whole := min(int(math.Ceil(v-1e-6)), b.high[k])
		s.atLeast(n, k, whole-b.low[k])
		s.atMost(n, k, whole-b.high[k])
	}
	if n.solve(s.bestCost) {
		s.keep(n)
	}
}

// branch looks for better solutions within bounds, given the relaxed one.
func (s *search) branch(t *tableau, b bounds) {
	s.nodes++
	if s.late = s.late || time.Now().After(s.deadline); s.late || !s.mayImprove(t) {
		return
	}
	k, value := s.fractional(t)
	if k < 0 {
		s.keep(t)
		return
	}
	below := int(math.Floor(value))
	up := func() {
		n := s.take(t)
		defer s.release(n)
		s.atLeast(n, k, below+1-b.low[k])
		if n.solve(s.bestCost) {
			low := append([]int(nil), b.low...)
			low[k] = below + 1
			s.branch(n, bounds{low, b.high})
		}
	}
	down := func() {
		n := s.take(t)
		defer s.release(n)
		s.atMost(n, k, below-b.high[k])
		if n.solve(s.bestCost) {
			high := append([]int(nil), b.high...)
			high[k] = below
			inside := bounds{b.low, high}
			s.round(n, inside)
			s.branch(n, inside)
		}
	}
	if value-float64(below) > 0.5 {
		up()
		down()
		return
	}
	down()
	up()
}

// mayImprove says whether a relaxed solution leaves room below the best.
func (s *search) mayImprove(t *tableau) bool {
	return s.best == nil || t.objective < s.bestCost*(1-s.tolerable)-1e-7
}

// fractional is the integer variable that is furthest from a whole number, -1 if all
// are whole.
func (s *search) fractional(t *tableau) (k int, value float64) {
	k, most := -1, 1e-6
	for i, v := range t.values(s.p.integers) {
		if off := math.Abs(v - math.Round(v)); off > most {
			k, value, most = i, v, off
		}
	}
	return k, value
}

func (s *search) keep(t *tableau) {
	if x := t.values(len(s.p.cost)); t.objective < s.bestCost && s.p.holds(x) {
		for k := range s.p.integers {
			x[k] = math.Round(x[k])
		}
		s.best, s.bestCost = x, t.objective
	}
}

// holds checks a solution against the programme as it was given: rounding in the
// tableau must not pass for a solution.
func (p *programme) holds(x []float64) bool {
	for i, row := range p.rows {
		sum, size := -p.limit[i], math.Abs(p.limit[i])
		for j, a := range row {
			sum += a * x[j]
			size += math.Abs(a * x[j])
		}
		if sum > 1e-6*max(size, 1) {
			return false
		}
	}
	for k := range p.integers {
		if off := math.Abs(x[k] - math.Round(x[k])); off > 1e-5 || x[k] > float64(p.most[k])+1e-5 {
			return false
		}
	}
	return true
}

// atLeast raises the lower bound of an integer variable, atMost its upper: by is
// negative to lower it.
func (s *search) atLeast(t *tableau, k, by int) {
	t.shift(len(s.p.cost)+len(s.p.rows)+s.p.integers+k, -float64(by))
}

func (s *search) atMost(t *tableau, k, by int) {
	t.shift(len(s.p.cost)+len(s.p.rows)+k, float64(by))
}

func (s *search) take(from *tableau) *tableau {
	to := &tableau{}
	if n := len(s.spare); n > 0 {
		to, s.spare = s.spare[n-1], s.spare[:n-1]
	}
	from.copyTo(to)
	return to
}

func (s *search) release(t *tableau) { s.spare = append(s.spare, t) }
