package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/loadtest/engine"
)

// A link that has become slow is noticed within 50 requests, and left to those that have
// no other way. A few transfers do not tell it from one of its servers, which an idle
// fleet then leaves alone until that belief fades.
func TestLinks_TrafficLeavesASickOne(t *testing.T) {
	c := newCluster(t, shape{
		prefill: 2, decode: 2,
		engine: func(cfg *engine.Config) { cfg.TimeScale = 1 },
		config: func(cfg *config) { cfg.cost.PairsFirst = true },
	})
	prompt := 0
	over := func(requests int) (sick int) {
		for range requests {
			prompt++ // no two begin alike: nothing is found cached
			body := strings.Replace(promptOf(2, ""), "Story 2", fmt.Sprint("Tale ", prompt), 1)
			body = strings.Replace(body, "{", `{"stream":true,`, 1) // the first event tells when the KV was there
			got := c.post("/v1/chat/completions", body)
			if got.status != 200 {
				t.Fatalf("status %d: %s", got.status, got.body)
			}
			p, d := "http://"+got.header.Get("X-Tandem-Prefill"), "http://"+got.header.Get("X-Tandem-Decode")
			if p == c.prefill[0].URL() && d == c.decode[0].URL() {
				sick++
			}
		}
		return sick
	}
	if over(24) == 0 {
		t.Fatal("the pair is not used even while all are well")
	}
	c.decode[0].SetFault(engine.Fault{Kind: engine.FaultSlowLink, Factor: 200, Peer: c.prefill[0].State().EngineID})
	before := over(50)
	after := over(30)
	t.Logf("%d of the first 50 requests went over the sick link, %d of the next 30", before, after)
	if after > 2 {
		t.Errorf("%d of 30 requests still go over the sick link", after)
	}
}
