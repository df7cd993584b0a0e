package vllm

import (
	"fmt"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

// countsPrefills: vLLM counts each request that ended, and the seconds from its first step to its first token. That is
// what the gateway learns the speed of a server from that gives whole answers alone (pools/curve, ReadMeter): one
// for a whole answer, one for each of several prompts, and no longer than the answer took.
func countsPrefills(t *testing.T, d *engine) {
	g := startGateway(t, nil, []*engine{d})
	meter := func() (requests, seconds float64) {
		return metric(t, d.url, "vllm:request_prefill_time_seconds_count"), metric(t, d.url, "vllm:request_prefill_time_seconds_sum")
	}
	requests, seconds := meter()
	began := time.Now()
	for i := range 6 {
		ask(t, g.url, map[string]any{"prompt": text(uint64(30_000+i), 60), "max_tokens": 3})
	}
	took := time.Since(began).Seconds()
	ended := func(want float64) {
		process.WaitFor(t, g.process, "vLLM to count what has ended", process.ReadyWithin, func() error {
			if ended, _ := meter(); ended != requests+want {
				return fmt.Errorf("%v requests have ended, want %v", ended-requests, want)
			}
			return nil
		})
	}
	ended(6)
	if _, after := meter(); after <= seconds || after-seconds > took {
		t.Errorf("%.2f s to the first tokens of answers that took %.2f s", after-seconds, took)
	}
	ask(t, g.url, map[string]any{"prompt": []string{text(30_100, 60), text(30_101, 60), text(30_102, 60)}, "max_tokens": 3})
	ended(9)
	_, after := meter()
	t.Logf("9 requests took %.2f s to their first tokens; six answers took %.2f s", after-seconds, took)
}
