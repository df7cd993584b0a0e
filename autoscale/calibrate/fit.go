package calibrate

import (
	"math"

	"github.com/tandem-gateway/tandem/pools/curve"
)

// fit finds the curve without a negative coefficient whose relative errors have the
// least squares. With three coefficients all seven sets of those that are not zero
// can be tried.
func fit(xs []curve.Features, ys []float64) curve.Curve {
	var best curve.Curve
	least := math.Inf(1)
	for set := 1; set < 8; set++ {
		c, ok := solve(xs, ys, set)
		if !ok {
			continue
		}
		sum := 0.0
		for i, x := range xs {
			e := c.Seconds(x)/ys[i] - 1
			sum += e * e
		}
		if sum < least*(1-1e-9) {
			best, least = c, sum
		}
	}
	return best
}

// solve fits the coefficients of a set of features, bit by bit; false when they are
// not determined or not all positive.
func solve(xs []curve.Features, ys []float64, set int) (curve.Curve, bool) {
	var a [3][4]float64 // the normal equations
	for i, x := range xs {
		w := 1 / (ys[i] * ys[i])
		for r := range 3 {
			for c := range 3 {
				a[r][c] += w * x[r] * x[c]
			}
			a[r][3] += w * x[r] * ys[i]
		}
	}
	for r := range 3 {
		if set&(1<<r) == 0 {
			a[r] = [4]float64{}
			for k := range 3 {
				a[k][r] = 0
			}
			a[r][r] = 1
		}
	}
	for k := range 3 { // the matrix is positive definite, so its diagonal can be divided by
		if a[k][k] <= 1e-12 {
			return curve.Curve{}, false
		}
		for r := range 3 {
			if r == k {
				continue
			}
			f := a[r][k] / a[k][k]
			for c := k; c < 4; c++ {
				a[r][c] -= f * a[k][c]
			}
		}
	}
	var fitted curve.Curve
	for k := range 3 {
		fitted[k] = a[k][3] / a[k][k]
		if fitted[k] < 0 {
			return curve.Curve{}, false
		}
	}
	return fitted, true
}
