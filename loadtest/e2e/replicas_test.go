package e2e

import (
	"fmt"
	"testing"
	"time"
)

const (
	ownModel   = "own-model"   // served by tandem's engines, in bind mode
	dialsModel = "dials-model" // served by llm-d-inference-sim, in connect mode

	// takeover bounds how long no replica receives from an engine in connect mode when its
	// receiver died: three seconds, and more on a busy machine.
	takeover = 20 * time.Second
	// settled bounds how long the replicas take to agree after the last request: the
	// check that nothing was missed, every 10 s, is the longest part of it.
	settled = time.Minute
	// kvBlocks is little, so that engines evict all the time.
	kvBlocks = 512
)

// TestReplicas: three gateways share one Redis in front of four engines, two in bind
// mode and two in connect mode. One gateway is killed, then Redis, under load: no other
// request fails, and in the end all know the same, which is what the engines hold.
func TestReplicas(t *testing.T) {
	began := time.Now()
	step := func(format string, args ...any) {
		t.Helper()
		t.Logf("%5.1fs "+format, append([]any{time.Since(began).Seconds()}, args...)...)
	}
	f := startReplicated(t)
	step("%d gateways, a Redis and %d engines are up", len(f.replicas), len(f.engines()))

	f.talkToAll(t)
	f.waitForAnswers(t, 100)
	f.waitForKnowledge(t)
	step("all know KV of all engines: %v", f.replicas[0].held(t))

	f.mustHearOnce(t)
	step("each engine in connect mode is received by one gateway")

	victim := f.receiver(t, f.dials[0])
	step("killing %s, which receives for %s", victim.name, f.dials[0])
	f.kill(t, victim)
	died := time.Now()
	waitFor(t, nil, "another receiver of all engines in connect mode", takeover, func() error { return f.receivedByOthers(victim) })
	step("taken over after %v", time.Since(died).Round(time.Millisecond))
	f.waitForEvents(t)
	step("the new receiver hears the engines")
	f.waitForAnswers(t, 50)
	f.mustNotHaveFailed(t)

	step("killing Redis")
	f.redis.process.Kill(t)
	f.waitForAnswers(t, 100)
	f.mustNotHaveFailed(t)
	f.redis.restart(t)
	step("Redis is back, empty")
	waitFor(t, nil, "receivers of all engines in connect mode", takeover, func() error { return f.receivedByOthers(victim) })
	waitFor(t, nil, "snapshots of all engines", settled, f.snapshots)
	f.waitForAnswers(t, 50)
	step("receivers and snapshots are there again")
	f.mustNotHaveFailed(t)

	f.startReplica(t, victim)
	if n := victim.metric(t, `tandem_kv_snapshots_total{what="restored"}`); int(n) < len(f.engines()) {
		t.Errorf("%s started with %v snapshots of %d engines", victim.name, n, len(f.engines()))
	}
	step("%s is back, warm: %v", victim.name, victim.held(t))
	f.talkToAll(t)
	f.waitForAnswers(t, 50)

	f.fallSilent()
	f.mustNotHaveFailed(t)
	step("%d requests were answered, none to a living gateway failed", f.answered)
	waitFor(t, nil, "the replicas to know the same, and what the engines hold", settled, f.agree(t))
	step("all replicas know the same: %v", f.replicas[0].held(t))
	for _, r := range f.replicas {
		for _, model := range []string{ownModel, dialsModel} {
			if n := r.metric(t, fmt.Sprintf("tandem_kv_best_match_tokens_total{model=%q,tier=%q}", model, "gpu")); n == 0 {
				t.Errorf("%s matched nothing of %s", r.name, model)
			}
		}
	}
}
