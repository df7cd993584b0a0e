package serving

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/tandem-gateway/tandem/loadtest/engine"
)

// While decode can answer alone, clients have an answer and the gateway is ready; where it
// may not, or no decode server is left, it is not, once that has lasted.
func TestReady_WhileARequestCanBeServed(t *testing.T) {
	t.Parallel()
	for _, enforced := range []bool{false, true} {
		c := newCluster(t, shape{prefill: 1, decode: 1, config: func(cfg *config) {
			cfg.pd.EnforceDisaggregation, cfg.pd.UnresponsiveWait = enforced, 300*time.Millisecond
		}})
		c.prefill[0].SetFault(engine.Fault{Kind: engine.FaultUnhealthy})
		eventually(t, "prefill is missing", func() bool { return c.metric("tandem_role_missing", `role="prefill"`) == 1 })
		if enforced {
			eventually(t, "nothing can be served", func() bool { return c.get("/readyz").status == 503 })
		} else {
			time.Sleep(2 * 300 * time.Millisecond) // nothing is to change
			if got := c.get("/readyz"); got.status != 200 {
				t.Errorf("decode serves alone: %d %s", got.status, got.body)
			}
			if got := c.post("/v1/chat/completions", chatBody("")); got.status != 200 {
				t.Errorf("%d %s", got.status, got.body)
			}
			c.decode[0].SetFault(engine.Fault{Kind: engine.FaultUnhealthy})
			eventually(t, "no decode server is left", func() bool { return c.get("/readyz").status == 503 })
		}
	}
}

// A gateway that is not ready is still scraped and asked by KEDA, and gets no client.
func TestReady_TheAdminServiceListsGatewaysThatAreNot(t *testing.T) {
	text, err := os.ReadFile("../../../deploy/kustomize/base/service.yaml")
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]bool)
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var service struct {
			Metadata struct {
				Name string `yaml:"name"`
			} `yaml:"metadata"`
			Spec struct {
				PublishNotReadyAddresses bool `yaml:"publishNotReadyAddresses"`
			} `yaml:"spec"`
		}
		if err := yaml.Unmarshal([]byte(document), &service); err != nil {
			t.Fatal(err)
		}
		got[service.Metadata.Name] = service.Spec.PublishNotReadyAddresses
	}
	if len(got) != 2 || got["tandem"] || !got["tandem-admin"] {
		t.Errorf("published though not ready: %v", got)
	}
}
