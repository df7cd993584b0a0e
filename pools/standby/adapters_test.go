package standby

import (
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/curve"
	"github.com/tandem-gateway/tandem/pools/load"
)

// What an engine was doing when it was asked may have been this gateway's own request,
// which has ended since.
func TestAdapterManager_ItsOwnWorkThatTheEngineReportsIsNotAnothers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := pools.Default()
		cfg.Adapters.Directory = []pools.Adapter{{Name: "ada", Path: "/ada"}}
		f := pools.NewFleet(cfg, slog.New(slog.DiscardHandler))
		defer f.Close()
		if err := f.Apply([]pools.Spec{{URL: "http://10.0.0.1:8000", Role: pools.Decode}}); err != nil {
			t.Fatal(err)
		}
		s := f.Servers()[0]
		s.ProbePassed(s.Health(), []pools.Model{{ID: "m"}, {ID: "ada", Parent: "m"}}, time.Now())
		m := adapterManager{engine: engine{server: s}, cfg: cfg.Adapters}
		start := time.Now()
		at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
		lease, err := s.Claim(pools.Decode, curve.Work{}, false)
		if err != nil {
			t.Fatal(err)
		}
		if await := lease.Prepare("ada"); await != nil {
			t.Fatal("an adapter that is there is waited for")
		}
		if m.idle([]string{"ada"}, at(5)) != nil {
			t.Error("an adapter that a lease holds is idle")
		}
		time.Sleep(10 * time.Millisecond)
		lease.Release()
		for asked, idle := range map[int]bool{5: true, 15: false} {
			s.ReportLoad(load.Load{At: at(20), Adapters: load.Adapters{Running: []string{"ada"}, Known: true, Asked: at(asked)}})
			if got := slices.Contains(m.idle([]string{"ada"}, at(30)), "ada"); got != idle {
				t.Errorf("used until 10 ms, seen at work by who asked at %d ms: idle is %v", asked, got)
			}
		}
	})
}
