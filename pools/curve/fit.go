package curve

import "math"

// add enters a sample into the normal equations. The weight is by the square of what was
// believed of it: relative errors count, else the longest prompts would decide alone. By
// what it took, the samples of a server's fast times would outweigh those of its slow ones.
func (l *Learned) add(x Features, y, w float64) {
	for i := range x {
		for j := range x {
			l.a[i][j] = shapeKeep*l.a[i][j] + w*x[i]*x[j]
		}
		l.b[i] = shapeKeep*l.b[i] + w*x[i]*y
	}
}

// solveLocked finds the coefficients that fit samples and anchors. Where the result is
// no curve (a negative coefficient), the prior times the factor is.
func (l *Learned) solveLocked() {
	factor := l.factorLocked()
	var scaled Curve
	for i, c := range l.prior {
		scaled[i] = factor * c
	}
	a, b := l.a, l.b
	for _, x := range l.anchors {
		y := scaled.Seconds(x)
		w := anchorShare / (y * y)
		for i := range x {
			for j := range x {
				a[i][j] += w * x[i] * x[j]
			}
			b[i] += w * x[i] * y
		}
	}
	for i := range a { // a feature that is never there has no coefficient
		if a[i][i] == 0 {
			a[i][i] = 1
		}
	}
	theta, ok := solve3(a, b)
	for _, c := range theta {
		ok = ok && c >= 0 && !math.IsInf(c, 0) && !math.IsNaN(c)
	}
	if !ok {
		theta = scaled
	}
	l.current = theta
}

// solve3 solves three linear equations by elimination, false if they have no
// single solution.
func solve3(a [3][3]float64, b [3]float64) (x Curve, ok bool) {
	for k := range 3 {
		pivot := k
		for i := k + 1; i < 3; i++ {
			if math.Abs(a[i][k]) > math.Abs(a[pivot][k]) {
				pivot = i
			}
		}
		if math.Abs(a[pivot][k]) < 1e-12 {
			return x, false
		}
		a[k], a[pivot] = a[pivot], a[k]
		b[k], b[pivot] = b[pivot], b[k]
		for i := k + 1; i < 3; i++ {
			f := a[i][k] / a[k][k]
			for j := k; j < 3; j++ {
				a[i][j] -= f * a[k][j]
			}
			b[i] -= f * b[k]
		}
	}
	for k := 2; k >= 0; k-- {
		x[k] = b[k]
		for j := k + 1; j < 3; j++ {
			x[k] -= a[k][j] * x[j]
		}
		x[k] /= a[k][k]
	}
	return x, true
}
