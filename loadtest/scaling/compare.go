package scaling

import (
	"context"
	"fmt"
	"math"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/tandem-gateway/tandem/autoscale/sizing"
	"github.com/tandem-gateway/tandem/loadtest/policy"
)

// Config is one comparison.
type Config struct {
	TracePath  string
	Limit      int // requests of the trace; 0: all
	Scenarios  []*Scenario
	Policies   []Policy
	ColdStarts []float64 // seconds
	Planner    sizing.Planner
	Seeds      int
	Parallel   int
}

// Progress is called for each run that ends.
type Progress func(done, total int, last *Outcome)

// Compare runs every policy on every load with every cold start. show is called
// after each run, from one goroutine at a time.
func Compare(ctx context.Context, cfg Config, show Progress) (*Report, error) {
	trace, err := policy.ReadTraceFile(cfg.TracePath, cfg.Limit)
	if err != nil {
		return nil, err
	}
	total := len(cfg.Scenarios) * len(cfg.ColdStarts) * cfg.Seeds * len(cfg.Policies)
	outcomes := make(chan *Outcome, total)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(max(1, cfg.Parallel))
	for _, s := range cfg.Scenarios {
		for seed := range cfg.Seeds {
			group.Go(func() error { return runAll(ctx, trace, s, uint64(seed+1), cfg, outcomes) })
		}
	}
	go func() {
		_ = group.Wait() // its error is asked for again below
		close(outcomes)
	}()
	var all []*Outcome
	for o := range outcomes {
		all = append(all, o)
		show(len(all), total, o)
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return newReport(trace.Name, cfg, all), nil
}

// runAll runs the policies on one load.
func runAll(ctx context.Context, t *policy.Trace, s *Scenario, seed uint64, cfg Config, outcomes chan<- *Outcome) error {
	load := buildLoad(t, s, seed)
	if len(load) == 0 {
		return fmt.Errorf("scenario %s: no requests", s.Name)
	}
	base := runFacts{scenario: s, work: measureWork(s, load), planner: cfg.Planner}
	if slices.ContainsFunc(cfg.Policies, func(p Policy) bool { return p.Name == staticName }) {
		base.peak = staticPeak(&base, load)
	}
	for _, cold := range cfg.ColdStarts {
		base.coldStart = cold
		for i := range cfg.Policies {
			if err := ctx.Err(); err != nil {
				return err
			}
			p := &cfg.Policies[i]
			o := run(p, &base, load)
			o.Seed = seed
			outcomes <- o
		}
	}
	return nil
}

// measureWork is what the load keeps busy where there is plenty of everything.
func measureWork(s *Scenario, load []request) work {
	bins := int(math.Ceil(s.Seconds / binSeconds))
	w := work{prefill: make([]float64, bins), decode: make([]float64, bins)}
	kv, tokens := make([]float64, bins), make([]float64, bins)
	for i := range load {
		r := &load[i]
		bin := int(r.at / binSeconds)
		seconds := float64(r.uncached) / s.Hardware.PrefillSpeed
		w.prefill[bin] += seconds / binSeconds
		// A full server's share that the request keeps, for as long as it decodes there.
		context := float64(r.prompt) + float64(r.output)/2
		sequences := min(s.Hardware.sequences(s.TPOT, context), s.Hardware.KV/float64(r.prompt+r.output))
		lasts := float64(r.output) * s.Hardware.step(sequences, sequences*context)
		from := r.at + seconds
		for b := int(from / binSeconds); b < bins && float64(b)*binSeconds < from+lasts; b++ {
			begin, end := max(from, float64(b)*binSeconds), min(from+lasts, float64(b+1)*binSeconds)
			kv[b] += (end - begin) / sequences / binSeconds
			tokens[b]++
		}
	}
	copy(w.decode, kv)
	return w
}

// staticName is the policy that is searched for.
const staticName = "static-peak"

// wellServed is the share of good requests that the static peak must keep.
const wellServed = 0.995

// staticPeak is the fewest servers of each role that serve the load well, while the
// other role has plenty.
func staticPeak(base *runFacts, load []request) [2]int {
	most := [2]int{
		2 + 2*int(math.Ceil(slices.Max(base.work.prefill))),
		2 + 2*int(math.Ceil(slices.Max(base.work.decode))),
	}
	serves := func(servers [2]int) bool {
		still := *base
		still.peak = servers
		return run(&Policies()[0], &still, load).Good >= wellServed
	}
	peak := most
	for role := range peak {
		low, high := 1, most[role] // high is enough
		for low < high {
			try := most
			try[role] = (low + high) / 2
			if serves(try) {
				high = try[role]
			} else {
				low = try[role] + 1
			}
		}
		peak[role] = high
	}
	return peak
}
