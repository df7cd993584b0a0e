package vllm

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

// TestRanks: two engines of two data-parallel ranks each. Every rank is a server of its own for the gateway, at
// its engine's address: all four get requests, their KV events are told apart, and a prompt that is known goes to
// the rank that holds it.
func TestRanks(t *testing.T) {
	ranks := []string{"--data-parallel-size", strconv.Itoa(mostRanks)}
	p, d := launch(t, "prefill", append(ranks, allRequests(t)...)...), launch(t, "decode", append(ranks, allRequests(t)...)...)
	p.ranks, d.ranks = mostRanks, mostRanks
	p.waitUntilUp(t)
	d.waitUntilUp(t)
	g := gatewayOf(t, p, d)
	t.Run("a prompt goes to the rank that holds it", func(t *testing.T) { ranksKeepPrompts(t, g, p, d) })
	t.Run("requests", func(t *testing.T) {
		asksAll(t, "two ranks each", g, d, 80_000)
		cameFromPrefill(t, d, 3000)
	})
	for _, e := range []*engine{p, d} {
		for rank := range mostRanks {
			done := metric(t, e.url, "vllm:request_success_total", fmt.Sprintf(`engine="%d"`, rank))
			t.Logf("%s, rank %d: %v requests", e.host(), rank, done)
			if done < 10 {
				t.Error("too few")
			}
		}
	}
}

// ranksKeepPrompts: eight prompts come at once, and each comes again with more behind it. What the ranks' events
// told of the first is where the second goes, and there it is cached.
func ranksKeepPrompts(t *testing.T, g gateway, p, d *engine) {
	const prompts = 8
	body := func(i int, more string) map[string]any {
		return map[string]any{"prompt": text(uint64(70_000+i), 400) + more, "max_tokens": 8}
	}
	var first [prompts]answer
	var all sync.WaitGroup
	for i := range prompts {
		all.Go(func() {
			var err error
			if first[i], err = tryAsk(g.url, body(i, ""), nil); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	perRank := map[string]int{}
	for _, a := range first {
		perRank[a.prefill]++
		perRank[a.decode]++
	}
	t.Logf("eight prompts at once: %v", perRank)
	if len(perRank) != 2*mostRanks {
		t.Error("a rank got nothing")
	}
	process.WaitFor(t, g.process, "the events of each rank", process.ReadyWithin, func() error {
		for rank := range mostRanks {
			for _, e := range []*engine{p, d} {
				server := fmt.Sprintf(`server="%s/dp%d"`, e.host(), rank)
				if n := metric(t, g.admin, "tandem_kv_blocks_stored_total", server); n < prompts {
					return fmt.Errorf("%s stored %v blocks", server, n)
				}
			}
		}
		return nil
	})
	tokens, cached := 0, 0
	for i, before := range first {
		again := ask(t, g.url, body(i, " rack queue"))
		want := ask(t, d.url, map[string]any{"prompt": body(i, " rack queue")["prompt"], "max_tokens": 8, "cache_salt": "truth"})
		if again.text != want.text || again.prompt != want.prompt || again.output != want.output {
			t.Errorf("prompt %d by %s and %s:\n%q\nby one engine:\n%q", i, again.prefill, again.decode, again.text, want.text)
		}
		if again.prefill != before.prefill && !strings.HasPrefix(again.prefill+again.decode, before.decode) {
			t.Errorf("prompt %d went to %s and %s, after %s and %s", i, again.prefill, again.decode, before.prefill, before.decode)
		}
		tokens, cached = tokens+before.prompt, cached+again.cached
		t.Logf("prompt %d: %s and %s, then %s and %s with %d of %d tokens cached", i, before.prefill, before.decode, again.prefill, again.decode, again.cached, again.prompt)
	}
	if cached < 9*tokens/10 {
		t.Errorf("%d of %d tokens were cached", cached, tokens)
	}
}
