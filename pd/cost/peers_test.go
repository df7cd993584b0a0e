package cost

import (
	"math"
	"testing"

	"github.com/tandem-gateway/tandem/pools/curve"
)

// What a server has not shown lately is believed of it as of those that have: a server that
// was avoided since it was slow is tried again, and one that is new a little sooner.
func TestJudgeByPeers(t *testing.T) {
	const fast, slow = 1.0, 3.0
	server := func(id string, seconds, known float64) Candidate {
		return Candidate{
			ID: id, Prefill: curve.Curve{seconds}, PrefillKnown: known,
			Step: curve.Curve{10 * seconds}, StepKnown: known,
		}
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
