package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/e2e/load"
	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

// TestPod: a pod of four decode servers, two of them data-parallel ranks behind one port,
// two at ports of their own. Under load one of those is killed, then one of the ranks
// fails alone: each is out alone, the other two go on, and no request fails.
func TestPod(t *testing.T) {
	p := startPod(t)
	run := load.Start(t, "http://"+p.listen, 60, 20*time.Second)
	waitFor(t, p.gateway, "work on all four", readyWithin, p.working(p.servers...))

	p.ports[0].Kill(t)
	gone := p.servers[2]
	waitFor(t, p.gateway, "the killed server to be out", readyWithin, func() error { return p.out(gone) })
	setFault(t, "http://"+p.ranks, map[string]any{"kind": "status", "status": 500, "rank": 1})
	failing := p.servers[1]
	waitFor(t, p.gateway, "the failing rank to be out", readyWithin, func() error { return p.out(gone, failing) })
	waitFor(t, p.gateway, "work on the other two", readyWithin, p.working(p.servers[0], p.servers[3]))

	run.Check(t)
	if err := p.out(gone, failing); err != nil {
		t.Error(err)
	}
}

// pod is one, with a prefill server and a gateway.
type pod struct {
	gateway       *process.Process
	listen, admin string
	ranks         string              // address of two ranks
	ports         [2]*process.Process // of one server each
	servers       []string            // all four, as the gateway names them
}

func startPod(t *testing.T) *pod {
	t.Helper()
	p := &pod{listen: freeAddress(t), admin: freeAddress(t)}
	engine := func(name string, args ...string) (string, *process.Process) {
		addr := freeAddress(t)
		e := start(t, name, "bin/tandem-lab", append([]string{"engine", "--listen", addr, "--time-scale", "0.3"}, args...)...)
		waitFor(t, e, "the health of "+name, readyWithin, answers("http://"+addr+"/health"))
		return addr, e
	}
	prefill, _ := engine("prefill", "--role", "prefill")
	file := "prefill: http://" + prefill + "\ndecode:\n"
	p.ranks, _ = engine("ranks", "--role", "decode", "--data-parallel-size", "2")
	for rank := range 2 {
		file += fmt.Sprintf("- {url: http://%s, rank: %d}\n", p.ranks, rank)
		p.servers = append(p.servers, fmt.Sprintf("%s/dp%d", p.ranks, rank))
	}
	for i := range p.ports {
		var addr string
		addr, p.ports[i] = engine(fmt.Sprintf("port %d", i), "--role", "decode")
		file += "- http://" + addr + "\n"
		p.servers = append(p.servers, addr)
	}
	config := filepath.Join(t.TempDir(), "tandem.yaml")
	if err := os.WriteFile(config, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	p.gateway = start(t, "gateway", "bin/tandem", "serve", "--config", config, "--listen", p.listen, "--admin", p.admin, "--pairs-first")
	waitFor(t, p.gateway, "all servers to be up", readyWithin, process.SeesUp("http://"+p.admin, 5))
	return p
}

// podServer is what the gateway says of a server.
type podServer struct {
	ID       string                            `json:"id"`
	Up       bool                              `json:"up"`
	Breakers map[string]string                 `json:"breakers"`
	InFlight map[string]struct{ Requests int } `json:"in_flight"`
}

func (p *pod) describe() (map[string]podServer, error) {
	var all []podServer
	if err := getJSON("http://"+p.admin+"/debug/servers", &all); err != nil {
		return nil, err
	}
	byID := make(map[string]podServer)
	for _, s := range all {
		byID[s.ID] = s
	}
	return byID, nil
}

// working returns a question: have all of the servers had something in flight by now? Few
// have at any one moment.
func (p *pod) working(servers ...string) func() error {
	idle := slices.Clone(servers)
	return func() error {
		all, err := p.describe()
		if err != nil {
			return err
		}
		idle = slices.DeleteFunc(idle, func(id string) bool { return all[id].InFlight["decode"].Requests > 0 })
		if len(idle) > 0 {
			return fmt.Errorf("%v had nothing in flight yet", idle)
		}
		return nil
	}
}

// out reports whether these of the four are out of use, and no other.
func (p *pod) out(want ...string) error {
	all, err := p.describe()
	if err != nil {
		return err
	}
	var out []string
	for _, id := range p.servers {
		if s := all[id]; !s.Up || s.Breakers["decode"] != "closed" {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	slices.Sort(want)
	if !slices.Equal(out, want) {
		return fmt.Errorf("out are %v, want %v", out, want)
	}
	return nil
}
