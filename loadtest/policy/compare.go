package policy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
)

// Config is what to compare.
type Config struct {
	// Traces are files in Mooncake's format and names of GeneratedTraces. Scenarios that have
	// no load of their own run on each.
	Traces    []string
	Limit     int // requests of a trace; 0: all
	Scenarios []*Scenario
	Policies  []*Policy
	Seeds     int    // runs of each policy in each scenario
	FirstSeed uint64 // of these runs, the others have those that follow; 0: 1
	Parallel  int    // runs at one time
	// KeptRuns is a file to which each run is written as it ends; those that are there are not
	// run again. Empty: none.
	KeptRuns string
	Program  string // tells programs apart, with KeptRuns: runs of another one are not used
}

// seed is that of a run, which are counted from 0.
func (c *Config) seed(run int) uint64 { return max(1, c.FirstSeed) + uint64(run) }

// Progress is called for each run that has ended: how many of all have.
type Progress func(done, total int, last *Outcome)

// Compare runs every policy in every scenario with every seed. A scenario whose
// own trace is absent is left out, and the report says so.
func Compare(ctx context.Context, cfg Config, show Progress) (*Report, error) {
	if cfg.Seeds < 1 || cfg.Parallel < 1 || len(cfg.Traces) == 0 || len(cfg.Scenarios) == 0 || len(cfg.Policies) == 0 {
		return nil, errors.New("sim: want traces, scenarios, policies, seeds and at least one run at a time")
	}
	grid, skipped, err := newGrid(cfg)
	if err != nil {
		return nil, err
	}
	if err := grid.run(ctx, cfg, show); err != nil {
		return nil, err
	}
	if err := grid.bound(cfg); err != nil {
		return nil, err
	}
	return grid.report(cfg, skipped), nil
}

// load is the requests of a scenario: one trace, or one that is generated for each seed.
type load struct {
	fixed    *Trace // nil: generated
	name     string
	workload *Workload
	limit    int

	mu        sync.Mutex        // guards generated
	generated map[uint64]*Trace // by seed
}

// trace is what runs of a seed replay.
func (l *load) trace(seed uint64) *Trace {
	if l.fixed != nil {
		return l.fixed
	}
	seed = cmp.Or(l.workload.Seed, seed)
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.generated[seed]
	if t == nil {
		if l.generated == nil {
			l.generated = make(map[uint64]*Trace)
		}
		t = l.workload.trace(l.name, seed, l.limit)
		l.generated[seed] = t
	}
	return t
}

// grid is all runs: scenario, policy, seed.
type grid struct {
	scenarios []*Scenario
	loads     []*load // of each scenario
	outcomes  [][][]*Outcome
	bounds    [][2][]ttftParts // ttftBounds of each scenario, by run
	least     [][]float64      // the first of them on each policy's engines, the sum of the runs
}

func newGrid(cfg Config) (*grid, []string, error) {
	g := &grid{}
	var skipped []string
	for i, name := range cfg.Traces {
		trace, err := openTrace(name, cfg.Limit)
		if err != nil {
			return nil, nil, err
		}
		for _, s := range cfg.Scenarios {
			own, err := ownLoad(s, cfg)
			switch {
			case errors.Is(err, fs.ErrNotExist):
				if i == 0 {
					skipped = append(skipped, fmt.Sprintf("%s: no %s beside the trace", s.Name, s.Trace))
				}
			case err != nil:
				return nil, nil, err
			case own == nil && (i > 0 || trace.workload != nil):
				g.add(s.on(name), trace, cfg)
			case own == nil:
				g.add(s, trace, cfg)
			case i == 0: // whatever the traces are
				g.add(s, own, cfg)
			}
		}
	}
	return g, skipped, nil
}

// ownLoad is the load of a scenario that does not take any trace, nil of the others.
func ownLoad(s *Scenario, cfg Config) (*load, error) {
	if w := s.workload(); w != nil {
		return &load{name: s.Name, workload: w, limit: cfg.Limit}, nil
	}
	if s.Trace == "" {
		return nil, nil
	}
	t, err := ReadTraceFile(filepath.Join(filepath.Dir(cfg.Traces[0]), s.Trace), cfg.Limit)
	return &load{fixed: t}, err
}

func (g *grid) add(s *Scenario, l *load, cfg Config) {
	byPolicy := make([][]*Outcome, len(cfg.Policies))
	for i := range byPolicy {
		byPolicy[i] = make([]*Outcome, cfg.Seeds)
	}
	g.scenarios = append(g.scenarios, s)
	g.loads = append(g.loads, l)
	g.outcomes = append(g.outcomes, byPolicy)
}

// cell is one run.
type cell struct {
	scenario, policy, run int
	key                   string // of kept runs
}

func (g *grid) run(ctx context.Context, cfg Config, show Progress) error {
	cells, err := g.cells(cfg)
	if err != nil {
		return err
	}
	keep := func(cell, *Outcome) error { return nil }
	if cfg.KeptRuns != "" {
		kept, err := openKeptRuns(cfg.KeptRuns, cfg.Program)
		if err != nil {
			return err
		}
		defer kept.file.Close()
		cells = slices.DeleteFunc(cells, func(c cell) bool {
			g.outcomes[c.scenario][c.policy][c.run] = kept.known[c.key]
			return kept.known[c.key] != nil
		})
		keep = func(c cell, o *Outcome) error { return kept.add(c.key, o) }
	}
	total := len(g.scenarios) * len(cfg.Policies) * cfg.Seeds
	var mu sync.Mutex // guards done, and keeps calls of show apart
	done := total - len(cells)
	runs, ctx := errgroup.WithContext(ctx)
	runs.SetLimit(cfg.Parallel)
	for _, c := range cells {
		runs.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			seed := cfg.seed(c.run)
			o, err := Run(g.loads[c.scenario].trace(seed), g.scenarios[c.scenario], cfg.Policies[c.policy], seed)
			if err != nil {
				return err
			}
			g.outcomes[c.scenario][c.policy][c.run] = o
			mu.Lock()
			defer mu.Unlock()
			done++
			show(done, total, o)
			return keep(c, o)
		})
	}
	return runs.Wait()
}

// bound works out what no policy is below, for each scenario and run. That one is below it is an error:
// of the bound, or of the simulator.
func (g *grid) bound(cfg Config) error {
	g.bounds, g.least = make([][2][]ttftParts, len(g.scenarios)), make([][]float64, len(g.scenarios))
	for i, s := range g.scenarios {
		g.least[i] = make([]float64, len(cfg.Policies))
		for run := range cfg.Seeds {
			trace, seed := g.loads[i].trace(cfg.seed(run)), cfg.seed(run)
			usual, err := boundsOn(trace, s, randomPolicy, seed)
			if err != nil {
				return err
			}
			for k := range usual {
				g.bounds[i][k] = append(g.bounds[i][k], usual[k])
			}
			for k, p := range cfg.Policies {
				bounds := usual
				if p.FirstFromPrefill && p.on(s) != s {
					if bounds, err = boundsOn(trace, s, p, seed); err != nil {
						return err
					}
				}
				if err := g.outcomes[i][k][run].isAbove(bounds); err != nil {
					return err
				}
				g.least[i][k] += bounds[0].sum()
			}
		}
	}
	return nil
}

// boundsOn are what no policy is below that has the engines of one.
func boundsOn(trace *Trace, s *Scenario, p *Policy, seed uint64) ([2]ttftParts, error) {
	c, err := newCluster(trace, s, p, seed)
	if err != nil {
		return [2]ttftParts{}, err
	}
	return c.ttftBounds(), nil
}

// cells are all runs; with kept runs each has its key.
func (g *grid) cells(cfg Config) (all []cell, err error) {
	digests := make(map[*load]string)
	for i, s := range g.scenarios {
		var scenario []byte
		if cfg.KeptRuns != "" {
			l := g.loads[i]
			if digests[l] == "" {
				if digests[l], err = l.digest(); err != nil {
					return nil, err
				}
			}
			if scenario, err = json.Marshal(s); err != nil {
				return nil, fmt.Errorf("scenario %s: %w", s.Name, err)
			}
		}
		for k, p := range cfg.Policies {
			for run := range cfg.Seeds {
				all = append(all, cell{i, k, run, runKey(digests[g.loads[i]], string(scenario), p.Name, cfg.seed(run))})
			}
		}
	}
	return all, nil
}
