package serving

import (
	"context"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/tandem-gateway/tandem/kvstate/zmqsub"
	"github.com/tandem-gateway/tandem/pools"
)

func (c *config) bindDiscovery(fs *pflag.FlagSet) {
	fs.DurationVar(&c.dns.Interval, "dns-interval", c.dns.Interval,
		"time between two lookups of servers that are given by name (dns+http://name:port, srv+http://name)")
	fs.StringVar(&c.dns.Server, "dns-server", c.dns.Server, "`address` of the DNS server for that; empty: the system's")
	fs.BoolVar(&c.registry, "registry", c.registry, "servers may register themselves in the Redis: see tandem register")
	fs.StringVar(&c.nccl, "nccl-listen", c.nccl,
		"ZMQ `address`, such as tcp://*:30001, at which vLLM engines with the P2pNcclConnector announce themselves (proxy_ip, "+
			"proxy_port); whoever reaches it can announce servers; empty: none")
}

// discover makes the sources of servers that need nothing but a name, the Redis, or a
// port to listen at.
func (n *Node) discover() error {
	n.dns = pools.NewDNS(n.cfg.dns, n.found("dns"), n.log)
	n.dns.SetNames(n.cfg.names())
	if n.cfg.registry {
		n.registry = pools.NewRegistry(n.redis, n.cfg.redis.Prefix, n.found("registry"), n.log)
	}
	if n.cfg.nccl == "" {
		return nil
	}
	var err error
	n.announced = pools.NewAnnounced(n.found("announcements"))
	n.announcements, err = n.feeds.hub.ListenAnnouncements(n.cfg.nccl)
	return err
}

// hearAnnouncements makes servers of engines with the P2pNcclConnector, which announce
// themselves, until the context ends.
func (n *Node) hearAnnouncements(ctx context.Context) {
	var parts sync.WaitGroup
	parts.Go(func() { n.announced.Run(ctx) })
	n.announcements.Run(ctx, func(a zmqsub.Announcement) {
		role := pools.Prefill
		if a.Type == "D" {
			role = pools.Decode
		}
		entry := pools.Entry{URL: "http://" + a.HTTP, Connector: "p2p-nccl", KVAddress: a.KV}
		if err := n.announced.Hear(entry.Spec(role), time.Now()); err != nil {
			n.log.Debug("an announcement is of no use", "error", err.Error())
		}
	})
	parts.Wait()
}

// found returns what a source tells its servers to, all of them each time.
func (n *Node) found(source string) func([]pools.Spec) {
	return func(found []pools.Spec) {
		var specs []pools.Spec
		for _, spec := range found {
			specs = append(specs, n.cfg.kv.withEvents(spec))
		}
		if err := n.sources.Set(source, specs); err != nil {
			n.log.Error("what was found is not a fleet, the old one stays", "source", source, "error", err.Error())
			return
		}
		n.log.Info("servers found", "source", source, "servers", len(specs))
	}
}
