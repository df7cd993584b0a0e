package serving

import (
	"cmp"
	"errors"
	"maps"
	"time"

	"github.com/spf13/pflag"

	"github.com/tandem-gateway/tandem/autoscale"
	"github.com/tandem-gateway/tandem/autoscale/demand"
	"github.com/tandem-gateway/tandem/autoscale/keda"
	"github.com/tandem-gateway/tandem/autoscale/mix"
	"github.com/tandem-gateway/tandem/autoscale/sizing"
	"github.com/tandem-gateway/tandem/gateway"
	"github.com/tandem-gateway/tandem/gateway/live"
	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/scalefromzero"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/permodel"
)

// scalingConfig is how many servers are wanted, of which hardware, and how KEDA gets them.
type scalingConfig struct {
	autoscale.Config

	itl       []string // as permodel.ParseDurations reads them
	capacity  string   // file
	hardware  []string // as mix.ParseVariants reads them
	inventory mix.Inventory
	keda      scalerConfig
}

// defaultScaling believes of servers what the fleet does.
func defaultScaling() scalingConfig {
	cfg, believed := autoscale.DefaultConfig(), pools.Default()
	cfg.Prior = sizing.Capacity{Schema: 1, Prefill: believed.Prefill, Step: believed.Step, KVTokens: int(autoscale.UnknownKV)}
	return scalingConfig{Config: cfg}
}

func (c *scalingConfig) bind(fs *pflag.FlagSet) {
	fs.StringVar(&c.capacity, "capacity", c.capacity, "`file` of tandem calibrate: what servers are believed to do until they have shown it")
	fs.StringArrayVar(&c.hardware, "hardware", c.hardware,
		"kind of hardware to choose servers from, as `NAME=FILE,cost=C`,gpus=N,have=N,kind=GPU, for servers of that variant; FILE of tandem "+
			"calibrate, cost of a server for an hour, gpus of a server (1), have how many GPUs there are (any number), which variants of one kind share; may be repeated")
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
	fs.StringSliceVar(&c.itl, "scale-itl", c.itl,
		"time between tokens that decode servers are planned for, `duration`, for single models as model=duration; where it says "+
			"nothing that of itl-slo, or 50 ms")
	c.keda.bind(fs)
}

// read reads the settings that are lists of texts; judged are the objectives of requests.
func (c *scalingConfig) read(judged *pd.Config) error {
	variants, err := mix.ParseVariants(c.hardware)
	if err != nil {
		return err
	}
	c.inventory = mix.Inventory{Variants: variants}
	planned, err := permodel.ParseDurations("scale-itl", c.itl)
	c.TTFT, c.ITL = judged.TTFT, plannedITL(planned, judged.ITL)
	return err
}

func (c *scalingConfig) validate() error { return errors.Join(c.Validate(), c.keda.validate()) }

// plannedITL is the objective that decode servers are planned for: as set, else as requests
// are judged, else the default.
func plannedITL(set, judged permodel.Setting[time.Duration]) permodel.Setting[time.Duration] {
	if set.All > 0 {
		return set
	}
	otherwise := autoscale.DefaultConfig().ITL.All
	planned := permodel.Setting[time.Duration]{All: cmp.Or(judged.All, otherwise), Models: make(map[string]time.Duration)}
	for model, itl := range judged.Models {
		planned.Models[model] = cmp.Or(itl, otherwise)
	}
	maps.Copy(planned.Models, set.Models)
	return planned
}

// plan lets the gateway say how many servers its traffic needs.
func (n *Node) plan(reg *metricsRegistry) {
	now := time.Now
	var shared *autoscale.Shared
	if n.sharing.redis != nil {
		shared = autoscale.NewShared(n.sharing.redis, n.cfg.redis.Prefix, n.instance)
		now = shared.Now
	}
	meter := demand.NewMeter(now)
	meter.Queued, meter.CacheSavings = n.queued, n.orchestrator.Binder.CacheSavings
	n.server.SetObserver(func(a gateway.Arrival) gateway.Observation { return meter.RecordArrival(demand.Arrival(a)) })
	n.planner = autoscale.NewScaler(n.cfg.scaling.Config, n.fleet, meter, shared, n.log)
	n.planner.Publish, n.planner.OnDraining = n.publishTargets, n.setPodCosts
	n.orchestrator.ScaleFromZero = &scalefromzero.Activator{Config: n.cfg.pd.hold, Base: n.planner.Base, Models: n.planner.Models, Begin: n.planner.PlanNow}
	if len(n.cfg.scaling.inventory.Variants) > 0 {
		n.planner.Allocate = n.cfg.scaling.inventory.Allocate
		n.orchestrator.Binder.Shares = n.planner.Shares
	}
	reg.MustRegister(n.planner)
}

// wantedPools is what was last decided of each pool, for the live page.
func (n *Node) wantedPools() []live.Pool {
	var pools []live.Pool
	for _, p := range n.planner.Status() {
		pool := live.Pool{
			Model: p.Model, Role: p.Role, Variant: p.Variant, Ready: p.Ready, Pending: p.Pending,
			Waiting: p.WaitingForCapacity, Reason: string(p.Reason), Stale: p.Stale, At: p.At,
		}
		if p.Known {
			pool.Wanted = &p.Servers
		}
		pools = append(pools, pool)
	}
	return pools
}

// queued is how many requests wait in this gateway's queue, by base model.
func (n *Node) queued() map[string]int {
	all := make(map[string]int)
	for model, waiting := range n.orchestrator.Queue.Waiting() {
		all[n.orchestrator.BaseOf(model)] += waiting
	}
	return all
}

// setPodCosts makes the pods of units that drain the first that their ReplicaSet deletes, those
// that have nothing to do before the others.
func (n *Node) setPodCosts(draining []autoscale.DrainingUnit) {
	if n.discovery.cluster == nil {
		return
	}
	costs := make(map[string]int, len(draining))
	for _, d := range draining {
		costs[d.Unit] = -1
		if d.Empty {
			costs[d.Unit] = -2
		}
	}
	n.discovery.cluster.SetPodCosts(costs)
}

// publishTargets makes decisions what KEDA reads.
func (n *Node) publishTargets(all []autoscale.Wanted) {
	targets := make(map[keda.Pool]keda.Target, len(all))
	for _, w := range all {
		targets[keda.Pool{Model: w.Model, Role: w.Role, Variant: w.Variant}] = keda.Target{
			Replicas: w.Servers, Size: w.Size, WaitingForCapacity: w.WaitingForCapacity, Reason: string(w.Reason), At: w.At,
		}
	}
	n.targets.Publish(targets)
}
