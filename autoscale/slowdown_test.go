package autoscale

import (
	"io"
	"log/slog"
	"math"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/autoscale/demand"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/curve"
	"github.com/tandem-gateway/tandem/pools/health"
)

// answering is engines that are up and tell nothing of their load: an http.RoundTripper
// for a bubble of testing/synctest.
type answering struct{}

func (answering) RoundTrip(req *http.Request) (*http.Response, error) {
	status, body := http.StatusNotFound, ""
	switch req.URL.Path {
	case "/health":
		status = http.StatusOK
	case "/v1/models":
		status, body = http.StatusOK, `{"data":[{"id":"`+model+`"}]}`
	}
	return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(body)), Request: req}, nil
}

// A server that turns twice as slow says nothing of it: it is seen by its work, and twice
// as many are wanted, within ten minutes.
func TestScaler_ASilentSlowdownIsSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := pools.Default()
		log := slog.New(slog.DiscardHandler)
		fleet := pools.NewFleet(cfg, log)
		health.Watch(fleet, answering{}, log)
		defer fleet.Close()
		if err := fleet.Apply([]pools.Spec{
			{URL: "http://10.0.0.1:1", Role: pools.Prefill, Connector: "nixl"}, {URL: "http://10.0.0.2:1", Role: pools.Decode, Connector: "nixl"},
		}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		meter := demand.NewMeter(time.Now)
		s := NewScaler(testConfig(), fleet, meter, nil, slog.New(slog.DiscardHandler))
		published := record(s)
		w := worked{t, fleet, meter, s, 1}
		for range 40 {
			w.quarter()
		}
		if n := published["prefill"].Servers; n != 2 {
			t.Fatalf("%d prefill servers are wanted before, want 2", n)
		}
		if off := w.off(); off > 0.1 {
			t.Fatalf("speeds are %.0f %% off before anything happened", 100*off)
		}
		w.slower = 2
		slow := time.Now()
		for w.off() > 0.1 || published["prefill"].Servers != 4 {
			if w.quarter(); time.Since(slow) > 10*time.Minute {
				t.Fatalf("after ten minutes speeds are %.0f %% off, and %+v is wanted", 100*w.off(), published["prefill"])
			}
		}
		t.Logf("seen after %v", time.Since(slow).Round(time.Second))
	})
}

// worked is a prefill and a decode server that do some of the work that is asked for, as
// fast as the prior says or slower.
type worked struct {
	t      *testing.T
	fleet  *pools.Fleet
	meter  *demand.Meter
	scaler *Scaler
	slower float64
}

// Prompts and answers of every request, in tokens.
const (
	slowPrompt = 4000
	slowOutput = 100
)

// quarter is a quarter of a minute with twenty requests a second, of which each server
// shows one a second, and then a decision.
func (w *worked) quarter() {
	w.t.Helper()
	prior, believed := pools.Default().Prefill, pools.Default().Step
	servers := w.fleet.Servers()
	for range 15 {
		second := time.Now()
		for i := range 20 {
			v := w.meter.RecordArrival(demand.Arrival{Model: model, Fingerprint: uint64(i), PromptTokens: slowPrompt})
			v.RecordFirstToken(slowPrompt, slowPrompt)
			v.RecordEnd(slowOutput, false)
		}
		lease, err := servers[0].Claim(pools.Prefill, curve.Work{}, false, time.Now())
		if err != nil {
			w.t.Fatal(err)
		}
		x := curve.PrefillFeatures(slowPrompt, 0)
		lease.MarkSent(prior.Time(x), time.Now())
		time.Sleep(time.Duration(w.slower * float64(prior.Time(x))))
		lease.ReleasePrefilled(slowPrompt, 0, 0)
		servers[1].ObserveStep(time.Duration(w.slower*float64(believed.Time(curve.StepFeatures(8, 30_000)))), 8, 30_000, time.Now())
		time.Sleep(time.Until(second.Add(time.Second)))
	}
	if err := w.scaler.step(w.t.Context(), false); err != nil {
		w.t.Fatal(err)
	}
}

// off is by how much the learned speeds differ from the true ones, as a share: the worse
// of both roles.
func (w *worked) off() float64 {
	truth := testConfig().Prior
	for i := range truth.Prefill {
		truth.Prefill[i] *= w.slower
		truth.Step[i] *= w.slower
	}
	in := w.scaler.current.Load().Models[model].Signals
	context := w.meter.Models[model].Seen.Context()
	prefill := in.PrefillSpeed/truth.PrefillSpeed(slowPrompt, 0) - 1
	decode := in.DecodeSpeed/truth.DecodeSpeed(w.scaler.cfg.ITL.All, context) - 1
	return max(math.Abs(prefill), math.Abs(decode))
}
