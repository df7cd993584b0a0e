package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/loadtest/process"
)

const (
	model = "chaos-model"
	// wordsPerToken is that of the simulated engines' text: asking for it would be
	// one more request before each load.
	wordsPerToken = 0.65
	startTime     = time.Minute // for a process to answer, on a busy machine
	stopTime      = 10 * time.Second
)

// component is one process of a scenario.
type component struct {
	name   string // "decode-0"
	role   string // "decode"
	addr   string // of the API
	admin  string // gateway: the admin port; engine: the control port
	event  string // engine: where it publishes KV
	replay string // engine: where it replays
	kv     string // engine: where others reach its KV

	draining  bool
	process   *process.Process
	throttled func() // ends that; nil: it is not
}

// unthrottle ends Throttle.
func (a *component) unthrottle() {
	if a.throttled != nil {
		a.throttled()
		a.throttled = nil
	}
}

// testbed is the processes of a scenario and the connections between them.
type testbed struct {
	fleet      Fleet
	from       process.Programs
	dir        string // configuration and logs
	components []*component
	links      map[string]*link
	log        *os.File

	counts map[string]map[string]int // by Count: the clients' requests of each engine
}

// newTestbed starts all that a scenario needs and waits until it serves.
func newTestbed(ctx context.Context, from process.Programs, dir string, c Scenario) (_ *testbed, err error) {
	st := &testbed{fleet: c.Fleet, from: from, dir: dir, links: make(map[string]*link), counts: make(map[string]map[string]int)}
	defer func() {
		if err != nil {
			err = errors.Join(err, st.close())
		}
	}()
	if st.log, err = process.CreateLog(filepath.Join(dir, "log")); err != nil {
		return nil, err
	}
	if err := st.addComponents(); err != nil {
		return nil, err
	}
	for _, e := range c.Events {
		if e.link == "" || st.links[e.link] != nil {
			continue
		}
		to := st.named(e.link[strings.LastIndex(e.link, between)+1:])
		if st.links[e.link], err = newLink(e.link, to.addr); err != nil {
			return nil, err
		}
	}
	if err := st.writeConfig(); err != nil {
		return nil, err
	}
	return st, st.startAll(ctx)
}

// addComponents names the components and finds them addresses.
func (st *testbed) addComponents() error {
	names := st.fleet.names()
	free, err := process.FreeAddresses(5 * len(names))
	if err != nil {
		return err
	}
	for i, name := range names {
		role, _, _ := strings.Cut(name, "-")
		a := &component{name: name, role: role, addr: free[5*i], admin: free[5*i+1], event: free[5*i+2], replay: free[5*i+3], kv: free[5*i+4]}
		st.components = append(st.components, a)
	}
	return nil
}

// startAll starts the engines and Redis, and then the gateways in front of them, one
// after the other: where they share a Redis the first one decides for all.
func (st *testbed) startAll(ctx context.Context) error {
	failed := make([]error, len(st.components))
	var starting sync.WaitGroup
	for i, a := range st.components {
		if a.role != "gateway" {
			starting.Go(func() { failed[i] = st.start(ctx, a) })
		}
	}
	starting.Wait()
	if err := errors.Join(failed...); err != nil {
		return err
	}
	for _, a := range st.targetGateways(Load{}) {
		if err := st.start(ctx, a); err != nil {
			return err
		}
	}
	return nil
}

// start starts one of them and waits until it answers.
func (st *testbed) start(ctx context.Context, a *component) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	binary, args := st.command(a)
	p, err := process.Start(a.name, st.log, nil, binary, args...)
	if err != nil {
		return err
	}
	a.process = p
	switch a.role {
	case "redis":
		return listens(ctx, a.addr)
	case "gateway":
		if err := p.Answers(ctx, "http://"+a.admin+"/readyz"); err != nil {
			return err
		}
		if err := process.AwaitServers(ctx, a.admin, st.fleet.Prefill+st.fleet.Decode); err != nil {
			return fmt.Errorf("%s: %w", a.name, err)
		}
		return nil
	}
	return p.Answers(ctx, "http://"+a.addr+"/health")
}

// command is how a component is started.
func (st *testbed) command(a *component) (binary string, args []string) {
	anywhere := func(addr string) string { return "tcp://*:" + port(addr) }
	switch a.role {
	case "redis":
		return "redis-server", []string{"--port", port(a.addr), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", st.dir}
	case "gateway":
		args = []string{"serve", "-c", st.configFile(), "--listen", a.addr, "--admin", a.admin, "--replica", a.name}
		if st.fleet.Redis {
			args = append(args, "--redis", st.redisOf(a))
		}
		return st.from.Gateway, append(args, st.fleet.Gateway...)
	}
	args = []string{"engine", "--listen", a.addr, "--control", a.admin, "--role", a.role, "--model", model, "--side-channel", a.kv}
	if st.fleet.Connector != "" {
		args = append(args, "--connector", st.fleet.Connector)
	}
	if st.fleet.KVEvents {
		args = append(args, "--events", anywhere(a.event), "--replay", anywhere(a.replay))
	}
	return st.from.Engine, args
}

// redisOf is where a gateway finds Redis.
func (st *testbed) redisOf(gateway *component) string {
	for _, name := range []string{gateway.name + between + "redis", "redis"} {
		if l := st.links[name]; l != nil {
			return l.addr()
		}
	}
	return st.named("redis").addr
}

func (st *testbed) configFile() string { return filepath.Join(st.dir, "tandem.yaml") }

// writeConfig writes the file that gateways read, and read again when it changes.
func (st *testbed) writeConfig() error {
	var text strings.Builder
	for _, role := range []string{"prefill", "decode"} {
		fmt.Fprintf(&text, "%s:\n", role)
		for _, a := range st.components {
			if a.role != role {
				continue
			}
			addr := a.addr
			if l := st.links[a.name]; l != nil {
				addr = l.addr()
			}
			fmt.Fprintf(&text, "  - {url: http://%s, drain: %v", addr, a.draining)
			if st.fleet.KVEvents {
				fmt.Fprintf(&text, ", events: tcp://%s, replay: tcp://%s", a.event, a.replay)
			}
			if st.fleet.Connector != "" {
				fmt.Fprintf(&text, ", connector: %s, kv-address: %s", st.fleet.Connector, a.kv)
			}
			fmt.Fprint(&text, "}\n")
		}
	}
	if err := os.WriteFile(st.configFile(), []byte(text.String()), 0o600); err != nil {
		return fmt.Errorf("gateways' configuration: %w", err)
	}
	return nil
}

// find returns the component of a name, or the one that the name stands for now.
func (st *testbed) find(ctx context.Context, name string) (*component, error) {
	role, dynamic := strings.CutPrefix(name, busiest)
	if !dynamic {
		return st.named(name), nil
	}
	var found *component
	most := -1
	for _, a := range st.components {
		if a.role != role {
			continue
		}
		n, err := st.requests(ctx, a)
		if err != nil {
			return nil, err
		}
		if n > most {
			found, most = a, n
		}
	}
	return found, nil
}

func (st *testbed) named(name string) *component {
	i := slices.IndexFunc(st.components, func(a *component) bool { return a.name == name })
	return st.components[i] // scenarios are validated
}

// targetGateways are the gateways to which clients send.
func (st *testbed) targetGateways(l Load) (all []*component) {
	for _, a := range st.components {
		if a.role == "gateway" && (len(l.Gateways) == 0 || slices.Contains(l.Gateways, a.name)) {
			all = append(all, a)
		}
	}
	return all
}

// requests is how many of the clients' requests an engine has got.
func (st *testbed) requests(ctx context.Context, a *component) (int, error) {
	var state engine.State
	body, err := process.Ask(ctx, http.MethodGet, "http://"+a.admin+"/sim/state?requests=0", nil)
	if err == nil {
		err = json.Unmarshal(body, &state)
	}
	if err != nil {
		return 0, fmt.Errorf("state of %s: %w", a.name, err)
	}
	return state.RequestsByPath["/v1/chat/completions"], nil
}

// reached is how many of the clients' requests each engine has got.
func (st *testbed) reached(ctx context.Context) (map[string]int, error) {
	all := make(map[string]int)
	for _, a := range st.components {
		if a.role != "prefill" && a.role != "decode" {
			continue
		}
		n, err := st.requests(ctx, a)
		if err != nil {
			return all, err
		}
		all[a.name] = n
	}
	return all, nil
}

// setFault adds a fault to an engine; nil removes all.
func (st *testbed) setFault(ctx context.Context, a *component, fault *engine.Fault) error {
	url := "http://" + a.admin + "/sim/faults"
	if fault == nil {
		_, err := process.Ask(ctx, http.MethodDelete, url, nil)
		return err
	}
	body, err := json.Marshal(fault)
	if err != nil {
		return err
	}
	_, err = process.Ask(ctx, http.MethodPost, url, body)
	return err
}

// close stops all processes and proxies.
func (st *testbed) close() error {
	var running []*process.Process
	for _, a := range st.components {
		if a.process != nil {
			a.unthrottle()
			a.process.Continue()
			running = append(running, a.process)
		}
	}
	err := process.StopAll(running, stopTime)
	for _, l := range st.links {
		if l != nil {
			l.close()
		}
	}
	if st.log != nil {
		err = errors.Join(err, st.log.Close())
	}
	return err
}

// listens waits until connections are accepted.
func listens(ctx context.Context, addr string) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("nothing listens at %s: %w", addr, err)
		case <-tick.C:
		}
	}
}

func port(addr string) string { return addr[strings.LastIndex(addr, ":")+1:] }
