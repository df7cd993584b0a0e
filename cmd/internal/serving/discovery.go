package serving

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/tandem-gateway/tandem/kvstate/zmqsub"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/discovery"
	"github.com/tandem-gateway/tandem/pools/discovery/kube"
)

// discoveryConfig is where servers are found that the configuration does not name.
type discoveryConfig struct {
	kube kube.Config
	dns  discovery.DNSConfig
	// registry: servers may register themselves in Redis.
	registry bool
	nccl     string // where engines announce themselves
}

func (c *discoveryConfig) validate() error {
	if address, isTCP := strings.CutPrefix(c.nccl, "tcp://"); isTCP && !strings.HasSuffix(address, ":*") {
		if err := checkListen(address); err != nil {
			return fmt.Errorf("nccl-listen %q: %w", c.nccl, err)
		}
	}
	return errors.Join(c.kube.Validate(), c.dns.Validate())
}

func (c *discoveryConfig) bind(fs *pflag.FlagSet) {
	bindKubernetes(fs, &c.kube)
	fs.DurationVar(&c.dns.Interval, "dns-interval", c.dns.Interval,
		"time between two lookups of servers that are given by name (dns+http://name:port, srv+http://name)")
	fs.StringVar(&c.dns.Server, "dns-server", c.dns.Server, "`address` of the DNS server for that; empty: the system's")
	fs.BoolVar(&c.registry, "registry", c.registry, "servers may register themselves in the Redis: see tandem register")
	fs.StringVar(&c.nccl, "nccl-listen", c.nccl,
		"ZMQ `address`, such as tcp://*:30001, at which vLLM engines with the P2pNcclConnector announce themselves (proxy_ip, "+
			"proxy_port); any process that reaches it can announce servers; empty: none")
}

// serverSources are where the servers of the fleet come from.
type serverSources struct {
	sources       *discovery.Sources // say which servers are in the fleet
	listed        []pools.Spec       // servers, and names for some, of the configuration that was read last
	dns           *discovery.DNS
	announced     *discovery.SelfAnnounced // nil: no engine announces itself
	announcements *zmqsub.Announcements
	registry      *discovery.Registry // nil: no server registers itself
	cluster       *kube.Cluster       // nil: no servers are found there
}

// run finds servers until the context ends.
func (d *serverSources) run(ctx context.Context, log *slog.Logger) {
	var parts sync.WaitGroup
	parts.Go(func() { d.dns.Run(ctx) })
	if d.registry != nil {
		parts.Go(func() { d.registry.Run(ctx) })
	}
	if d.announced != nil {
		parts.Go(func() { d.receiveAnnouncements(ctx, log) })
	}
	if d.cluster != nil {
		parts.Go(func() { d.cluster.Run(ctx) })
	}
	parts.Wait()
}

// discover makes the sources of servers that need nothing but a name, the Redis, or a
// port to listen at.
func (n *Node) discover() error {
	n.discovery.dns = discovery.NewDNS(n.cfg.discovery.dns, n.found("dns"), n.log)
	n.discovery.dns.SetNames(n.cfg.names())
	if len(n.cfg.names()) > 0 {
		n.discovery.dns.OnAnswered = n.expect()
	}
	if n.cfg.discovery.registry {
		n.discovery.registry = discovery.NewRegistry(n.sharing.redis, n.cfg.redis.Prefix, n.foundOf("registry"), n.log)
	}
	if n.cfg.discovery.nccl == "" {
		return nil
	}
	var err error
	n.discovery.announced = discovery.NewSelfAnnounced(n.found("announcements"))
	n.discovery.announcements, err = n.feeds.hub.ListenAnnouncements(n.cfg.discovery.nccl)
	return err
}

// receiveAnnouncements makes servers of engines with the P2pNcclConnector, which announce
// themselves, until the context ends.
func (d *serverSources) receiveAnnouncements(ctx context.Context, log *slog.Logger) {
	var parts sync.WaitGroup
	parts.Go(func() { d.announced.Run(ctx) })
	d.announcements.Run(ctx, func(a zmqsub.Announcement) {
		role := pools.Prefill
		if a.Type == "D" {
			role = pools.Decode
		}
		entry := discovery.Entry{URL: "http://" + a.HTTP, Connector: "p2p-nccl", KVAddress: a.KV}
		if err := d.announced.OnAnnouncement(entry.Spec(role), time.Now()); err != nil {
			log.Debug("an announcement is of no use", "error", err.Error())
		}
	})
	parts.Wait()
}

// expect lets requests that find no server wait for a source until arrived is called, or doubt-wait is over from now
// on.
func (n *Node) expect() (arrived func()) {
	arrived = n.fleet.ExpectServers()
	time.AfterFunc(n.cfg.pd.UnresponsiveWait, arrived)
	return arrived
}

// foundOf is found for a source that is expected, and whose first report is all that it has then.
func (n *Node) foundOf(source string) func([]pools.Spec) {
	arrived, found := n.expect(), n.found(source)
	return func(specs []pools.Spec) {
		found(specs)
		arrived()
	}
}

// found returns the function to which a source reports its servers, all of them each time.
func (n *Node) found(source string) func([]pools.Spec) {
	return func(found []pools.Spec) {
		var specs []pools.Spec
		for _, spec := range found {
			specs = append(specs, n.cfg.kv.withEvents(spec))
		}
		if err := n.discovery.sources.Set(source, specs); err != nil {
			n.log.Error("what was found is not a fleet, the old one stays", "source", source, "error", err.Error())
			return
		}
		n.log.Info("servers found", "source", source, "servers", len(specs))
	}
}
