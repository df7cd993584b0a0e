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
		result("chat", "tandem", 0.98, 5, 5, 1), result("messages", "tandem", 0.96, 6, 13, 1), result("responses", "tandem", 0.97, 0, 6, 1.5),
		result("chat", "least-load", 0.5, 50, 50, 9),
	}}
	r.Results[1].AboveChat, r.Results[2].AboveChat = &Difference{0, -1, 1}, &Difference{0.5, 0.1, 2}
	want := []Goal{{Met: 2, Of: 3}, {Met: 2, Of: 3, Reached: 1}, {Met: 1, Of: 3, Missed: 1}, {Met: 1, Of: 2, Missed: 1}}
	verdicts := []string{missed, notToldApart, missed, missed}
	for i, g := range r.Goals() {
		if got := (Goal{Met: g.Met, Of: g.Of, Reached: g.Reached, Missed: g.Missed}); got != want[i] || g.Verdict() != verdicts[i] {
			t.Errorf("%s: %+v, %s, want %+v, %s", g.Text, got, g.Verdict(), want[i], verdicts[i])
		}
	}
	var page, table, markdown strings.Builder
	if err := r.WritePage(&page); err != nil || !strings.Contains(page.String(), "messages, 2 prefill servers, ample") {
		t.Errorf("page: %v", err)
	}
	if err := r.WriteTable(&table); err != nil || !strings.Contains(table.String(), "p99 of later turns' TTFT not above chat's: missed, in 1 of 2 runs by the figure; beyond chance reached in 0, missed in 1, not told apart in 1\n") {
		t.Errorf("table: %v\n%s", err, table.String())
	}
	if err := r.WriteMarkdown(&markdown); err != nil || !strings.Contains(markdown.String(), "\n| 2 | ample | chat | least-load | 0.0 % | 50.0 % | 50 of 100 | 50 | 0 | 0.00 | 9.00 |  | 0.00 |\n| 2 | ample | messages |") ||
		!strings.Contains(markdown.String(), " 1.50 | +0.50 s (+0.10 to +2.00), missed | 0.00 |\n") ||
		!strings.Contains(markdown.String(), "\n- needless changes of server at most 5% of them: missed, in 1 of 3 runs by the figure; ") {
		t.Errorf("markdown: %v\n%s", err, markdown.String())
	}
}

// The seeds of a run are counted together: its shares are of the tokens of all, and a quantile is
// that of all turns.
func TestReport_CountsTheSeedsOfARunTogether(t *testing.T) {
	r := &Report{Speed: 2}
	for seed := range 2 {
		for _, name := range []string{"chat", "messages"} {
			what := &round{run: run{API: name, Servers: 2, Cache: Ample, Policy: "tandem"}, seed: uint64(seed)}
			x, err := newResult(what, hundredTurns(seed), 100, r.Speed)
			if err != nil {
				t.Fatal(err)
			}
			r.add(x)
		}
	}
	r.compare()
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
	if chat, messages := r.Results[0].AboveChat, r.Results[1].AboveChat; chat != nil || messages == nil || *messages != (Difference{}) {
		t.Errorf("equal times are above chat's by %v, chat's by %v", messages, chat)
	}
	const want = "messages: 0 of 198 turns changed their server that need not (reached); TTFT p50 0.20 s, p99 0.40 s of all later turns, above chat's by +0.00 s (+0.00 to +0.00), reached; the slowest 7 took 0.392 s: "
	if totals := r.Totals(); len(totals) != 2 || !strings.HasPrefix(totals[1].String(), want) {
		t.Errorf("totals %v, want the second %s", totals, want)
	}
}

// hundredTurns are a session's, which took 0 to 99 ms with the seed 0 and 100 to 199 with the seed 1.
func hundredTurns(seed int) (log []*turn) {
	c := &conversation{}
	for i := range 100 {
		x := logged(c, i, "p", 1, 2, 3)
		x.usage.prompt, x.usage.cached = 100, 50+20*seed
		x.sent, x.ttft = time.Unix(int64(i), 0), time.Duration(100*seed+i)*time.Millisecond
		log = append(log, x)
	}
	return log
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
