package agents

import (
	"strings"
	"testing"
)

// The goals are those of the gateway's own runs; rivals reach and miss none of them.
func TestReport_CountsTheGoals(t *testing.T) {
	result := func(api, policy string, ofOracle float64, changed, needless int, p99 float64) Result {
		return Result{run: run{API: api, Servers: 2, Cache: Ample, Policy: policy}, OfOracle: ofOracle, Changed: changed, Needless: needless, NeedNot: 100, TTFT99: p99}
	}
	r := &Report{Results: []Result{
		result("chat", "tandem", 0.98, 5, 5, 1), result("messages", "tandem", 0.96, 6, 3, 1), result("responses", "tandem", 0.97, 0, 6, 1.5),
		result("chat", "least-load", 0.5, 50, 50, 9),
	}}
	want := []Goal{{Met: 2, Of: 3}, {Met: 2, Of: 3}, {Met: 2, Of: 3}, {Met: 1, Of: 2}}
	for i, g := range r.Goals() {
		if g.Met != want[i].Met || g.Of != want[i].Of {
			t.Errorf("%s: %d of %d, want %d of %d", g.Text, g.Met, g.Of, want[i].Met, want[i].Of)
		}
	}
	var page, table strings.Builder
	if err := r.WritePage(&page); err != nil || !strings.Contains(page.String(), "messages, 2 prefill servers, ample") {
		t.Errorf("page: %v", err)
	}
	if err := r.WriteTable(&table); err != nil || !strings.Contains(table.String(), "p99 of later turns' TTFT not above chat's: 1 of 2") {
		t.Errorf("table: %v\n%s", err, table.String())
	}
}

// What sub-agents that begin at once share is counted by what each of them computed of it.
func TestRepeated_CountsWhatSubAgentsComputedOfTheirBeginning(t *testing.T) {
	parent := &conversation{}
	var log []*turn
	for i, cached := range []int{0, 4, 2, 4} { // of the four blocks that they share
		x := logged(&conversation{parent: parent}, 0, "p", 1, 2, 3, 4, uint64(10+i))
		x.usage.cached = cached * blockTokens
		log = append(log, x)
	}
	if got := repeated(log); got != 1.5 {
		t.Errorf("computed %v times", got)
	}
}
