package autoscale

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tandem-gateway/tandem/autoscale/demand"
	"github.com/tandem-gateway/tandem/autoscale/sizing"
	"github.com/tandem-gateway/tandem/pools"
)

// A model's servers go. If some were wanted it is taken out of service, and after a day
// without a request nothing of it is left; if none was wanted it is at zero, and its next
// request must find it.
func TestScaler_ForgetsAModelThatIsGoneAndNoneAtZero(t *testing.T) {
	for _, c := range []struct {
		name string
		min  int
		kept bool
	}{{"taken out of service", 1, false}, {"scaled to zero", 0, true}} {
		t.Run(c.name, func(t *testing.T) {
			fake := &clock{time.Now().Truncate(sizing.Bin)}
			cfg := testConfig()
			cfg.Planner.Prefill.Min, cfg.Planner.Decode.Min, cfg.Planner.IdleAfter = c.min, c.min, sizing.Bin
			fleet, meter := newFleet(t), demand.NewMeter(fake.Now)
			s := NewScaler(cfg, fleet, meter, nil, slog.New(slog.DiscardHandler))
			published := record(s)
			step := func(after time.Duration) {
				t.Helper()
				fake.pass(after)
				if err := s.step(t.Context(), false); err != nil {
					t.Fatal(err)
				}
			}
			v := meter.RecordArrival(demand.Arrival{Model: model, PromptTokens: 1000})
			v.RecordFirstToken(1000, 1000)
			v.RecordEnd(100, false)
			step(0)
			step(3 * sizing.Bin)
			if got := published["decode"].Servers; got != c.min {
				t.Fatalf("%d wanted, want %d", got, c.min)
			}
			if err := fleet.Apply(nil); err != nil {
				t.Fatal(err)
			}
			step(forgetAfter - time.Minute)
			if !knows(s) || len(published) == 0 {
				t.Error("it is forgotten too soon")
			}
			step(time.Hour)
			if knows(s) != c.kept || (len(published) > 0) != c.kept || (testutil.CollectAndCount(s) > 0) != c.kept {
				t.Errorf("known: %v, published %v, %d metrics", knows(s), published, testutil.CollectAndCount(s))
			}
			if n := len(meter.Models); n != 0 {
				t.Errorf("the meter remembers %d", n)
			}
		})
	}
}

// Servers are found one after the other when a gateway starts. A model is known with the first ones, but what is
// wanted is not decided by these: what is there is the first decision, and all others would be too many.
func TestScaler_TheFirstServerOfAModelIsNotAllThereAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fleet := pools.NewFleet(pools.Default(), slog.New(slog.DiscardHandler))
		defer fleet.Close()
		var specs []pools.Spec
		for i, role := range []pools.Role{pools.Prefill, pools.Decode, pools.Decode, pools.Decode} {
			specs = append(specs, pools.Spec{URL: fmt.Sprintf("http://10.0.0.%d:1", i+1), Role: role, Connector: "nixl"})
		}
		cfg := testConfig()
		cfg.Every = time.Minute
		s := NewScaler(cfg, fleet, demand.NewMeter(time.Now), nil, slog.New(slog.DiscardHandler))
		published := record(s)
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { s.Run(ctx) })
		time.Sleep(cfg.Every / 2) // some signals are there before the servers
		for i := range specs {
			time.Sleep(time.Second)
			if err := fleet.Apply(specs[:i+1]); err != nil {
				t.Fatal(err)
			}
			server := fleet.Servers()[i]
			server.ProbePassed(server.Health(), []pools.Model{{ID: model}, {ID: "ada", Parent: model}}, time.Now())
			synctest.Wait()
			base, known := s.Base("ada")
			if decided := len(s.current.Load().Models); !knows(s) || !known || base != model || decided != 0 || !slices.Contains(s.Models(), "ada") {
				t.Errorf("with %d servers: known %v, its adapter %v, decided %d", i+1, knows(s), known, decided)
			}
		}
		time.Sleep(cfg.Every)
		stop()
		running.Wait()
		if got := published["decode"].Servers; got != 3 || len(s.seen.all()) != 0 {
			t.Errorf("%d decode servers are wanted where 3 are, left %v", got, s.seen.all())
		}
	})
}

// Servers that go before the first decision leave a model that is known, with its adapters.
func TestScaler_KnowsAModelWhoseServersWentBeforeTheFirstDecision(t *testing.T) {
	s := NewScaler(testConfig(), pools.NewFleet(pools.Default(), slog.New(slog.DiscardHandler)), demand.NewMeter(time.Now), nil, slog.New(slog.DiscardHandler))
	s.seen.note(map[string][]string{model: {"ada"}}, nil)
	for range 2 {
		if base, known := s.Base("ada"); !knows(s) || !known || base != model {
			t.Errorf("known %v, its adapter %v of %q", knows(s), known, base)
		}
		if err := s.step(t.Context(), false); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2 * mostGone {
		s.seen.note(map[string][]string{fmt.Sprint(i): nil}, nil)
	}
	if n := len(s.seen.all()); n != mostGone {
		t.Errorf("%d are noted", n)
	}
}

func knows(s *Scaler) bool {
	_, known := s.Base(model)
	return known
}

func TestPlans_KeepOnlySoManyWithoutAServer(t *testing.T) {
	now := time.Now()
	p := plans{Models: make(map[string]*Decision), Memories: make(map[string]*memory)}
	for i := range mostGone + 10 {
		name := fmt.Sprint(i)
		p.Models[name] = &Decision{}
		p.Memories[name] = &memory{Present: presence{At: now.Add(-time.Duration(i) * time.Hour), Zero: true}}
	}
	served := fmt.Sprint(mostGone + 9)
	p.forget(map[string][]string{served: nil}, now)
	if n := len(p.Models); n != mostGone+1 || len(p.Memories) != n || p.Models["0"] == nil || p.Models[served] == nil || p.Models[fmt.Sprint(mostGone)] != nil {
		t.Errorf("%d are kept", n)
	}
}
