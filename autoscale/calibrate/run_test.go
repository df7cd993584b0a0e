package calibrate

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/autoscale/sizing"
	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/pools/curve"
)

var realTime = flag.Bool("real-time", false, "hold measurements of the simulated engine, over TCP and in real time, against its times")

// The times of the simulated engine, as published for Dynamo's mocker
// (ai-dynamo/dynamo lib/mocker/src/common/perf_model.rs), in seconds.
func truePrefill(n float64) float64 { return (4.209989e-07*n*n + 1.518344e-02*n + 16.50142) / 1e3 }

func trueStep(kvShare float64) float64 {
	return max(1, -25.74*kvShare*kvShare+54.01*kvShare+5.74) / 1e3
}

// In virtual time, where nothing else takes any, what is measured is within a tenth
// of what the engine is made to take.
func TestRun_WithinATenthOfTheTruth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newVirtualEngine(t, 65536)
		cfg := Config{Server: "http://virtual", Budget: 600_000, ITL: 20 * time.Millisecond, Context: 1000, Transport: e}
		last := 0
		c, err := Run(t.Context(), cfg, func(spent, budget int, _ string) {
			if spent < last || spent > budget {
				t.Errorf("%d of %d tokens after %d", spent, budget, last)
			}
			last = spent
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, off := range deviations(t, c, cfg, 1) {
			t.Error(off)
		}
	})
}

// The same of the simulated engine itself. It runs in real time, to which a busy
// machine adds: make test only looks that all of it is measured, and a machine at
// rest how well, with -real-time.
func TestRun_SimulatedEngine(t *testing.T) {
	settings := engine.Default()
	settings.Blocks, settings.MaxModelLen, settings.MaxBatchedTokens = 4096, 16384, 16384
	if !*realTime {
		settings.TimeScale = 0.1
	}
	e, err := engine.Start(t.Context(), settings)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = e.Close() }()
	cfg := Config{Server: e.URL(), Budget: 600_000, ITL: 20 * time.Millisecond, Context: 1000}
	c, err := Run(t.Context(), cfg, func(int, int, string) {})
	if err != nil {
		t.Fatal(err)
	}
	if kv := settings.Blocks * settings.BlockSize; c.KVTokens != kv || c.Model != settings.Model {
		t.Errorf("KV of %d tokens for %s, want %d for %s", c.KVTokens, c.Model, kv, settings.Model)
	}
	if len(c.PrefillPoints) < 5 || len(c.StepPoints) < 6 {
		t.Errorf("%d prefills and %d steps were measured", len(c.PrefillPoints), len(c.StepPoints))
	}
	readsBack(t, c)
	if *realTime {
		for _, off := range deviations(t, c, cfg, settings.BlockSize) {
			t.Error(off)
		}
	}
}

// deviations are the figures that are more than a tenth off.
func deviations(t *testing.T, c *sizing.Capacity, cfg Config, block int) (off []string) {
	near := func(what string, got, want float64) {
		text := fmt.Sprintf("%s %.4f, truth %.4f (%+.1f %%)", what, got, want, 100*(got/want-1))
		t.Log(text)
		if math.Abs(got/want-1) > 0.10 {
			off = append(off, text)
		}
	}
	share := func(tokens, sequences int) float64 { // the last block of each is half full
		return float64(tokens+sequences*(block/2)) / float64(c.KVTokens)
	}
	for _, n := range []float64{500, 2000, 4000} {
		near("prefill", c.PrefillSeconds(n, 0), truePrefill(n))
	}
	for _, p := range c.StepPoints {
		near("step", p.Seconds, trueStep(share(p.KVTokens, p.Sequences)))
	}
	near("smallest step", c.StepPoints[0].Seconds, trueStep(0))
	if c.Largest == nil {
		return append(off, "no largest concurrency")
	}
	fits := 0
	for trueStep(share((fits+1)*cfg.Context, fits+1)) <= cfg.ITL.Seconds() {
		fits++
	}
	near("largest concurrency", float64(c.Largest.Sequences), float64(fits))
	return off
}

// readsBack writes a capacity and its picture, and reads them.
func readsBack(t *testing.T, c *sizing.Capacity) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "capacity.json")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.Write(f), f.Close()); err != nil {
		t.Fatal(err)
	}
	again, err := sizing.ReadCapacity(path)
	if err != nil {
		t.Fatal(err)
	}
	if again.Prefill != c.Prefill || again.Step != c.Step || again.KVTokens != c.KVTokens {
		t.Errorf("%+v became %+v", c, again)
	}
	var picture bytes.Buffer
	if err := WriteSVG(&picture, c); err != nil {
		t.Fatal(err)
	}
	decoder, circles := xml.NewDecoder(&picture), 0
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("the picture is no XML: %v", err)
		}
		if s, ok := token.(xml.StartElement); ok && s.Name.Local == "circle" {
			circles++
		}
	}
	if want := len(c.PrefillPoints) + len(c.StepPoints); circles != want {
		t.Errorf("%d dots for %d measurements", circles, want)
	}
}

func TestRun_KeepsWithinItsBudget(t *testing.T) {
	settings := engine.Default()
	settings.TimeScale = 0
	e, err := engine.Start(t.Context(), settings)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = e.Close() }()
	spent := 0
	_, err = Run(t.Context(), Config{Server: e.URL(), Budget: 30_000, ITL: time.Second, Context: 1000}, func(s, _ int, _ string) { spent = s })
	if err != nil {
		t.Fatal(err)
	}
	if spent < 10_000 || spent > 30_000 {
		t.Errorf("spent %d of 30000 tokens", spent)
	}
}

// Half of the tokens that the whole measurement takes find the largest concurrency; with
// fewer it is said how many would.
func TestRun_LargestConcurrencyWithinASmallBudget(t *testing.T) {
	for _, budget := range []int{100_000, 150_000} {
		synctest.Test(t, func(t *testing.T) {
			cfg := Config{Server: "http://virtual", Budget: budget, ITL: 20 * time.Millisecond, Context: 1000, Transport: newVirtualEngine(t, 65536)}
			c, err := Run(t.Context(), cfg, func(int, int, string) {})
			if err != nil {
				t.Fatal(err)
			}
			if budget < 150_000 {
				if c.Largest != nil || c.Lacked == 0 {
					t.Errorf("found %+v, %d tokens are lacking", c.Largest, c.Lacked)
				}
				return
			}
			for _, off := range deviations(t, c, cfg, 1) {
				t.Error(off)
			}
		})
	}
}

// An engine may run fewer sequences at once than the ITL allows: that many are found.
func TestRun_LargestConcurrencyOfAnEngineThatRunsFewerAtOnce(t *testing.T) {
	for _, most := range []int{1, 3, 12, 16} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newVirtualEngine(t, 65536)
				e.mu.Lock()
				e.most = most
				e.mu.Unlock()
				cfg := Config{Server: "http://virtual", Budget: 600_000, ITL: 20 * time.Millisecond, Context: 1000, Transport: e}
				c, err := Run(t.Context(), cfg, func(int, int, string) {})
				if err != nil {
					t.Fatal(err)
				}
				if c.Largest == nil || c.Largest.Sequences != most {
					t.Errorf("found %+v, %d tokens are lacking", c.Largest, c.Lacked)
				}
			})
		})
	}
}

func TestRun_SaysWhatIsMissing(t *testing.T) {
	mute := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			_, _ = io.WriteString(w, `{"data":[{"id":"m","max_model_len":4096}]}`)
		}
	}))
	defer mute.Close()
	cfg := DefaultConfig()
	cfg.Server = mute.URL
	if _, err := Run(t.Context(), cfg, func(int, int, string) {}); err == nil {
		t.Error("a server that does not tell its KV cache was measured")
	}
	cfg.Model = "other"
	if _, err := Run(t.Context(), cfg, func(int, int, string) {}); err == nil {
		t.Error("a model that is not there was measured")
	}
}

func TestFit_FindsACurveAgainAndNothingBelowZero(t *testing.T) {
	want := curve.Curve{0.012, 5e-5, 0.03}
	var xs []curve.Features
	var ys []float64
	for _, n := range []int{1, 8, 64} {
		for _, kv := range []int{1000, 50_000, 300_000} {
			xs = append(xs, curve.StepFeatures(n, kv))
			ys = append(ys, want.Seconds(xs[len(xs)-1]))
		}
	}
	got := fit(xs, ys)
	for i := range want {
		if math.Abs(got[i]/want[i]-1) > 1e-6 {
			t.Errorf("%v, want %v", got, want)
		}
	}
	for i := range ys { // steps that become shorter with the batch: no curve has that
		ys[i] = 0.02 - 1e-4*xs[i][1]
	}
	for _, c := range fit(xs, ys) {
		if c < 0 {
			t.Errorf("a negative coefficient: %v", fit(xs, ys))
		}
	}
}
