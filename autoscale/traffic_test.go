package autoscale

import (
	"log/slog"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tandem-gateway/tandem/autoscale/demand"
	"github.com/tandem-gateway/tandem/autoscale/mix"
	"github.com/tandem-gateway/tandem/loadtest/redisserver"
	"github.com/tandem-gateway/tandem/pools/share"
)

func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 0.01*math.Abs(want)+1e-9 {
		t.Errorf("%s: %g, want %g", what, got, want)
	}
}

// A request counts in its class as it was predicted, and then as it was.
func TestTraffic_ByClassAsItWas(t *testing.T) {
	c := newClock()
	m := demand.NewMeter(c.Now)
	short := m.RecordArrival(demand.Arrival{Model: model, Fingerprint: 1, PromptTokens: 1500, OutputTokens: 100})
	m.RecordArrival(demand.Arrival{Model: model, Fingerprint: 2, PromptTokens: 30_000, OutputTokens: 700})
	traffic := m.Traffic(model)
	of := &traffic[share.ClassOf(1500, 100)]
	if *of != (demand.Lengths{Requests: 1, Prompt: 1500, Computed: 1500, Output: 100}) || traffic[share.ClassOf(30_000, 700)] != (demand.Lengths{Requests: 1, Prompt: 30_000, Computed: 30_000, Output: 700}) {
		t.Fatalf("%+v", traffic)
	}
	short.RecordFirstToken(1600, 400)
	short.RecordEnd(40, false)
	traffic = m.Traffic(model)
	prompt, computed, output, ok := of.Mean()
	if prompt != 1600 || computed != 400 || output != 40 || !ok {
		t.Errorf("%g tokens, %g of them computed, and %g of the answer", prompt, computed, output)
	}
	// A retry of what was refused is not asked for twice.
	m.RecordArrival(demand.Arrival{Model: model, Fingerprint: 3, PromptTokens: 1500}).RecordRefusal()
	m.RecordArrival(demand.Arrival{Model: model, Fingerprint: 3, PromptTokens: 1500})
	if traffic = m.Traffic(model); of.Requests != 2 {
		t.Errorf("%g requests, want 2", of.Requests)
	}
	if none := m.Traffic("other"); none != (demand.Traffic{}) {
		t.Errorf("of a model that no request asks for: %+v", none)
	}
}

// What was asked for long ago counts for less, and what becomes known of it late too.
func TestTraffic_Fades(t *testing.T) {
	c := newClock()
	m := demand.NewMeter(c.Now)
	v := m.RecordArrival(demand.Arrival{Model: model, PromptTokens: 8000})
	c.pass(demand.Lately)
	v.RecordFirstToken(8000, 4000)
	traffic := m.Traffic(model)
	of := &traffic[share.ClassOf(8000, 0)]
	near(t, "requests", of.Requests, math.Exp(-1))
	_, computed, _, _ := of.Mean()
	near(t, "tokens computed of one", computed, 4000)
	c.pass(5 * demand.Lately)
	if traffic = m.Traffic(model); of.Requests > demand.LeastRequests {
		t.Errorf("%g requests are left", of.Requests)
	}
	if _, _, _, ok := of.Mean(); ok {
		t.Error("what is left counts")
	}
	for range 3600 { // one each second, for an hour
		m.RecordArrival(demand.Arrival{Model: model, PromptTokens: 8000})
		c.pass(time.Second)
	}
	traffic = m.Traffic(model)
	near(t, "requests per second", of.Rate(), 1-math.Exp(-4))
}

// Traffic of several gateways adds up.
func TestTraffic_OfAllGateways(t *testing.T) {
	c := newClock()
	var readings []demand.Reading
	for i := range 2 {
		m := demand.NewMeter(c.Now)
		for range 3 + i {
			m.RecordArrival(demand.Arrival{Model: model, PromptTokens: 8000})
		}
		readings = append(readings, m.Read())
	}
	all := demand.Sum(readings, model, 0, demand.BinOf(c.Now()))
	if of := all.Traffic[share.ClassOf(8000, 0)]; of.Requests != 7 || of.Prompt != 56_000 {
		t.Errorf("%+v", of)
	}
}

// Which hardware serves which requests is said while the plan is fresh, and no longer.
func TestShares_OfAFreshPlanOnly(t *testing.T) {
	c := &clock{time.Now()}
	meter, table := demand.NewMeter(c.Now), &share.Table{Variants: []string{"a", "b"}}
	s := NewScaler(testConfig(), newFleet(t), meter, nil, slog.New(slog.DiscardHandler))
	var asked mix.AllocationRequest
	s.Allocate = func(a mix.AllocationRequest) (mix.HardwareAllocation, error) {
		asked = a
		return mix.HardwareAllocation{Prefill: map[string]int{"": 1}, Decode: map[string]int{"": 1}, Shares: table}, nil
	}
	if err := s.step(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if s.Shares(model) != nil {
		t.Error("shares before anything could be planned")
	}
	ask(c, 20_000, meter)
	if err := s.step(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if s.Shares(model) != table || s.Shares("other") != nil {
		t.Errorf("shares of the model: %+v, of another: %+v", s.Shares(model), s.Shares("other"))
	}
	if got := asked.Traffic[share.ClassOf(20_000, 0)]; got.Requests < 100 {
		t.Errorf("asked for %+v of the prompts of 20,000 tokens", got)
	}
	n := math.Inf(1)
	for tries := 0; tries < 10 && n > 0; tries++ { // the probes of the fleet allocate too
		n = testing.AllocsPerRun(100, func() { s.Shares(model) })
	}
	if n != 0 {
		t.Errorf("%g allocations", n)
	}
	c.pass(s.cfg.Planner.MaxAge + time.Second)
	if s.Shares(model) != nil {
		t.Error("shares of a plan that is old")
	}
}

// A plan tells every replica what it tells the one that made it.
func TestShares_ReachOtherReplicas(t *testing.T) {
	r, fleet := redisserver.Start(t), newFleet(t)
	want := share.Table{Variants: []string{"a", "b"}, Prefill: map[share.Class][]float64{3: {0.25, 0.75}}}
	var scalers []*Scaler
	for _, name := range []string{"a", "b"} {
		client := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: []string{r.Addr()}})
		t.Cleanup(func() { _ = client.Close() })
		shared := NewShared(client, "test:", name)
		s := NewScaler(testConfig(), fleet, demand.NewMeter(shared.Now), shared, slog.New(slog.DiscardHandler))
		s.Allocate = func(mix.AllocationRequest) (mix.HardwareAllocation, error) {
			return mix.HardwareAllocation{Prefill: map[string]int{"": 1}, Decode: map[string]int{"": 1}, Shares: &want}, nil
		}
		scalers = append(scalers, s)
	}
	decider, follower := scalers[0], scalers[1]
	follower.Allocate = func(mix.AllocationRequest) (mix.HardwareAllocation, error) {
		t.Error("it is the other's turn")
		return mix.HardwareAllocation{}, nil
	}
	eventually(t, "demand was watched for long enough to plan", func() bool {
		if err := decider.step(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		return decider.Shares(model) != nil
	})
	if err := follower.step(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if got := follower.Shares(model); !reflect.DeepEqual(got, &want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// A gateway that is gone stays in the sum for as long as its bins count, and what it was
// asked fades there like what the others are.
func TestTraffic_OfAGatewayThatIsGoneFades(t *testing.T) {
	r, c := redisserver.Start(t), newClock()
	client := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: []string{r.Addr()}})
	t.Cleanup(func() { _ = client.Close() })
	var readings []demand.Reading
	for _, name := range []string{"gone", "left"} {
		m := demand.NewMeter(c.Now)
		m.RecordArrival(demand.Arrival{Model: model, PromptTokens: 8000})
		var err error
		if readings, err = NewShared(client, "test:", name).exchangeDemand(t.Context(), m.Read()); err != nil {
			t.Fatal(err)
		}
		c.pass(demand.Lately / 2)
	}
	all := demand.Sum(readings, model, 0, demand.BinOf(c.Now()))
	near(t, "requests", all.Traffic[share.ClassOf(8000, 0)].Requests, 1+math.Exp(-0.5))
}
