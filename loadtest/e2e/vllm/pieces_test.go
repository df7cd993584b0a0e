package vllm

import (
	"maps"
	"testing"

	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

// prefillPieces: prompts of up to 6,500 tokens in the smallest pieces, of 2,048. Prefill computes and decode pulls
// no token twice, and what is answered is what an engine says that had nothing of it.
func prefillPieces(t *testing.T, p, d *engine) {
	g := startGateway(t, []*engine{p}, []*engine{d}, "pairs-first: true", "prefill-pieces: 1ms")
	process.WaitFor(t, g.process, "the gateway to see both engines", process.ReadyWithin, process.SeesUp(g.admin, 2))

	source := func(e *engine, source string) float64 {
		return metric(t, e.url, "vllm:prompt_tokens_by_source_total", `source="`+source+`"`)
	}
	tokens := 0
	var asked []map[string]any
	for i, n := range []int{4500, 5001, 6016, 6500} {
		body := map[string]any{"prompt": promptOf(uint64(100+i), n), "max_tokens": 24, "ignore_eos": true, "stream": i%2 == 1}
		asked, tokens = append(asked, body), tokens+n
	}
	computed, pulled := source(p, "local_compute"), source(d, "external_kv_transfer")
	var got []answer
	for _, body := range asked {
		got = append(got, ask(t, g.url, maps.Clone(body)))
	}
	computed, pulled = source(p, "local_compute")-computed, source(d, "external_kv_transfer")-pulled
	cut, lost := metric(t, g.admin, "tandem_prefill_pieces_total", `outcome="kept"`), metric(t, g.admin, "tandem_prefill_pieces_total", `outcome="lost"`)
	t.Logf("%d tokens: prefill computed %.0f, decode pulled %.0f; %.0f pieces were kept and %.0f lost", tokens, computed, pulled, cut, lost)
	if cut != 7 || lost != 0 { // 1, 2, 2 and 2: what is left is no piece of its own up to 2,560 tokens, and two equal ones up to 3,072
		t.Error("the prompts were not cut as they are to be")
	}
	if computed > 1.02*float64(tokens) || pulled > 1.02*float64(tokens) {
		t.Error("tokens were computed or moved twice")
	}
	equalUndivided(t, d, asked, got)
	if n := metric(t, g.admin, "tandem_silent_recomputes_total") + metric(t, g.admin, "tandem_retries_total"); n != 0 {
		t.Errorf("%v legs went wrong", n)
	}
}

// equalUndivided holds answers to prompts that came in pieces against those of an engine that computes
// them whole, and checks that their clients were told of no cache.
func equalUndivided(t *testing.T, d *engine, asked []map[string]any, got []answer) {
	t.Helper()
	for i, body := range asked {
		truth := maps.Clone(body)
		truth["cache_salt"] = "truth" // whose KV is nobody else's
		want := ask(t, d.url, truth)
		if got[i].text != want.text || got[i].prompt != want.prompt || got[i].output != want.output || got[i].cached != 0 {
			t.Errorf("prompt %d:\n%+v\nundivided:\n%+v", i, got[i], want)
		}
	}
}
