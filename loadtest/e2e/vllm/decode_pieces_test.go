package vllm

import (
	"maps"
	"testing"

	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

// decodePieces: a decode server that has no prefill server computes prompts of up to 6,500 tokens in
// pieces. It computes no token twice, and says what it says of a prompt that it computes whole.
func decodePieces(t *testing.T, d *engine) {
	g := startGateway(t, nil, []*engine{d}, "decode-pieces: 100ms")
	process.WaitFor(t, g.process, "the gateway to see the engine", process.ReadyWithin, process.SeesUp(g.admin, 1))
	computed := func() float64 {
		return metric(t, d.url, "vllm:prompt_tokens_by_source_total", `source="local_compute"`)
	}
	for i := range 4 { // from which the gateway learns how fast it is
		ask(t, g.url, map[string]any{"prompt": promptOf(uint64(200+i), 500*(i+1)), "max_tokens": 2, "stream": true})
	}
	tokens, before, pieces := 0, computed(), metric(t, g.admin, "tandem_prefill_pieces_total", `outcome="on_decode"`)
	var asked []map[string]any
	var got []answer
	for i, n := range []int{4500, 5001, 6016, 6500} {
		body := map[string]any{"prompt": promptOf(uint64(300+i), n), "max_tokens": 24, "ignore_eos": true, "stream": i%2 == 1}
		asked, tokens = append(asked, body), tokens+n
		got = append(got, ask(t, g.url, maps.Clone(body)))
	}
	done := computed() - before
	pieces = metric(t, g.admin, "tandem_prefill_pieces_total", `outcome="on_decode"`) - pieces
	lost := metric(t, g.admin, "tandem_prefill_pieces_total", `outcome="lost"`)
	t.Logf("%d tokens: decode computed %.0f, in %.0f pieces beside the last ones, of which %.0f were lost", tokens, done, pieces, lost)
	if pieces < 4 || lost != 0 {
		t.Error("the prompts were not cut")
	}
	if done > 1.02*float64(tokens) {
		t.Error("tokens were computed twice")
	}
	equalUndivided(t, d, asked, got)
}
