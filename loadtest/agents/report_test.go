package agents

import (
	"math"
	"strings"
	"testing"
	"time"
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
	var page, table, markdown strings.Builder
	if err := r.WritePage(&page); err != nil || !strings.Contains(page.String(), "messages, 2 prefill servers, ample") {
		t.Errorf("page: %v", err)
	}
	if err := r.WriteTable(&table); err != nil || !strings.Contains(table.String(), "p99 of later turns' TTFT not above chat's: 1 of 2") {
		t.Errorf("table: %v\n%s", err, table.String())
	}
	if err := r.WriteMarkdown(&markdown); err != nil || !strings.Contains(markdown.String(), "\n| 2 | ample | chat | least-load | 0.0 % | 50.0 % | 50 of 100 | 50 | 0 | 0.00 | 9.00 | 0.00 |\n| 2 | ample | messages |") ||
		!strings.Contains(markdown.String(), "chat's: **missed**, in 1 of 2 runs") ||
		!strings.Contains(markdown.String(), "\n- chat: 5 of 100 turns changed their server that need not; TTFT p50 0.00 s, p99 1.00 s in the mean of the runs\n") {
		t.Errorf("markdown: %v\n%s", err, markdown.String())
	}
}

// The seeds of a run are counted together: its shares are of the tokens of all, and a quantile is
// that of all turns.
func TestReport_CountsTheSeedsOfARunTogether(t *testing.T) {
	r := &Report{Speed: 2}
	for seed := range 2 {
		c := &conversation{}
		var log []*turn
		for i := range 100 {
			x := logged(c, i, "p", 1, 2, 3)
			x.usage.prompt, x.usage.cached = 100, 50+20*seed
			x.sent, x.ttft = time.Unix(int64(i), 0), time.Duration(100*seed+i)*time.Millisecond
			log = append(log, x)
		}
		for _, name := range []string{"chat", "messages"} {
			x, err := newResult(&run{API: name, Servers: 2, Cache: Ample, Policy: "tandem"}, log, 100, r.Speed)
			if err != nil {
				t.Fatal(err)
			}
			r.add(x)
		}
	}
	if len(r.Results) != 2 {
		t.Fatalf("%d runs", len(r.Results))
	}
	for i := range r.Results {
		x := &r.Results[i]
		if x.Requests != 200 || x.PromptTokens != 20_000 || x.Cached != 0.6 || x.NeedNot != 198 {
			t.Errorf("%s: %d requests of %d tokens, %v cached, %d need not change", x, x.Requests, x.PromptTokens, x.Cached, x.NeedNot)
		}
		// 99 later turns of each: 1 to 99 and 101 to 199 ms, twice that in the engines' time
		if math.Abs(x.TTFT50-0.202) > 1e-9 || math.Abs(x.TTFT99-0.396) > 1e-9 {
			t.Errorf("%s: p50 %v, p99 %v", x, x.TTFT50, x.TTFT99)
		}
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
	if got := startsOf(log).repeated(); got != 1.5 {
		t.Errorf("computed %v times", got)
	}
}
