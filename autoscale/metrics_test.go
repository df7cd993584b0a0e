package autoscale

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-gateway/tandem/autoscale/demand"
	"github.com/tandem-gateway/tandem/autoscale/mix"
	"github.com/tandem-gateway/tandem/autoscale/sizing"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/share"
)

// gathered are the series of a scaler, one a line.
func gathered(t *testing.T, s *Scaler) []string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(s)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, family := range families {
		for _, m := range family.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				if l.GetValue() != "" && l.GetName() != "model" {
					labels = append(labels, l.GetValue())
				}
			}
			lines = append(lines, fmt.Sprintf("%s %s: %g", strings.TrimPrefix(family.GetName(), "tandem_"), strings.Join(labels, " "), m.GetGauge().GetValue()))
		}
	}
	return lines
}

// What is decided from is published, each figure of what it is of; what is not known is left
// out, and of old signals everything.
func TestCollect(t *testing.T) {
	c := newClock()
	s := NewScaler(testConfig(), nil, demand.NewMeter(c.Now), nil, slog.New(slog.DiscardHandler))
	series := func(v float64) sizing.Series { return slices.Repeat(sizing.Series{v}, 12) }
	whole := &Decision{
		At: c.Now(),
		Signals: sizing.Signals{
			Prompt: series(1000), Output: series(100), PrefillBacklog: 6000, DecodeBacklog: 50, PrefillSpeed: 3000, DecodeSpeed: 50,
			Prefill: sizing.Pool{Ready: 2, Pending: 1}, Decode: sizing.Pool{Ready: 1}, ColdStart: 90 * time.Second,
		},
		State: State{
			Hardware: []Hardware{
				{Role: pools.Prefill, Variant: "a", Ready: 2, Speed: 6000, Backlog: 2, KVUsed: 10},
				{Role: pools.Decode, Variant: "b", Ready: 1, Speed: 50, Backlog: 3, KVUsed: 20, KVTokens: 40},
			},
			PrefillWaiting: 4, DecodeWaiting: 5, KVQueued: 600,
			TTFT: demand.Attained{Judged: 4, Met: 3}, ITL: demand.Attained{Judged: 2},
			Prices: []mix.Price{{Variant: "a", What: "kv", PerHour: 2.5}},
			Shares: &share.Table{Variants: []string{"a", "x"}, Tokens: []float64{0.75, 0.25}},
		},
	}
	less := *whole
	less.State = State{Shares: &share.Table{Variants: []string{"a", "x"}, Tokens: []float64{1}}}
	less.Signals.Prefill, less.Signals.Decode, less.Signals.DecodeSpeed = sizing.Pool{}, sizing.Pool{Ready: 1}, 0
	for _, of := range []struct {
		name  string
		d     *Decision
		after time.Duration
		want  []string
	}{
		{"all is known", whole, s.cfg.Planner.MaxAge, []string{
			"backlog_seconds prefill: 1", "backlog_seconds decode: 1", "capacity_price_per_hour a kv: 2.5", "cold_start_seconds : 90",
			"demand_tokens_per_second prefill: 1000", "demand_tokens_per_second decode: 100", "kv_queued_tokens : 600",
			"pool_kv_used_tokens prefill a: 10", "pool_kv_used_tokens decode b: 20", "pool_kv_capacity_tokens decode b: 40",
			"pool_servers prefill ready a: 2", "pool_servers prefill pending: 1", "pool_servers decode ready b: 1", "pool_servers decode pending: 0",
			"pool_waiting_requests prefill: 4", "pool_waiting_requests decode: 5", "server_speed_tokens_per_second prefill a: 3000", "server_speed_tokens_per_second decode b: 50",
			"slo_attainment_ratio ttft: 0.75", "slo_attainment_ratio itl: 0",
			"variant_backlog_seconds prefill a: 2", "variant_backlog_seconds decode b: 3", "variant_demand_tokens_per_second prefill a: 750", "variant_demand_tokens_per_second prefill x: 250",
		}},
		{"no server, no objective, shares of another version", &less, 0, []string{
			"cold_start_seconds : 90", "demand_tokens_per_second prefill: 1000", "demand_tokens_per_second decode: 100", "kv_queued_tokens : 0",
			"pool_servers prefill ready: 0", "pool_servers prefill pending: 0", "pool_servers decode pending: 0", "pool_waiting_requests prefill: 0", "pool_waiting_requests decode: 0",
		}},
		{"old", whole, s.cfg.Planner.MaxAge + time.Nanosecond, nil},
	} {
		s.current.Store(&plans{Models: map[string]*Decision{model: of.d}})
		s.now = func() time.Time { return of.d.At.Add(of.after) }
		got, want := gathered(t, s), slices.Clone(of.want)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s:\n%s\nwant\n%s", of.name, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// A backlog has a time where there are servers whose speed is known.
func TestBacklog(t *testing.T) {
	for _, of := range []struct {
		tokens, speed float64
		ready         int
		want          float64
		known         bool
	}{{600, 100, 2, 3, true}, {0, 100, 1, 0, true}, {600, 0, 2, 0, false}, {600, 100, 0, 0, false}} {
		if got, known := backlog(of.tokens, of.speed, of.ready); got != of.want || known != of.known {
			t.Errorf("%+v: %g, known %v", of, got, known)
		}
	}
}

// The live page shows what is wanted of each pool beside what it has; that the signals are old is
// said, since nothing goes by the figures then.
func TestScaler_StatusIsWantedBesideReady(t *testing.T) {
	c := newClock()
	s := NewScaler(testConfig(), nil, demand.NewMeter(c.Now), nil, slog.New(slog.DiscardHandler))
	if all := s.Status(); len(all) != 0 {
		t.Errorf("before a decision: %+v", all)
	}
	d := &Decision{
		At: c.Now(), WaitingForCapacity: 3,
		Signals: sizing.Signals{Prefill: sizing.Pool{Ready: 3, Pending: 1}, Decode: sizing.Pool{Pending: 2}},
		Pools: []PoolWant{
			{Role: pools.Prefill, Variant: "a", Want: sizing.Want{Servers: 2, Reason: sizing.Demand}},
			{Role: pools.Prefill, Variant: "b", Want: sizing.Want{Servers: 4, Reason: sizing.Demand}},
			{Role: pools.Decode, Any: true, Want: sizing.Want{Servers: 5, Reason: sizing.KV}},
		},
		State: State{Hardware: []Hardware{
			{Role: pools.Prefill, Variant: "a", Ready: 2}, {Role: pools.Prefill, Variant: "b", Ready: 1},
			{Role: pools.Decode, Variant: "a", Ready: 6},
		}},
	}
	d.Plan.Prefill.Reason, d.Plan.Decode.Reason = sizing.Demand, sizing.KV
	s.current.Store(&plans{Models: map[string]*Decision{"m": d}})
	shown := func() (text string) {
		for _, p := range s.Status() {
			text += fmt.Sprintf("%s %s wanted %d ready %d pending %d waiting %d by %s stale %v\n", p.Role, p.Variant, p.Servers, p.Ready, p.Pending, p.WaitingForCapacity, p.Reason, p.Stale)
		}
		return text
	}
	want := `prefill  wanted 6 ready 3 pending 1 waiting 3 by demand stale false
prefill a wanted 2 ready 2 pending 0 waiting 0 by demand stale false
prefill b wanted 4 ready 1 pending 0 waiting 0 by demand stale false
decode  wanted 5 ready 6 pending 2 waiting 3 by kv stale false
`
	if got := shown(); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	c.pass(s.cfg.Planner.MaxAge + 1)
	if got := shown(); got != strings.ReplaceAll(want, "stale false", "stale true") {
		t.Errorf("with old signals\n%s", got)
	}
}

// What is wanted is not known before the first plan that signals allow, as after a Redis that lost the plans.
func TestStatus_IsUnknownBeforeTheFirstPlan(t *testing.T) {
	c := newClock()
	s := NewScaler(testConfig(), newFleet(t), demand.NewMeter(c.Now), nil, slog.New(slog.DiscardHandler))
	d := &Decision{At: c.Now()}
	s.current.Store(&plans{Models: map[string]*Decision{"m": d}})
	for _, known := range []bool{false, true} {
		d.Plan.Known = known
		if all := s.Status(); len(all) != 2 || all[0].Known != known || all[1].Known != known {
			t.Errorf("want both pools, known: %v: %+v", known, all)
		}
	}
}
