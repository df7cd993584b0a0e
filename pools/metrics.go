package pools

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-gateway/tandem/pools/breaker"
	"github.com/tandem-gateway/tandem/pools/load"
)

var (
	serverLabels = []string{"server"}
	legLabels    = []string{"server", "leg"}

	upDesc = prometheus.NewDesc("tandem_server_up",
		"1 if the last probe of the server succeeded, else 0.", serverLabels, nil)
	infoDesc = prometheus.NewDesc("tandem_server_info",
		"1, with what the server is: one series for each model that it serves (adapters left out), \"\" while it has not said which. "+
			"Join it by server, over all gateways: "+
			"max by (server) (tandem_server_up) * on (server) group_right () group by (server, model, role, rack) (tandem_server_info).",
		[]string{"server", "model", "role", "rack", "zone", "variant", "connector"}, nil)
	unresponsiveDesc = prometheus.NewDesc("tandem_server_unresponsive",
		"1 while the server was up and answers late: it gets nothing new while others are alive, and keeps what it has.",
		serverLabels, nil)
	missingDesc = prometheus.NewDesc("tandem_role_missing",
		"1 while all servers of the role are down or drain, or only prefill has servers, so that requests are answered by the other role or not at all.", []string{"role"}, nil)
	breakerDesc = prometheus.NewDesc("tandem_breaker_state",
		"State of the server's breaker for a leg: 0 closed, 1 half open (one request tries it), 2 open (it gets none).", legLabels, nil)
	wouldEjectDesc = prometheus.NewDesc("tandem_breaker_would_eject",
		"1 while the server is used for a leg though its breaker has ejected it: others are out already, and the cap on ejections "+
			"keeps it in.",
		legLabels, nil)
	ejectionsDesc = prometheus.NewDesc("tandem_breaker_ejections_total",
		"Times that the breaker ejected the server for a leg.", legLabels, nil)
	probeRequestsDesc = prometheus.NewDesc("tandem_probe_requests_total",
		"Generations of the gateway's own that proved a server for a leg, or did not, by outcome (passed, failed). Absent before the first.",
		[]string{"server", "leg", "outcome"}, nil)
	inFlightDesc = prometheus.NewDesc("tandem_server_in_flight_requests",
		"Requests that this gateway has on the server, by leg.", legLabels, nil)
	engineRequestsDesc = prometheus.NewDesc("tandem_engine_requests",
		"Requests on the server as its engine reports them, by state: running, waiting. Absent when unknown or old.",
		[]string{"server", "state"}, nil)
	engineKVDesc = prometheus.NewDesc("tandem_engine_kv_usage_ratio",
		"KV in use on the server as its engine reports it, 1 is full. Absent when unknown or old.", serverLabels, nil)
	engineCapacityDesc = prometheus.NewDesc("tandem_engine_kv_capacity_tokens",
		"Tokens whose KV the server has room for, as its engine reports it. Absent when unknown or old.", serverLabels, nil)
	tokenBytesDesc = prometheus.NewDesc("tandem_engine_kv_bytes_per_token",
		"Bytes of the KV of a token as they cross a link, as the engine reports it or as its transfers have shown it. Absent when unknown.",
		serverLabels, nil)
	reportsDesc = prometheus.NewDesc("tandem_orca_reports_total",
		"Load reports (ORCA) that came with answers or as a stream, by outcome: read, unreadable (absent before the first). Absent where none ever came.",
		[]string{"server", "outcome"}, nil)
	pushesDesc = prometheus.NewDesc("tandem_pushed_loads_total",
		"Loads that an engine pushed over ZMQ (SGLang), by outcome: read, unreadable (absent before the first). Absent where none ever came.",
		[]string{"server", "outcome"}, nil)
	adaptersDesc = prometheus.NewDesc("tandem_server_adapters",
		"LoRA adapters that the server has. Absent where it has none and none are loaded on demand.", serverLabels, nil)
	adapterLoadsDesc = prometheus.NewDesc("tandem_adapter_loads_total",
		"LoRA adapters that this gateway had the server load or unload, by outcome: loaded, failed, unloaded. Absent where adapters "+
			"are not loaded on demand.",
		[]string{"server", "outcome"}, nil)
	adapterLoadTimeDesc = prometheus.NewDesc("tandem_adapter_load_seconds",
		"Sum and number of the times that servers took to load LoRA adapters for this gateway. Absent where adapters are not loaded on demand.",
		nil, nil)
	adapterRequestsDesc = prometheus.NewDesc("tandem_adapter_requests_total",
		"Legs for LoRA adapters that may be loaded on demand, by outcome: hit (the server had the adapter), miss (it had to load it first). "+
			"Absent where adapters are not loaded on demand.",
		[]string{"outcome"}, nil)
	tokensDesc = prometheus.NewDesc("tandem_server_tokens",
		"Tokens on the server: prompt tokens waiting for prefill, and tokens of the sequences running. As the engine reports them, "+
			"else as the gateways count what they sent.",
		[]string{"server", "state"}, nil)
	pairsDesc = prometheus.NewDesc("tandem_pool_pairs",
		"Pairs of a prefill and a decode server of the model that are up and can use each other's KV. 0 with servers in both roles: "+
			"their connector, weights, version or KV layout differ; the log names them.",
		[]string{"model"}, nil)
	panicDesc = prometheus.NewDesc("tandem_pool_panic",
		"1 while more servers of the base model's pool are ejected than may be, so that all are used.", []string{"model", "role"}, nil)
)

// Collector exposes the state of the fleet, read at the moment of the scrape.
func (f *Fleet) Collector() prometheus.Collector { return collector{f} }

type collector struct{ fleet *Fleet }

func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		upDesc, infoDesc, unresponsiveDesc, missingDesc, breakerDesc, wouldEjectDesc, ejectionsDesc, probeRequestsDesc, inFlightDesc,
		engineRequestsDesc, engineKVDesc, engineCapacityDesc, tokenBytesDesc, tokensDesc, reportsDesc, pushesDesc, adaptersDesc, adapterLoadsDesc, adapterLoadTimeDesc, adapterRequestsDesc, panicDesc, pairsDesc,
	} {
		ch <- d
	}
}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	now := time.Now()
	out := samples(ch)
	servers := c.fleet.Servers()
	spared := make(map[*breaker.Breaker]bool) // of servers that are used though they are ejected
	for model, pool := range listing(servers) {
		for _, leg := range []Role{Prefill, Decode} {
			usable, panicking := Candidates(nil, pool, model, leg, c.fleet.cfg.EjectShare, now)
			out.gauge(panicDesc, oneIf(panicking), model, leg.String())
			for _, s := range usable {
				b := s.breakers[LegIndex(leg)]
				spared[b] = spared[b] || b.Ejected()
			}
		}
	}
	for model, p := range Pairings(servers) {
		out.gauge(pairsDesc, float64(p.Pairs), model)
	}
	gone := c.fleet.Missing()
	for _, role := range []Role{Prefill, Decode} {
		out.gauge(missingDesc, oneIf(slices.Contains(gone, role)), role.String())
	}
	c.fleet.collectAdapterUse(out)
	for _, s := range servers {
		s.collect(out, spared, now)
	}
}

// samples are what a scrape reads.
type samples chan<- prometheus.Metric

func (out samples) gauge(d *prometheus.Desc, v float64, labels ...string) {
	out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func (out samples) counter(d *prometheus.Desc, v uint64, labels ...string) {
	out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
}

// collect writes the server's own series.
func (s *Server) collect(out samples, spared map[*breaker.Breaker]bool, now time.Time) {
	out.gauge(upDesc, oneIf(s.ownState() == Alive), s.id)
	out.gauge(unresponsiveDesc, oneIf(s.ownState() == Unresponsive), s.id)
	s.collectInfo(out)
	for _, leg := range []Role{Prefill, Decode} {
		if s.Role.Serves(leg) {
			s.collectLeg(out, leg, spared, now)
		}
	}
	s.collectEngine(out, now)
	waiting, running := s.Tokens(now)
	out.gauge(tokensDesc, waiting, s.id, "waiting")
	out.gauge(tokensDesc, running, s.id, "running")
	s.collectAdapters(out)
}

// collectInfo writes what the server is, which other series are joined with.
func (s *Server) collectInfo(out samples) {
	models := make([]string, 0, 1)
	for _, m := range s.Health().Models {
		if m.Parent == "" && !slices.Contains(models, m.ID) {
			models = append(models, m.ID)
		}
	}
	if len(models) == 0 {
		models = append(models, "")
	}
	for _, model := range models {
		out.gauge(infoDesc, 1, s.id, model, s.Role.String(), s.Rack, s.Zone, s.Variant, s.Connector())
	}
}

// breakerCodes are the values of tandem_breaker_state.
var breakerCodes = map[breaker.State]float64{breaker.Closed: 0, breaker.HalfOpen: 1, breaker.Open: 2}

func (s *Server) collectLeg(out samples, leg Role, spared map[*breaker.Breaker]bool, now time.Time) {
	b := s.breakers[LegIndex(leg)]
	counts := b.Counts()
	out.gauge(breakerDesc, breakerCodes[s.Breaker(leg, now)], s.id, leg.String())
	out.gauge(wouldEjectDesc, oneIf(spared[b]), s.id, leg.String())
	out.counter(ejectionsDesc, counts.Ejections, s.id, leg.String())
	if counts.ProbesPassed+counts.ProbesFailed > 0 {
		out.counter(probeRequestsDesc, counts.ProbesPassed, s.id, leg.String(), "passed")
		out.counter(probeRequestsDesc, counts.ProbesFailed, s.id, leg.String(), "failed")
	}
	out.gauge(inFlightDesc, float64(s.OwnInFlight(leg, now).Requests), s.id, leg.String())
}

// collectEngine writes what the engine reports of itself.
func (s *Server) collectEngine(out samples, now time.Time) {
	l := s.FreshLoad(now)
	known := func(g load.Gauge, d *prometheus.Desc, labels ...string) {
		if g.Known {
			out.gauge(d, g.Value, append([]string{s.id}, labels...)...)
		}
	}
	known(l.Running, engineRequestsDesc, "running")
	known(l.Waiting, engineRequestsDesc, "waiting")
	known(l.KVUsed, engineKVDesc)
	known(l.KVTokens, engineCapacityDesc)
	bytes := s.KVBytesPerToken()
	known(load.Gauge{Value: bytes, Known: bytes > 0}, tokenBytesDesc)
	for desc, counts := range map[*prometheus.Desc]*reportCounts{reportsDesc: &s.reports, pushesDesc: &s.pushes} {
		if read, unreadable := counts.read.Load(), counts.unreadable.Load(); read+unreadable > 0 {
			out.counter(desc, read, s.id, "read")
			if unreadable > 0 {
				out.counter(desc, unreadable, s.id, "unreadable")
			}
		}
	}
}

func (s *Server) collectAdapters(out samples) {
	adapters := 0
	for _, m := range s.Health().Models {
		if m.Parent != "" {
			adapters++
		}
	}
	onDemand := len(s.fleet.cfg.Adapters.Directory) > 0
	if adapters > 0 || onDemand {
		out.gauge(adaptersDesc, float64(adapters), s.id)
	}
	if onDemand {
		out.counter(adapterLoadsDesc, s.loadRequests.loaded.Load(), s.id, "loaded")
		out.counter(adapterLoadsDesc, s.loadRequests.failed.Load(), s.id, "failed")
		out.counter(adapterLoadsDesc, s.loadRequests.unloaded.Load(), s.id, "unloaded")
	}
}

// collectAdapterUse writes what adapters that are loaded on demand cost requests.
func (f *Fleet) collectAdapterUse(out samples) {
	if len(f.cfg.Adapters.Directory) == 0 {
		return
	}
	out.counter(adapterRequestsDesc, f.adapterUse.hits.Load(), "hit")
	out.counter(adapterRequestsDesc, f.adapterUse.misses.Load(), "miss")
	loads, took := f.adapterUse.readLoads()
	out <- prometheus.MustNewConstSummary(adapterLoadTimeDesc, loads, took.Seconds(), nil)
}

// listing returns the servers that list each base model: an adapter's are those of its base.
func listing(servers []*Server) map[string][]*Server {
	pools := make(map[string][]*Server)
	for _, s := range servers {
		for _, m := range s.Health().Models {
			if pool := pools[m.ID]; m.Parent == "" && (len(pool) == 0 || pool[len(pool)-1] != s) {
				pools[m.ID] = append(pool, s)
			}
		}
	}
	return pools
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
