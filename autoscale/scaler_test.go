package autoscale

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tandem-gateway/tandem/autoscale/demand"
	"github.com/tandem-gateway/tandem/autoscale/mix"
	"github.com/tandem-gateway/tandem/autoscale/sizing"
	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/loadtest/redisserver"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/health"
)

const model = "sim-model"

// newFleet is a prefill and a decode server that are up, or servers of these roles.
func newFleet(t *testing.T, roles ...pools.Role) *pools.Fleet {
	t.Helper()
	cfg := pools.Default()
	cfg.ProbeInterval, cfg.ProbeTimeout = 50*time.Millisecond, 20*time.Second // the machine may be busy
	transport := &http.Transport{}
	log := slog.New(slog.DiscardHandler)
	f := pools.NewFleet(cfg, log)
	health.Watch(f, transport, log)
	var specs []pools.Spec
	if len(roles) == 0 {
		roles = []pools.Role{pools.Prefill, pools.Decode}
	}
	for _, role := range roles {
		settings := engine.Default()
		settings.Role = role.String()
		e, err := engine.Start(context.WithoutCancel(t.Context()), settings)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = e.Close() })
		specs = append(specs, pools.Spec{URL: e.URL(), Role: role, Connector: "nixl"})
	}
	if err := f.Apply(specs); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		f.Close()
		transport.CloseIdleConnections()
	})
	eventually(t, "all servers are up and tell their KV", func() bool {
		up := 0
		for _, s := range f.Servers() {
			if s.Health().Up && s.FreshLoad(time.Now()).KVTokens.Known {
				up++
			}
		}
		return up == len(roles)
	})
	return f
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func testConfig() Config {
	cfg := DefaultConfig()
	cfg.Prior = sizing.Capacity{Schema: 1, Prefill: pools.Default().Prefill, Step: pools.Default().Step, KVTokens: int(UnknownKV)}
	return cfg
}

// ask lets a meter see so many prompt tokens a second for ten minutes.
func ask(c *clock, tokens int, meters ...*demand.Meter) {
	for i := range 600 {
		v := meters[i%len(meters)].RecordArrival(demand.Arrival{Model: model, Fingerprint: uint64(i), PromptTokens: tokens})
		v.RecordFirstToken(tokens, tokens)
		v.RecordEnd(100, false)
		c.pass(time.Second)
	}
}

// wants is what a scaler published last.
type wants map[string]Wanted // by role

func record(s *Scaler) wants {
	last := make(wants)
	s.Publish = func(all []Wanted) {
		clear(last)
		for _, w := range all {
			last[w.Role] = w
		}
	}
	return last
}

func TestScaler_WantsWhatTheDemandNeeds(t *testing.T) {
	c := &clock{time.Now().Truncate(sizing.Bin)} // servers' loads have times of the real clock
	meter := demand.NewMeter(c.Now)
	s := NewScaler(testConfig(), newFleet(t), meter, nil, slog.New(slog.DiscardHandler))
	published := record(s)
	if err := s.step(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	// The engine's own curve: 8,000 tokens take 165 ms, so a server does 48,600 tokens
	// a second at most. Ten times 8,000 a second need two.
	for i := range 600 {
		for k := range 10 {
			v := meter.RecordArrival(demand.Arrival{Model: model, Fingerprint: uint64(10*i + k), PromptTokens: 8000})
			v.RecordFirstToken(8000, 8000)
			v.RecordEnd(100, false)
		}
		c.pass(time.Second)
	}
	if err := s.step(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if w := published["prefill"]; w.Servers != 2 || w.Reason != sizing.Demand || w.Model != model || w.At != c.Now() {
		t.Errorf("%+v, want 2 for demand", w)
	}
	if w := published["decode"]; w.Servers != 1 {
		t.Errorf("%+v, want one", w)
	}
	in := s.current.Load().Models[model].Signals
	if rate := in.Prompt.Last(time.Minute).Mean(); rate < 79_000 || rate > 81_000 || in.PrefillSpeed < 40_000 || in.PrefillSpeed > 55_000 {
		t.Errorf("demand %.0f, speed %.0f tokens/s", rate, in.PrefillSpeed)
	}
}

// Two gateways publish the same, which is what a single one would for all, although the
// clock of one is an hour behind; without their Redis they publish nothing new, and what
// they said grows old.
func TestScaler_ReplicasAnswerAlike(t *testing.T) {
	r := redisserver.Start(t)
	c := &clock{time.Now().Truncate(sizing.Bin)}
	fleet := newFleet(t)
	var scalers []*Scaler
	var meters []*demand.Meter
	var published []wants
	for _, replica := range []struct {
		name string
		off  time.Duration
	}{{"a", 0}, {"b", -time.Hour}} {
		client := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: []string{r.Addr()}, MaxRetries: -1})
		t.Cleanup(func() { _ = client.Close() })
		shared := NewShared(client, "test:", replica.name)
		shared.clock.own = func() time.Time { return c.Now().Add(replica.off) }
		shared.clock.ask = func(ctx context.Context) (time.Time, error) { return c.Now(), client.Time(ctx).Err() }
		m := demand.NewMeter(shared.Now)
		meters = append(meters, m)
		s := NewScaler(testConfig(), fleet, m, shared, slog.New(slog.DiscardHandler))
		scalers, published = append(scalers, s), append(published, record(s))
	}
	step := func() {
		t.Helper()
		for range 2 { // the second time each has the other's
			for _, s := range scalers {
				if err := s.step(t.Context(), false); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	step()
	ask(c, 8000, meters...)
	step()
	a, b := published[0]["prefill"], published[1]["prefill"]
	if a.At.Sub(b.At) != time.Hour || a.Want != b.Want || a.Servers == 0 { // each by its own clock
		t.Errorf("one says %+v, the other %+v", a, b)
	}
	for _, s := range scalers {
		if rate := s.current.Load().Models[model].Signals.Prompt.Last(time.Minute).Mean(); rate < 7900 || rate > 8100 {
			t.Errorf("demand of %.0f tokens/s, asked were 8000 of both together", rate)
		}
	}
	r.Kill()
	c.pass(time.Minute)
	if err := scalers[0].step(t.Context(), false); err == nil {
		t.Error("decided without the other's demand")
	}
	if kept := published[0]["prefill"]; kept != a {
		t.Errorf("%+v became %+v, it must grow old instead", a, kept)
	}
}

// Another version's records are of no use, and stop no replica: what they lack is left out,
// and the one that decides puts plans of its own in their place.
func TestShared_ForeignRecordsStopNobody(t *testing.T) {
	r := redisserver.Start(t)
	client := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: []string{r.Addr()}})
	t.Cleanup(func() { _ = client.Close() })
	shared := NewShared(client, "test:", "a")
	s := NewScaler(testConfig(), newFleet(t), demand.NewMeter(shared.Now), shared, slog.New(slog.DiscardHandler))
	at := strconv.FormatInt(time.Now().Add(-time.Minute).Unix(), 10)
	for _, foreign := range []struct{ demand, plans string }{
		{`{"at":` + at + `,"models":{"other":null,"` + model + `":null}}`, `{"at":"2026-01-01T00:00:00Z","models":{"other":null},"memories":{"other":null}}`},
		{`{"at":"now"}`, `{"models":[]}`},
	} {
		if err := errors.Join(client.HSet(t.Context(), "test:"+demandKey, "b", foreign.demand).Err(), client.Set(t.Context(), "test:"+plansKey, foreign.plans, 0).Err()); err != nil {
			t.Fatal(err)
		}
		_ = s.follow(t.Context()) // what it cannot read is an error
		if base, known := s.Base("another"); known || len(s.Models()) > 1 {
			t.Errorf("%s: of %v one has an adapter that no server had, %s", foreign.plans, s.Models(), base)
		}
		if err := s.step(t.Context(), false); err != nil {
			t.Errorf("%s: %v", foreign.plans, err)
		}
		if last, _, err := shared.read(t.Context()); err != nil || last.Models[model] == nil {
			t.Errorf("%s: own plans are not there, %v", foreign.plans, err)
		}
	}
}

// Redis fails over to a machine whose clock is an hour behind. Demand is watched anew, and
// what was measured in a time to come is forgotten: it would be counted when that comes.
func TestScaler_AgreedTimeGoesBack(t *testing.T) {
	c := &clock{time.Now().Truncate(sizing.Bin)}
	meter := demand.NewMeter(c.Now)
	s := NewScaler(testConfig(), newFleet(t), meter, nil, slog.New(slog.DiscardHandler))
	published := record(s)
	ask(c, 1000, meter)
	if err := s.step(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	c.pass(-time.Hour)
	for range 2 {
		c.pass(sizing.Bin)
		if err := s.step(t.Context(), false); err != nil {
			t.Fatal(err)
		}
	}
	if w := published["prefill"]; w.Reason == sizing.Stale || w.At != c.Now() {
		t.Errorf("%+v: nothing is decided until the clock is where it was", w)
	}
	if n := len(meter.Models[model].Bins); n != 0 {
		t.Errorf("%d bins of a time to come", n)
	}
}

// A request that is refused by one gateway and comes again to another counts once.
func TestShared_ARetryElsewhereIsNoMoreDemand(t *testing.T) {
	r := redisserver.Start(t)
	c := newClock()
	meters := [2]*demand.Meter{demand.NewMeter(c.Now), demand.NewMeter(c.Now)}
	ctx, stop := context.WithCancel(t.Context())
	var passing sync.WaitGroup
	for _, m := range meters {
		client := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: []string{r.Addr()}})
		t.Cleanup(func() { _ = client.Close() })
		shared := NewShared(client, "test:", "")
		passing.Go(func() { shared.exchangeRefusals(ctx, m, func() {}) })
	}
	defer passing.Wait()
	defer stop()
	a := demand.Arrival{Model: "m", Fingerprint: 7, PromptTokens: 1000}
	eventually(t, "the second gateway knows what the first refused", func() bool {
		meters[0].RecordArrival(a).RecordRefusal() // again and again: a message before the subscription is lost
		v := meters[1].RecordArrival(a)
		v.RecordEnd(-1, false)
		return v.Retry
	})
	before := meters[1].Models["m"].Bins[demand.BinOf(c.Now())].Prompt
	meters[1].RecordArrival(a).RecordRefusal()
	if after := meters[1].Models["m"].Bins[demand.BinOf(c.Now())].Prompt; after != before {
		t.Errorf("a retry made demand of %.0f tokens %.0f", before, after)
	}
}

// A request is held by one gateway, and KEDA follows another: that one says at once what
// the first decided.
func TestScaler_FollowsAPlanOfAnotherReplicaAtOnce(t *testing.T) {
	r := redisserver.Start(t)
	cfg := testConfig()
	cfg.Every = time.Hour
	fleet := newFleet(t)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	var scalers []*Scaler
	for _, name := range []string{"a", "b"} {
		client := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: []string{r.Addr()}})
		t.Cleanup(func() { _ = client.Close() })
		s := NewScaler(cfg, fleet, demand.NewMeter(time.Now), NewShared(client, "test:", name), slog.New(slog.DiscardHandler))
		running.Go(func() { s.Run(ctx) })
		scalers = append(scalers, s)
	}
	defer running.Wait()
	defer stop()
	for range 2 {
		before := scalers[1].current.Load().At
		eventually(t, "the second one has newer plans", func() bool {
			scalers[0].PlanNow() // again and again: a message before the subscription is lost
			return scalers[1].current.Load().At.After(before)
		})
	}
}

// It is a gateway's turn, it has read the demand, and before it publishes another one holds
// a first request and decides at once: KEDA, which follows the first, must learn of it.
func TestScaler_ATurnDoesNotUndoAnotherReplicasHurry(t *testing.T) {
	r := redisserver.Start(t)
	c := &clock{time.Now().Truncate(sizing.Bin)}
	cfg := testConfig()
	cfg.Planner.Prefill.Min, cfg.Planner.Decode.Min, cfg.Planner.IdleAfter = 0, 0, sizing.Bin
	fleet := newFleet(t)
	var scalers [2]*Scaler
	var meters [2]*demand.Meter
	for i, name := range []string{"a", "b"} {
		client := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: []string{r.Addr()}})
		t.Cleanup(func() { _ = client.Close() })
		meters[i] = demand.NewMeter(c.Now)
		scalers[i] = NewScaler(cfg, fleet, meters[i], NewShared(client, "test:", name), slog.New(slog.DiscardHandler))
		scalers[i].shared.clock.ask = func(context.Context) (time.Time, error) { return c.Now(), nil }
		scalers[i].shared.clock.own = c.Now
	}
	step := func(i int, hurried bool) {
		t.Helper()
		if err := scalers[i].step(t.Context(), hurried); err != nil {
			t.Fatal(err)
		}
	}
	published := record(scalers[0])
	step(0, false) // it decides from now on
	if err := fleet.Apply(nil); err != nil {
		t.Fatal(err)
	}
	c.pass(3 * sizing.Bin)
	step(0, false)
	if w := published["decode"]; w.Servers != 0 || w.Reason != sizing.Idle {
		t.Fatalf("%+v, want none", w)
	}
	amid := false
	scalers[0].now = func() time.Time { // the demand was read, the plans are not made
		if !amid {
			amid = true
			meters[1].RecordArrival(demand.Arrival{Model: model, PromptTokens: 1000})
			step(1, true)
		}
		return c.Now()
	}
	step(0, false)
	if w := published["decode"]; !amid || w.Servers != 1 || w.WaitingForCapacity != 1 {
		t.Errorf("%+v, want one for the request that the other holds", w)
	}
}

// Plans were published while no replica listened: one that listens again takes them over, and does
// not wait for its turn.
func TestShared_WhoListensAgainTakesOverWhatWasDecided(t *testing.T) {
	r := redisserver.Start(t)
	client := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: []string{r.Addr()}})
	t.Cleanup(func() { _ = client.Close() })
	shared, told := NewShared(client, "test:", "a"), make(chan struct{}, 1)
	ctx, stop := context.WithCancel(t.Context())
	var passing sync.WaitGroup
	passing.Go(func() { shared.exchangeRefusals(ctx, demand.NewMeter(time.Now), func() { signal(told) }) })
	defer passing.Wait()
	defer stop()
	for range 2 {
		select {
		case <-told:
		case <-time.After(time.Minute):
			t.Fatal("it listens, and was not asked to look")
		}
		r.Do("CLIENT", "KILL", "TYPE", "pubsub")
	}
}

// Nothing was served yet, so nothing is known of what requests cost: one of them is no
// reason for many servers.
func TestScaler_FirstRequestWantsOneServer(t *testing.T) {
	c := &clock{time.Now().Truncate(sizing.Bin)}
	meter := demand.NewMeter(c.Now)
	s := NewScaler(testConfig(), newFleet(t), meter, nil, slog.New(slog.DiscardHandler))
	published := record(s)
	for range 12 {
		if err := s.step(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		c.pass(sizing.Bin)
	}
	oneIsWantedFor(t, demand.Arrival{Model: model, Fingerprint: 1, PromptTokens: 1000}, c, meter, s, published)
}

// oneIsWantedFor lets the first request come: one server of each role is wanted for it.
func oneIsWantedFor(t *testing.T, first demand.Arrival, c *clock, meter *demand.Meter, s *Scaler, published wants) {
	t.Helper()
	meter.RecordArrival(first)
	c.pass(sizing.Bin)
	if err := s.step(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if len(published) != 2 {
		t.Errorf("published: %+v", published)
	}
	for role, w := range published {
		if w.Servers != 1 {
			t.Errorf("%s: %+v", role, w)
		}
	}
}

// The first decisions are made before the first request, and no prefill server is there, since
// servers do both: how fast one would be is believed for the prompts that then come.
func TestScaler_ARoleThatNeverHadAServerIsSizedForThePromptsThatCome(t *testing.T) {
	c := &clock{time.Now().Truncate(sizing.Bin)}
	meter := demand.NewMeter(c.Now)
	s := NewScaler(testConfig(), newFleet(t, pools.Both), meter, nil, slog.New(slog.DiscardHandler))
	published := record(s)
	if err := s.step(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	ask(c, 1000, meter)
	if err := s.step(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if w := published["prefill"]; w.Servers != 1 {
		t.Errorf("%+v, want one for a prompt of 1,000 tokens a second", w)
	}
}

// What waits for a server that does both, because that is busy, waits for no first server.
func TestScaler_RequestsThatWaitForAServerOfBothRolesAreNotHeld(t *testing.T) {
	c := &clock{time.Now().Truncate(sizing.Bin)}
	meter := demand.NewMeter(c.Now)
	fleet := newFleet(t, pools.Both)
	s := NewScaler(testConfig(), fleet, meter, nil, slog.New(slog.DiscardHandler))
	published := record(s)
	if err := s.step(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		meter.RecordArrival(demand.Arrival{Model: model, Fingerprint: uint64(i), PromptTokens: 1000})
	}
	c.pass(sizing.Bin)
	for _, want := range []int{0, 3} {
		if err := s.step(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		if len(published) != 2 {
			t.Fatalf("published: %+v", published)
		}
		for role, w := range published {
			if w.WaitingForCapacity != want || (w.Reason == sizing.WaitingForCapacity) != (want > 0) {
				t.Errorf("%s: %+v, want %d held", role, w, want)
			}
		}
		if err := fleet.Apply(nil); err != nil { // now they do
			t.Fatal(err)
		}
		c.pass(sizing.Bin)
	}
}

// The servers were there and idle until they went to zero: what is wanted for the first request
// goes by its prompt.
func TestScaler_TheFirstRequestAfterAnIdleStartWantsOneServer(t *testing.T) {
	c := &clock{time.Now().Truncate(sizing.Bin)}
	meter := demand.NewMeter(c.Now)
	cfg := testConfig()
	cfg.Planner.Prefill.Min, cfg.Planner.Decode.Min = 0, 0
	fleet := newFleet(t)
	s := NewScaler(cfg, fleet, meter, nil, slog.New(slog.DiscardHandler))
	published := record(s)
	for range 62 { // of ten minutes' idleness
		if err := s.step(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		c.pass(sizing.Bin)
	}
	if w := published["prefill"]; w.Servers != 0 || w.Reason != sizing.Idle {
		t.Fatalf("%+v, want none", w)
	}
	if err := fleet.Apply(nil); err != nil {
		t.Fatal(err)
	}
	oneIsWantedFor(t, demand.Arrival{Model: model, Fingerprint: 1, PromptTokens: 20_000}, c, meter, s, published)
}

// Two decode servers, and one is enough: one drains, and only then one is asked for. When
// two are needed again both take requests.
func TestScaler_WhoGoesDrainsFirst(t *testing.T) {
	c := &clock{time.Now().Truncate(sizing.Bin)}
	fleet := newFleet(t, pools.Prefill, pools.Decode, pools.Decode)
	cfg := testConfig()
	cfg.ScaleIn, cfg.Planner.Decode.Max = true, 1
	meter := demand.NewMeter(c.Now)
	s := NewScaler(cfg, fleet, meter, nil, slog.New(slog.DiscardHandler))
	published := record(s)
	var told []DrainingUnit
	s.OnDraining = func(draining []DrainingUnit) { told = draining }
	drains := func() (n int) {
		for _, server := range fleet.Servers() {
			if server.Drains() {
				n++
			}
		}
		return n
	}
	step := func(servers int, reason sizing.Reason, draining int, empty bool) {
		t.Helper()
		c.pass(sizing.Bin)
		if err := s.step(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		w := published["decode"]
		if w.Servers != servers || w.Reason != reason || drains() != draining || len(told) != draining || draining > 0 && told[0].Empty != empty {
			t.Errorf("%d %s, %d drain, told %+v; want %d %s, %d", w.Servers, w.Reason, drains(), told, servers, reason, draining)
		}
	}
	if err := s.step(t.Context(), false); err != nil { // the first bin is not over
		t.Fatal(err)
	}
	step(2, sizing.Draining, 1, false)
	step(1, sizing.Demand, 1, true)
	s.cfg.Planner.Decode = sizing.Bounds{Min: 2, Max: 2}
	step(2, sizing.Demand, 0, false)

	s.cfg.Planner.Decode = sizing.Bounds{Min: 1, Max: 1} // switched off while one drains: its mark is taken back
	step(2, sizing.Draining, 1, false)
	s.cfg.ScaleIn = false
	step(1, sizing.Demand, 0, false)
	if d := s.current.Load().Models[model]; len(d.Draining) > 0 {
		t.Errorf("these still leave: %+v", d.Draining)
	}

	m := &memory{} // to zero: the next request may come any time
	m.chooseDraining([]PoolWant{{Role: pools.Decode, Any: true}}, fleet.Servers(), model, nil, c.Now())
	if len(m.Draining) > 0 {
		t.Errorf("none is wanted, and these drain: %+v", m.Draining)
	}
}

// A model whose tokens may take longer gets more of them from each server, and its hardware
// is chosen by its own time to the first token.
func TestScaler_PlansEachModelForItsOwnObjectives(t *testing.T) {
	var asked mix.AllocationRequest
	planned := func(of string) (signals sizing.Signals) {
		t.Helper()
		c := &clock{time.Now().Truncate(sizing.Bin)}
		meter, cfg := demand.NewMeter(c.Now), testConfig()
		cfg.ITL.Models = map[string]time.Duration{of: 100 * time.Millisecond}
		cfg.TTFT.Models = map[string]time.Duration{of: time.Second}
		s := NewScaler(cfg, newFleet(t), meter, nil, slog.New(slog.DiscardHandler))
		s.Allocate = func(a mix.AllocationRequest) (mix.HardwareAllocation, error) {
			asked = a
			return mix.HardwareAllocation{}, nil
		}
		for range 2 { // demand is known from the first on
			if err := s.step(t.Context(), true); err != nil {
				t.Fatal(err)
			}
			ask(c, 1000, meter)
		}
		return s.current.Load().Models[model].Signals
	}
	others := planned("another model")
	if asked.ITL != 50*time.Millisecond || asked.TTFT != 0 {
		t.Errorf("another's objectives: %v and %v", asked.TTFT, asked.ITL)
	}
	own := planned(model)
	if asked.ITL != 100*time.Millisecond || asked.TTFT != time.Second {
		t.Errorf("its own objectives: %v and %v", asked.TTFT, asked.ITL)
	}
	if own.DecodeSpeed <= others.DecodeSpeed {
		t.Errorf("%.0f tokens a second within 100 ms, %.0f within 50", own.DecodeSpeed, others.DecodeSpeed)
	}
}

// Prefill servers have nothing to do and requests wait in the gateways: decode is full.
func TestScaler_QueueBehindFullDecodeIsDecodesBacklog(t *testing.T) {
	c := &clock{time.Now().Truncate(sizing.Bin)}
	meter := demand.NewMeter(c.Now)
	meter.Queued = func() map[string]int { return map[string]int{model: 100} }
	s := NewScaler(testConfig(), newFleet(t), meter, nil, slog.New(slog.DiscardHandler))
	ask(c, 1000, meter)
	for range 100 {
		meter.RecordArrival(demand.Arrival{Model: model, PromptTokens: 1000})
	}
	if err := s.step(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if got := s.current.Load().Models[model].Signals; got.PrefillBacklog != 0 || math.Abs(got.DecodeBacklog-100*100) > 100 {
		t.Errorf("backlogs of %.0f prompt and %.0f output tokens, want 0 and 100 answers of 100", got.PrefillBacklog, got.DecodeBacklog)
	}
	if got := s.current.Load().Models[model].State; got.PrefillWaiting != 0 || got.DecodeWaiting != 100 || got.KVQueued != 100*1000 {
		t.Errorf("%g wait for prefill, %g for decode, with %g tokens of KV; want 0 and 100 of 1000", got.PrefillWaiting, got.DecodeWaiting, got.KVQueued)
	}
}

func TestMemory_LearnsTheColdStart(t *testing.T) {
	c := newClock()
	m := &memory{ColdStart: 2 * time.Minute}
	m.Memory = sizing.Memory{Known: true, Prefill: sizing.StandingTarget{Servers: 3}, Decode: sizing.StandingTarget{Servers: 1}}
	there := sizing.Signals{Prefill: sizing.Pool{Ready: 2}, Decode: sizing.Pool{Ready: 1}}
	m.learnColdStart(&there, c.Now())
	if got := m.pending(0, 1, c.Now()); got != 1 {
		t.Errorf("%d servers are starting, want 1", got)
	}
	if got := m.pending(0, 1, c.Now().Add(7*time.Minute)); got != 0 {
		t.Errorf("%d servers are starting after three cold starts", got)
	}
	c.pass(time.Minute)
	there.Prefill.Ready = 3
	m.learnColdStart(&there, c.Now())
	if m.ColdStart != 105*time.Second || !m.Raised[0].IsZero() {
		t.Errorf("cold start %v, want a quarter of the way to a minute", m.ColdStart)
	}
}
