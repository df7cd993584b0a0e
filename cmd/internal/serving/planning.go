package serving

import (
	"cmp"
	"maps"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/tandem-gateway/tandem/autoscale"
	"github.com/tandem-gateway/tandem/autoscale/keda"
	"github.com/tandem-gateway/tandem/gateway"
	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pools"
)

// defaultScaling believes of servers what the fleet does.
func defaultScaling() autoscale.Config {
	cfg, believed := autoscale.DefaultConfig(), pools.Default()
	cfg.Prior = autoscale.Capacity{Schema: 1, Prefill: believed.Prefill, Step: believed.Step, KVTokens: int(autoscale.UnknownKV)}
	return cfg
}

func bindScaling(c *autoscale.Config, fs *pflag.FlagSet) {
	p := &c.Planner
	fs.IntVar(&p.Prefill.Min, "scale-prefill-min", p.Prefill.Min,
		"fewest prefill `servers` that are wanted; 0 for both roles lets them go to zero")
	fs.IntVar(&p.Prefill.Max, "scale-prefill-max", p.Prefill.Max, "most prefill `servers` that are wanted")
	fs.IntVar(&p.Decode.Min, "scale-decode-min", p.Decode.Min, "fewest decode `servers` that are wanted")
	fs.IntVar(&p.Decode.Max, "scale-decode-max", p.Decode.Max, "most decode `servers` that are wanted")
	fs.DurationVar(&c.ColdStart, "cold-start", c.ColdStart, "time from wanting a server to its first request, until one was seen")
	fs.DurationVar(&c.Every, "scale-interval", c.Every, "time between two decisions")
	fs.DurationVar(&p.DownAfter, "scale-down-after", p.DownAfter, "time for which fewer servers must have been enough before one goes")
	fs.DurationVar(&p.IdleAfter, "scale-idle-after", p.IdleAfter, "time without a request after which both roles go to zero, where they may")
	fs.BoolVar(&c.ScaleIn, "scale-victims", c.ScaleIn,
		"choose the servers that go when fewer are wanted, let them drain first, and mark their pods (pod-deletion-cost), for which "+
			"the gateway must be allowed to patch pods")
	fs.Float64Var(&p.Spare, "scale-spare", p.Spare, "standard deviations of ten seconds' demand that prefill has to spare")
}

// plannedITL is the objective that decode servers are planned for: as set, else as requests
// are judged, else the default.
func plannedITL(set, judged pools.PerModel[time.Duration]) pools.PerModel[time.Duration] {
	if set.All > 0 {
		return set
	}
	otherwise := autoscale.DefaultConfig().ITL.All
	planned := pools.PerModel[time.Duration]{All: cmp.Or(judged.All, otherwise), Models: make(map[string]time.Duration)}
	for model, itl := range judged.Models {
		planned.Models[model] = cmp.Or(itl, otherwise)
	}
	maps.Copy(planned.Models, set.Models)
	return planned
}

// plan lets the gateway say how many servers its traffic needs.
func (n *Node) plan(reg *prometheus.Registry) {
	now := time.Now
	var shared *autoscale.Shared
	if n.redis != nil {
		shared = autoscale.NewShared(n.redis, n.cfg.redis.Prefix, n.replica)
		now = shared.Now
	}
	meter := autoscale.NewMeter(now)
	meter.Queued, meter.CacheSavings = n.queued, n.orchestrator.Binder.Heat
	n.server.SetObserver(func(a gateway.Arrival) gateway.Observation {
		if a.ITL == 0 {
			a.ITL = n.cfg.scaling.ITL.Of(a.Model, a.Model) // what decode servers are planned for
		}
		return meter.Arrived(autoscale.Arrival(a))
	})
	n.planner = autoscale.NewScaler(n.cfg.scaling, n.fleet, meter, shared, n.log)
	n.planner.Publish, n.planner.OnDraining = n.publishTargets, n.markPods
	n.orchestrator.ScaleFromZero = &pd.ScaleFromZero{Config: n.cfg.hold, Base: n.planner.Base, Models: n.planner.Models, Begin: n.planner.Hurry}
	if len(n.cfg.inventory.Variants) > 0 {
		n.planner.Allocate = n.cfg.inventory.Allocate
		n.orchestrator.Binder.Shares = n.planner.Shares
	}
	reg.MustRegister(n.planner)
}

// queued is how many requests wait in this gateway's queue, by base model.
func (n *Node) queued() map[string]int {
	all := make(map[string]int)
	for model, waiting := range n.orchestrator.Queue.Waiting() {
		all[n.orchestrator.BaseOf(model)] += waiting
	}
	return all
}

// markPods makes the pods of units that drain the first that their ReplicaSet deletes, those
// that have nothing to do before the others.
func (n *Node) markPods(draining []autoscale.DrainingUnit) {
	if n.cluster == nil {
		return
	}
	costs := make(map[string]int, len(draining))
	for _, d := range draining {
		costs[d.Unit] = -1
		if d.Empty {
			costs[d.Unit] = -2
		}
	}
	n.cluster.Weigh(costs)
}

// publishTargets makes decisions what KEDA reads.
func (n *Node) publishTargets(all []autoscale.Wanted) {
	targets := make(map[keda.Pool]keda.Target, len(all))
	for _, w := range all {
		targets[keda.Pool{Model: w.Model, Role: w.Role, Variant: w.Variant}] = keda.Target{
			Replicas: w.Servers, Size: w.Size, Held: w.Held, Reason: string(w.Reason), At: w.At,
		}
	}
	n.targets.Publish(targets)
}
