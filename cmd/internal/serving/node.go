package serving

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"

	"github.com/tandem-gateway/tandem/autoscale"
	"github.com/tandem-gateway/tandem/autoscale/keda"
	"github.com/tandem-gateway/tandem/cmd/internal/version"
	"github.com/tandem-gateway/tandem/gateway"
	"github.com/tandem-gateway/tandem/gateway/access"
	"github.com/tandem-gateway/tandem/gateway/live"
	"github.com/tandem-gateway/tandem/gateway/peers"
	"github.com/tandem-gateway/tandem/kvstate/ghost"
	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/answerkv"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/decision"
	"github.com/tandem-gateway/tandem/pd/enginehttp"
	"github.com/tandem-gateway/tandem/pd/history"
	"github.com/tandem-gateway/tandem/pd/modelsync"
	"github.com/tandem-gateway/tandem/pd/modeltokens"
	"github.com/tandem-gateway/tandem/pd/order"
	"github.com/tandem-gateway/tandem/pd/predict"
	"github.com/tandem-gateway/tandem/pd/queue"
	"github.com/tandem-gateway/tandem/pd/retry"
	"github.com/tandem-gateway/tandem/pd/textsync"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/discovery"
	"github.com/tandem-gateway/tandem/pools/health"
	"github.com/tandem-gateway/tandem/pools/standby"
)

// Node is one gateway process: everything that serve wires together.
type Node struct {
	cfg          config
	log          *slog.Logger
	fleet        *pools.Fleet
	discovery    serverSources // says which servers are in the fleet
	sharing      sharing       // what it does together with other replicas
	locality     *pd.Locality
	feeds        *feeds
	access       *access.Control
	orchestrator *pd.Orchestrator
	server       *gateway.Server
	planner      *autoscale.Scaler
	targets      *keda.PublishedTargets // what KEDA reads
	ports        ports
	draining     atomic.Bool
	instance     string       // names this process among all gateways
	peers        *peers.Asker // the admin ports of the others
	tracing      tracing
	reloads      *FileReloads
	secrets      secrets
}

// New wires a gateway with settings, by the names of their flags, and servers, and binds its
// ports; it serves nothing yet.
func New(ctx context.Context, settings map[string]string, servers []discovery.Entry, log *slog.Logger) (*Node, error) {
	cfg, err := configWith(settings, servers)
	if err != nil {
		return nil, err
	}
	return newNode(ctx, cfg, log)
}

// newNode wires a gateway and binds its ports.
func newNode(ctx context.Context, cfg config, log *slog.Logger) (n *Node, err error) {
	n = &Node{log: log, instance: cfg.redis.replicaName(), reloads: NewFileReloads()}
	n.reloads.watchCertificates(&cfg)
	cfg.redis.log = log
	n.cfg = cfg
	defer func() {
		if err != nil {
			n, err = nil, errors.Join(err, n.sharing.decider.Close(), n.ports.close())
		}
	}()
	if n.tracing, err = newTracing(ctx, cfg.telemetry.otlp, cfg.telemetry.traceShare, n.instance); err != nil {
		return n, err
	}
	if err = n.ports.listen(&cfg.ports, log); err != nil {
		return n, err
	}
	bare, err := cfg.engines.transport(log)
	if err != nil {
		return n, err
	}
	transport := withAgent(bare, cfg.fleetName())
	if n.secrets, err = cfg.secrets(); err != nil {
		return n, err
	}
	own := withEngineKey(transport, n.secrets.engineKey)
	watching := cfg.pools.Config
	watching.AwaitAddresses = cfg.pd.StrictHandoffs
	n.fleet = pools.NewFleet(watching, log)
	n.discovery.sources = discovery.NewSources(n.fleet, log)
	reg := newMetricsRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), version.Collector(), version.TargetInfo(n.instance), n.fleet.Collector(), n.reloads)
	if err = n.joinReplicas(reg); err != nil {
		return n, err
	}
	health.Watch(n.fleet, own, log)
	standby.Watch(n.fleet, n.sharing.gpuArbiter, own, log)
	if err = n.learnKV(own, reg); err != nil {
		return n, err
	}
	if n.access, err = newAccess(cfg.access, n.sharing.quotas); err != nil {
		return n, err
	}
	legs := transport
	if !n.access.AllowsAnonymous() {
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

// ClientAddr is where clients reach it; nil where only the picker serves them.
func (n *Node) ClientAddr() net.Addr {
	if n.ports.clients == nil {
		return nil
	}
	return n.ports.clients.Addr()
}

// PickerAddr is where proxies ask where requests go; nil where they do not.
func (n *Node) PickerAddr() net.Addr {
	if n.ports.picker == nil {
		return nil
	}
	return n.ports.picker.listener.Addr()
}

// AdminAddr is where operators do.
func (n *Node) AdminAddr() net.Addr { return n.ports.operator.Addr() }

// pageURL is where a browser on this machine finds the live page.
func (n *Node) pageURL() string {
	scheme, host := "http", n.ports.operator.Addr().String()
	if n.cfg.ports.adminTLS.Cert != "" {
		scheme = "https"
	}
	if address, ok := n.ports.operator.Addr().(*net.TCPAddr); ok && address.IP.IsUnspecified() {
		host = net.JoinHostPort("localhost", strconv.Itoa(address.Port))
	}
	return scheme + "://" + host + "/ui/"
}

// PairPaysFrom is from how many prompt tokens on an answer of so many goes to a pair now.
func (n *Node) PairPaysFrom(model string, outputTokens int) (promptTokens int, ok bool) {
	return n.orchestrator.Binder.PairPaysFrom(model, outputTokens)
}

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

// learnKV wires what finds the tokens of prompts, and the servers that hold their KV.
func (n *Node) learnKV(own http.RoundTripper, reg *metricsRegistry) (err error) {
	if err = n.locate(own, reg); err != nil {
		return err
	}
	if n.feeds, err = n.newFeeds(); err != nil {
		return err
	}
	takePushedLoad(n.fleet, n.feeds.hub, n.log)
	reg.MustRegister(n.locality.Index.Collector(), n.feeds.hub.Collector())
	if n.sharing.redis != nil {
		reg.MustRegister(n.feeds.shared)
		n.sharing.tokenSync = modeltokens.NewSync(n.locality.Tokens, n.sharing.redis, n.cfg.redis.Prefix, n.log)
		n.sharing.textSync = textsync.New(n.locality.SentText, n.sharing.redis, n.cfg.redis.Prefix, n.instance, n.log)
		reg.MustRegister(n.sharing.textSync)
	}
	return nil
}

// orchestrate wires what runs requests.
func (n *Node) orchestrate(legs http.RoundTripper, reg *metricsRegistry) error {
	cfg, queue, suspects := &n.cfg, queue.New(n.cfg.pd.queue), retry.NewQuarantine()
	metrics := pd.NewMetrics(reg, cfg.telemetry.histograms, queue, suspects)
	ghosts := new(ghost.Memories)
	reg.MustRegister(pd.LostShares(ghosts))
	binder := &pd.Binder{Queue: queue, Tracer: n.tracing.tracer, Chooser: &pd.Chooser{
		Snapshotter: pd.Snapshotter{
			Config: cfg.pd.BindConfig, Fleet: n.fleet, Links: cost.NewLinks(cfg.cost.links), Locality: n.locality, Cost: cfg.cost.Model,
			Answers: new(answerkv.Answers), Meetings: new(predict.Meetings), Ghosts: ghosts,
		},
		Outputs: predict.NewOutputs(), Prompts: predict.NewPrompts(), Metrics: metrics,
	}}
	n.orchestrator = &pd.Orchestrator{
		Config:    cfg.pd.LegConfig,
		Binder:    binder,
		Fleet:     n.fleet,
		Transport: legs,
		Queue:     queue,
		Budget:    retry.NewBudget(cfg.pd.RetryRatio, cfg.pd.RetryFloor),
		Decisions: decision.NewRecords(cfg.telemetry.history, cfg.telemetry.historyBytes),
		History:   history.New(),
		Suspects:  suspects,
		Answers:   enginehttp.NewAnswerBudget(cfg.pd.queue.MaxBytes, n.access.HasSeveralTenants),
		Metrics:   metrics,
		Tracer:    binder.Tracer,
		Log:       n.log,

		HandoffKey: n.secrets.handoffKey.current,
	}
	n.fleet.OnBlame = binder.Links.Clear
	if n.sharing.redis != nil {
		learned := modelsync.Learned{Fleet: n.fleet, Links: binder.Links, Outputs: binder.Outputs, Prompts: binder.Prompts, Translations: n.locality.Tokens}
		n.sharing.modelSync = modelsync.New(learned, cfg.cost.links, cfg.pools.Config, n.sharing.redis, cfg.redis.Prefix, n.instance, n.log)
		reg.MustRegister(n.sharing.modelSync)
	}
	if cfg.pd.binding != pd.Late {
		return nil
	}
	turns := order.DefaultConfig()
	turns.Patience = cfg.pd.queue.MaxWait
	binder.Late = pd.NewDecider(binder.Chooser, turns, cfg.pd.queue.MaxWait, n.log)
	if n.sharing.redis == nil {
		return nil
	}
	return n.decideTogether(binder, reg)
}

// serveOperators wires the ports beside that for clients: admin, load reports, KEDA.
func (n *Node) serveOperators(reg *metricsRegistry) (err error) {
	token := n.secrets.adminToken.current
	if err := n.meetPeers(token); err != nil {
		return err
	}
	o := n.orchestrator
	n.targets = keda.NewPublishedTargets(scalerMaxAge)
	reg.MustRegister(n.targets)
	clients := n.cfg.gateway.Config
	clients.MaxArriving, clients.Fleet = n.cfg.pd.queue.MaxBytes, n.cfg.fleetName()
	n.server = gateway.New(clients, n.access, o, gateway.NewMetrics(reg, n.cfg.telemetry.histograms))
	n.plan(reg)
	certificates := n.cfg.ports.adminTLS.ClientCA != ""
	admin := n.adminRoutes(reg)
	if n.cfg.access.adminProfiles {
		admin = gateway.WithProfiles(token() != "" || certificates, admin)
	}
	n.ports.admin = &http.Server{
		Handler:           n.peers.Handler(admin, gateway.RequireToken(token, certificates, n.cfg.access.adminNames, admin)),
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       adminIdle,
		ErrorLog:          slog.NewLogLogger(n.log.Handler(), slog.LevelWarn),
	}
	if n.ports.orca, err = newORCAServer(n.cfg.ports.orca, n.server); err != nil {
		return err
	}
	if n.ports.scaler, err = newScalerServer(n.cfg.scaling.keda, n.targets, n.log); err != nil {
		return err
	}
	n.ports.picker, err = newPicker(&n.cfg.ports, n.secrets.engineKey.current, n.server, n.standsBy, n.log)
	return err
}

// adminRoutes is all that the admin port serves: what operators ask, the live page, and the JSON that
// KEDA's metrics-api reads.
func (n *Node) adminRoutes(reg *metricsRegistry) http.Handler {
	o := n.orchestrator
	n.ports.page = live.New(live.Source{
		Fleet: n.fleet, PD: o, Scaling: n.wantedPools, Version: version.String(), Started: time.Now(), Replica: n.replicaShown(), Draining: n.draining.Load,
		Ask: n.peers.Ask, Apart: func() bool { return n.sharing.replicas.IsCutOff() },
	})
	mux := http.NewServeMux()
	mux.Handle("/", gateway.Admin(n.fleet, o, n.scraped(reg, o.Metrics), n.unready, n.drains(), n.peers))
	mux.Handle("GET /{$}", n.ports.page)
	mux.Handle("/ui/", n.ports.page)
	mux.Handle("GET /debug/links", n.ports.page)
	mux.Handle(ScalerRoute, n.targets.Handler())
	return mux
}

// replicaShown is this replica's name among those that share a Redis, "" where it is alone.
func (n *Node) replicaShown() string {
	if n.sharing.redis == nil {
		return ""
	}
	return n.instance
}

// standsBy reports whether another replica picks in place of this one. Where that cannot be reached
// this one picks.
func (n *Node) standsBy() bool {
	return n.cfg.ports.pickerLeaderOnly && n.sharing.decider != nil && n.sharing.decider.follower.Follows()
}

// unready is why no requests should come, "" where they may.
func (n *Node) unready() string {
	switch {
	case n.draining.Load():
		return "draining"
	case n.standsBy():
		return "another replica picks"
	}
	return ""
}

// findServers wires where the fleet comes from, and takes over what is configured.
func (n *Node) findServers(reg *metricsRegistry) error {
	if err := n.discover(); err != nil {
		return err
	}
	if err := n.discovery.sources.Set("configuration", n.cfg.specs()); err != nil {
		return err
	}
	n.discovery.listed = n.cfg.listed()
	return n.findInKubernetes(reg)
}

// scraped gives the registry without the series of servers and models that are gone.
func (n *Node) scraped(reg *metricsRegistry, metrics *pd.Metrics) prometheus.Gatherer {
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		there := make(map[string]bool)
		for _, s := range n.fleet.Servers() {
			there[s.ID()] = true
		}
		metrics.Keep(func(server string) bool { return there[server] })
		return reg.gather(n.models(), time.Now())
	})
}

// models are those that series may name: that servers have, or had and may have again.
func (n *Node) models() []string {
	known := append(n.planner.Models(), gateway.UnknownModel, gateway.NoModel)
	for _, m := range n.fleet.Models() {
		known = append(known, m.ID)
	}
	return known
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
	failed := make(chan error, 5)
	n.ports.serve(n.server.Serve, failed)
	n.log.Info("listening", "clients", addressOf(n.ClientAddr()), "picker", addressOf(n.PickerAddr()), "admin", n.ports.operator.Addr().String(), "page", n.pageURL(), "version", version.String())

	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	n.draining.Store(true)
	n.sharing.decider.Retire()
	n.server.Drain()
	n.ports.picker.drain()
	n.ports.admin.SetKeepAlivesEnabled(false) // clients that ask again find another gateway by its address
	n.log.Info("draining", "delay", n.cfg.drain.delay.String(), "timeout", n.cfg.drain.timeout.String())
	time.Sleep(n.cfg.drain.delay)

	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), n.cfg.drain.timeout)
	defer cancel()
	picked := n.ports.picker.shutdown(drain)
	err = errors.Join(err, n.server.Shutdown(drain))
	<-picked
	err = errors.Join(err, n.ports.stopAdmin(drain), n.ports.orca.Close(), n.ports.scaler.Close())
	ended()
	<-background
	n.orchestrator.Wait()
	n.fleet.Close()
	if zerr := n.feeds.hub.Close(); zerr != nil { // its sockets are closed: those of feeds, and of the fleet's servers
		n.log.Warn("ZMQ did not end well", "error", zerr.Error())
	}
	n.locality.Close()
	flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if ferr := n.tracing.end(flush); ferr != nil {
		n.log.Warn("some traces were not sent", "error", ferr.Error())
	}
	n.log.Info("stopped")
	return err
}
