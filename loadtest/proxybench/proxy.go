package proxybench

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/tandem-gateway/tandem/loadtest/process"
)

// Proxy is one way from clients to engines, as a file of proxies describes it. Its texts may name
// {host} and {port} where it has to listen, {admin} for a second address, {engine}, {prefill} and
// {decode} for the URLs of its engines, {engine-host} for that as host:port, {prefill-events} and
// {decode-events} for where they publish KV events, {dir} for a directory of its own, {config} for its
// configuration, {tandem} for the gateway and {cache} for where others were installed.
type Proxy struct {
	Name     string
	Legs     string        // one: of a request; pair: prefill and decode
	Engine   string        // vllm, vllm-0.32, vllm-events or sglang: what its engines take themselves for
	Command  []string      // none: clients ask the engine themselves
	Config   string        // of its file, if it has one
	Ready    string        // URL that answers 200 once it serves
	Settle   time.Duration // for which it is left alone once it answers
	Measures []string      // names of measures; none: all but "idle"
	Profile  string        // URL of a profile of its CPU, as net/http/pprof serves it; "": it has none
	Profiled []string      // arguments more of one that is profiled
}

//go:embed proxies.yaml
var builtIn []byte

// BuiltIn are nginx, HAProxy and this gateway.
func BuiltIn() ([]Proxy, error) { return parseProxies(builtIn) }

// ReadProxies reads a file of proxies.
func ReadProxies(path string) ([]Proxy, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("file of proxies: %w", err)
	}
	all, err := parseProxies(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return all, nil
}

func parseProxies(text []byte) (all []Proxy, err error) {
	if err := yaml.UnmarshalWithOptions(text, &all, yaml.Strict()); err != nil {
		return nil, err
	}
	for i := range all {
		if err := all[i].validate(); err != nil {
			return nil, fmt.Errorf("proxy %q: %w", all[i].Name, err)
		}
	}
	return all, nil
}

func (p *Proxy) validate() error {
	switch {
	case p.Name == "":
		return errors.New("it has no name")
	case p.Legs != "one" && p.Legs != "pair":
		return fmt.Errorf("legs %q: want one or pair", p.Legs)
	case versions[p.Engine] == "":
		return fmt.Errorf("engine %q: want one of %s", p.Engine, strings.Join(slices.Sorted(maps.Keys(versions)), ", "))
	}
	for _, name := range p.Measures {
		if _, err := findMeasure(name); err != nil {
			return err
		}
	}
	return nil
}

// takes reports whether a measure is taken of it.
func (p *Proxy) takes(name string) bool {
	if len(p.Measures) == 0 {
		return name != idleMeasure && name != sentMeasure
	}
	return slices.Contains(p.Measures, name)
}

// running is a proxy that serves.
type running struct {
	address string // for clients
	process *process.Process
	dir     string
	fill    func(string) string // what stands in braces
}

// start starts the proxy in front of engines and waits until it serves.
func (p *Proxy) start(ctx context.Context, at *testbed) (r *running, err error) {
	if len(p.Command) == 0 {
		return &running{address: at.server(p.Engine, roleBoth).local()}, nil
	}
	r = &running{}
	if r.dir, err = os.MkdirTemp("", "tandem-proxybench-"); err != nil {
		return r, fmt.Errorf("make a directory: %w", err)
	}
	free, err := process.FreeAddresses(2)
	if err != nil {
		return r, err
	}
	r.address = free[0]
	r.fill = p.filler(at, r, free)
	if err := os.WriteFile(filepath.Join(r.dir, "config"), []byte(r.fill(p.Config)), 0o600); err != nil {
		return r, fmt.Errorf("write the configuration: %w", err)
	}
	command := make([]string, len(p.Command))
	for i, text := range p.Command {
		command[i] = r.fill(text)
	}
	if r.process, err = process.Start(p.Name, at.log, nil, command[0], command[1:]...); err != nil {
		return r, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	if err := r.process.Answers(ctx, r.fill(p.Ready)); err != nil {
		return r, err
	}
	select {
	case <-time.After(p.Settle):
	case <-ctx.Done():
	}
	return r, ctx.Err()
}

// startTime is how long a proxy may take until it serves.
const startTime = 60 * time.Second

// filler replaces the names in braces.
func (p *Proxy) filler(at *testbed, r *running, free []string) func(string) string {
	host, port, _ := net.SplitHostPort(free[0])
	_, adminPort, _ := net.SplitHostPort(free[1])
	engine, prefill, decode := at.server(p.Engine, roleBoth).local(), at.server(p.Engine, rolePrefill), at.server(p.Engine, roleDecode)
	replace := strings.NewReplacer(
		"{host}", host, "{port}", port, "{admin}", free[1], "{admin-port}", adminPort,
		"{engine}", "http://"+engine, "{prefill}", "http://"+prefill.local(), "{decode}", "http://"+decode.local(), "{engine-host}", engine,
		"{prefill-events}", prefill.Events, "{decode-events}", decode.Events,
		"{prefill-256}", manyOf(prefill.local()), "{decode-256}", manyOf(decode.local()),
		"{dir}", r.dir, "{config}", filepath.Join(r.dir, "config"), "{tandem}", at.programs.Gateway, "{cache}", at.cache,
	)
	return replace.Replace
}

// manyOf are 256 URLs of one engine, which listens on all loopback addresses.
func manyOf(address string) string {
	_, port, _ := net.SplitHostPort(address)
	urls := make([]string, 256)
	for i := range urls {
		urls[i] = fmt.Sprintf("http://127.0.1.%d:%s", i, port)
	}
	return strings.Join(urls, ",")
}

// tree is the proxy's process tree; zero without a proxy.
func (r *running) tree() tree {
	if r.process == nil {
		return tree{}
	}
	return tree{r.process.PID()}
}

// stop ends it and removes what it wrote.
func (r *running) stop() error {
	var failed error
	if r.process != nil {
		failed = r.process.Stop(10 * time.Second)
	}
	if r.dir != "" {
		failed = errors.Join(failed, os.RemoveAll(r.dir))
	}
	return failed
}

// testbed is what all proxies share.
type testbed struct {
	programs process.Programs
	cache    string
	log      io.Writer
	servers  []Server
	control  string
}

// server is an engine of a role.
func (t *testbed) server(engine, role string) (found Server) {
	for _, s := range t.servers {
		if s.Engine == engine && s.Role == role {
			found = s
		}
	}
	return found
}
