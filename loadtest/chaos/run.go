package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/tandem-gateway/tandem/loadtest"
	"github.com/tandem-gateway/tandem/loadtest/process"
)

// Outcome is what came of a scenario.
type Outcome struct {
	Scenario
	Requests  int
	Failed    int
	Errors    map[loadtest.Kind]int
	Samples   []string // of failures
	Continued int      // streams continued elsewhere
	WorstTTFT time.Duration
	WorstE2E  time.Duration // of whole answers
	Recovery  time.Duration
	Reached   map[string]int            // clients' requests by engine
	Counts    map[string]map[string]int // the same when a Count of that name happened
	Metrics   []process.Metrics         // of each gateway that answers
	Broken    []string                  // checks that do not hold; empty: all is well
	Took      time.Duration
	strip     strip
}

// Run runs one scenario with the programs and judges it. dir is for its files.
func Run(ctx context.Context, from process.Programs, dir string, c Scenario) (*Outcome, error) {
	c = c.standard()
	if err := c.validate(); err != nil {
		return nil, err
	}
	began := time.Now()
	st, err := newTestbed(ctx, from, dir, c)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Name, err)
	}
	ended, err := st.run(ctx, c)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", c.Name, err), st.close())
	}
	o := &Outcome{Scenario: c, Errors: make(map[loadtest.Kind]int), Reached: make(map[string]int)}
	o.tally(ended)
	o.Counts = st.counts
	st.inspect(ctx, o)
	if err := st.close(); err != nil {
		return nil, fmt.Errorf("%s: %w", c.Name, err)
	}
	o.Took = time.Since(began)
	for _, holds := range c.Checks {
		if broken := holds(o); broken != "" {
			o.Broken = append(o.Broken, broken)
		}
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return o, nil
}

// run sends the load and applies the events, and returns how each request
// ended. A scenario ends early when an event cannot be applied.
func (st *testbed) run(ctx context.Context, c Scenario) ([]loadtest.Ended, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var mu sync.Mutex // guards ended
	var ended []loadtest.Ended
	var parts sync.WaitGroup
	gateways := st.targetGateways(c.Load)
	for i, g := range gateways {
		cfg := c.Load.config("http://"+g.addr, len(gateways), uint64(i+1))
		cfg.OnEnd = func(e loadtest.Ended) {
			mu.Lock()
			defer mu.Unlock()
			ended = append(ended, e)
		}
		parts.Go(func() {
			if _, err := loadtest.Run(ctx, cfg, nil); err != nil {
				cancel(fmt.Errorf("load: %w", err))
			}
		})
	}
	parts.Go(func() {
		if err := st.apply(ctx, c.Events); err != nil {
			cancel(err)
		}
	})
	parts.Wait()
	return ended, context.Cause(ctx)
}

// apply applies the events at their times.
func (st *testbed) apply(ctx context.Context, events Events) error {
	began := time.Now()
	for _, e := range events {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Until(began.Add(e.at))):
		}
		fmt.Fprintf(st.log, "--- %v: %s\n", e.at, e.label)
		if err := e.act(ctx, st); err != nil && ctx.Err() == nil {
			return fmt.Errorf("at %v, %s: %w", e.at, e.label, err)
		}
	}
	return nil
}

// tally counts how the requests ended.
func (o *Outcome) tally(ended []loadtest.Ended) {
	slices.SortFunc(ended, func(a, b loadtest.Ended) int { return int(a.Due - b.Due) })
	for _, e := range ended {
		o.Requests++
		o.WorstTTFT, o.WorstE2E = max(o.WorstTTFT, e.TTFT), max(o.WorstE2E, e.E2E)
		if e.Kind == loadtest.OK {
			continue
		}
		o.Failed++
		if o.Errors[e.Kind]++; len(o.Samples) < 5 {
			o.Samples = append(o.Samples, fmt.Sprintf("at %.1f s %s %s", e.Due.Seconds(), e.Kind, e.Detail))
		}
	}
	o.Recovery = recovery(ended, o.Events)
	o.strip = stripOf(ended, o.Scenario)
}

// inspect reads what gateways and engines have counted. Those that are down or
// hang in the end are left out.
func (st *testbed) inspect(ctx context.Context, o *Outcome) {
	for _, a := range st.components {
		switch a.role {
		case "gateway":
			if m, err := process.ReadMetrics(ctx, a.admin); err == nil {
				o.Metrics = append(o.Metrics, m)
				o.Continued += int(m.Sum("tandem_continuations_total", `outcome="continued"`))
			}
		case "prefill", "decode":
			if n, err := st.requests(ctx, a); err == nil {
				o.Reached[a.name] = n
			}
		}
	}
}

// RunAll runs scenarios one after the other. show is called for each when it
// begins, with nil, and when it has ended.
func RunAll(ctx context.Context, from process.Programs, all []Scenario, show func(n int, c Scenario, o *Outcome)) (*Report, error) {
	r := &Report{}
	for n, c := range all {
		show(n, c, nil)
		dir, err := os.MkdirTemp("", "tandem-chaos-")
		if err != nil {
			return nil, err
		}
		o, err := Run(ctx, from, dir, c)
		if err != nil {
			return nil, fmt.Errorf("%w (log: %s/log)", err, dir)
		}
		show(n, c, o)
		r.Scenarios = append(r.Scenarios, row(o, dir))
		if len(o.Broken) == 0 {
			if err := os.RemoveAll(dir); err != nil {
				return nil, err
			}
		}
	}
	return r, nil
}
