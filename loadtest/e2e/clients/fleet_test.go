package clients

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

const model = "test-model"

// fleet is a gateway in front of two prefill and two decode servers, whose KV events it hears.
type fleet struct {
	gateway         string // URL
	prefill, decode []string
}

// startFleet starts engines of a model that reasons and, where the user's words ask for it,
// calls tools; its answers are short and never empty.
func startFleet(t *testing.T) fleet {
	t.Helper()
	f := fleet{}
	var servers strings.Builder
	for i, role := range []string{"prefill", "prefill", "decode", "decode"} {
		if i%2 == 0 {
			fmt.Fprintf(&servers, "%s:\n", role)
		}
		listen, events, replay := process.FreeAddress(t), process.FreeAddress(t), process.FreeAddress(t)
		process.Start(t, nil, fmt.Sprintf("%s %d", role, i%2), "bin/tandem-lab", "engine", "--listen", listen, "--role", role,
			"--model", model, "--max-model-len", "65536", "--reasoning-tokens", "12", "--min-output-tokens", "8", "--mean-output-tokens", "20",
			"--events", onAnyHost(t, events), "--replay", onAnyHost(t, replay))
		fmt.Fprintf(&servers, "- {url: http://%s, events: tcp://%s, replay: tcp://%s}\n", listen, events, replay)
		if role == "prefill" {
			f.prefill = append(f.prefill, "http://"+listen)
		} else {
			f.decode = append(f.decode, "http://"+listen)
		}
	}
	config := filepath.Join(t.TempDir(), "tandem.yaml")
	if err := os.WriteFile(config, []byte(servers.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	listen, admin := process.FreeAddress(t), process.FreeAddress(t)
	p := process.Start(t, nil, "gateway", "bin/tandem", "serve", "-c", config, "--listen", listen, "--admin", admin,
		"--pairs-first") // engines without delay compute a prompt sooner than they fetch it
	process.WaitFor(t, p, "the gateway to be ready", process.ReadyWithin, process.Answers("http://"+admin+"/readyz"))
	// It is ready as soon as one decode server is, which would compute the first prompt by itself.
	process.WaitFor(t, p, "the gateway to see all four servers", process.ReadyWithin, process.SeesUp("http://"+admin, 4))
	f.gateway = "http://" + listen
	return f
}

func onAnyHost(t *testing.T, addr string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	return "tcp://*:" + port
}

// work is what engines say that they did, at GET /sim/state.
type work struct {
	Prefills   int `json:"prefills_done"`
	Decodes    int `json:"decodes_done"`
	Aggregated int `json:"aggregated_done"`
	Pulled     int `json:"handoffs_pulled"`
	Rejected   int `json:"handoffs_rejected"`
	Recomputed int `json:"recomputed"`
}

func (w *work) add(more work) {
	w.Prefills += more.Prefills
	w.Decodes += more.Decodes
	w.Aggregated += more.Aggregated
	w.Pulled += more.Pulled
	w.Rejected += more.Rejected
	w.Recomputed += more.Recomputed
}

// workOf adds up what several engines did.
func workOf(t *testing.T, servers []string) work {
	t.Helper()
	var sum work
	for _, server := range servers {
		var one work
		if err := process.JSON(server+"/sim/state", &one); err != nil {
			t.Fatal(err)
		}
		sum.add(one)
	}
	return sum
}
