package policy

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
)

// Draw says how a quantity is drawn at random. What falls outside its bounds becomes the bound.
type Draw struct {
	Shape  Shape   `yaml:"shape"`  // empty: uniform
	Least  float64 `yaml:"least"`  // above 0; of pareto, where the tail begins
	Most   float64 `yaml:"most"`   // the same as least: always that
	Median float64 `yaml:"median"` // of lognormal
	Sigma  float64 `yaml:"sigma"`  // of lognormal: of the logarithm
	Mean   float64 `yaml:"mean"`   // of exponential, above the least
	Alpha  float64 `yaml:"alpha"`  // of pareto: the smaller, the heavier the tail; below 1 it has no mean but for the bound
}

// Shape is the distribution of a Draw.
type Shape string

// Halving and doubling are as likely in logUniform, so that most draws are small.
const (
	uniform     Shape = "uniform"
	logUniform  Shape = "log-uniform"
	lognormal   Shape = "lognormal"
	exponential Shape = "exponential"
	pareto      Shape = "pareto"
)

func (d *Draw) check() error {
	if d.Least <= 0 || d.Most < d.Least {
		return errors.New("want least and most, positive and in this order")
	}
	switch d.Shape {
	case "", uniform, logUniform:
		return nil
	case lognormal:
		if d.Median <= 0 || d.Sigma <= 0 {
			return errors.New("lognormal wants a positive median and sigma")
		}
	case exponential:
		if d.Mean <= 0 {
			return errors.New("exponential wants a positive mean")
		}
	case pareto:
		if d.Alpha <= 0 {
			return errors.New("pareto wants a positive alpha")
		}
	default:
		return fmt.Errorf("shape %q: want %s, %s, %s, %s or %s", d.Shape, uniform, logUniform, lognormal, exponential, pareto)
	}
	return nil
}

// value draws one. What is always the same takes nothing from rng.
func (d *Draw) value(rng *rand.Rand) float64 {
	if d.Least == d.Most {
		return d.Least
	}
	var v float64
	switch d.Shape {
	case lognormal:
		v = d.Median * math.Exp(d.Sigma*rng.NormFloat64())
	case exponential:
		v = d.Least + d.Mean*rng.ExpFloat64()
	case pareto:
		v = d.Least * math.Pow(1-rng.Float64(), -1/d.Alpha)
	case logUniform:
		v = d.Least * math.Pow(d.Most/d.Least, rng.Float64())
	default:
		v = d.Least + (d.Most-d.Least)*rng.Float64()
	}
	return min(max(v, d.Least), d.Most)
}

// count draws a whole number, at least 1. Of a uniform draw both bounds are as likely as what
// is between them.
func (d *Draw) count(rng *rand.Rand) int {
	if d.Shape == "" || d.Shape == uniform {
		least := int(d.Least)
		return max(1, least+rng.IntN(int(d.Most)-least+1))
	}
	return max(1, int(d.value(rng)))
}
