package policy

import (
	"math"
	"testing"
)

// Dynamo with its options is as strong as a study of another simulator found it: mean TTFT
// in B, with a queue threshold of 0.5 and 0.1 alone, and 0.1 with conditional disaggregation
// by both readings. A rival that became weaker here would flatter all that is compared with it.
func TestRun_DynamosOptionsAreAsStrongAsKnown(t *testing.T) {
	trace, err := ReadTraceFile(tracePath, 0)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]float64{
		"dynamo-topology-wspt": 2.50, "dynamo-queue-0.5": 2.39, "dynamo-queue-0.1": 2.31,
		"dynamo-conditional-hot-0.1": 1.99, "dynamo-conditional-kv-0.1": 2.18,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found, err := FindPolicies([]string{name})
			if err != nil {
				t.Fatal(err)
			}
			o, err := Run(trace, scenario(t, "B"), found[0], 1)
			if err != nil {
				t.Fatal(err)
			}
			if math.Abs(o.TTFT.Mean/want-1) > 0.03 {
				t.Errorf("mean TTFT %.3f s, known are %.2f s", o.TTFT.Mean, want)
			}
		})
	}
}

// Decode computes a prompt itself when it lacks fewer than 2,048 tokens and less than 0.7 of
// the prompt. The hottest server may not be the one that the decode router's cost chooses.
func TestDynamo_BypassesPrefillWithinBothLimits(t *testing.T) {
	for name, test := range map[string]struct {
		prompt       int
		held         map[int]int // blocks by decode server
		context      map[int]int // tokens by decode server
		hot, cheaper int         // decode servers; -1: prefill computes it
	}{
		"cold":                          {prompt: 900, hot: -1, cheaper: -1},
		"half of a short prompt":        {prompt: 1000, held: map[int]int{3: 1}, hot: 3, cheaper: 3},
		"it lacks 2,048 tokens":         {prompt: 5 * 1024, held: map[int]int{3: 6}, hot: -1, cheaper: -1},
		"it lacks 2,047 tokens":         {prompt: 5*1024 - 1, held: map[int]int{3: 6}, hot: 3, cheaper: 3},
		"it lacks seven tenths":         {prompt: 1730, held: map[int]int{3: 1}, hot: -1, cheaper: -1},
		"the hottest has most to do":    {prompt: 2000, held: map[int]int{3: 3, 5: 2}, context: map[int]int{3: 9000}, hot: 3, cheaper: 5},
		"the cheapest does not hold it": {prompt: 2000, held: map[int]int{3: 3}, context: map[int]int{3: 9000}, hot: 3, cheaper: -1},
	} {
		t.Run(name, func(t *testing.T) {
			v := viewOf(t, test.prompt, test.held)
			for d, tokens := range test.context {
				v.gateway.account.decode[d].context = tokens
			}
			for local, want := range map[dynamoLocal]int{conditionalHot: test.hot, conditionalCost: test.cheaper, remoteOnly: -1} {
				r := dynamoRouter{local: local}
				if pair := r.choose(v); (pair.Prefill == Aggregated) != (want >= 0) || want >= 0 && pair.Decode != want {
					t.Errorf("reading %d: %+v, want decode server %d alone", local, pair, want)
				}
			}
		})
	}
}

// viewOf is an idle cluster's view of a request of which decode servers hold blocks.
func viewOf(t *testing.T, prompt int, held map[int]int) *View {
	t.Helper()
	s := scenario(t, "B")
	req := Request{Prompt: prompt, Output: 100}
	for i := range blocksOf(prompt) {
		req.Blocks = append(req.Blocks, int32(i))
	}
	c, err := newCluster(&Trace{Requests: []Request{req}, Blocks: len(req.Blocks)}, s, dynamo, 1)
	if err != nil {
		t.Fatal(err)
	}
	g := c.gateways[0]
	for d, blocks := range held {
		for b := range blocks {
			g.index.apply(kvEvent{server: int32(s.Prefill + d), block: int32(b), stored: true})
		}
	}
	return g.viewFor(&c.jobs[0])
}
