package serving

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"time"

	"github.com/spf13/pflag"

	"github.com/tandem-gateway/tandem/autoscale"
	"github.com/tandem-gateway/tandem/autoscale/mix"
	"github.com/tandem-gateway/tandem/cmd/internal/porttls"
	"github.com/tandem-gateway/tandem/gateway"
	"github.com/tandem-gateway/tandem/gateway/access"
	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/council"
	"github.com/tandem-gateway/tandem/pd/order"
	"github.com/tandem-gateway/tandem/pools"
)

// config is all that can be set, by flag or by file: bind names it once for both.
type config struct {
	listen string
	// clientTLS: without it the port for clients speaks plain text.
	clientTLS porttls.Config
	admin     string
	// adminTLS: without it the admin port speaks plain text.
	adminTLS porttls.Config
	orca     string
	servers  [3]serverList // prefill, decode, both
	gateway  gateway.Config
	access   accessConfig
	pools    pools.Config
	pd       pd.Config
	queue    pd.QueueConfig
	hold     pd.ScaleFromZeroConfig
	binding  pd.BindMode
	decider  deciderConfig
	cost     pd.CostModel
	links    pd.LinkPrior
	redis    RedisConfig
	kube     pools.KubernetesConfig
	dns      pools.DNSConfig
	// registry: servers may register themselves in Redis.
	registry bool
	nccl     string // where engines announce themselves
	scaler   scalerConfig
	kv       localityConfig
	scaling  autoscale.Config

	aliases      []string // as gateway.ParseAlias reads them
	objectives   []string // as pd.ParseObjectives reads them
	ttft, itl    []string // as pd.ParseSLO reads them
	scaleITL     []string // likewise
	loadMetrics  []string // entries of pools.LoadTables
	capacity     string   // file
	hardware     []string // as mix.ParseVariant reads them
	inventory    mix.Inventory
	adapters     []string // as pools.ParseAdapter reads them
	drainDelay   time.Duration
	drainTimeout time.Duration
	connect      time.Duration
	engineKey    string // file
	engineCA     string // file
	otlp         string
	traceShare   float64
	logLevel     string
	logText      bool
}

// DefaultConfig is what holds for all that is not set. It names no server.
func DefaultConfig() config {
	return config{
		listen:       ":8080",
		admin:        "127.0.0.1:8081",
		servers:      [3]serverList{{role: pools.Prefill}, {role: pools.Decode}, {role: pools.Both}},
		gateway:      gateway.DefaultConfig(),
		access:       accessConfig{Config: access.DefaultConfig()},
		pools:        pools.Default(),
		pd:           pd.DefaultConfig(),
		queue:        pd.DefaultQueue(),
		hold:         pd.DefaultScaleFromZero(),
		binding:      pd.Late,
		decider:      deciderConfig{patience: council.DefaultPatience},
		cost:         pd.DefaultCost(),
		links:        pd.DefaultLinks(),
		redis:        DefaultRedis(),
		kube:         pools.DefaultKubernetes(),
		dns:          pools.DefaultDNS(),
		kv:           defaultLocality(),
		scaling:      defaultScaling(),
		drainTimeout: 30 * time.Second,
		connect:      time.Second,
		traceShare:   1,
		objectives:   []string{string(order.Auto)},
		logLevel:     "info",
	}
}

// Set gives the setting of a name a value, as its flag does.
func (c *config) Set(name, value string) error {
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	c.bind(fs)
	return fs.Set(name, value)
}

// AddServer adds a server of a role.
func (c *config) AddServer(role pools.Role, e pools.Entry) {
	for i := range c.servers {
		if c.servers[i].role == role {
			c.servers[i].add(e)
		}
	}
}

// Settings are all that can be set, with their defaults, in the order of the documentation.
func Settings() *pflag.FlagSet {
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	fs.SortFlags = false
	cfg := DefaultConfig()
	cfg.bind(fs)
	return fs
}

// bind gives every setting its name and help, for flags, the file and the
// documentation alike.
func (c *config) bind(fs *pflag.FlagSet) {
	fs.StringVar(&c.listen, "listen", c.listen, "`address` for OpenAI clients")
	c.clientTLS.BindOwn(fs, "tls")
	fs.StringVar(&c.admin, "admin", c.admin, "`address` for metrics, readiness and decisions; not for clients")
	c.adminTLS.Bind(fs, "admin", "those who may ask, save at /livez and /readyz: it or the token lets them in")
	fs.StringVar(&c.orca, "orca-listen", c.orca,
		"`address` on which this gateway streams its own load to a proxy before it (gRPC OpenRcaService, in plain text); empty: it "+
			"does not")
	fs.Var(&c.servers[0], "prefill", "prefill servers: `URLs`, separated by commas; in the file also with labels")
	fs.Var(&c.servers[1], "decode", "decode servers: `URLs`, likewise")
	fs.Var(&c.servers[2], "both", "servers that do both: `URLs`, likewise")

	fs.BoolVar(&c.gateway.ExposePair, "expose-pair", c.gateway.ExposePair,
		"name the servers that answered in x-tandem-prefill and x-tandem-decode")
	fs.IntVar(&c.gateway.MaxBody, "max-body", c.gateway.MaxBody, "largest request body, `bytes`")
	fs.IntVar(&c.gateway.MaxHeader, "max-header", c.gateway.MaxHeader, "largest request header block, `bytes`")
	fs.DurationVar(&c.gateway.ReadTimeout, "read-timeout", c.gateway.ReadTimeout, "time for a whole request to arrive")
	fs.DurationVar(&c.gateway.ConnIdle, "conn-idle", c.gateway.ConnIdle, "time that a client's connection may idle between requests")
	fs.DurationVar(&c.gateway.WriteTimeout, "write-timeout", c.gateway.WriteTimeout, "time for the client to take one piece of an answer")

	c.access.bind(fs)
	fs.IntVar(&c.gateway.TenantLabels, "tenant-labels", c.gateway.TenantLabels,
		"tenants that metrics name, the first that come; others are one")
	fs.BoolVar(&c.gateway.SharedKV, "tenants-share-kv", c.gateway.SharedKV,
		"serve tenants also where engines drop cache_salt, so that they share cached prompts and can tell by time what others asked: "+
			"/v1/messages of vLLM before 0.32 and of SGLang where it cannot be sent as a chat, all but chat of TensorRT-LLM; else such requests are refused")

	fs.IntVar(&c.queue.MaxInFlight, "max-in-flight", c.queue.MaxInFlight, "requests past the queue at once, to the end of their streams")
	fs.IntVar(&c.queue.MaxWaiting, "max-waiting", c.queue.MaxWaiting, "requests in the queue at once")
	fs.Int64Var(&c.queue.MaxBytes, "max-held", c.queue.MaxBytes,
		"request bodies held at once, `bytes`, and as much again while they arrive; memory is up to three times as much")
	fs.DurationVar(&c.queue.MaxWait, "max-wait", c.queue.MaxWait, "longest time in the queue")
	fs.DurationVar(&c.hold.For, "hold", c.hold.For,
		"time for which requests are held while a role has no server; 0: three cold starts where both roles may go to zero, "+
			"elsewhere they are refused")
	fs.IntVar(&c.hold.Most, "max-held-requests", c.hold.Most, "requests held at once for want of a server")
	fs.StringVar((*string)(&c.cost.Rule), "policy", string(c.cost.Rule),
		"how a pair is chosen: `joint`, or to compare with: prefill-first, least-load, random; these need --binding arrival")
	fs.BoolVar(&c.pd.EnginePriority, "engine-priority", c.pd.EnginePriority,
		"send engines the order of service in the priority field; they must schedule by priority, or they refuse it")
	fs.StringVar((*string)(&c.binding), "binding", string(c.binding),
		"when requests get their servers: `arrival`, or late: when the prefill server that is best for them is about to be free")
	c.decider.bind(fs)

	fs.StringVar(&c.engineKey, "engine-key-file", c.engineKey,
		"`file` that holds the key of engines started with --api-key, for probes and canaries; clients' requests bear their own")
	fs.StringVar(&c.engineCA, "engine-ca", c.engineCA,
		"`file` with the authority of engines whose addresses begin with https://, trusted beside the system's")
	fs.DurationVar(&c.connect, "connect-timeout", c.connect, "time to connect to a server")
	fs.DurationVar(&c.pd.PrefillTimeout, "prefill-timeout", c.pd.PrefillTimeout, "time for a prefill leg")
	fs.DurationVar(&c.pd.FirstEventTimeout, "first-event-timeout", c.pd.FirstEventTimeout, "time for decode to give the first content of a stream")
	fs.DurationVar(&c.pd.IdleTimeout, "idle-timeout", c.pd.IdleTimeout, "time between two events of a stream")
	fs.DurationVar(&c.pd.AnswerTimeout, "answer-timeout", c.pd.AnswerTimeout, "time for an answer that is not streamed")
	fs.DurationVar(&c.pd.HandoffAge, "handoff-age", c.pd.HandoffAge,
		"age at which a hand-off is not used any more; keep it to a third of the engine's KV lease")
	fs.DurationVar(&c.pd.DoubtWait, "doubt-wait", c.pd.DoubtWait,
		"longest time that a request waits while all servers of a role are in doubt (they answer late), before it is refused; a role that is "+
			"down for certain for as long makes the gateway unready if nothing can be served without it")
	fs.IntVar(&c.pd.MaxRetries, "max-retries", c.pd.MaxRetries, "legs tried again for one request")
	fs.Float64Var(&c.pd.RetryRatio, "retry-ratio", c.pd.RetryRatio, "retries per request over ten seconds, `0..1`")
	fs.IntVar(&c.pd.RetryFloor, "retry-floor", c.pd.RetryFloor, "retries per ten seconds whatever the traffic")

	fs.StringSliceVar(&c.ttft, "ttft-slo", c.ttft,
		"objective for the time to the first token; pairs predicted to miss it lose to those that are not; `duration`, for single "+
			"models as model=duration, 0 is none; a request's header counts before its key's ttft-slo, that before its model's (of an "+
			"adapter, before its base model's), and that before the one for all")
	fs.StringSliceVar(&c.itl, "itl-slo", c.itl, "objective for the time between tokens, `duration`, likewise")
	fs.StringSliceVar(&c.objectives, "objective", c.objectives,
		"what requests are served for: latency (the time to the first token), throughput (requests per server that meet their "+
			"objectives: with a ttft-slo, who cannot meet it any more is served last), or auto (throughput for a request that has a "+
			"ttft-slo, latency for one that has none); `objectives`, for single models as "+
			"model=throughput, for a class as class:batch=throughput")
	fs.BoolVar(&c.pd.EnforceDisaggregation, "enforce-disaggregation", c.pd.EnforceDisaggregation,
		"decode servers compute no prompts: without a prefill server requests get 503")
	fs.BoolVar(&c.pd.StrictHandoffs, "strict-handoffs", c.pd.StrictHandoffs,
		"withhold a hand-off from decode that names a host which is not known to be the prefill server's or that of its kv-address (one that "+
			"was not looked up yet, or cannot be, is not); the request is prefilled elsewhere or decoded alone; without it hand-offs with a host "+
			"that is certainly another's are counted and warned of")
	fs.BoolVar(&c.pd.Migrate, "migrate", c.pd.Migrate,
		"continue streams that break on another pair, by token ids, where engines tell them (vLLM 0.10.2, SGLang's completions)")
	fs.BoolVar(&c.pd.MigrateByText, "migrate-by-text", c.pd.MigrateByText,
		"with migrate, continue chats by their text where engines tell no token ids (continue_final_message of vLLM and SGLang): "+
			"not exact, the text may be tokenised another way and templates may trim white space")

	fs.DurationVar(&c.pools.ProbeInterval, "probe-interval", c.pools.ProbeInterval,
		"time between two probes of a server, and between two scrapes of its load")
	fs.DurationVar(&c.pools.ProbeTimeout, "probe-timeout", c.pools.ProbeTimeout, "time for a probe; a later answer leaves the server in doubt")
	fs.StringSliceVar(&c.aliases, "model-alias", c.aliases,
		"names for clients beside those of the models, as `name=model`, or name=model=90|other=10 for a split by weight; requests of "+
			"one user or prompt_cache_key stay with one model")
	fs.StringSliceVar(&c.loadMetrics, "load-metric", c.loadMetrics,
		"other names of an engine's load, as `engine.reading=series`: vllm.waiting=my_queue, triton.running=busy{kind=all}, "+
			"mine.blocks=info[num_blocks]; an engine that is not known is read at /metrics")
	fs.StringVar(&c.pools.ORCA, "orca", c.pools.ORCA,
		"`format` in which prefill legs ask engines for their load (ORCA): TEXT, JSON, BIN, or empty not to; vLLM logs a line for each")
	fs.Float64Var(&c.pools.EjectShare, "eject-share", c.pools.EjectShare,
		"share of a pool that breakers may eject, `0..1`; beyond it all servers are used")
	fs.IntVar(&c.pools.Breaker.Consecutive, "breaker-failures", c.pools.Breaker.Consecutive, "failures in a row that eject a server")
	fs.Float64Var(&c.pools.Breaker.Ratio, "breaker-ratio", c.pools.Breaker.Ratio,
		"share of failures over ten seconds that ejects a server, `0..1`")
	fs.DurationVar(&c.pools.Breaker.Ejection, "breaker-ejection", c.pools.Breaker.Ejection, "time of a first ejection; doubles with each that follows")
	fs.DurationVar(&c.pools.Breaker.MaxEjection, "breaker-max-ejection", c.pools.Breaker.MaxEjection, "longest ejection")
	fs.DurationVar(&c.pools.Breaker.Probe, "breaker-probe", c.pools.Breaker.Probe,
		"time for a canary: the gateway's own generation of one token that proves an ejected server")
	fs.DurationVar(&c.pools.SlowStart, "slow-start", c.pools.SlowStart,
		"longest time in which a server that returns gets a growing part of its share; 0: all at once")

	fs.StringSliceVar(&c.adapters, "adapter", c.adapters,
		"LoRA adapters that may be loaded on demand, as `name=path` or name@base=path; no others are")
	fs.IntVar(&c.pools.Adapters.PerServer, "adapters-per-server", c.pools.Adapters.PerServer,
		"of these, how many one server may have; the one unused for longest makes way; 0: any `number`")
	fs.DurationVar(&c.pools.Adapters.Idle, "adapter-idle", c.pools.Adapters.Idle,
		"time without a request after which an adapter is unloaded; 0: never")
	fs.DurationVar(&c.pools.Adapters.Timeout, "adapter-timeout", c.pools.Adapters.Timeout, "time for an adapter to be loaded")
	fs.DurationVar(&c.pools.Sleep.MinAwake, "sleep-min-awake", c.pools.Sleep.MinAwake,
		"time that a server which shares its GPUs (gpus in the file) stays awake at least before another one gets them")
	fs.DurationVar(&c.pools.Sleep.Idle, "sleep-idle", c.pools.Sleep.Idle,
		"time without a request after which such a server is put to sleep even if none wants its GPUs; 0: never")
	fs.DurationVar(&c.pools.Sleep.Wake, "sleep-wake", c.pools.Sleep.Wake, "assumed time to wake one, until it was seen")
	fs.DurationVar(&c.pools.Sleep.Timeout, "sleep-timeout", c.pools.Sleep.Timeout,
		"time for the one before it to finish its requests, and for it to wake")
	fs.IntVar(&c.pools.Sleep.Level, "sleep-level", c.pools.Sleep.Level, "vLLM's `level`: 1 keeps the weights in CPU memory, 2 drops them")
	fs.DurationVar(&c.cost.Adapter.Load, "adapter-load", c.cost.Adapter.Load,
		"assumed time to load an adapter, until loads were seen; 0: requests go anywhere, whatever must be loaded")
	fs.DurationVar(&c.cost.Adapter.Swap, "adapter-swap", c.cost.Adapter.Swap, "assumed time for a loaded adapter to get into the batch")
	fs.DurationVar(&c.cost.Adapter.Place, "adapter-place", c.cost.Adapter.Place,
		"assumed time until one of the adapters in a full batch makes way")
	fs.IntVar(&c.cost.KVBytesPerToken, "kv-bytes-per-token", c.cost.KVBytesPerToken, "KV cache of one token, `bytes`")
	fs.IntVar(&c.cost.BlockTokens, "block-tokens", c.cost.BlockTokens, "tokens of one KV block")
	fs.Float64Var(&c.links[pd.SameHost].BytesPerSecond, "link-host", c.links[pd.SameHost].BytesPerSecond, "assumed KV bandwidth within a host, `bytes per second`")
	fs.Float64Var(&c.links[pd.SameRack].BytesPerSecond, "link-rack", c.links[pd.SameRack].BytesPerSecond, "the same within a rack")
	fs.Float64Var(&c.links[pd.SameZone].BytesPerSecond, "link-zone", c.links[pd.SameZone].BytesPerSecond, "the same within a zone, and where no labels are known")
	fs.Float64Var(&c.links[pd.Far].BytesPerSecond, "link-far", c.links[pd.Far].BytesPerSecond, "the same between zones")

	c.kv.bind(fs)
	fs.BoolVar(&c.cost.PairsFirst, "pairs-first", c.cost.PairsFirst,
		"decode servers compute prompts only where no pair can serve a request, and not where that is cheaper")
	fs.IntVar(&c.cost.ChunkTokens, "decode-chunk", c.cost.ChunkTokens,
		"prompt `tokens` that a decode server computes between two steps of its batch: the engine's max_num_batched_tokens")
	fs.BoolVar(&c.cost.DecodeReuse, "decode-reuse", c.cost.DecodeReuse, "decode takes over only the KV blocks that it lacks")
	fs.Float64Var(&c.cost.CPULoad, "cpu-load", c.cost.CPULoad,
		"KV from a server's CPU memory to its GPU, `bytes per second`; 0: it is not used")
	fs.Float64Var(&c.cost.DiskLoad, "disk-load", c.cost.DiskLoad, "KV from a server's disk to its GPU, `bytes per second`; 0: it is not used")

	fs.StringVar(&c.capacity, "capacity", c.capacity, "`file` of tandem calibrate: what servers are believed to do until they have shown it")

	fs.StringArrayVar(&c.hardware, "hardware", c.hardware,
		"kind of hardware to choose servers from, as `NAME=FILE,cost=C`,gpus=N,have=N, for servers of that variant; FILE of tandem "+
			"calibrate, cost of a server for an hour, gpus of a server (1), have how many GPUs there are (any number); may be repeated")

	c.redis.Bind(fs)
	bindKubernetes(fs, &c.kube)
	c.bindDiscovery(fs)
	bindScaling(&c.scaling, fs)
	fs.StringSliceVar(&c.scaleITL, "scale-itl", c.scaleITL,
		"time between tokens that decode servers are planned for, `duration`, for single models as model=duration; where it says "+
			"nothing that of itl-slo, or 50 ms")
	c.scaler.bind(fs)

	fs.DurationVar(&c.drainDelay, "drain-delay", c.drainDelay, "time between turning unready and taking no more connections")
	fs.DurationVar(&c.drainTimeout, "drain-timeout", c.drainTimeout, "time for requests and streams to end")
	fs.StringVar(&c.otlp, "otlp-endpoint", c.otlp, "`URL` of an OTLP/HTTP collector for traces, such as http://jaeger:4318; empty sends none")
	fs.Float64Var(&c.traceShare, "trace-share", c.traceShare, "share of requests that are traced, `0..1`")
	fs.StringVar(&c.logLevel, "log-level", c.logLevel, "debug, info, warn or error")
	fs.BoolVar(&c.logText, "log-text", c.logText, "log as text for people instead of JSON")
}

// validate reports the first thing that is wrong, nil if nothing.
func (c *config) validate() error {
	if len(c.specs())+len(c.names()) == 0 && !c.kube.Enabled() && !c.registry {
		return errors.New("no servers: name at least one with --prefill, --decode or --both, or say where to find them, as with --kubernetes-pods or --registry")
	}
	if c.registry && c.redis.Alone() {
		return errors.New("registry needs redis: that is where servers register themselves")
	}
	for _, name := range c.names() {
		if err := name.ValidateName(); err != nil {
			return err
		}
	}
	if err := pools.ValidateSpecs(c.specs()); err != nil {
		return err
	}
	for name, addr := range map[string]string{"listen": c.listen, "admin": c.admin} {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			return fmt.Errorf("%s %q: want host:port", name, addr)
		}
	}
	if u, err := url.Parse(c.otlp); c.otlp != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		return fmt.Errorf("otlp-endpoint %q: want http://host:port", c.otlp)
	}
	if err := c.readModels(); err != nil {
		return err
	}
	if err := errors.Join(c.gateway.Validate(), c.access.Validate(), c.pools.Validate(), c.pd.Validate(), c.cost.Validate(), c.links.Validate(), c.queue.Validate(), c.hold.Validate(), c.binding.Validate(), c.decider.validate(), c.redis.validate(), c.kube.Validate(), c.dns.Validate(), c.clientTLS.Validate(), c.adminTLS.Validate(), c.scaler.tls.Validate(), c.kv.validate(), c.scaling.Validate()); err != nil {
		return err
	}
	if c.cost.Rule != pd.Joint && c.binding != pd.OnArrival {
		return fmt.Errorf("policy %s needs binding arrival", c.cost.Rule)
	}
	if c.traceShare < 0 || c.traceShare > 1 {
		return fmt.Errorf("trace-share %v: want 0 to 1", c.traceShare)
	}
	if c.connect <= 0 || c.drainTimeout <= 0 || c.drainDelay < 0 {
		return errors.New("connect-timeout and drain-timeout must be positive, drain-delay not negative")
	}
	_, err := c.level()
	return err
}

// names are the names that stand for servers.
func (c *config) names() (names []pools.Spec) {
	for _, list := range c.servers {
		for _, spec := range list.specs {
			if spec.Named() {
				names = append(names, spec)
			}
		}
	}
	return names
}

// specs are all servers that are given by address, in the order of the roles.
func (c *config) specs() []pools.Spec {
	var all []pools.Spec
	for _, list := range c.servers {
		for _, spec := range list.specs {
			if !spec.Named() {
				all = append(all, c.kv.withEvents(spec))
			}
		}
	}
	return all
}

func (c *config) level() (slog.Level, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(c.logLevel)); err != nil {
		return l, fmt.Errorf("log-level %q: want debug, info, warn or error", c.logLevel)
	}
	return l, nil
}

func (c *config) logger() (*slog.Logger, error) {
	level, err := c.level()
	if err != nil {
		return nil, err
	}
	options := &slog.HandlerOptions{Level: level}
	if c.logText {
		return slog.New(slog.NewTextHandler(os.Stderr, options)), nil
	}
	return slog.New(slog.NewJSONHandler(os.Stderr, options)), nil
}
