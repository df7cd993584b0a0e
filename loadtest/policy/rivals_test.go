package policy

import (
	"math/rand/v2"
	"testing"
)

// idleView is an idle cluster's view of a request of which prefill servers hold blocks.
func idleView(t *testing.T, prompt int, held map[int]int) *View {
	t.Helper()
	v := viewOf(t, prompt, nil)
	for p, blocks := range held {
		for b := range blocks {
			v.gateway.index.apply(kvEvent{server: int32(p), block: int32(b), stored: true})
		}
	}
	return v.gateway.viewFor(v.job)
}

// hybrid_cache_load sends a request to the server that holds its prompt while loads are alike,
// and elsewhere once that one has twice the load of another: a full match is worth half of it.
func TestAIBrix_HybridDiscountsLoadByTheSquareOfTheMatch(t *testing.T) {
	h := aibrixHybrid.New(scenario(t, "B"), nil).(*hybridScore)
	v := idleView(t, 4096, map[int]int{2: 8})
	if pair := h.Choose(v); pair.Prefill != 2 {
		t.Errorf("idle servers, one of which holds the prompt: chosen %d", pair.Prefill)
	}
	for p := range h.active {
		h.active[p] = 10_000
	}
	h.resident[2] = 0
	for load, want := range map[float64]bool{19_000: true, 21_000: false} {
		h.active[2] = load
		if got := h.score(v, 2, 0) < h.score(v, 3, 0); got != want {
			t.Errorf("10,000 tokens elsewhere, %v where the prompt is: it goes there %v, want %v", load, got, want)
		}
	}
}

// A request counts as active until prefill has answered, at 0.3 of it until it has ended, and then
// no more; one of another replica not at all.
func TestAIBrix_HybridForgetsWhatEnded(t *testing.T) {
	h := aibrixHybrid.New(scenario(t, "B"), nil).(*hybridScore)
	v := idleView(t, 4096, nil)
	v.job.pair = h.Choose(v)
	p := v.job.pair.Prefill
	other := &job{pair: v.job.pair}
	if cost := h.active[p]; cost < 7000 || cost != h.resident[p] {
		t.Errorf("charged %v and %v tokens, want 3,500 and the prompt", cost, h.resident[p])
	}
	h.Prefilled(v, other)
	h.Ended(other)
	h.Prefilled(v, v.job)
	if h.active[p] != 0 || h.resident[p] < 7000 {
		t.Errorf("prefilled: %v active and %v resident tokens", h.active[p], h.resident[p])
	}
	h.Ended(v.job)
	if h.resident[p] != 0 || len(h.charged) != 0 {
		t.Errorf("ended: %v tokens, %d requests are still charged", h.resident[p], len(h.charged))
	}
}

// conductor takes a server's queue for its requests times the mean of its prefills, and weighs
// that against what it holds of the prompt.
func TestAIBrix_ConductorWeighsQueuesByPastPrefills(t *testing.T) {
	c := aibrixConductor.New(scenario(t, "B"), nil).(*conductorScore)
	v := idleView(t, 4096, map[int]int{2: 7})
	if pair := c.Choose(v); pair.Prefill != 2 {
		t.Errorf("idle servers, one of which holds the prompt: chosen %d", pair.Prefill)
	}
	c.Prefilled(v, &job{pair: Pair{Prefill: 2}, began: 1, prefilledAt: 4})
	waiting := &job{req: v.job.req, pair: Pair{Prefill: 2}}
	v.gateway.account.recordDispatch(waiting, &event{upTo: waiting.upTo, estimate: waiting.estimate}, 0)
	if c.score(v, 2, 0) < 3000 || c.score(v, 3, 0) > 300 {
		t.Errorf("behind one request of 3 s in the mean: %v ms, elsewhere %v ms", c.score(v, 2, 0), c.score(v, 3, 0))
	}
}

// llm-d's flow control lets requests go in order of arrival while the servers of each leg have
// fewer than five waiting in the mean, and holds all when they have not.
func TestLLMD_FlowControlHoldsWhileALegIsSaturated(t *testing.T) {
	v := idleView(t, 4096, nil)
	first, second := v.job, &job{id: 1, req: v.job.req}
	f := &llmdFlow{}
	f.Add(v, first)
	f.Add(v, second)
	say := func(at float64, waiting int) {
		v.now = at + v.scenario().GaugeAge
		for _, p := range v.gateway.cluster.prefills {
			p.gauge.record(at, Gauge{Waiting: waiting})
		}
	}
	say(1, 5)
	if j, ok := f.Next(v); ok {
		t.Errorf("five wait on each prefill server, and request %d goes", j.id)
	}
	if at, ok := f.Wake(v); !ok || at <= v.now {
		t.Errorf("it looks again at %v, %v", at, ok)
	}
	say(2, 4)
	if j, ok := f.Next(v); !ok || j != first {
		t.Errorf("four wait on each, and %v goes: %v", j, ok)
	}
	if _, ok := f.Next(v); ok {
		t.Error("two go at one instant")
	}
	say(3, 4)
	if j, ok := f.Next(v); !ok || j != second {
		t.Errorf("a moment later %v goes: %v", j, ok)
	}
}

// copied sends the second request to another prefill server than the first, and has what that one
// holds of it copied.
type copied struct{}

func (copied) Choose(v *View) Pair                       { return Pair{Prefill: v.job.id} }
func (copied) CopyFrom(_ *View, chosen Pair) (int, bool) { return 0, chosen.Prefill == 1 }

// What is copied is not computed: its bytes cross the network, and a copy stays.
func TestRun_CopiesTheBeginningOfAPrompt(t *testing.T) {
	shared := make([]int32, 16)
	for i := range shared {
		shared[i] = int32(i)
	}
	prompt := 16*blockTokens + 100
	trace := &Trace{Blocks: 18, Requests: []Request{
		{Prompt: prompt, Output: 2, Blocks: append(shared[:16:16], 16)},
		{Stamp: 30, Prompt: prompt, Output: 2, Blocks: append(shared[:16:16], 17)},
	}}
	c, err := newCluster(trace, scenario(t, "B"), &Policy{Name: "copied", New: func(*Scenario, *rand.Rand) any { return copied{} }}, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.run(); err != nil {
		t.Fatal(err)
	}
	second := &c.jobs[1]
	if second.prefillHit != 16*blockTokens || c.prefills[1].cache.match(shared) != 16 || c.prefills[0].cache.match(shared) != 16 {
		t.Errorf("%d tokens were found, the two servers hold %d and %d of the shared blocks",
			second.prefillHit, c.prefills[0].cache.match(shared), c.prefills[1].cache.match(shared))
	}
	moved := c.tally.sameRack + c.tally.crossRack - c.jobs[0].bytes - second.bytes
	if want := float64(16*blockTokens) * c.hw.KVBytesPerToken; moved != want {
		t.Errorf("%v bytes were copied, want %v", moved, want)
	}
	if took := second.began - second.arrived; took < float64(16*blockTokens)*c.hw.KVBytesPerToken/c.hw.NIC {
		t.Errorf("it began after %v s: the copy took no time", took)
	}
}
