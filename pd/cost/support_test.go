package cost

import (
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pools/curve"
)

// Of a time to the first token the wait and the prefill count as far as some server has shown such times,
// and nothing does where none has shown any.
func TestCandidates_Supported(t *testing.T) {
	shown := func(measured bool, seconds ...float64) *curve.Evidence {
		e := &curve.Evidence{Measured: measured}
		for _, s := range seconds {
			e.Observe(curve.Completion{Work: curve.Work{Estimate: Duration(s)}, Served: Duration(s), Alone: true})
		}
		return e
	}
	pair, alone := Alternative{Prefill: "p1", Decode: "d"}, Alternative{Decode: "d"}
	terms := Terms{Queue: 16 * time.Second, Prefill: 32 * time.Second, Transfer: time.Second}
	pair.Terms, alone.Terms = terms, terms
	const first = 50 * time.Second
	for name, c := range map[string]struct {
		prefill, other, decode *curve.Evidence
		queued                 int
		chosen                 *Alternative
		want                   time.Duration
	}{
		"nobody is asked":                   {nil, nil, nil, 1, &pair, 0},
		"nothing was shown":                 {shown(false), shown(false), shown(false), 1, &pair, 0},
		"measured before":                   {shown(false), shown(true), shown(false), 1, &pair, first},
		"shown":                             {shown(false, 16, 32), shown(false), shown(false), 1, &pair, first},
		"by another prefill server":         {shown(false), shown(false, 16, 32), shown(false), 1, &pair, first},
		"by the decode server":              {shown(false), shown(false), shown(false, 16, 32), 1, &pair, first},
		"short ones: 8 x 1 s for each":      {shown(false, 1.5), shown(false), shown(false), 1, &pair, first - 48*time.Second + 16*time.Second},
		"two are ahead":                     {shown(false, 1.5), shown(false), shown(false), 2, &pair, first - 32*time.Second + 8*time.Second},
		"decode computes it, none is ahead": {shown(false, 1.5), shown(false), shown(false), 2, &alone, first - 48*time.Second + 16*time.Second},
	} {
		f := Candidates{
			Prefill: []Candidate{{ID: "p0", Evidence: c.other}, {ID: "p1", Evidence: c.prefill, Queued: c.queued}},
			Decode:  []Candidate{{ID: "d", Evidence: c.decode}},
		}
		if got := f.Supported(first, c.chosen); (got - c.want).Abs() > time.Millisecond {
			t.Errorf("%s: %v of %v, want %v", name, got, first, c.want)
		}
	}
}
