package mix

import "math"

// programme is: minimise cost x, where rows x <= limit and x >= 0; the first integers
// variables are whole numbers. No cost is negative, so that x at zero is optimal but
// for the limits: the dual simplex starts from there without a first phase.
type programme struct {
	cost     []float64
	rows     [][]float64
	limit    []float64
	integers int
	most     []int // of each integer variable
}

// tolerance is for what rounding leaves of a zero, and leastPivot the least that is
// divided by: less of it is rounding too.
const (
	tolerance  = 1e-9
	leastPivot = 1e-7
)

// tableau is a basis of a programme and its bounds, in Tucker's condensed form: each
// row is a basic variable in terms of the nonbasic ones, which are at zero.
//
//	basic[i]   = value[i] - sum over j of at[i][j] nonbasic[j]
//	objective  = objective + sum over j of price[j] nonbasic[j]
//
// Variables are numbered: first those of the programme, then the slacks of its rows,
// of the upper bounds of its integers, and of the lower.
type tableau struct {
	width     int       // nonbasic variables
	at        []float64 // row by row
	value     []float64
	price     []float64
	objective float64
	basic     []int
	nonbasic  []int
}

// newTableau has every variable at zero, and the integers between 0 and their most.
func newTableau(p *programme) *tableau {
	n, m := len(p.cost), len(p.rows)
	height := m + 2*p.integers
	t := &tableau{
		width: n, at: make([]float64, height*n), value: make([]float64, height),
		price: append([]float64(nil), p.cost...), basic: make([]int, height), nonbasic: make([]int, n),
	}
	for j := range n {
		t.nonbasic[j] = j
	}
	for i := range height {
		t.basic[i] = n + i
	}
	for i, row := range p.rows {
		copy(t.row(i), row)
		t.value[i] = p.limit[i]
	}
	for k := range p.integers {
		t.row(m + k)[k] = 1
		t.value[m+k] = float64(p.most[k])
		t.row(m + p.integers + k)[k] = -1
	}
	return t
}

func (t *tableau) row(i int) []float64 { return t.at[i*t.width : (i+1)*t.width] }

// copyTo makes to the same as t, in the memory that it has.
func (t *tableau) copyTo(to *tableau) {
	to.width, to.objective = t.width, t.objective
	to.at = append(to.at[:0], t.at...)
	to.value = append(to.value[:0], t.value...)
	to.price = append(to.price[:0], t.price...)
	to.basic = append(to.basic[:0], t.basic...)
	to.nonbasic = append(to.nonbasic[:0], t.nonbasic...)
}

// shift moves the limit of the row with this slack.
func (t *tableau) shift(slack int, by float64) {
	for i, b := range t.basic {
		if b == slack {
			t.value[i] += by
			return
		}
	}
	for j, b := range t.nonbasic {
		if b == slack {
			// The slack stays at zero of the moved limit.
			for i := range t.value {
				t.value[i] += t.at[i*t.width+j] * by
			}
			t.objective -= t.price[j] * by
			return
		}
	}
}

// solve restores that no basic variable is negative, by dual simplex. It gives up
// when the objective exceeds enough. false: there is no solution, or none below
// enough, or rounding made one unlikely.
func (t *tableau) solve(enough float64) bool {
	limit := 50 * (len(t.value) + t.width) // far more than any that converges
	for step := range limit {
		leaving := t.leaving(step > limit/2)
		if leaving < 0 {
			return true
		}
		entering := t.entering(leaving)
		if entering < 0 {
			return false
		}
		t.pivot(leaving, entering)
		if t.objective > enough {
			return false
		}
	}
	return false
}

// leaving is the row whose variable is most negative, -1 if none is. Where that may
// go round in circles, it is the first.
func (t *tableau) leaving(first bool) int {
	row, least := -1, -tolerance
	for i, v := range t.value {
		if v < least {
			row, least = i, v
			if first {
				return row
			}
		}
	}
	return row
}

// entering is the column that becomes positive at the least cost, -1 if none can. Of
// equal ones it is the one with the largest entry, which rounds least.
func (t *tableau) entering(leaving int) int {
	column, best, size := -1, math.Inf(1), 0.0
	for j, a := range t.row(leaving) {
		if a > -leastPivot {
			continue
		}
		ratio := t.price[j] / -a
		if ratio < best-tolerance || ratio < best+tolerance && -a > size {
			column, best, size = j, min(ratio, best), -a
		}
	}
	return column
}

// pivot exchanges the variable of a row for that of a column.
func (t *tableau) pivot(leaving, entering int) {
	pivot := t.row(leaving)
	scale := 1 / pivot[entering]
	for j := range pivot {
		pivot[j] *= scale
	}
	pivot[entering] = scale
	t.value[leaving] *= scale
	for i := range t.value {
		row := t.row(i)
		factor := row[entering]
		if i == leaving || factor == 0 {
			continue
		}
		row[entering] = 0
		for j, p := range pivot {
			row[j] -= factor * p
		}
		t.value[i] -= factor * t.value[leaving]
	}
	factor := t.price[entering]
	t.price[entering] = 0
	for j, p := range pivot {
		t.price[j] -= factor * p
	}
	t.objective += factor * t.value[leaving]
	t.basic[leaving], t.nonbasic[entering] = t.nonbasic[entering], t.basic[leaving]
}

// values are those of the first n variables.
func (t *tableau) values(n int) []float64 {
	x := make([]float64, n)
	for i, b := range t.basic {
		if b < n {
			x[b] = max(0, t.value[i])
		}
	}
	return x
}

// prices are what the objective falls by for one more of each of the first m limits.
func (t *tableau) prices(m int) []float64 {
	all := make([]float64, m)
	for j, b := range t.nonbasic {
		if slack := b - t.width; slack >= 0 && slack < m {
			all[slack] = t.price[j]
		}
	}
	return all
}
