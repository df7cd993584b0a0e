package pd

import (
	"testing"

	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pools"
)

// What is missing for a request is told as it is: a role's server, or only the pair.
func TestSnapshot_SaysWhatIsMissing(t *testing.T) {
	server := func(id string) cost.Candidate { return cost.Candidate{ID: id} }
	excluded := func(id string) cost.Candidate { return cost.Candidate{ID: id, Excluded: true} }
	noPair := func(id string) cost.Candidate { return cost.Candidate{ID: id, NoPair: true} }
	noAlone := func(id string) cost.Candidate { return cost.Candidate{ID: id, NoAggregated: true} }
	useless := func(id string) cost.Candidate { return cost.Candidate{ID: id, NoPair: true, NoAggregated: true} }
	for name, c := range map[string]struct {
		prefill, decode []cost.Candidate
		pairs, two      bool
		missing         NoServerError
	}{
		"nobody":                    {nil, nil, false, false, NoServerError{Role: pools.Decode}},
		"a pair":                    {[]cost.Candidate{server("p")}, []cost.Candidate{server("d")}, true, true, NoServerError{Role: pools.Prefill}},
		"the second of each":        {[]cost.Candidate{excluded("p"), server("q")}, []cost.Candidate{noPair("d"), server("e")}, true, true, NoServerError{Role: pools.Prefill}},
		"no prefill server":         {nil, []cost.Candidate{noAlone("d")}, false, false, NoServerError{Role: pools.Prefill}},
		"prefill is out":            {[]cost.Candidate{excluded("p")}, []cost.Candidate{noAlone("d")}, false, false, NoServerError{Role: pools.Prefill}},
		"prefill must make no pair": {[]cost.Candidate{noPair("p")}, []cost.Candidate{noAlone("d")}, false, true, NoServerError{Role: pools.Prefill, NoPair: true}},
		"decode is out":             {[]cost.Candidate{server("p")}, []cost.Candidate{excluded("d")}, false, false, NoServerError{Role: pools.Decode}},
		"decode can do nothing":     {[]cost.Candidate{server("p")}, []cost.Candidate{useless("d")}, false, true, NoServerError{Role: pools.Decode}},
		"decode must make no pair":  {[]cost.Candidate{server("p")}, []cost.Candidate{noPair("d")}, false, true, NoServerError{Role: pools.Prefill, NoPair: true}},
		"one server of both roles":  {[]cost.Candidate{server("b")}, []cost.Candidate{server("b")}, false, false, NoServerError{Role: pools.Prefill, NoPair: true}},
		"two servers of both roles": {[]cost.Candidate{server("b"), server("c")}, []cost.Candidate{server("b"), server("c")}, true, true, NoServerError{Role: pools.Prefill}},
	} {
		v := snapshot{candidates: cost.Candidates{Prefill: c.prefill, Decode: c.decode}}
		if got := v.pairs(); got != c.pairs {
			t.Errorf("%s: a pair %v", name, got)
		}
		if got := v.twoServers(); got != c.two {
			t.Errorf("%s: two servers %v", name, got)
		}
		if got := v.missing(); *got != c.missing {
			t.Errorf("%s: missing is %v, want %v", name, got, &c.missing)
		}
		v.leaveOut("e")
		v.leaveOut("q")
		if name == "the second of each" && v.pairs() {
			t.Errorf("%s: left out, they make a pair", name)
		}
	}
	mixed := snapshot{candidates: cost.Candidates{Prefill: []cost.Candidate{{ID: "p", Class: 1}}, Decode: []cost.Candidate{{ID: "d", Class: 2}}}}
	if mixed.pairs() || !mixed.missing().NoPair {
		t.Error("servers that do not understand each other's KV make a pair")
	}
}
