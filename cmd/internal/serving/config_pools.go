package serving

import (
	"github.com/spf13/pflag"

	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/load"
)

// poolsConfig is how servers are watched, and what is done on them beside requests.
type poolsConfig struct {
	pools.Config

	loadMetrics []string // entries of load.ParseTables
	adapters    []string // as pools.ParseAdapter reads them
}

// bindHealth names how servers are probed, and when breakers eject them.
func (c *poolsConfig) bindHealth(fs *pflag.FlagSet) {
	fs.DurationVar(&c.ProbeInterval, "probe-interval", c.ProbeInterval,
		"time between two probes of a server, and between two scrapes of its load")
	fs.DurationVar(&c.ProbeTimeout, "probe-timeout", c.ProbeTimeout, "time for a probe; a later answer leaves the server unresponsive")
	fs.StringSliceVar(&c.loadMetrics, "load-metric", c.loadMetrics,
		"other names of an engine's load, as `engine.reading=series`: vllm.waiting=my_queue, triton.running=busy{kind=all}, "+
			"mine.blocks=info[num_blocks]; an engine that is not known is read at /metrics")
	fs.StringVar(&c.ORCA, "orca", c.ORCA,
		"`format` in which prefill legs ask engines for their load (ORCA): TEXT, JSON, BIN, or empty not to; vLLM logs a line for each")
	fs.Float64Var(&c.EjectShare, "eject-share", c.EjectShare,
		"share of a pool that breakers may eject, `0..1`; beyond it all servers are used")
	fs.IntVar(&c.Breaker.Consecutive, "breaker-failures", c.Breaker.Consecutive, "failures in a row that eject a server")
	fs.Float64Var(&c.Breaker.Ratio, "breaker-ratio", c.Breaker.Ratio,
		"share of failures over ten seconds that ejects a server, `0..1`")
	fs.DurationVar(&c.Breaker.Ejection, "breaker-ejection", c.Breaker.Ejection, "time of a first ejection; doubles with each that follows")
	fs.DurationVar(&c.Breaker.MaxEjection, "breaker-max-ejection", c.Breaker.MaxEjection, "longest ejection")
	fs.DurationVar(&c.Breaker.Probe, "breaker-probe", c.Breaker.Probe,
		"time for a probe request: the gateway's own generation of one token that proves an ejected server")
	fs.DurationVar(&c.SlowStart, "slow-start", c.SlowStart,
		"longest time in which a server that returns gets a growing part of its share; 0: all at once")
}

// bindStandby names what is loaded and put to sleep on demand.
func (c *poolsConfig) bindStandby(fs *pflag.FlagSet) {
	fs.StringSliceVar(&c.adapters, "adapter", c.adapters,
		"LoRA adapters that may be loaded on demand, as `name=path` or name@base=path; no others are")
	fs.IntVar(&c.Adapters.PerServer, "adapters-per-server", c.Adapters.PerServer,
		"of these, how many one server may have; the one unused for longest makes way; 0: any `number`")
	fs.DurationVar(&c.Adapters.Idle, "adapter-idle", c.Adapters.Idle,
		"time without a request after which an adapter is unloaded; 0: never")
	fs.DurationVar(&c.Adapters.Timeout, "adapter-timeout", c.Adapters.Timeout, "time for an adapter to be loaded")
	fs.DurationVar(&c.Sleep.MinAwake, "sleep-min-awake", c.Sleep.MinAwake,
		"time that a server which shares its GPUs (gpus in the file) stays awake at least before another one gets them")
	fs.DurationVar(&c.Sleep.Idle, "sleep-idle", c.Sleep.Idle,
		"time without a request after which such a server is put to sleep even if none wants its GPUs; 0: never")
	fs.DurationVar(&c.Sleep.Wake, "sleep-wake", c.Sleep.Wake, "assumed time to wake one, until it was seen")
	fs.DurationVar(&c.Sleep.Timeout, "sleep-timeout", c.Sleep.Timeout,
		"time for the one before it to finish its requests, and for it to wake")
	fs.IntVar(&c.Sleep.Level, "sleep-level", c.Sleep.Level, "vLLM's `level`: 1 keeps the weights in CPU memory, 2 drops them")
}

// read reads the settings that are lists of texts.
func (c *poolsConfig) read() (err error) {
	if c.LoadTables, err = load.ParseTables(c.loadMetrics); err != nil {
		return err
	}
	c.Adapters.Directory = nil
	for _, text := range c.adapters {
		a, err := pools.ParseAdapter(text)
		if err != nil {
			return err
		}
		c.Adapters.Directory = append(c.Adapters.Directory, a)
	}
	return nil
}
