package policy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"

	"golang.org/x/sync/errgroup"
)

// Config is what to compare.
type Config struct {
	TracePath string
	Limit     int // requests of the trace; 0: all
	Scenarios []*Scenario
	Policies  []*Policy
	Seeds     int // runs of each policy in each scenario, seeds 1 and up
	Parallel  int // runs at one time
}

// Progress is called for each run that has ended: how many of all have.
type Progress func(done, total int, last *Outcome)

// Compare runs every policy in every scenario with every seed. A scenario whose
// own trace is absent is left out, and the report says so.
func Compare(ctx context.Context, cfg Config, show Progress) (*Report, error) {
	if cfg.Seeds < 1 || cfg.Parallel < 1 || len(cfg.Scenarios) == 0 || len(cfg.Policies) == 0 {
		return nil, errors.New("sim: want scenarios, policies, seeds and at least one run at a time")
	}
	grid, skipped, err := newGrid(cfg)
	if err != nil {
		return nil, err
	}
	if err := grid.run(ctx, cfg, show); err != nil {
		return nil, err
	}
	return grid.report(cfg, skipped), nil
}

// grid is all runs: scenario, policy, seed.
type grid struct {
	scenarios []*Scenario
	traces    []*Trace // of each scenario
	outcomes  [][][]*Outcome
}

func newGrid(cfg Config) (*grid, []string, error) {
	trace, err := ReadTraceFile(cfg.TracePath, cfg.Limit)
	if err != nil {
		return nil, nil, err
	}
	g := &grid{}
	var skipped []string
	for _, s := range cfg.Scenarios {
		own := trace
		switch {
		case s.Agents != nil:
			own = s.Agents.trace(s.Name, cfg.Limit)
		case s.Trace != "":
			own, err = ReadTraceFile(filepath.Join(filepath.Dir(cfg.TracePath), s.Trace), cfg.Limit)
			if errors.Is(err, fs.ErrNotExist) {
				skipped = append(skipped, fmt.Sprintf("%s: no %s beside the trace", s.Name, s.Trace))
				continue
			}
			if err != nil {
				return nil, nil, err
			}
		}
		byPolicy := make([][]*Outcome, len(cfg.Policies))
		for i := range byPolicy {
			byPolicy[i] = make([]*Outcome, cfg.Seeds)
		}
		g.scenarios = append(g.scenarios, s)
		g.traces = append(g.traces, own)
		g.outcomes = append(g.outcomes, byPolicy)
	}
	return g, skipped, nil
}

func (g *grid) run(ctx context.Context, cfg Config, show Progress) error {
	total := len(g.scenarios) * len(cfg.Policies) * cfg.Seeds
	var mu sync.Mutex // guards done, and keeps calls of show apart
	done := 0
	runs, ctx := errgroup.WithContext(ctx)
	runs.SetLimit(cfg.Parallel)
	for i, s := range g.scenarios {
		for k, p := range cfg.Policies {
			for seed := range cfg.Seeds {
				runs.Go(func() error {
					if ctx.Err() != nil {
						return ctx.Err()
					}
					o, err := Run(g.traces[i], s, p, uint64(seed+1))
					if err != nil {
						return err
					}
					g.outcomes[i][k][seed] = o
					mu.Lock()
					defer mu.Unlock()
					done++
					show(done, total, o)
					return nil
				})
			}
		}
	}
	return runs.Wait()
}
