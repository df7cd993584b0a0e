package cost

import (
	"math"
	"testing"

	"github.com/tandem-gateway/tandem/pools/curve"
)

// What a server has not shown lately is believed of it as of those that have: a server that
// was avoided since it was slow is tried again, and one that is new a little sooner. What differs
// by chance alone is believed alike.
func TestJudgeByPeers(t *testing.T) {
	const fast, slow = 1.0, 3.0
	server := func(id string, seconds, known float64) Candidate {
		return Candidate{
			ID: id, Prefill: curve.Curve{seconds}, PrefillKnown: known,
			Step: curve.Curve{10 * seconds}, StepKnown: known,
		}
	}
	scattered := func(id string, seconds, stdErr float64) Candidate {
		c := server(id, seconds, 1)
		c.PrefillError, c.StepError = stdErr, stdErr
		return c
	}
	for name, c := range map[string]struct {
		prefill, decode []Candidate
		want            []float64 // of prefill, by server: both lists
	}{
		"all are known: each is believed itself": {
			[]Candidate{server("p0", fast, 1), server("p1", slow, 1)}, nil,
			[]float64{fast, slow},
		},
		"one is not known: it is believed a little faster than the mean of the others": {
			[]Candidate{server("p0", fast, 1), server("p1", slow, 1), server("new", 99, 0)}, nil,
			[]float64{fast, slow, untried * 2},
		},
		"one is half known: half of it is its own": {
			[]Candidate{server("p0", fast, 1), server("avoided", slow, 0.5)}, nil,
			[]float64{fast, 0.5*slow + 0.5*untried*(fast+0.5*slow)/1.5},
		},
		"decode servers are judged with prefill servers": {
			[]Candidate{server("p0", fast, 1)}, []Candidate{server("d0", 99, 0)},
			[]float64{fast, untried * fast},
		},
		"they differ by less than what they have shown scatters: all are believed their mean": {
			[]Candidate{scattered("p0", fast, 0.1), scattered("p1", 1.1*fast, 0.1)}, nil,
			[]float64{1.05 * fast, 1.05 * fast},
		},
		"they differ by five times as much: that is believed": {
			[]Candidate{scattered("p0", fast, 0.02), scattered("p1", slow, 0.02)}, nil,
			[]float64{fast + 0.0216*fast, slow - 0.0216*fast}, // 1 - 9 (0.02^2 + 0.02^2 / 2) / 0.5^2 of it
		},
		"one alone scatters: it has no peers to be taken for": {
			[]Candidate{scattered("p0", slow, 0.5)}, nil,
			[]float64{slow},
		},
		"one scatters, and its peer is known well": {
			[]Candidate{scattered("p0", 1.3*fast, 0.15), server("p1", fast, 1)}, nil,
			[]float64{1.15 * fast, 1.15 * fast},
		},
		"no server has shown anything: each is believed what is assumed of it": {
			[]Candidate{server("p0", fast, 0), server("p1", slow, 0)}, []Candidate{server("d0", 2, 0)},
			[]float64{fast, slow, 2},
		},
	} {
		f := Candidates{Prefill: c.prefill, Decode: c.decode}
		JudgeByPeers(&f)
		for i, got := range append(f.Prefill, f.Decode...) {
			if math.Abs(got.Prefill[0]-c.want[i]) > 1e-9 {
				t.Errorf("%s: a prefill on %s is believed to take %v s, want %v", name, got.ID, got.Prefill[0], c.want[i])
			}
			if math.Abs(got.Step[0]-10*c.want[i]) > 1e-9 {
				t.Errorf("%s: a step on %s is believed to take %v s, want %v", name, got.ID, got.Step[0], 10*c.want[i])
			}
		}
	}
}
