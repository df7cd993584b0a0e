package pools

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	orca "github.com/cncf/xds/go/xds/data/orca/v3"

	"github.com/tandem-gateway/tandem/pools/address"
	"github.com/tandem-gateway/tandem/pools/breaker"
	"github.com/tandem-gateway/tandem/pools/curve"
	"github.com/tandem-gateway/tandem/pools/load"
)

// Config is how servers are watched and ejected.
type Config struct {
	ProbeInterval time.Duration // between two probes of one server
	ProbeTimeout  time.Duration // after which a probe is late
	EjectShare    float64       // of a pool that may be ejected softly, 0..1
	SlowStart     time.Duration // longest ramp of a server that returns; 0 is none
	ORCA          string        // format in which prefill legs ask for the server's load: TEXT, JSON or BIN; empty: they do not
	LoadTables    []load.Table  // how engines tell their load
	Adapters      AdapterConfig
	Sleep         SleepConfig
	Breaker       breaker.Config
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
		LoadTables:    load.DefaultTables(),
		Adapters:      DefaultAdapters(),
		Sleep:         DefaultSleep(),
		Breaker:       breaker.Default(),
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
	}
	return errors.Join(c.Breaker.Validate(), c.Adapters.Validate(), c.Sleep.Validate())
}

// Fleet is all servers. Readers take Servers(), an immutable snapshot; Apply
// swaps it.
type Fleet struct {
	// Blamed is told of a server that failed a canary: it was at fault since a time, and
	// not what lies between it and others. It is set before the first Apply; nil: nobody
	// is told.
	Blamed func(server string, since time.Time)

	cfg   Config
	log   *slog.Logger
	names *address.Resolver // of servers' own names, as connections to them have it

	snapshot    atomic.Pointer[[]*Server]
	replicas    atomic.Pointer[ReplicaWork] // nil while work is not shared
	adapterLoad atomic.Int64                // ns that loading an adapter took lately; 0 is unknown
	worked      chan struct{}               // says that own work has changed
	changed     changes
	states      changes // of servers' states
	missing     missing

	mu      sync.Mutex // guards the rest and orders calls of Apply
	watches []Watch
	watched map[string]watched // by scheme and ID: http and https are two servers
}

// Watch is called once for each server that the fleet comes to know. What it returns follows
// that server until the context ends, and again when its spec has changed; so it may keep
// what it learns of the server between the two.
type Watch func() (follow func(context.Context, *Server))

// watched is a server with those who follow it.
type watched struct {
	*live
	spec   Spec
	follow []func(context.Context, *Server)
	stop   context.CancelFunc
	done   chan struct{}
}

// NewFleet returns an empty fleet, whose servers nobody follows: see Watch.
func NewFleet(cfg Config, log *slog.Logger) *Fleet {
	f := &Fleet{
		cfg:     cfg,
		log:     log,
		names:   address.NewResolver(net.DefaultResolver),
		watched: make(map[string]watched),
		worked:  make(chan struct{}, 1),
	}
	f.snapshot.Store(&[]*Server{})
	return f
}

// Watch has the servers followed that the fleet comes to know from now on.
func (f *Fleet) Watch(w Watch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watches = append(f.watches, w)
}

// Config is what the fleet was made with.
func (f *Fleet) Config() Config { return f.cfg }

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
		key := spec.URL + " " + spec.ID()
		w, known := f.watched[key]
		switch {
		case !known:
			w = f.follow(spec, f.newWatched(spec.ID()))
		case !reflect.DeepEqual(w.spec, spec):
			w.end()
			w = f.follow(spec, w)
		}
		f.watched[key] = w
		kept[key] = true
		next = append(next, f.server(spec, w.live))
	}
	for key, w := range f.watched {
		if !kept[key] {
			w.end()
			delete(f.watched, key)
		}
	}
	together(next)
	f.snapshot.Store(&next)
	f.changed.note()
	f.states.note()
	return nil
}

func (f *Fleet) blamed(server string, since time.Time) {
	if f.Blamed != nil {
		f.Blamed(server, since)
	}
}

func (f *Fleet) server(spec Spec, l *live) *Server {
	return &Server{Spec: spec, id: spec.ID(), class: configuredClass(spec), fleet: f, live: l}
}

// newWatched is a server that the fleet did not know.
func (f *Fleet) newWatched(id string) watched {
	w := watched{live: newLive(f.cfg)}
	w.changed, w.states = &f.changed, &f.states
	for _, b := range w.breakers {
		b.OnBlame(func(since time.Time) { f.blamed(id, since) })
	}
	for _, watch := range f.watches {
		w.follow = append(w.follow, watch())
	}
	return w
}

// follow has a server followed by all who watch the fleet.
func (f *Fleet) follow(spec Spec, w watched) watched {
	ctx, stop := context.WithCancel(context.Background())
	w.spec, w.stop, w.done = spec, stop, make(chan struct{})
	s := f.server(spec, w.live)
	var parts sync.WaitGroup
	for _, follow := range w.follow {
		parts.Go(func() { follow(ctx, s) })
	}
	parts.Go(func() { w.addresses.Run(ctx, spec.KVHosts(), f.names) })
	if spec.ORCA != "" {
		take := func(report *orca.OrcaLoadReport) { s.noteReport(report, time.Now()) }
		parts.Go(func() { load.FollowORCA(ctx, spec.ORCA, take, f.log.With("server", s.id)) })
	}
	go func() {
		defer close(w.done)
		parts.Wait()
	}()
	return w
}

// end lets nobody follow the server any more, and waits until nobody does.
func (w *watched) end() {
	w.stop()
	<-w.done
}

// AwaitAddresses waits until the server's names were looked up, or could not be, where the
// configuration says that it is not probed before.
func (s *Server) AwaitAddresses(ctx context.Context) {
	if s.fleet.cfg.AwaitAddresses {
		s.addresses.AwaitFirst(ctx)
	}
}

// Close lets nobody follow the servers any more, and waits until nobody does.
func (f *Fleet) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for key, w := range f.watched {
		w.end()
		delete(f.watched, key)
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
	a, onDemand := f.cfg.Adapters.Find(id)
	for _, s := range f.Servers() {
		if base, fits := a.BaseIn(s.Health().Models); onDemand && fits {
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
	a, onDemand := f.cfg.Adapters.Find(adapter)
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
