package loadtest

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// watchEvery is how often a run shows its state to its watcher.
const watchEvery = 250 * time.Millisecond

// Run sends the load that cfg describes and returns the report when every answer
// has ended. It ends by itself: arrivals stop at Config.Duration, Config.Limit or
// the end of the trace, and each request at Config.Timeout. Cancelling ctx ends
// it early: open requests are given up and counted as interrupted, and the
// report tells what was done till then. An error means that no load was sent.
//
// watch, if not nil, is called every 250 ms and once at the end, always from one
// goroutine that is gone when Run returns.
func Run(ctx context.Context, cfg Config, watch func(Snapshot)) (*Report, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	client := newClient(cfg)
	defer client.close()
	return runWith(ctx, cfg, client, watch)
}

// runWith runs cfg with a given client.
func runWith(ctx context.Context, cfg Config, client *client, watch func(Snapshot)) (*Report, error) {
	r := &run{cfg: cfg, client: client, model: cfg.Model, tally: newTally(cfg)}
	if r.model == "" {
		model, err := client.firstModel(ctx)
		if err != nil {
			return nil, err
		}
		r.model = model
	}
	r.words = client.wordRate(ctx, r.model, cfg.WordsPerToken)
	if err := r.plan(); err != nil {
		return nil, err
	}
	r.started = time.Now()
	stopWatching := r.watch(watch)
	var asking sync.WaitGroup
	r.dispatch(ctx, &asking)
	asking.Wait()
	total := time.Since(r.started)
	stopWatching()
	return r.report(total, ctx.Err() != nil), nil
}

// A run is one load under way.
type run struct {
	cfg      Config
	client   *client
	model    string
	words    WordRate
	arrivals schedule
	workload workload
	planned  time.Duration // of all arrivals
	tally    *tally
	started  time.Time
}

// plan sets the schedule and the workload.
func (r *run) plan() error {
	cfg := r.cfg
	rng := newRand(cfg.Seed, arrivalStream)
	r.planned = cfg.Duration
	if cfg.Trace != "" {
		rows, err := readTraceFile(cfg.Trace, cfg.Limit)
		if err != nil {
			return err
		}
		times := traceTimes(rows, cfg.TimeScale, rng)
		if last := times[len(times)-1]; cfg.Duration == 0 || last < cfg.Duration {
			r.planned = last
		}
		r.arrivals = listedSchedule(times).bounded(cfg.Duration, cfg.Limit)
		r.workload = &traceWorkload{rows: rows, seen: make(map[uint64]struct{})}
		return nil
	}
	arrivals := poissonSchedule(cfg.RPS, rng)
	if cfg.Arrivals == Constant {
		arrivals = constantSchedule(cfg.RPS)
	}
	if cfg.Limit > 0 {
		r.planned = min(r.planned, time.Duration(float64(cfg.Limit)/cfg.RPS*float64(time.Second)))
	}
	r.arrivals = arrivals.bounded(cfg.Duration, cfg.Limit)
	r.workload = newConversations(cfg, r.words.PerToken)
	return nil
}

// dispatch starts a goroutine of asking at every arrival, until there are no more
// or ctx ends. It never waits for an answer.
func (r *run) dispatch(ctx context.Context, asking *sync.WaitGroup) {
	alarm := time.NewTimer(0)
	defer alarm.Stop()
	for {
		due, ok := r.arrivals()
		if !ok {
			return
		}
		alarm.Reset(time.Until(r.started.Add(due)))
		select {
		case <-ctx.Done():
			return
		case <-alarm.C:
		}
		t := r.workload.next(time.Now())
		switch {
		case r.tally.arrive(due):
			asking.Go(func() { r.ask(ctx, due, t) })
		case r.cfg.OnEnd != nil:
			r.cfg.OnEnd(Ended{Due: due, Kind: ClientBound})
		}
	}
}

// ask sends one request and counts its outcome.
func (r *run) ask(ctx context.Context, due time.Duration, t turn) {
	messages := t.messages(r.words.PerToken)
	body, err := r.cfg.writeBody(r.model, messages, t.outputTokens)
	if err != nil {
		panic(fmt.Sprintf("loadtest: a body of strings and numbers does not marshal: %v", err))
	}
	o := r.client.ask(ctx, body)
	o.due, o.repeated = due, float64(t.repeated)/float64(t.promptTokens)
	r.tally.end(o, o.sent.Sub(r.started)-due)
	if r.cfg.OnEnd != nil {
		r.cfg.OnEnd(Ended{Due: due, Kind: o.kind, Detail: o.detail, TTFT: o.ttft, E2E: o.e2e, Took: o.took})
	}
	if o.kind == OK {
		r.workload.answered(t, messages, o, time.Now())
	}
}

// watch shows the state of the run to show until the returned function is called.
func (r *run) watch(show func(Snapshot)) (stop func()) {
	if show == nil {
		return func() {}
	}
	stopped := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		tick := time.NewTicker(watchEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				show(r.snapshot())
			case <-stopped:
				show(r.snapshot())
				return
			}
		}
	})
	return func() {
		close(stopped)
		watching.Wait()
	}
}

func (r *run) snapshot() Snapshot {
	s := r.tally.snapshot()
	s.Elapsed, s.Planned = time.Since(r.started), r.planned
	return s
}
