package loadtest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
)

// maxTokens bounds every drawn length.
const maxTokens = 2_000_000

// lengthShape is the family of a Length.
type lengthShape string

const (
	fixedShape     lengthShape = "fixed"     // a
	uniformShape   lengthShape = "uniform"   // whole numbers from a to b, both included
	lognormalShape lengthShape = "lognormal" // mean a, sigma b of the logarithm
)

// A Length is a distribution of token counts, written "512", "uniform:100,900"
// or "lognormal:1200,0.8" (mean in tokens, sigma of the natural logarithm). It
// is a flag value. The zero value is not valid.
type Length struct {
	shape lengthShape
	a, b  float64
}

// FixedLength is the distribution that always yields tokens.
func FixedLength(tokens int) Length {
	return Length{shape: fixedShape, a: float64(tokens)}
}

// ParseLength reads the written form of a Length.
func ParseLength(text string) (Length, error) {
	shape, numbers, found := strings.Cut(text, ":")
	if !found {
		shape, numbers = string(fixedShape), text
	}
	var values []float64
	for part := range strings.SplitSeq(numbers, ",") {
		v, err := strconv.ParseFloat(strings.TrimSpace(part), 64)
		if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
			return Length{}, fmt.Errorf("length %q: %q is no number", text, part)
		}
		values = append(values, v)
	}
	l := Length{shape: lengthShape(shape), a: values[0]}
	if len(values) > 1 {
		l.b = values[1]
	}
	if !l.valid(len(values)) {
		return Length{}, fmt.Errorf("length %q: want N, uniform:LOW,HIGH or lognormal:MEAN,SIGMA, 1 to %d tokens", text, maxTokens)
	}
	return l, nil
}

func (l Length) valid(numbers int) bool {
	if l.a < 1 || l.a > maxTokens {
		return false
	}
	switch l.shape {
	case fixedShape:
		return numbers == 1 && l.a == math.Trunc(l.a)
	case uniformShape:
		return numbers == 2 && l.b >= l.a && l.b <= maxTokens && l.a == math.Trunc(l.a) && l.b == math.Trunc(l.b)
	case lognormalShape:
		return numbers == 2 && l.b >= 0 && l.b <= 5
	}
	return false
}

// draw returns a count between 1 and maxTokens.
func (l Length) draw(rng *rand.Rand) int {
	switch l.shape {
	case uniformShape:
		return int(l.a) + rng.IntN(int(l.b-l.a)+1)
	case lognormalShape:
		// The mean of exp(N(mu, sigma)) is exp(mu + sigma^2/2).
		mu := math.Log(l.a) - l.b*l.b/2
		drawn := math.Round(math.Exp(mu + l.b*rng.NormFloat64()))
		return int(min(max(drawn, 1), maxTokens))
	default:
		return int(l.a)
	}
}

// String returns the written form.
func (l Length) String() string {
	number := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
	switch l.shape {
	case "":
		return ""
	case fixedShape:
		return number(l.a)
	default:
		return string(l.shape) + ":" + number(l.a) + "," + number(l.b)
	}
}

// Set makes *Length a flag value.
func (l *Length) Set(text string) error {
	parsed, err := ParseLength(text)
	if err != nil {
		return err
	}
	*l = parsed
	return nil
}

// Type names the value in --help.
func (l *Length) Type() string { return "length" }
