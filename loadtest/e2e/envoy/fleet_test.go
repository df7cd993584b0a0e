package envoy

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

const model = "test-model"

// server is a simulated engine, a decode one behind llm-d's sidecar.
type server struct {
	url string
	p   *process.Process
}

// fleet is the servers of one model by their role.
type fleet map[string][]*server

// all servers of the roles, in their order.
func (f fleet) all(roles ...string) (all []*server) {
	for _, role := range roles {
		all = append(all, f[role]...)
	}
	return all
}

// start starts engines of a role, with further flags.
func (f fleet) start(t *testing.T, role string, n int, flags ...string) {
	t.Helper()
	for i := range n {
		listen := process.FreeAddress(t)
		args := append([]string{"engine", "--listen", listen, "--role", role, "--model", model, "--connector", "llmd-sidecar",
			"--min-output-tokens", "8", "--mean-output-tokens", "20"}, flags...)
		p := process.Start(t, nil, fmt.Sprintf("%s %d", role, i), "bin/tandem-lab", args...)
		process.WaitFor(t, p, "an engine", process.ReadyWithin, process.Answers("http://"+listen+"/health"))
		f[role] = append(f[role], &server{url: "http://" + listen, p: p})
	}
}

// startPairs starts two prefill and two decode servers.
func startPairs(t *testing.T, flags ...string) fleet {
	t.Helper()
	f := fleet{}
	f.start(t, "prefill", 2, flags...)
	f.start(t, "decode", 2, flags...)
	return f
}

// work is what engines say that they did, at GET /sim/state.
type work struct {
	Prefills     int `json:"prefills_done"`
	Decodes      int `json:"decodes_done"`
	Aggregated   int `json:"aggregated_done"`
	Pulled       int `json:"handoffs_pulled"`
	Open         int `json:"handoffs_open"`
	Rejected     int `json:"handoffs_rejected"`
	Recomputed   int `json:"recomputed"`
	LoadFailures int `json:"load_failures"`
}

func workOf(t *testing.T, servers []*server) (sum work) {
	t.Helper()
	for _, s := range servers {
		var one work
		if err := process.JSON(s.url+"/sim/state", &one); err != nil {
			t.Fatal(err)
		}
		sum.Prefills += one.Prefills
		sum.Decodes += one.Decodes
		sum.Aggregated += one.Aggregated
		sum.Pulled += one.Pulled
		sum.Open += one.Open
		sum.Rejected += one.Rejected
		sum.Recomputed += one.Recomputed
		sum.LoadFailures += one.LoadFailures
	}
	return sum
}

// picker is `tandem serve --picker` for a fleet.
type picker struct {
	address, http, admin string // host:port
	args                 []string
	p                    *process.Process
}

// startPicker starts a picker that is told of the servers, with further flags, and waits
// until it sees them all.
func startPicker(t *testing.T, f fleet, flags ...string) *picker {
	t.Helper()
	var config strings.Builder
	servers := 0
	for _, role := range []string{"prefill", "decode", "both"} {
		if len(f[role]) > 0 {
			fmt.Fprintf(&config, "%s:\n", role)
		}
		for _, s := range f[role] {
			connector := map[string]string{"decode": ", connector: llmd-sidecar", "prefill": ", connector: llmd-sidecar"}[role]
			fmt.Fprintf(&config, "- {url: %s%s}\n", s.url, connector)
			servers++
		}
	}
	path := filepath.Join(t.TempDir(), "tandem.yaml")
	if err := os.WriteFile(path, []byte(config.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	p := &picker{address: process.FreeAddress(t), http: process.FreeAddress(t), admin: process.FreeAddress(t)}
	p.args = append([]string{"serve", "-c", path, "--picker", p.address, "--listen", p.http, "--admin", p.admin,
		"--pairs-first"}, flags...) // engines without delay compute a prompt sooner than they fetch it
	p.start(t)
	process.WaitFor(t, p.p, "the picker to see all servers", process.ReadyWithin, process.SeesUp("http://"+p.admin, servers))
	return p
}

// start starts its process, the first time or again.
func (p *picker) start(t *testing.T) {
	t.Helper()
	p.p = process.Start(t, nil, "picker", "bin/tandem", p.args...)
	process.WaitFor(t, p.p, "the picker to be ready", process.ReadyWithin, process.Answers("http://"+p.admin+"/readyz"))
}

// stop asks it to end, and waits until it has.
func (p *picker) stop(t *testing.T) {
	t.Helper()
	if err := p.p.Stop(); err != nil {
		t.Fatal(err)
	}
}

// held is how many places on servers it holds for requests.
func (p *picker) held(t *testing.T) (places int) {
	t.Helper()
	var servers []struct {
		InFlight map[string]struct {
			Requests int `json:"requests"`
		} `json:"in_flight"`
	}
	if err := process.JSON("http://"+p.admin+"/debug/servers", &servers); err != nil {
		t.Fatal(err)
	}
	for _, s := range servers {
		for _, leg := range s.InFlight {
			places += leg.Requests
		}
	}
	return places
}

// checkPairs asserts that so many requests were each prefilled once, handed over and decoded
// with the KV of that hand-off, and that the picker holds nothing any more.
func checkPairs(t *testing.T, f fleet, p *picker, requests int) {
	t.Helper()
	prefill, decode := workOf(t, f["prefill"]), workOf(t, f["decode"])
	if want := (work{Prefills: requests, Pulled: requests}); prefill != want {
		t.Errorf("prefill servers report %+v, want %+v", prefill, want)
	}
	if decode.Aggregated = 0; decode != (work{Decodes: requests}) { // references were computed there
		t.Errorf("decode servers report %+v of %d requests", decode, requests)
	}
	checkIdle(t, p)
}

// checkIdle asserts that a picker gives back all that it holds.
func checkIdle(t *testing.T, p *picker) {
	t.Helper()
	process.WaitFor(t, p.p, "the picker to hold nothing", process.ReadyWithin, func() error {
		if n := p.held(t); n != 0 {
			return fmt.Errorf("%d places are held", n)
		}
		return nil
	})
}
