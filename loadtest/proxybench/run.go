package proxybench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/process"
)

// Config says what is measured and how long.
type Config struct {
	Proxies  []Proxy
	Measures []string // names; none: all
	Rounds   int
	Lasts    time.Duration // of one measure
	// Within bounds the run: no round is begun that would not end by then, if it took as long as those
	// before. 0: all rounds are made.
	Within  time.Duration
	Streams int // that are open for a figure of memory
	// Steady is how far nginx, first and last in a round, may differ in a measure, as a share.
	Steady   float64
	From     process.Programs
	Cache    string // directory in which others were installed
	LogPath  string // for what the processes say; "": nowhere
	Baseline string // name of the proxy whose multiples count, and which comes first and last
	Direct   string // name of the way without a proxy
}

// Default is a run of all built-in proxies.
func Default() Config {
	return Config{Rounds: 3, Lasts: time.Second, Within: 14 * time.Minute, Streams: 1000, Steady: 0.15, Cache: ".cache/proxybench", Baseline: "nginx", Direct: "direct"}
}

// EngineCommand is the command of the program that serves the mock engines.
const EngineCommand = "bench-engines"

// Step is a measure that is begun.
type Step struct {
	Round, Rounds  int // from 1
	Proxy, Measure string
	At, Proxies    int // which proxy of the round it is, from 1, and how many there are
}

// Run measures all proxies. show is called with each step. Where it fails, or the context ends, the report
// is what was measured until then; nil: nothing was.
func Run(ctx context.Context, cfg Config, show func(Step)) (*Report, error) {
	for _, name := range cfg.Measures {
		if _, err := findMeasure(name); err != nil {
			return nil, err
		}
	}
	start := time.Now()
	at, stop, err := startEngines(ctx, &cfg)
	if err != nil {
		return nil, err
	}
	defer func() { _ = stop() }()
	r := newReport(&cfg)
	order := inOrder(cfg.Proxies, cfg.Baseline)
	defer r.finish()
	took := durations{}
	for names := cfg.nextRound(r, took, order, 0); len(names) > 0; names = cfg.nextRound(r, took, order, time.Since(start)) {
		round := r.beginRound()
		for i, p := range order {
			step := Step{Round: round + 1, Rounds: max(cfg.Rounds, round+1), Proxy: p.Name, At: i + 1, Proxies: len(order)}
			if err := measureProxy(ctx, &cfg, at, p, names, r, step, took, show); err != nil {
				return r, fmt.Errorf("%s: %w", p.Name, err)
			}
		}
		slices.Reverse(order)
	}
	return r, nil
}

// inOrder are all proxies, with the baseline first and last.
func inOrder(proxies []Proxy, baseline string) (order []*Proxy) {
	var base *Proxy
	for i := range proxies {
		if proxies[i].Name == baseline {
			base = &proxies[i]
			continue
		}
		order = append(order, &proxies[i])
	}
	if base != nil {
		order = append(append([]*Proxy{base}, order...), base)
	}
	return order
}

// startEngines starts the mock engines as a process.
func startEngines(ctx context.Context, cfg *Config) (at *testbed, stop func() error, err error) {
	log, err := process.CreateLog(cfg.LogPath)
	if err != nil {
		return nil, nil, err
	}
	at = &testbed{programs: cfg.From, cache: cfg.Cache, log: log}
	var args []string
	roles := []string{roleBoth, rolePrefill, roleDecode}
	free, err := process.FreeAddresses((len(versions)+1)*len(roles) + 1)
	if err != nil {
		return nil, nil, err
	}
	for engine := range versions {
		for _, role := range roles {
			_, port, _ := net.SplitHostPort(free[0])
			s := Server{Address: net.JoinHostPort("0.0.0.0", port), Engine: engine, Role: role}
			free = free[1:]
			if engine == eventsEngine {
				s.Events, free = "tcp://"+free[0], free[1:]
			}
			at.servers = append(at.servers, s)
			args = append(args, "--server", fmt.Sprintf("%s=%s=%s=%s", s.Address, s.Engine, s.Role, s.Events))
		}
	}
	at.control = free[0]
	engines, err := process.Start("engines", log, nil, cfg.From.Engine, append([]string{EngineCommand, "--control", at.control}, args...)...)
	if err != nil {
		return nil, nil, err
	}
	stop = func() error { return errors.Join(engines.Stop(5*time.Second), log.Close()) }
	ready, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	if err := engines.Answers(ready, "http://"+at.control+"/legs"); err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	return at, stop, nil
}

// measureProxy takes the named measures of one proxy in one round. One that does not start, or lets nothing
// through, has that in its row: others are measured all the same.
func measureProxy(ctx context.Context, cfg *Config, at *testbed, p *Proxy, names []string, r *Report, step Step, took durations, show func(Step)) (err error) {
	var serving *running
	defer func() {
		if serving != nil {
			err = errors.Join(err, serving.stop())
		}
	}()
	for i := range measures {
		m := &measures[i]
		if !p.takes(m.name) || !slices.Contains(names, m.name) {
			continue
		}
		began := time.Now()
		step.Measure = m.name
		show(step)
		if serving != nil && m.fresh {
			if err := serving.stop(); err != nil {
				return err
			}
			serving = nil
		}
		if serving == nil {
			started, failed := p.start(ctx, at)
			took.add(starting, p.Name, time.Since(began))
			if failed != nil {
				r.fail(p.Name, failed)
				return errors.Join(ctx.Err(), started.stop())
			}
			serving = started
		}
		if err := takeMeasure(ctx, cfg, at, p, m, serving, r, step.Round-1); err != nil {
			return err
		}
		took.add(m.name, p.Name, time.Since(began))
	}
	return nil
}

func takeMeasure(ctx context.Context, cfg *Config, at *testbed, p *Proxy, m *measure, serving *running, r *Report, round int) error {
	if _, err := process.Ask(ctx, http.MethodPost, "http://"+at.control+"/reset", nil); err != nil {
		return err
	}
	t := &tally{}
	values, err := m.run(ctx, &probe{address: serving.address, tree: serving.tree(), control: at.control, lasts: cfg.Lasts, streams: cfg.Streams, tally: t})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	legs, asked := askLegs(ctx, at.control)
	if asked != nil {
		return asked
	}
	r.add(p, m, round, values, t, legs, err)
	return nil
}

// askLegs asks the engines what they saw.
func askLegs(ctx context.Context, control string) (legs Legs, err error) {
	text, err := process.Ask(ctx, http.MethodGet, "http://"+control+"/legs", nil)
	if err != nil {
		return legs, err
	}
	if err := json.Unmarshal(text, &legs); err != nil {
		return legs, fmt.Errorf("read the legs: %w", err)
	}
	return legs, nil
}
