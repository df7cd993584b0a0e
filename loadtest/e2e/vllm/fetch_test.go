package vllm

import (
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

// unheard is how many of a prompt's tokens at most decode has published so late that the gateway does not know of them.
const unheard = 512

// fetchesKV: what prefill has lost of a prompt it fetches from decode, which computed it once: prefill computes the rest
// alone, decode nothing, and the answer is that of an engine that computes all of it.
func fetchesKV(t *testing.T, p, d *engine) {
	g := startGateway(t, []*engine{p}, []*engine{d}, "pairs-first: true", "kv-bytes-per-token: 1024")
	process.WaitFor(t, g.process, "the gateway to see both engines", process.ReadyWithin, process.SeesUp(g.admin, 2))
	computed := func(e *engine) float64 {
		return metric(t, e.url, "vllm:prompt_tokens_by_source_total", `source="local_compute"`)
	}
	const fetched = `source="external_kv_transfer"`
	before, held, came := int(metric(t, g.admin, "tandem_kv_blocks", `server="`+d.host()+`"`)), 0, metric(t, p.url, "vllm:prompt_tokens_by_source_total", fetched)
	asks := func(seed uint64, n int, more map[string]any) (map[string]any, answer) {
		ids := promptOf(seed, n)
		ask(t, d.url, map[string]any{"prompt": ids[:n-700], "max_tokens": 1})
		held += (n - 700) / kvBlock
		process.WaitFor(t, g.process, "the gateway to know what decode holds", process.ReadyWithin, func() error {
			if blocks := metric(t, g.admin, "tandem_kv_blocks", `server="`+d.host()+`"`); int(blocks) < before+held {
				return fmt.Errorf("%v blocks, not %d", blocks, before+held)
			}
			return nil
		})
		body := map[string]any{"prompt": ids, "max_tokens": 24, "ignore_eos": true}
		maps.Copy(body, more)
		return body, ask(t, g.url, maps.Clone(body))
	}
	began := time.Now()
	asks(399, 3000, nil)
	process.WaitFor(t, g.process, "the two to meet", upWithin, func() error {
		if metric(t, p.url, "vllm:prompt_tokens_by_source_total", fetched) == came {
			return errors.New("prefill has read nothing")
		}
		return nil
	})
	t.Logf("the two servers met within %.1f s", time.Since(began).Seconds())
	var asked []map[string]any
	var got []answer
	for i, n := range []int{3001, 5003, 6001} {
		onPrefill, onDecode, came := computed(p), computed(d), metric(t, p.url, "vllm:prompt_tokens_by_source_total", fetched)
		body, answer := asks(uint64(400+i), n, map[string]any{"stream": i%2 == 1})
		asked, got = append(asked, body), append(got, answer)
		onPrefill, onDecode, came = computed(p)-onPrefill, computed(d)-onDecode-float64(n-700), metric(t, p.url, "vllm:prompt_tokens_by_source_total", fetched)-came
		t.Logf("%d tokens, of which decode held %d: prefill fetched %.0f and computed %.0f, decode computed %.0f", n, n-700, came, onPrefill, onDecode)
		if came < float64(n-700-unheard) || onPrefill > 700+unheard || onDecode > 2*kvBlock+1 {
			t.Error("what decode held was not fetched, or more was computed than the rest")
		}
	}
	if n := metric(t, g.admin, "tandem_kv_fetches_total", `outcome="fetched"`); n != float64(len(asked)) {
		t.Errorf("%v fetches of %d", n, len(asked))
	}
	for i := range got { // clients are told of what was not computed
		if got[i].cached < got[i].prompt-700-unheard {
			t.Errorf("prompt %d: %d of %d tokens cached", i, got[i].cached, got[i].prompt)
		}
		got[i].cached = 0
	}
	equalUndivided(t, d, asked, got)
	if n := metric(t, g.admin, "tandem_silent_recomputes_total") + metric(t, g.admin, "tandem_retries_total") + metric(t, g.admin, "tandem_handoffs_stranded_total"); n != 0 {
		t.Errorf("%v legs went wrong", n)
	}
}
