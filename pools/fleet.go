package pools

import (
	"context"
	"log/slog"
	"net"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	orca "github.com/cncf/xds/go/xds/data/orca/v3"

	"github.com/tandem-gateway/tandem/pools/address"
	"github.com/tandem-gateway/tandem/pools/load"
)

// Fleet is all servers. Readers take Servers(), an immutable snapshot; Apply
// swaps it.
type Fleet struct {
	// OnBlame is called with a server that failed a probe request: it was at fault since a
	// time, and not what lies between it and others. It is set before the first Apply; nil:
	// nothing is called.
	OnBlame func(server string, since time.Time)

	cfg   Config
	log   *slog.Logger
	names *address.Resolver // of servers' own names, as connections to them have it
	began time.Time

	snapshot    atomic.Pointer[[]*Server]
	replicas    atomic.Pointer[ReplicaWork] // nil while work is not shared
	adapterLoad atomic.Int64                // ns that loading an adapter took lately; 0 is unknown
	adapterUse  adapterUse
	worked      changes // of its own work
	changed     changes
	states      changes // of servers' states
	contexts    atomic.Pointer[contexts]
	missing     missing
	expected    atomic.Int32 // sources that have not reported their servers yet

	mu      sync.Mutex // guards the rest and orders calls of Apply and SetDrain
	watches []Watch
	watched map[string]watched // by scheme and ID: http and https are two servers
}

// Watch is called once for each server that the fleet comes to know. What it returns follows
// that server until the context ends, and again when its spec has changed; so it may keep
// what it learns of the server between the two.
type Watch func() (follow func(context.Context, *Server))

// watched is a server with what follows it.
type watched struct {
	*serverState
	spec   Spec
	follow []func(context.Context, *Server)
	stop   context.CancelFunc
	done   chan struct{}
}

// NewFleet returns an empty fleet. Nothing follows its servers until Watch is called.
func NewFleet(cfg Config, log *slog.Logger) *Fleet {
	f := &Fleet{
		cfg:     cfg,
		log:     log,
		names:   address.NewResolver(net.DefaultResolver),
		began:   time.Now(),
		watched: make(map[string]watched),
	}
	f.snapshot.Store(&[]*Server{})
	return f
}

// Watch sets what follows each server that the fleet gets to know from now on.
func (f *Fleet) Watch(w Watch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watches = append(f.watches, w)
}

// Config is what the fleet was made with.
func (f *Fleet) Config() Config { return f.cfg }

// Servers returns the current snapshot; callers must not change it.
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
		next = append(next, f.server(spec, w.serverState))
	}
	for key, w := range f.watched {
		if !kept[key] {
			w.leave()
			delete(f.watched, key)
		}
	}
	joinGroups(next)
	f.snapshot.Store(&next)
	f.changed.notify()
	f.states.notify()
	f.updateMissing()
	return nil
}

func (f *Fleet) reportBlame(server string, since time.Time) {
	if f.OnBlame != nil {
		f.OnBlame(server, since)
	}
}

func (f *Fleet) server(spec Spec, l *serverState) *Server {
	host, address := hostPort(spec.URL)
	scheme, authority := splitURL(spec.URL)
	return &Server{Spec: spec, id: spec.ID(), host: host, address: address, scheme: scheme, authority: authority, key: configuredKey(spec), kvHosts: spec.KVHosts(), fleet: f, serverState: l}
}

// newWatched is a server that the fleet did not know.
func (f *Fleet) newWatched(id string) watched {
	w := watched{serverState: newServerState(f.cfg)}
	w.changed, w.states = &f.changed, &f.states
	for _, leg := range []Role{Prefill, Decode} {
		b := w.breakers[LegIndex(leg)]
		b.OnBlame(func(since time.Time) { f.reportBlame(id, since) })
		b.OnEject(func(reason string) {
			w.countChange()
			f.log.Warn("server ejected: its breaker is open until a probe request proves it", "server", id, "leg", leg.String(), "reason", reason)
		})
	}
	for _, watch := range f.watches {
		w.follow = append(w.follow, watch())
	}
	return w
}

// follow starts what all watches of the fleet do for a server.
func (f *Fleet) follow(spec Spec, w watched) watched {
	ctx, stop := context.WithCancel(context.Background())
	w.spec, w.stop, w.done = spec, stop, make(chan struct{})
	s := f.server(spec, w.serverState)
	var parts sync.WaitGroup
	for _, follow := range w.follow {
		parts.Go(func() { follow(ctx, s) })
	}
	parts.Go(func() { w.addresses.Run(ctx, spec.KVHosts(), f.names) })
	if spec.ORCA != "" {
		take := func(report *orca.OrcaLoadReport) { s.recordReport(report, time.Now()) }
		parts.Go(func() { load.FollowORCA(ctx, spec.ORCA, take, f.log.With("server", s.id)) })
	}
	go func() {
		defer close(w.done)
		parts.Wait()
	}()
	return w
}

// end stops what follows the server, and waits for it.
func (w *watched) end() {
	w.stop()
	<-w.done
}

// leave is end of a server that leaves the fleet: what waits for it to be made ready fails.
func (w *watched) leave() {
	w.end()
	w.CloseStandby()
}

// AwaitAddresses waits until the server's names were looked up, or could not be, where it is
// configured not to be probed before.
func (s *Server) AwaitAddresses(ctx context.Context) {
	if s.fleet.cfg.AwaitAddresses {
		s.addresses.AwaitFirst(ctx)
	}
}

// Close stops what follows the servers, and waits for it.
func (f *Fleet) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for key, w := range f.watched {
		w.leave()
		delete(f.watched, key)
	}
}

// ProbeInterval is how often a server is probed and its load read.
func (f *Fleet) ProbeInterval() time.Duration { return f.cfg.ProbeInterval }
