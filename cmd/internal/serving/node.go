package serving

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"
	"github.com/redis/go-redis/v9"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/tandem-gateway/tandem/autoscale"
	"github.com/tandem-gateway/tandem/autoscale/keda"
	"github.com/tandem-gateway/tandem/cmd/internal/version"
	"github.com/tandem-gateway/tandem/gateway"
	"github.com/tandem-gateway/tandem/gateway/access"
	"github.com/tandem-gateway/tandem/kvstate/zmqsub"
	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/order"
	"github.com/tandem-gateway/tandem/pools"
)

// Node is one gateway process: everything that serve wires together.
type Node struct {
	cfg           config
	log           *slog.Logger
	fleet         *pools.Fleet
	sources       *pools.Sources // say who is in the fleet
	access        *access.Control
	quotas        *access.QuotaSync // nil without a Redis
	server        *gateway.Server
	tracing       *sdktrace.TracerProvider
	admin         *http.Server
	draining      atomic.Bool
	dns           *pools.DNS
	announced     *pools.Announced // nil: no engine announces itself
	announcements *zmqsub.Announcements
	registry      *pools.Registry       // nil: no server registers itself
	cluster       *pools.Kubernetes     // nil: no servers are found there
	redis         redis.UniversalClient // nil: this gateway is alone
	replicas      *pools.Replicas       // likewise
	turns         *pools.Turns          // likewise
	replica       string                // its own name among them
	decider       *decider              // nil: it decides for itself
	locality      *pd.Locality
	feeds         *feeds
	lessons       *pd.Lessons    // nil without a Redis
	experience    *pd.Experience // likewise

	orchestrator *pd.Orchestrator

	clients  net.Listener
	operator net.Listener
	orca     *orcaServer // nil: nobody follows this gateway's load
	planner  *autoscale.Scaler
	targets  *keda.PublishedTargets // what KEDA reads
	scaler   *scalerServer
}

// New wires a gateway and binds its ports; it serves nothing yet.
func New(ctx context.Context, cfg config, log *slog.Logger) (n *Node, err error) {
	n = &Node{cfg: cfg, log: log}
	defer func() {
		if err != nil {
			n, err = nil, errors.Join(err, n.closePorts())
		}
	}()
	if n.tracing, err = newTracing(ctx, cfg.otlp, cfg.traceShare); err != nil {
		return n, err
	}
	if err = n.listen(); err != nil {
		return n, err
	}
	transport, err := cfg.engineTransport()
	if err != nil {
		return n, err
	}
	own, err := withEngineKey(transport, cfg.engineKey)
	if err != nil {
		return n, err
	}
	watching := cfg.pools
	watching.AwaitAddresses = cfg.pd.StrictHandoffs
	n.fleet = pools.NewFleet(watching, own, log)
	n.sources = pools.NewSources(n.fleet, log)
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), version.Collector(), n.fleet.Collector())
	if err = n.joinReplicas(reg); err != nil {
		return n, err
	}
	if err = n.learnKV(own, reg); err != nil {
		return n, err
	}
	if n.access, err = newAccess(cfg.access, n.quotas); err != nil {
		return n, err
	}
	legs := http.RoundTripper(transport)
	if !n.access.Open() {
		legs = own // clients' keys are ours, and engines have theirs
	}
	if err = n.orchestrate(legs, reg); err != nil {
		return n, err
	}
	if err = n.serveOperators(reg); err != nil {
		return n, err
	}
	return n, n.findServers(reg)
}

// ClientAddr is where clients reach it.
func (n *Node) ClientAddr() net.Addr { return n.clients.Addr() }

// AdminAddr is where operators do.
func (n *Node) AdminAddr() net.Addr { return n.operator.Addr() }

// AwaitServers waits until so many servers are up.
func (n *Node) AwaitServers(ctx context.Context, want int) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		up := 0
		for _, s := range n.fleet.Servers() {
			if s.Health().Up {
				up++
			}
		}
		if up >= want {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d servers are up: %w", up, want, ctx.Err())
		case <-tick.C:
		}
	}
}

// listen binds the ports for clients and for operators.
func (n *Node) listen() (err error) {
	if n.clients, err = net.Listen("tcp", n.cfg.listen); err != nil {
		return fmt.Errorf("listen for clients: %w", err)
	}
	encrypted, err := n.cfg.clientTLS.Server(tls.NoClientCert, n.log)
	if err != nil {
		return err
	}
	if encrypted != nil {
		encrypted.NextProtos = []string{"http/1.1"}
		n.clients = tls.NewListener(n.clients, encrypted)
	}
	if n.operator, err = net.Listen("tcp", n.cfg.admin); err != nil {
		return fmt.Errorf("listen for admin: %w", err)
	}
	conf, err := n.cfg.adminTLS.Server(tls.VerifyClientCertIfGiven, n.log)
	if conf != nil {
		n.operator = tls.NewListener(n.operator, conf)
	}
	return err
}

// closePorts gives up what a node that is not run has bound.
func (n *Node) closePorts() error {
	failed := errors.Join(n.decider.Close(), n.orca.Close(), n.scaler.Close())
	for _, port := range []net.Listener{n.clients, n.operator} {
		if port != nil {
			failed = errors.Join(failed, port.Close())
		}
	}
	return failed
}

// joinReplicas lets gateways that share a Redis know of each other; without one there is
// nothing to do.
func (n *Node) joinReplicas(reg prometheus.Registerer) (err error) {
	if n.cfg.redis.Alone() {
		return nil
	}
	if n.redis, err = n.cfg.redis.Client(); err != nil {
		return err
	}
	n.replica = n.cfg.redis.replicaName()
	n.replicas = pools.NewReplicas(n.fleet, n.redis, n.cfg.redis.Prefix, n.replica, n.log)
	n.turns = pools.NewTurns(n.fleet, n.redis, n.cfg.redis.Prefix, n.replica, n.log)
	n.quotas = access.NewQuotaSync(n.redis, n.cfg.redis.Prefix, n.replica, n.log)
	reg.MustRegister(n.replicas)
	return nil
}

// learnKV wires what finds the tokens of prompts, and who holds their KV.
func (n *Node) learnKV(own http.RoundTripper, reg *prometheus.Registry) (err error) {
	if err = n.locate(own, reg); err != nil {
		return err
	}
	if n.feeds, err = n.newFeeds(); err != nil {
		return err
	}
	reg.MustRegister(n.locality.Index.Collector(), n.feeds.hub.Collector())
	if n.redis != nil {
		reg.MustRegister(n.feeds.shared)
		n.lessons = pd.NewLessons(n.locality, n.redis, n.cfg.redis.Prefix, n.log)
	}
	return nil
}

// orchestrate wires what runs requests.
func (n *Node) orchestrate(legs http.RoundTripper, reg *prometheus.Registry) error {
	cfg, queue, suspects := &n.cfg, pd.NewQueue(n.cfg.queue), pd.NewQuarantine()
	metrics := pd.NewMetrics(reg, queue, suspects)
	binder := &pd.Binder{Queue: queue, Tracer: n.tracing.Tracer("tandem"), Chooser: &pd.Chooser{
		Config: cfg.pd.BindConfig, Cost: cfg.cost, Links: pd.NewLinks(cfg.links), Outputs: pd.NewOutputs(),
		Fleet: n.fleet, Locality: n.locality, Metrics: metrics,
	}}
	n.orchestrator = &pd.Orchestrator{
		Config:    cfg.pd.LegConfig,
		Binder:    binder,
		Fleet:     n.fleet,
		Transport: legs,
		Queue:     queue,
		Budget:    pd.NewBudget(cfg.pd.RetryRatio, cfg.pd.RetryFloor),
		Decisions: pd.NewDecisions(1024),
		Suspects:  suspects,
		Metrics:   metrics,
		Tracer:    binder.Tracer,
		Log:       n.log,
	}
	n.fleet.Convicted = binder.Links.Acquit
	if n.redis != nil {
		n.experience = pd.NewExperience(binder.Links, cfg.links, binder.Outputs, n.fleet, cfg.pools, n.redis, cfg.redis.Prefix, n.replica, n.log)
		reg.MustRegister(n.experience)
	}
	if cfg.binding != pd.Late {
		return nil
	}
	turns := order.DefaultConfig()
	turns.Patience = cfg.queue.MaxWait
	binder.Late = pd.NewDecider(binder.Chooser, turns, cfg.queue.MaxWait, n.log)
	if n.redis == nil {
		return nil
	}
	return n.decideTogether(binder, reg)
}

// serveOperators wires the ports beside that for clients: admin, load reports, KEDA.
func (n *Node) serveOperators(reg *prometheus.Registry) error {
	token, err := ReadAdminToken(n.cfg.access.adminTokenFile)
	if err != nil {
		return err
	}
	o := n.orchestrator
	n.targets = keda.NewPublishedTargets(scalerMaxAge)
	reg.MustRegister(n.targets)
	clients := n.cfg.gateway
	clients.MaxArriving = n.cfg.queue.MaxBytes
	n.server = gateway.New(clients, n.access, o, gateway.NewMetrics(reg))
	n.plan(reg)
	n.admin = &http.Server{
		Handler:           gateway.Guarded(token, n.cfg.adminTLS.ClientCA != "", n.cfg.access.adminNames, withScaling(gateway.Admin(n.fleet, o, n.scraped(reg, o.Metrics), n.draining.Load), n.targets)),
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       adminIdle,
		ErrorLog:          slog.NewLogLogger(n.log.Handler(), slog.LevelWarn),
	}
	if n.orca, err = newORCAServer(n.cfg.orca, n.server); err != nil {
		return err
	}
	n.scaler, err = newScalerServer(n.cfg.scaler, n.targets, n.log)
	return err
}

// findServers wires where the fleet comes from, and takes over what is configured.
func (n *Node) findServers(reg *prometheus.Registry) error {
	if err := n.discover(); err != nil {
		return err
	}
	if err := n.sources.Set("configuration", n.cfg.specs()); err != nil {
		return err
	}
	return n.findInKubernetes(reg)
}

// scraped gives the registry without the series of servers that are gone.
func (n *Node) scraped(reg *prometheus.Registry, metrics *pd.Metrics) prometheus.Gatherer {
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		there := make(map[string]bool)
		for _, s := range n.fleet.Servers() {
			there[s.ID()] = true
		}
		metrics.Keep(func(server string) bool { return there[server] })
		return reg.Gather()
	})
}

// newAccess returns the access control with the keys of the configured file.
func newAccess(cfg accessConfig, quotas *access.QuotaSync) (*access.Control, error) {
	a := access.New(cfg.Config, quotas)
	keys, err := cfg.keys()
	if err != nil {
		return nil, err
	}
	a.Apply(keys)
	return a, nil
}

// Run serves until the context ends, then stops in order: unready, wait, stop
// accepting, drain, stop the watchers, flush the traces.
func (n *Node) Run(ctx context.Context) error {
	beside, ended := context.WithCancel(context.WithoutCancel(ctx))
	defer ended()
	background := n.background(beside)
	failed := make(chan error, 4)
	go func() { failed <- n.server.Serve(n.clients) }()
	go func() { failed <- ignoreClosed(n.admin.Serve(n.operator)) }()
	if n.orca != nil {
		go func() { failed <- n.orca.serve() }()
	}
	if n.scaler != nil {
		go func() { failed <- n.scaler.serve() }()
	}
	n.log.Info("listening", "clients", n.clients.Addr().String(), "admin", n.operator.Addr().String(), "version", version.String())

	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	n.draining.Store(true)
	n.decider.Retire()
	n.server.Drain()
	n.admin.SetKeepAlivesEnabled(false) // who asks again finds another gateway by its address
	n.log.Info("draining", "delay", n.cfg.drainDelay.String(), "timeout", n.cfg.drainTimeout.String())
	time.Sleep(n.cfg.drainDelay)

	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), n.cfg.drainTimeout)
	defer cancel()
	err = errors.Join(err, n.server.Shutdown(drain), n.stopAdmin(drain), n.orca.Close(), n.scaler.Close())
	ended()
	<-background
	n.orchestrator.Wait()
	n.fleet.Close()
	n.locality.Close()
	flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if ferr := n.tracing.Shutdown(flush); ferr != nil {
		n.log.Warn("some traces were not sent", "error", ferr.Error())
	}
	return err
}

// adminIdle is how long a connection to the admin port may stay open between two requests:
// longer than what scrapes it waits.
const adminIdle = 2 * time.Minute

// adminDrain is how long what an operator asked may take to be answered. Connections
// that are only open would be waited for without it.
const adminDrain = 500 * time.Millisecond

func (n *Node) stopAdmin(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, adminDrain)
	defer cancel()
	if n.admin.Shutdown(ctx) == nil {
		return nil
	}
	return n.admin.Close()
}

func ignoreClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// reload makes the servers of next the fleet and names what needs a restart.
func (n *Node) reload(next config) error {
	if err := n.sources.Set("configuration", next.specs()); err != nil {
		return err
	}
	n.dns.SetNames(next.names())
	if names := restartNeeded(n.cfg, next); len(names) > 0 {
		n.log.Warn("settings changed that need a restart", "settings", names)
	}
	n.log.Info("configuration reloaded", "servers", len(next.specs()))
	return nil
}

// reloadKeys makes what the file of keys says now the keys.
func (n *Node) reloadKeys() error {
	keys, err := n.cfg.access.keys()
	if err != nil {
		return err
	}
	n.access.Apply(keys)
	count, tenants := keys.Len()
	n.log.Info("keys reloaded", "keys", count, "tenants", tenants)
	return nil
}
