package autoscale

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/tandem-gateway/tandem/autoscale/demand"
	"github.com/tandem-gateway/tandem/autoscale/sizing"
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
