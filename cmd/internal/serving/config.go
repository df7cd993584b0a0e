package serving

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/tandem-gateway/tandem/gateway"
	"github.com/tandem-gateway/tandem/gateway/access"
	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/leader"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/discovery"
	"github.com/tandem-gateway/tandem/pools/discovery/kube"
)

// config is all that can be set, by flag or by file, one part for each package that uses it:
// groups names it once for both.
type config struct {
	ports     portsConfig
	servers   [3]serverList // prefill, decode, both
	gateway   gatewayConfig
	access    accessConfig
	pd        pdConfig
	cost      costConfig
	decider   deciderConfig
	engines   enginesConfig
	pools     poolsConfig
	kv        localityConfig
	redis     RedisConfig
	discovery discoveryConfig
	scaling   scalingConfig
	drain     drainConfig
	telemetry telemetryConfig
}

// defaultConfig is what holds for all that is not set. It names no server.
func defaultConfig() config {
	return config{
		ports:     defaultPorts(),
		servers:   [3]serverList{{role: pools.Prefill}, {role: pools.Decode}, {role: pools.Both}},
		gateway:   gatewayConfig{Config: gateway.DefaultConfig()},
		access:    accessConfig{Config: access.DefaultConfig()},
		pd:        defaultPD(),
		cost:      defaultCost(),
		decider:   deciderConfig{patience: leader.DefaultPatience},
		engines:   enginesConfig{connect: time.Second},
		pools:     poolsConfig{Config: pools.Default()},
		kv:        defaultLocality(),
		redis:     DefaultRedis(),
		discovery: discoveryConfig{kube: kube.Default(), dns: discovery.DefaultDNS()},
		scaling:   defaultScaling(),
		drain:     drainConfig{timeout: 30 * time.Second},
		telemetry: telemetryConfig{traceShare: 1, logLevel: "info", history: time.Hour, historyBytes: 32 << 20},
	}
}

// configWith returns what holds with some settings, by the names of their flags, and servers.
func configWith(settings map[string]string, servers []discovery.Entry) (config, error) {
	cfg, fs := defaultConfig(), pflag.NewFlagSet("", pflag.ContinueOnError)
	cfg.bind(fs)
	for name, value := range settings {
		if err := fs.Set(name, value); err != nil {
			return config{}, err
		}
	}
	for _, e := range servers {
		role, err := discovery.ParseRole(e.Role)
		if err != nil {
			return config{}, err
		}
		for i := range cfg.servers {
			if cfg.servers[i].role == role {
				cfg.servers[i].add(e)
			}
		}
	}
	return cfg, cfg.validate()
}

// Group is settings that belong together.
type Group struct {
	Title string
	Flags *pflag.FlagSet
	First []string // names of those that help shows at once; none: only its title and count
}

// Settings are all that can be set, with their defaults, in the order of the documentation.
func Settings() []Group {
	cfg := defaultConfig()
	return cfg.groups()
}

// groups gives every setting its name and help, for flags, the file and the documentation alike.
func (c *config) groups() (all []Group) {
	for _, part := range []struct {
		title string
		bind  func(*pflag.FlagSet)
		first string
	}{
		{"Servers", c.bindServers, "prefill decode both"},
		{"Discovery of servers", c.discovery.bind, "kubernetes-pods inference-pools registry"},
		{"Ports", c.ports.bind, "listen admin picker"},
		{"Requests and answers", c.gateway.bind, "model-alias"},
		{"Access", c.access.bind, "keys-file admin-token-file"},
		{"Queue, time limits and retries", c.pd.bindLimits, "max-waiting max-wait"},
		{"Objectives, and how a prompt is served", c.pd.bindService, "ttft-slo itl-slo"},
		{"Predicted costs", c.cost.bind, ""},
		{"Several gateways", c.decider.bind, ""},
		{"Connections to engines", c.engines.bind, ""},
		{"Health and circuit breakers", c.pools.bindHealth, ""},
		{"Adapters and sleep", c.pools.bindStandby, ""},
		{"Locality of KV", c.kv.bind, "events-port tokens"},
		{"Redis", c.redis.Bind, "redis"},
		{"Autoscaling", c.scaling.bind, "scaler"},
		{"Drain", c.drain.bind, ""},
		{"Logs, traces and decisions", c.telemetry.bind, "otlp-endpoint"},
	} {
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		flags.SortFlags = false
		part.bind(flags)
		all = append(all, Group{part.title, flags, strings.Fields(part.first)})
	}
	return all
}

// bind gives a command, or what reads the file, every setting.
func (c *config) bind(fs *pflag.FlagSet) {
	for _, group := range c.groups() {
		fs.AddFlagSet(group.Flags)
	}
}

func (c *config) bindServers(fs *pflag.FlagSet) {
	fs.Var(&c.servers[0], "prefill", "prefill servers: `URLs`, separated by commas; in the file also with labels")
	fs.Var(&c.servers[1], "decode", "decode servers: `URLs`, likewise")
	fs.Var(&c.servers[2], "both", "servers that do both: `URLs`, likewise")
}

// validate reports what is wrong, nil if nothing: first of the servers, then of each part, and
// last of parts that do not fit each other.
func (c *config) validate() error {
	if err := c.validateServers(); err != nil {
		return err
	}
	if err := c.readModels(); err != nil {
		return err
	}
	if err := errors.Join(
		c.ports.validate(), c.gateway.Validate(), c.access.Validate(), c.pd.validate(), c.cost.validate(), c.decider.validate(),
		c.engines.validate(), c.pools.Validate(), c.kv.validate(), c.redis.validate(), c.discovery.validate(), c.scaling.validate(),
		c.drain.validate(), c.telemetry.validate(),
	); err != nil {
		return err
	}
	if err := c.validatePorts(); err != nil {
		return err
	}
	if err := c.validateNeeds(); err != nil {
		return err
	}
	if c.cost.Rule != cost.Joint && c.pd.binding != pd.OnArrival {
		return fmt.Errorf("policy %s needs binding arrival", c.cost.Rule)
	}
	return nil
}

// validateNeeds reports a setting that would do nothing, since it needs another one that is not set.
func (c *config) validateNeeds() error {
	for _, x := range []struct {
		set, has bool
		wrong    string
	}{
		{c.discovery.registry, !c.redis.Alone(), "registry needs redis: that is where servers register themselves"},
		{c.ports.pickerLeaderOnly, c.ports.picker != "", "picker-leader-only needs picker"},
		{c.ports.pickerLeaderOnly, !c.redis.Alone(), "picker-leader-only needs redis: replicas elect the leader there, and without it all of them pick"},
		{c.ports.pickerPlain, c.ports.picker != "", "picker-plain needs picker"},
		{c.ports.pickerTLS.Cert != "", c.ports.picker != "", "picker-cert needs picker"},
		{c.decider.listen != "", !c.redis.Alone(), "decider-listen needs redis: replicas find the one that decides there"},
		{c.decider.tls.Cert != "", !c.redis.Alone(), "decider-cert needs redis: replicas find the one that decides there"},
		{c.scaling.ScaleIn, c.discovery.kube.Enabled(), "scale-victims needs kubernetes-pods, kubernetes-services or inference-pools: the servers that go are marked on their pods"},
	} {
		if x.set && !x.has {
			return errors.New(x.wrong)
		}
	}
	return nil
}

// validateServers reports servers that are not valid, or that there are none, or none that decodes.
func (c *config) validateServers() error {
	if len(c.listed()) == 0 && !c.discovery.kube.Enabled() && !c.discovery.registry {
		return errors.New("no servers: name at least one with --prefill, --decode or --both, or say where to find them, as with --kubernetes-pods or --registry")
	}
	for _, name := range c.names() {
		if err := discovery.ValidateName(name); err != nil {
			return err
		}
	}
	if !hasRole(c.listed(), pools.Decode) && !c.serversMayCome() {
		return errors.New("decode names no server, nor does both: every request would be refused; name one, or say where to find them, as with --kubernetes-pods or --registry")
	}
	return pools.ValidateSpecs(c.specs())
}

func hasRole(servers []pools.Spec, role pools.Role) bool {
	return slices.ContainsFunc(servers, func(spec pools.Spec) bool { return spec.Role.Serves(role) })
}

// serversMayCome reports whether servers are found while serving, or started for requests that wait for them.
func (c *config) serversMayCome() bool {
	found := c.discovery.kube.Enabled() || c.discovery.registry || c.discovery.nccl != ""
	return found || c.pd.hold.MaxWait > 0 || c.scaling.Planner.ToZero()
}

// listed are the servers that the configuration lists, and the names that stand for some.
func (c *config) listed() []pools.Spec { return slices.Concat(c.specs(), c.names()) }

// names are the names that stand for servers.
func (c *config) names() (names []pools.Spec) {
	for _, list := range c.servers {
		for _, spec := range list.specs {
			if discovery.IsName(spec) {
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
			if !discovery.IsName(spec) {
				all = append(all, c.kv.withEvents(spec))
			}
		}
	}
	return all
}
