package main

import (
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/chaos"
)

// The short form of make chaos: real processes, a crash and a network that cuts,
// within seconds.
func TestChaos_ShortForm(t *testing.T) {
	t.Parallel()
	from := testPrograms(t)
	for _, c := range []chaos.Scenario{
		{
			Name: "killed", Title: "a server of each role is killed, and comes back",
			// Not at once: a request that was in flight on two servers that died is quarantined.
			Events: chaos.Events{
				chaos.At(600*time.Millisecond, chaos.Kill("decode-0")),
				chaos.At(1200*time.Millisecond, chaos.Kill("prefill-0")),
				chaos.At(2*time.Second, chaos.Restart("prefill-0", "decode-0")),
			},
			Checks: chaos.Checks{chaos.NoErrors, chaos.Metric(1, 1000, "tandem_requests_total", `outcome="ok"`)},
		},
		{
			Name: "cut", Title: "the network cuts each connection after 2,000 bytes",
			Events: chaos.Events{chaos.At(200*time.Millisecond, chaos.Network(chaos.CutAfter(2000), "decode-0"))},
			Checks: chaos.Checks{chaos.NoErrors, chaos.Continued(1)},
		},
	} {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			c.Load = chaos.Load{For: 3 * time.Second}
			// In three seconds there are few requests to have retries for. A server that
			// answers late is busy: those that are dead refuse.
			c.Fleet.Gateway = []string{"--retry-floor", "100", "--probe-timeout", "10s"}
			o, err := chaos.Run(t.Context(), from, t.TempDir(), c)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d requests, %d failed, %d continued, worst TTFT %v", o.Requests, o.Failed, o.Continued, o.WorstTTFT)
			for _, broken := range o.Broken {
				t.Error(broken)
			}
			if o.Requests < 30 {
				t.Errorf("only %d requests", o.Requests)
			}
		})
	}
}
