package main

import (
	"github.com/spf13/pflag"

	"github.com/tandem-gateway/tandem/pools"
)

func (c *config) bindDiscovery(fs *pflag.FlagSet) {
	fs.DurationVar(&c.dns.Interval, "dns-interval", c.dns.Interval, "time between two lookups of servers that are given by name (dns+http://name:port, srv+http://name)")
	fs.StringVar(&c.dns.Server, "dns-server", c.dns.Server, "`address` of the DNS server for that; empty: the system's")
	fs.BoolVar(&c.registry, "registry", c.registry, "servers may register themselves in the Redis: see tandem register")
}

// discover makes the sources of servers that need nothing but a name or the Redis.
func (n *node) discover() {
	n.dns = pools.NewDNS(n.cfg.dns, n.found("dns"), n.log)
	n.dns.SetNames(n.cfg.names())
	if n.cfg.registry {
		n.registry = pools.NewRegistry(n.redis, n.cfg.redis.prefix, n.found("registry"), n.log)
	}
}

// found returns what a source tells its servers to, all of them each time.
func (n *node) found(source string) func([]pools.Spec) {
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
