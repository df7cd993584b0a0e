package pools

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-gateway/tandem/pools/breaker"
)

var (
	upDesc = prometheus.NewDesc("tandem_server_up",
		"1 if the last probe of the server succeeded, else 0.", []string{"server", "role"}, nil)
	unresponsiveDesc = prometheus.NewDesc("tandem_server_in_doubt",
		"1 while the server was up and answers late: it gets nothing new while others are alive, and keeps what it has.",
		[]string{"server", "role"}, nil)
	missingDesc = prometheus.NewDesc("tandem_role_missing",
		"1 while all servers of the role are down, so that requests are answered by the other role or not at all.", []string{"role"}, nil)
	breakerDesc = prometheus.NewDesc("tandem_breaker_state",
		"State of the server's breaker for a leg: 1 for the state it is in (closed, half_open, open).", []string{"server", "leg", "state"}, nil)
	wouldEjectDesc = prometheus.NewDesc("tandem_breaker_would_eject",
		"1 while the server is used for a leg though its breaker has ejected it: others are out already, and the cap on ejections "+
			"keeps it in.",
		[]string{"server", "leg"}, nil)
	ejectionsDesc = prometheus.NewDesc("tandem_breaker_ejections_total",
		"Times that the breaker ejected the server for a leg.", []string{"server", "leg"}, nil)
	probeRequestsDesc = prometheus.NewDesc("tandem_canaries_total",
		"Generations of the gateway's own that proved a server for a leg, or did not, by outcome (passed, failed).",
		[]string{"server", "leg", "outcome"}, nil)
	inFlightDesc = prometheus.NewDesc("tandem_server_in_flight_requests",
		"Requests that this gateway has on the server, by leg.", []string{"server", "leg"}, nil)
	inFlightTokensDesc = prometheus.NewDesc("tandem_server_in_flight_tokens",
		"Tokens of the requests that this gateway has on the server, by leg.", []string{"server", "leg"}, nil)
	engineDesc = prometheus.NewDesc("tandem_server_engine_load",
		"Load that the engine reports: requests and tokens running and waiting, KV in use as a share of 1, its capacity and block in "+
			"tokens. Absent when unknown or old.",
		[]string{"server", "kind"}, nil)
	reportsDesc = prometheus.NewDesc("tandem_orca_reports_total",
		"Load reports (ORCA) that came with answers or as a stream, by outcome: read, unreadable.", []string{"server", "outcome"}, nil)
	adaptersDesc = prometheus.NewDesc("tandem_server_adapters",
		"LoRA adapters that the server has.", []string{"server"}, nil)
	adapterLoadsDesc = prometheus.NewDesc("tandem_adapter_loads_total",
		"LoRA adapters that this gateway had the server load or unload, by outcome: loaded, failed, unloaded.",
		[]string{"server", "outcome"}, nil)
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
	for _, d := range []*prometheus.Desc{upDesc, unresponsiveDesc, missingDesc, breakerDesc, wouldEjectDesc, ejectionsDesc, probeRequestsDesc, inFlightDesc, inFlightTokensDesc, engineDesc, tokensDesc, reportsDesc, adaptersDesc, adapterLoadsDesc, panicDesc, pairsDesc} {
		ch <- d
	}
}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	now := time.Now()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	servers := c.fleet.Servers()
	spared := make(map[*breaker.Breaker]bool) // of servers that are used though they are ejected
	for model, pool := range listing(servers) {
		for _, leg := range []Role{Prefill, Decode} {
			usable, panicking := Candidates(pool, model, leg, c.fleet.cfg.EjectShare, now)
			gauge(panicDesc, oneIf(panicking), model, leg.String())
			for _, s := range usable {
				b := s.breakers[LegIndex(leg)]
				spared[b] = spared[b] || b.Ejected()
			}
		}
	}
	for model, p := range Pairings(servers) {
		gauge(pairsDesc, float64(p.Pairs), model)
	}
	gone := c.fleet.Missing()
	for _, role := range []Role{Prefill, Decode} {
		gauge(missingDesc, oneIf(slices.Contains(gone, role)), role.String())
	}
	for _, s := range servers {
		gauge(upDesc, oneIf(s.ownState() == Alive), s.id, s.Role.String())
		gauge(unresponsiveDesc, oneIf(s.ownState() == Unresponsive), s.id, s.Role.String())
		for _, leg := range []Role{Prefill, Decode} {
			if !s.Role.Serves(leg) {
				continue
			}
			state := s.Breaker(leg, now)
			for _, each := range []breaker.State{breaker.Closed, breaker.HalfOpen, breaker.Open} {
				gauge(breakerDesc, oneIf(state == each), s.id, leg.String(), string(each))
			}
			b := s.breakers[LegIndex(leg)]
			gauge(wouldEjectDesc, oneIf(spared[b]), s.id, leg.String())
			counts := b.Counts()
			counter(ejectionsDesc, counts.Ejections, s.id, leg.String())
			counter(probeRequestsDesc, counts.ProbesPassed, s.id, leg.String(), "passed")
			counter(probeRequestsDesc, counts.ProbesFailed, s.id, leg.String(), "failed")
			own := s.OwnInFlight(leg, now)
			gauge(inFlightDesc, float64(own.Requests), s.id, leg.String())
			gauge(inFlightTokensDesc, float64(own.Tokens), s.id, leg.String())
		}
		for kind, v := range s.FreshLoad(now).Readings() {
			gauge(engineDesc, v, s.id, string(kind))
		}
		counter(reportsDesc, s.reports.read.Load(), s.id, "read")
		counter(reportsDesc, s.reports.unreadable.Load(), s.id, "unreadable")
		adapters := 0
		for _, m := range s.Health().Models {
			if m.Parent != "" {
				adapters++
			}
		}
		gauge(adaptersDesc, float64(adapters), s.id)
		counter(adapterLoadsDesc, s.loadRequests.loaded.Load(), s.id, "loaded")
		counter(adapterLoadsDesc, s.loadRequests.failed.Load(), s.id, "failed")
		counter(adapterLoadsDesc, s.loadRequests.unloaded.Load(), s.id, "unloaded")
		waiting, running := s.Tokens(now)
		gauge(tokensDesc, waiting, s.id, "waiting")
		gauge(tokensDesc, running, s.id, "running")
	}
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
