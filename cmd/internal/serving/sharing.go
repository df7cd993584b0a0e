package serving

import (
	"context"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/tandem-gateway/tandem/gateway"
	"github.com/tandem-gateway/tandem/gateway/access"
	"github.com/tandem-gateway/tandem/gateway/peers"
	"github.com/tandem-gateway/tandem/pd/modelsync"
	"github.com/tandem-gateway/tandem/pd/modeltokens"
	"github.com/tandem-gateway/tandem/pd/textsync"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/drainsync"
	"github.com/tandem-gateway/tandem/pools/replicas"
	"github.com/tandem-gateway/tandem/pools/standby"
)

// sharing is what this gateway does together with others through a Redis. Its zero value is
// that of one that is alone.
type sharing struct {
	redis      redis.UniversalClient // nil: this gateway is alone, and so are all below
	replicas   *replicas.Exchange
	gpuArbiter *standby.Arbiter
	adapters   *standby.AdapterUses
	quotas     *access.QuotaSync
	drains     *drainsync.Sync
	gateways   *peers.Directory
	tokenSync  *modeltokens.Sync
	modelSync  *modelsync.Sync
	textSync   *textsync.Sync
	decider    *decider // nil also where requests are bound on arrival
}

// joinReplicas lets gateways that share a Redis know of each other; without one there is
// nothing to do.
func (n *Node) joinReplicas(reg prometheus.Registerer) (err error) {
	if n.cfg.redis.Alone() {
		return nil
	}
	if n.sharing.redis, err = n.cfg.redis.Client(); err != nil {
		return err
	}
	n.sharing.replicas = replicas.NewExchange(n.fleet, n.sharing.redis, n.cfg.redis.Prefix, n.instance, n.log)
	n.sharing.gpuArbiter = standby.NewArbiter(n.fleet, n.sharing.redis, n.cfg.redis.Prefix, n.instance, n.log)
	n.sharing.adapters = standby.NewAdapterUses(n.fleet, n.sharing.redis, n.cfg.redis.Prefix, n.instance, n.log)
	n.sharing.quotas = access.NewQuotaSync(n.sharing.redis, n.cfg.redis.Prefix, n.instance, n.log)
	n.sharing.drains = drainsync.New(n.fleet, n.sharing.redis, n.cfg.redis.Prefix, n.log)
	reg.MustRegister(n.sharing.replicas)
	return nil
}

// ownDrains are the drains of a gateway that shares no Redis.
type ownDrains struct{ fleet *pools.Fleet }

func (d ownDrains) SetDrain(server string, drain bool) bool {
	return len(d.fleet.SetDrain(server, drain)) > 0
}

func (ownDrains) Pending(string) bool { return false }

// drains lets servers drain for all gateways that share a Redis.
func (n *Node) drains() gateway.Drains {
	if n.sharing.drains == nil {
		return ownDrains{n.fleet}
	}
	return n.sharing.drains
}

// run shares until the context ends.
func (s *sharing) run(ctx context.Context) {
	if s.redis == nil {
		return
	}
	var parts sync.WaitGroup
	parts.Go(func() { s.replicas.Run(ctx) })
	parts.Go(func() { s.gpuArbiter.Run(ctx) })
	parts.Go(func() { s.adapters.Run(ctx) })
	parts.Go(func() { s.tokenSync.Run(ctx) })
	parts.Go(func() { s.modelSync.Run(ctx) })
	parts.Go(func() { s.textSync.Run(ctx) })
	parts.Go(func() { s.quotas.Run(ctx) })
	parts.Go(func() { s.drains.Run(ctx) })
	parts.Go(func() { s.gateways.Run(ctx) })
	if s.decider != nil {
		parts.Go(func() { s.decider.run(ctx) })
	}
	parts.Wait()
}
