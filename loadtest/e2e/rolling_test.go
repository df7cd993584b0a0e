package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/e2e/load"
	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

// balancer is what a plain HAProxy of Debian does in front of gateways: it asks for
// /health, and sends requests to those that say 200. It knows nothing of streams.
const balancer = `
defaults
  mode http
  timeout connect 1s
  timeout client 1m
  timeout server 1m
  option redispatch
  retries 3
frontend clients
  bind %s
  default_backend gateways
backend gateways
  balance roundrobin
  option httpchk GET /health
  default-server check inter 200ms fall 1 rise 1
`

// TestRollingRestart: three gateways behind HAProxy are restarted one after the other
// under load, and no request fails.
func TestRollingRestart(t *testing.T) {
	f := startEngines(t)
	config := filepath.Join(t.TempDir(), "tandem.yaml")
	text := fmt.Sprintf("prefill: [%s]\ndecode: [%s]\ndrain-delay: 1s\n", strings.Join(f.prefill, ", "), strings.Join(f.decode, ", "))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	gateways := make([]*rolled, 3)
	for i := range gateways {
		gateways[i] = &rolled{name: fmt.Sprintf("gateway-%d", i), listen: freeAddress(t), admin: freeAddress(t), config: config}
		gateways[i].start(t)
	}
	run := load.Start(t, "http://"+startBalancer(t, gateways), 30, 5*time.Minute)
	for _, g := range gateways {
		g.works(t)
		began := time.Now()
		if err := g.process.Stop(); err != nil {
			t.Fatal(err)
		}
		if code := g.process.Cmd.ProcessState.ExitCode(); code != 0 {
			t.Errorf("%s ended with %d", g.name, code)
		}
		t.Logf("%s drained and ended after %v", g.name, time.Since(began).Round(time.Millisecond))
		g.start(t)
	}
	for _, g := range gateways {
		g.works(t)
	}
	run.Finish(t)
}

// rolled is a gateway that is restarted at its old addresses.
type rolled struct {
	name, listen, admin, config string
	process                     *process.Process
}

// works waits until it has answered some requests since it was started.
func (g *rolled) works(t *testing.T) {
	t.Helper()
	waitFor(t, g.process, g.name+" to have answered requests", readyWithin, func() error {
		n, err := answered("http://" + g.admin + "/metrics")
		if err == nil && n < 30 {
			err = fmt.Errorf("%d so far", n)
		}
		return err
	})
}

func (g *rolled) start(t *testing.T) {
	t.Helper()
	g.process = start(t, g.name, "bin/tandem", "serve", "-c", g.config, "--listen", g.listen, "--admin", g.admin)
	waitFor(t, g.process, g.name+" to be ready", readyWithin, answers("http://"+g.listen+"/health"))
}

// startBalancer runs HAProxy in front of the gateways and returns where it listens.
func startBalancer(t *testing.T, gateways []*rolled) string {
	t.Helper()
	bin, err := exec.LookPath("haproxy")
	if err != nil {
		bin = "/usr/sbin/haproxy" // not in every PATH
	}
	listen := freeAddress(t)
	text := fmt.Sprintf(balancer, listen)
	for _, g := range gateways {
		text += fmt.Sprintf("  server %s %s\n", g.name, g.listen)
	}
	config := filepath.Join(t.TempDir(), "haproxy.cfg")
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, "haproxy", bin, "-db", "-f", config)
	waitFor(t, p, "HAProxy to reach a gateway", readyWithin, answers("http://"+listen+"/health"))
	return listen
}
