package pools

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-gateway/tandem/pools/curve"
)

// Config is how servers are watched and ejected.
type Config struct {
	ProbeInterval time.Duration // between two probes of one server
	ProbeTimeout  time.Duration // after which a probe is late
	EjectShare    float64       // of a pool that may be ejected softly, 0..1
	SlowStart     time.Duration // longest ramp of a server that returns; 0 is none
	ORCA          string        // format in which prefill legs ask for the server's load: TEXT, JSON or BIN; empty: they do not
	LoadTables    []LoadTable   // how engines tell their load
	Adapters      AdapterConfig
	Sleep         SleepConfig
	Breaker       BreakerConfig
	Prefill       curve.Curve // assumed of a server until it has shown its own, by PrefillFeatures
	Step          curve.Curve // likewise, by StepFeatures
	// Forgetting is the time without a sample in which what a server has shown of its speed
	// loses half its weight to what its peers have.
	Forgetting time.Duration
	// AwaitAddresses: a server is first probed when its names were looked up, or could not be.
	AwaitAddresses bool
}

// Default returns the configuration that a deployment should start from. The
// prefill curve is that of Dynamo's mocker (ai-dynamo/dynamo
// lib/mocker/src/common/perf_model.rs: 16.5 ms + 0.0152 ms n + 4.2e-7 ms n^2), the
// step that of a mid-sized dense model (6 ms + 0.35 ms a sequence + 10 ns a token
// of KV). They only matter until servers have shown their own.
func Default() Config {
	return Config{
		ProbeInterval: time.Second,
		ProbeTimeout:  2 * time.Second,
		EjectShare:    0.5,
		SlowStart:     10 * time.Second,
		ORCA:          "TEXT",
		LoadTables:    DefaultLoadTables(),
		Adapters:      DefaultAdapters(),
		Sleep:         DefaultSleep(),
		Breaker:       DefaultBreaker(),
		Prefill:       curve.Curve{0.0165, 0.015184, 0.00042099},
		Step:          curve.Curve{0.006, 0.00035, 0.01},
		Forgetting:    time.Minute,
	}
}

// Validate reports what is wrong with the configuration, nil if nothing.
func (c Config) Validate() error {
	switch {
	case c.ProbeInterval <= 0 || c.ProbeTimeout <= 0:
		return fmt.Errorf("probe-interval and probe-timeout must be positive")
	case c.EjectShare < 0 || c.EjectShare > 1:
		return fmt.Errorf("eject-share %v: want 0 to 1", c.EjectShare)
	case !slices.Contains([]string{"", "TEXT", "JSON", "BIN"}, c.ORCA):
		return fmt.Errorf("orca %q: want TEXT, JSON, BIN or nothing", c.ORCA)
	case c.Forgetting <= 0:
		return fmt.Errorf("forgetting must be positive")
	case c.SlowStart < 0:
		return fmt.Errorf("slow-start must not be negative")
	case c.Breaker.Consecutive < 1 || c.Breaker.Ratio <= 0 || c.Breaker.Ratio > 1:
		return fmt.Errorf("breaker-failures must be at least 1, breaker-ratio above 0 and at most 1")
	case c.Breaker.Ejection <= 0 || c.Breaker.MaxEjection < c.Breaker.Ejection || c.Breaker.Probe <= 0:
		return fmt.Errorf("breaker-ejection, breaker-max-ejection and breaker-probe must be positive and in order")
	}
	return errors.Join(c.Adapters.Validate(), c.Sleep.Validate())
}

// Fleet is all servers. Readers take Servers(), an immutable snapshot; Apply
// swaps it.
type Fleet struct {
	// Convicted is told of a server that failed a canary: it was at fault since a time, and
	// not what lies between it and others. It is set before the first Apply; nil: nobody
	// is told.
	Convicted func(server string, since time.Time)

	cfg       Config
	transport http.RoundTripper
	log       *slog.Logger
	resolver  *net.Resolver // of servers' own names, as connections to them have it
	lookups   chan struct{} // bounds those at once

	snapshot    atomic.Pointer[[]*Server]
	others      atomic.Pointer[Replicas] // nil while work is not shared
	turns       atomic.Pointer[Turns]    // nil: this gateway alone manages shared GPUs
	adapterLoad atomic.Int64             // ns that loading an adapter took lately; 0 is unknown
	worked      chan struct{}            // says that own work has changed
	changed     changes
	states      changes // of servers' states
	missing     missing

	gpus sync.Map // by label, a chan that whoever changes who is awake there holds

	mu       sync.Mutex // guards watchers and orders calls of Apply
	watchers map[string]watcher
}

type watcher struct {
	*live
	spec Spec
	stop context.CancelFunc
	done chan struct{}
}

// NewFleet returns an empty fleet. The transport carries probes, scrapes and
// canaries.
func NewFleet(cfg Config, transport http.RoundTripper, log *slog.Logger) *Fleet {
	f := &Fleet{
		cfg:       cfg,
		transport: transport,
		log:       log,
		resolver:  net.DefaultResolver,
		lookups:   make(chan struct{}, parallelTargets),
		watchers:  make(map[string]watcher),
		worked:    make(chan struct{}, 1),
	}
	f.snapshot.Store(&[]*Server{})
	return f
}

func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Servers returns the current snapshot; nobody may change it.
func (f *Fleet) Servers() []*Server { return *f.snapshot.Load() }

// Apply makes specs the fleet. Servers that stay keep their state, new ones are
// watched from now on, and those that are gone take no new claim while what they
// have in flight runs out.
func (f *Fleet) Apply(specs []Spec) error {
	if err := ValidateSpecs(specs); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()

	next := make([]*Server, 0, len(specs))
	kept := make(map[string]bool, len(specs))
	for _, spec := range specs {
		// The scheme is part of what is watched: http and https are two servers.
		key := spec.URL + " " + spec.ID()
		w, known := f.watchers[key]
		switch {
		case !known:
			fresh := newLive(f.cfg)
			fresh.changed, fresh.states = &f.changed, &f.states
			for _, b := range fresh.breakers {
				b.convicted = func(since time.Time) { f.convicted(spec.ID(), since) }
			}
			w = f.watch(spec, fresh)
		case !reflect.DeepEqual(w.spec, spec):
			w.stop()
			<-w.done
			w = f.watch(spec, w.live)
		}
		f.watchers[key] = w
		kept[key] = true
		next = append(next, &Server{Spec: spec, id: spec.ID(), class: configuredClass(spec), fleet: f, live: w.live})
	}
	for key, w := range f.watchers {
		if !kept[key] {
			w.stop()
			<-w.done
			delete(f.watchers, key)
		}
	}
	together(next)
	f.snapshot.Store(&next)
	f.changed.note()
	f.states.note()
	return nil
}

func (f *Fleet) convicted(server string, since time.Time) {
	if f.Convicted != nil {
		f.Convicted(server, since)
	}
}

func (f *Fleet) watch(spec Spec, l *live) watcher {
	ctx, stop := context.WithCancel(context.Background())
	w := watcher{live: l, spec: spec, stop: stop, done: make(chan struct{})}
	id := spec.ID()
	p := prober{
		spec: spec, live: l, cfg: f.cfg, log: f.log.With("server", id), load: newScraper(spec, f.cfg.LoadTables),
		client:   &http.Client{Transport: f.transport, Timeout: f.cfg.ProbeTimeout, CheckRedirect: noRedirect},
		patient:  &http.Client{Transport: f.transport, Timeout: max(lateAnswer, f.cfg.ProbeTimeout), CheckRedirect: noRedirect},
		mostLate: f.mostLate, changed: f.noteMissing, asking: new(sync.WaitGroup),
		inFlight: func(now time.Time) InFlight {
			return f.inFlight(id, l, Prefill, now).plus(f.inFlight(id, l, Decode, now))
		},
	}
	proves := p // before it runs: it writes to itself
	var parts sync.WaitGroup
	parts.Go(func() {
		if f.cfg.AwaitAddresses {
			l.addresses.awaitFirst(ctx)
		}
		p.run(ctx)
	})
	parts.Go(func() { l.addresses.run(ctx, spec, f.lookupHost) })
	slow := slowHealthCheck{proves}
	slow.client = &http.Client{Transport: f.transport, CheckRedirect: noRedirect}
	parts.Go(func() { slow.run(ctx) })
	if len(f.cfg.Adapters.Directory) > 0 || spec.GPUs != "" {
		k := keeper{spec: spec, live: l, fleet: f, log: p.log}
		k.client = &http.Client{Transport: f.transport, CheckRedirect: noRedirect} // each order has a time limit of its own
		parts.Go(func() { k.run(ctx) })
	}
	if spec.ORCA != "" {
		s := orcaStream{address: spec.ORCA, fleet: f, id: id, live: l, log: p.log}
		parts.Go(func() { s.run(ctx) })
	}
	for i, leg := range []Role{Prefill, Decode} {
		c := canary{prober: proves, leg: leg, breaker: w.breakers[i]}
		c.client = &http.Client{Transport: f.transport, CheckRedirect: noRedirect}
		if spec.Role.Serves(leg) {
			parts.Go(func() { c.run(ctx) })
		}
	}
	go func() {
		defer close(w.done)
		parts.Wait()
	}()
	return w
}

// Close stops watching and waits for the watchers to end.
func (f *Fleet) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for key, w := range f.watchers {
		w.stop()
		<-w.done
		delete(f.watchers, key)
	}
}

// inFlight is the outstanding work of all gateways on a server.
func (f *Fleet) inFlight(id string, l *live, leg Role, now time.Time) InFlight {
	sum := l.OwnInFlight(leg, now)
	if r := f.others.Load(); r != nil {
		sum = sum.plus(r.inFlight(id, leg, now))
	}
	return sum
}

// noteWork wakes whoever tells other replicas of this one's work.
func (f *Fleet) noteWork() {
	select {
	case f.worked <- struct{}{}:
	default:
	}
}

// ValidateSpecs reports what is wrong with a fleet, nil if nothing.
func ValidateSpecs(specs []Spec) error {
	named := make(map[string]bool, len(specs))
	for _, s := range specs {
		if err := s.Validate(); err != nil {
			return err
		}
		id := s.ID()
		if named[id] {
			return fmt.Errorf("server %s is named twice; one that does both is named under both", id)
		}
		named[id] = true
	}
	return nil
}

// Model returns a model that some server serves, or served when last up, or can load.
func (f *Fleet) Model(id string) (Model, bool) {
	for _, s := range f.Servers() {
		if m, served := s.Health().model(id); served {
			return m, true
		}
	}
	a, onDemand := f.cfg.Adapters.find(id)
	for _, s := range f.Servers() {
		if base, fits := a.base(s.Health().Models); onDemand && fits {
			return a.as(base), true
		}
	}
	return Model{}, false
}

// KnowsModels reports whether any server has told of a model.
func (f *Fleet) KnowsModels() bool {
	return slices.ContainsFunc(f.Servers(), func(s *Server) bool { return len(s.Health().Models) > 0 })
}

// Loads reports whether servers of a base model may be told to load an adapter.
func (f *Fleet) Loads(base, adapter string) bool {
	a, onDemand := f.cfg.Adapters.find(adapter)
	return onDemand && (a.Base == "" || a.Base == base)
}

// Models returns the union of what the servers serve, or served when last up, and of
// what they can load, sorted by ID.
func (f *Fleet) Models() []Model {
	seen := make(map[string]bool)
	var models []Model
	add := func(m Model) {
		if !seen[m.ID] {
			seen[m.ID] = true
			models = append(models, m)
		}
	}
	for _, s := range f.Servers() {
		for _, m := range s.Health().Models {
			add(m)
		}
	}
	for _, a := range f.cfg.Adapters.Directory {
		if m, served := f.Model(a.Name); served {
			add(m)
		}
	}
	slices.SortFunc(models, func(a, b Model) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	return models
}

// ProbeInterval is how often a server is probed and its load read.
func (f *Fleet) ProbeInterval() time.Duration { return f.cfg.ProbeInterval }
