package autoscale

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-gateway/tandem/autoscale/demand"
	"github.com/tandem-gateway/tandem/autoscale/mix"
	"github.com/tandem-gateway/tandem/autoscale/sizing"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/permodel"
	"github.com/tandem-gateway/tandem/pools/share"
)

// Config is how wanted servers are decided.
type Config struct {
	Planner   sizing.Planner
	Every     time.Duration   // between two decisions
	ColdStart time.Duration   // assumed until one was seen
	Prior     sizing.Capacity // of a server, until one was seen
	ScaleIn   bool            // say which servers go when fewer are wanted, and let them drain
	// ITL is the objective that decode is planned for; TTFT the one that hardware is chosen
	// by, 0 is none.
	ITL, TTFT permodel.Setting[time.Duration]
}

// DefaultConfig decides as often as an HPA asks.
func DefaultConfig() Config {
	return Config{Planner: sizing.DefaultPlanner(), Every: sizing.DefaultInterval, ColdStart: 2 * time.Minute, ITL: permodel.Setting[time.Duration]{All: 50 * time.Millisecond}}
}

// Validate reports what is wrong with the configuration, nil if nothing.
func (c *Config) Validate() error {
	shortest := c.ITL.All
	for _, itl := range c.ITL.Models {
		shortest = min(shortest, itl)
	}
	if c.Every <= 0 || c.ColdStart <= 0 || shortest <= 0 {
		return errors.New("scaling: interval, cold start and objective must be positive")
	}
	return errors.Join(c.Planner.Validate(), c.Prior.Validate())
}

// plans are the decisions for all models, as replicas share them.
type plans struct {
	At       time.Time            `json:"at"`
	Since    int64                `json:"since"` // bin from which on demand was watched
	Models   map[string]*Decision `json:"models"`
	Memories map[string]*memory   `json:"memories"`
}

// Decision is what is wanted for a model, and what it was decided from.
type Decision struct {
	At                 time.Time      `json:"at"`   // of the signals: older where they could not be read again
	Plan               sizing.Plan    `json:"plan"` // in servers as they are on the mean
	Pools              []PoolWant     `json:"pools"`
	Signals            sizing.Signals `json:"signals"`
	WaitingForCapacity int            `json:"held"` // requests that wait because a role has no server
	State              State          `json:"state"`
	Draining           []DrainingUnit `json:"leaving,omitempty"`
}

// Wanted is what is published of a pool.
type Wanted struct {
	Model, Role string
	Variant     string // kind of hardware; empty: all of it together
	sizing.Want
	Size               int // ranks that each engine should have, where they grow in place; 0: as it is
	WaitingForCapacity int
	At                 time.Time // of the signals, by the clock of this machine
}

// Scaler decides for every model, again and again. It shares demand with others
// through Redis, and one decides for all.
type Scaler struct {
	cfg    Config
	fleet  *pools.Fleet
	meter  *demand.Meter
	shared *Shared // nil: this gateway is alone
	log    *slog.Logger
	now    func() time.Time

	// Publish receives what is wanted of all pools after each decision; it is set before Run.
	Publish func([]Wanted)
	// OnDraining receives the units that drain, before Publish; likewise.
	OnDraining func([]DrainingUnit)
	// Allocate chooses the hardware; nil: there is one kind. Likewise.
	Allocate mix.Allocator

	current atomic.Pointer[plans]
	seen    sightings
	planNow chan struct{} // to decide
	decided chan struct{} // that another replica decided
}

// NewScaler returns a scaler that has decided nothing.
func NewScaler(cfg Config, fleet *pools.Fleet, meter *demand.Meter, shared *Shared, log *slog.Logger) *Scaler {
	s := &Scaler{
		cfg: cfg, fleet: fleet, meter: meter, shared: shared, log: log, now: meter.Now,
		Publish: func([]Wanted) {}, OnDraining: func([]DrainingUnit) {},
		planNow: make(chan struct{}, 1), decided: make(chan struct{}, 1),
	}
	s.current.Store(&plans{})
	return s
}

// Run decides until the context ends.
func (s *Scaler) Run(ctx context.Context) {
	if s.shared != nil {
		var beside sync.WaitGroup
		defer beside.Wait()
		beside.Go(func() { s.shared.exchangeRefusals(ctx, s.meter, func() { signal(s.decided) }) })
	}
	tick := time.NewTicker(s.cfg.Every)
	defer tick.Stop()
	changed, stop := s.fleet.StateChanges()
	defer stop()
	failing, next, decides := false, s.planIfDecider, true
	for {
		err := next(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil && s.now().Sub(s.current.Load().At) > s.cfg.Planner.MaxAge {
			s.drain(nil) // nothing goes by what is that old
		}
		if failed := err != nil; failed != failing && (failed || decides) { // that plans can be read is no proof that any can be made
			failing = failed
			if failing {
				s.log.Warn("scaling decisions stand still: demand of other replicas is not known", "error", err.Error())
			} else {
				s.log.Info("scaling decisions go on")
			}
		}
		for next = nil; next == nil; {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				next, decides = s.planIfDecider, true
			case <-s.planNow:
				next, decides = s.planAtOnce, true
			case <-s.decided:
				next, decides = s.follow, false
			case <-changed:
				s.seen.note(s.served(), s.current.Load().Models)
			}
		}
	}
}

// PlanNow starts a decision now: a request waits for capacity.
func (s *Scaler) PlanNow() { signal(s.planNow) }

// signal makes sure that one signal is in the channel, which holds one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // one is
	}
}

// planIfDecider decides if this replica is the decider; planAtOnce decides in any case.
func (s *Scaler) planIfDecider(ctx context.Context) error { return s.step(ctx, false) }

func (s *Scaler) planAtOnce(ctx context.Context) error { return s.step(ctx, true) }

// follow takes over what another replica decided.
func (s *Scaler) follow(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Every)
	defer cancel()
	last, _, err := s.shared.read(ctx)
	if err == nil {
		s.adopt(last)
	}
	return err
}

// Shares are which hardware serves which requests of a model, by the plan that stands; nil
// where there is none that is fresh, or one kind. It takes no lock and allocates nothing.
func (s *Scaler) Shares(model string) *share.Table {
	d := s.current.Load().Models[model]
	if d == nil || s.now().Sub(d.At) > s.cfg.Planner.MaxAge {
		return nil
	}
	return d.State.Shares
}

// step decides, or takes over what another replica decided. Without the others'
// demand nothing is decided: less demand is what it would look like. One that is in a
// hurry decides even if it is not this replica's turn.
func (s *Scaler) step(ctx context.Context, hurried bool) error {
	if s.shared == nil {
		s.adopt(s.decide(*s.current.Load(), []demand.Reading{s.meter.Read()}))
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Every)
	defer cancel()
	if err := s.shared.clock.sync(ctx); err != nil {
		return err
	}
	mine, err := s.shared.decides(ctx)
	for done := false; err == nil && !done; {
		done, err = s.attempt(ctx, mine, hurried)
	}
	return err
}

// attempt is a step of one of several replicas, false where another one published while it
// decided. The plans are read before the demand, so that a replica that published with what
// this one has not seen is noticed:
//
//  1. it reads the demand; no request waits
//  2. another replica holds a first request, decides at once, and publishes
//  3. it publishes that no request waits, and the request waits for its next turn
func (s *Scaler) attempt(ctx context.Context, mine, hurried bool) (done bool, err error) {
	last, text, err := s.shared.read(ctx)
	if errors.Is(err, errForeign) && mine {
		last, err = *s.current.Load(), nil // they would stand until they expire
	}
	if err != nil {
		return false, err
	}
	readings, err := s.shared.exchangeDemand(ctx, s.meter.Read())
	if err != nil {
		return false, err
	}
	if !mine && !hurried {
		s.adopt(last)
		return true, nil
	}
	next := s.decide(last, readings)
	if done, err = s.shared.publish(ctx, text, next); done {
		s.adopt(next)
	}
	return done, err
}

// adopt makes plans what this replica answers with. Those of which nothing fresh is
// known keep their age, and so become stale.
func (s *Scaler) adopt(p plans) {
	if p.At.IsZero() {
		return
	}
	s.current.Store(&p)
	s.seen.forget(p.Models)
	var all []Wanted
	var draining []DrainingUnit
	for model, d := range p.Models {
		draining = append(draining, d.Draining...)
		if d.Plan.Known {
			all = append(all, d.wanted(model)...)
		}
	}
	if s.shared != nil {
		for i := range all {
			all[i].At = s.shared.clock.local(all[i].At)
		}
	}
	s.drain(draining)
	s.Publish(all)
}

// drain lets the servers drain that scaling in takes next, and no others. Where none is
// chosen what was done about them is undone, again and again: until the last gateway that
// chooses has gone it is done again.
func (s *Scaler) drain(draining []DrainingUnit) {
	if !s.cfg.ScaleIn {
		draining = nil
	}
	units := make(map[string]bool, len(draining))
	for _, d := range draining {
		units[d.Unit] = true
	}
	s.fleet.SetDrainingUnits(units)
	s.OnDraining(draining)
}

// decide makes the plans that follow from the last and from what gateways measured.
func (s *Scaler) decide(last plans, readings []demand.Reading) plans {
	now := s.now()
	next := plans{At: now, Since: last.Since, Models: make(map[string]*Decision), Memories: make(map[string]*memory)}
	if next.Since == 0 || next.Since > demand.BinOf(now) { // of a Redis whose clock was ahead
		next.Since = demand.BinOf(now)
	}
	elapsed := time.Duration(0)
	if !last.At.IsZero() {
		elapsed = max(0, now.Sub(last.At))
	}
	servers, savings := s.fleet.Servers(), demand.SumSavings(readings)
	names, served, had := s.models(last)
	for _, model := range names {
		m := last.Memories[model]
		if m == nil {
			m = &memory{ColdStart: s.cfg.ColdStart}
		}
		memory := *m
		asked := demand.Sum(readings, model, next.Since, demand.BinOf(now))
		signals, state := s.signals(&memory, servers, model, asked, now)
		var plan sizing.Plan
		plan, memory.Memory = s.cfg.Planner.Plan(signals, memory.Memory, elapsed)
		wants := s.pools(&memory, plan, &signals, &state)
		memory.learnColdStart(&signals, now)
		adapters, there := served[model]
		if !there {
			adapters = had[model]
		}
		memory.Present.seen(there, adapters, asked.Asked(), plan, now)
		if !s.cfg.ScaleIn {
			memory.Draining = nil
		} else if plan.Known {
			memory.chooseDraining(wants, servers, model, savings, now)
		}
		d := &Decision{At: now, Plan: plan, Pools: wants, Signals: signals, WaitingForCapacity: signals.WaitingForCapacity, State: state, Draining: memory.Draining}
		if before := last.Models[model]; plan.Prefill.Reason == sizing.Stale && before != nil {
			d.At = before.At
		}
		next.Models[model], next.Memories[model] = d, &memory
	}
	next.forget(served, now)
	return next
}

// signals are what the planner decides a model from, and the state what others are.
func (s *Scaler) signals(m *memory, servers []*pools.Server, model string, t demand.Total, now time.Time) (sizing.Signals, State) {
	w := workload{seen: t.Seen.Prompt > 0, prompt: max(t.Seen.Prompt, 1), output: max(t.Seen.Output, 1), context: max(t.Seen.Context(), 1), ttft: s.cfg.TTFT.Of(model, model), itl: s.cfg.ITL.Of(model, model), traffic: t.Traffic}
	w.computed = max(1, min(w.prompt, w.prompt*t.Seen.Computed))
	hardware := hardwareOf(servers, model, w, now)
	g := sumUp(hardware)
	m.remember(&g, &s.cfg.Prior, w)
	m.sample(g.kv, now)
	forDecode := g.decodeWaiting + queuedForDecode(&g, &t)
	signals := sizing.Signals{
		Prompt: t.Prompt, Output: t.Output, KV: m.KV,
		PrefillSpeed: g.prefillSpeed, DecodeSpeed: g.decodeSpeed, KVCapacity: g.kvCapacity,
		Prefill: g.prefill, Decode: g.decode, ColdStart: m.ColdStart,
		DecodeBacklog: forDecode * w.output,
	}
	prefill, decode := m.wanted()
	signals.Prefill.Pending = m.pending(0, prefill-g.prefill.Ready, now)
	signals.Decode.Pending = m.pending(1, decode-g.decode.Ready, now)
	if g.prefill.Ready == 0 && g.decode.Convertible == 0 || g.decode.Ready == 0 {
		signals.WaitingForCapacity = t.Waiting.Requests
	}
	// One prompt on each server is being computed; the others wait, but for those that
	// wait for decode.
	if n := float64(t.Waiting.Requests); n > 0 {
		signals.PrefillBacklog = t.Waiting.Prompt * max(0, n-float64(g.prefill.Ready)-forDecode) / n
	}
	state := State{Hardware: hardware, workload: w, TTFT: t.TTFT, ITL: t.ITL, KVQueued: float64(t.Waiting.Requests) * w.prompt}
	state.wait(&g, &t)
	return signals, state
}
