package loadtest

import (
	"context"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/engine"
)

// startEngine runs a simulated engine of role both, a hundred times faster than
// life, until the test ends.
func startEngine(t *testing.T) (*engine.Engine, Config) {
	t.Helper()
	settings := engine.Default()
	settings.TimeScale = 0.01
	e, err := engine.Start(t.Context(), settings)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	cfg := DefaultConfig()
	cfg.URL, cfg.RPS, cfg.Limit, cfg.IgnoreEOS = e.URL(), 200, 60, true
	cfg.OutputTokens = FixedLength(16)
	return e, cfg
}

func runOK(t *testing.T, cfg Config) *Report {
	t.Helper()
	report, err := Run(t.Context(), cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	if report.Requests.OK != report.Requests.Arrived || report.Requests.Arrived == 0 {
		t.Fatalf("%+v, %v, %+v", report.Requests, report.Errors, report.Samples)
	}
	return report
}

func TestEngine_LengthsAreWhatWasAsked(t *testing.T) {
	_, cfg := startEngine(t)
	for _, endpoint := range []Endpoint{Chat, Completions} {
		for _, stream := range []bool{true, false} {
			cfg.Endpoint, cfg.Stream = endpoint, stream
			cfg.Seed++ // other texts, so that nothing is cached
			report := runOK(t, cfg)
			if got := report.Tokens.Output; got != 60*16 || report.Tokens.Uncounted != 0 {
				t.Errorf("%s, stream %v: %d output tokens, %d uncounted", endpoint, stream, got, report.Tokens.Uncounted)
			}
			// A chat template adds a few tokens to the 512 asked for.
			if got := float64(report.Tokens.Prompt) / 60; got < 495 || got > 540 || report.Workload.Words.Source != "measured" {
				t.Errorf("%s, stream %v: prompts of %v tokens on average, %+v", endpoint, stream, got, report.Workload.Words)
			}
			if stream != (report.TTFT.Count == 60) {
				t.Errorf("%s, stream %v: %d TTFTs", endpoint, stream, report.TTFT.Count)
			}
		}
	}
}

func TestEngine_SharedTextIsSharedKV(t *testing.T) {
	_, cfg := startEngine(t)
	if alone := runOK(t, cfg); alone.Tokens.Cached != 0 {
		t.Errorf("%d tokens of unlike prompts were cached", alone.Tokens.Cached)
	}
	cfg.Seed, cfg.SharedPrefixTokens, cfg.RPS = 2, 1000, 100
	shared := runOK(t, cfg)
	// All but the first few, which arrive before the first is prefilled.
	if share := float64(shared.Tokens.Cached) / float64(59*1000); share < 0.5 || share > 1.05 {
		t.Errorf("%v of the shared prefixes came from the cache", share)
	}
	// While the first is not answered nothing is repeated, but cached it may be.
	nearPerfect(t, shared, shared.Requests.InFlightPeak*cfg.SharedPrefixTokens)
}

func TestEngine_TurnsFindTheirHistoryCached(t *testing.T) {
	_, cfg := startEngine(t)
	cfg.Turns, cfg.RPS = 4, 15
	report := runOK(t, cfg)
	if share := float64(report.Tokens.Cached) / float64(report.Tokens.Prompt); share < 0.1 { // the slower the machine, the fewer have come back
		t.Errorf("only %v of the prompt tokens were cached", share)
	}
	nearPerfect(t, report, 0)
}

// nearPerfect: one engine with room enough cannot be asked in the wrong place, so what it
// had cached is what the report says that perfect knowledge would have found. A prompt is
// cached when it is prefilled, and repeated when it is answered: of so many tokens others
// may come in between.
func nearPerfect(t *testing.T, r *Report, between int) {
	t.Helper()
	cached, perfect := percent(r.Tokens.Cached, r.Tokens.Prompt), percent(r.Tokens.Repeated, r.Tokens.Prompt)
	t.Logf("%.1f %% of prompt tokens cached, %.1f %% repeated", cached, perfect)
	if cached < perfect-2 || cached > perfect+percent(between, r.Tokens.Prompt)+10 {
		t.Error("more than two points are missing, or ten too many")
	}
}

func TestEngine_TraceBlocksAreSharedKV(t *testing.T) {
	_, cfg := startEngine(t)
	cfg.Trace, cfg.Duration, cfg.Limit, cfg.TimeScale = mooncakeTrace, 0, 15, 0.3
	cfg.OutputTokens, cfg.RPS = Length{}, 0
	report := runOK(t, cfg)
	rows, err := readTraceFile(mooncakeTrace, 15)
	if err != nil {
		t.Fatal(err)
	}
	input, output := 0, 0
	for _, row := range rows {
		input += row.InputTokens
		output += row.OutputTokens
	}
	if got := float64(report.Tokens.Prompt) / float64(input); got < 0.97 || got > 1.03 || report.Tokens.Output != output {
		t.Errorf("%v of the prompt tokens, %d output tokens, want %d", got, report.Tokens.Output, output)
	}
	// These rows share block 0 alone; the first has to compute it, and those that
	// arrive before it is done.
	if blocks := float64(report.Tokens.Cached) / blockTokens; blocks < 10 || blocks > 14.5 {
		t.Errorf("%v blocks came from the cache, want about 14", blocks)
	}
}

func TestEngine_FaultsAreSeen(t *testing.T) {
	for _, c := range []struct {
		fault engine.Fault
		kind  Kind
	}{
		{engine.Fault{Kind: engine.FaultStatus, Status: 503, Count: 4}, "http_503"},
		{engine.Fault{Kind: engine.FaultDieAfterTokens, Tokens: 5, Count: 4}, Reset},
		{engine.Fault{Kind: engine.FaultEmptyStream, Count: 4}, Truncated},
		{engine.Fault{Kind: engine.FaultGarbageSSE, Count: 4}, Malformed},
		{engine.Fault{Kind: engine.FaultRefuse, Count: 4}, Reset},
		{engine.Fault{Kind: engine.FaultHangAfterHeaders, Count: 4}, Timeout},
		{engine.Fault{Kind: engine.FaultHangBeforeHeaders, Count: 4}, Timeout},
	} {
		t.Run(c.fault.Kind, func(t *testing.T) {
			t.Parallel()
			e, cfg := startEngine(t)
			cfg.Limit = 30
			cfg.Model, cfg.WordsPerToken, cfg.Timeout = engine.Default().Model, 0.65, time.Minute
			if c.kind == Timeout {
				cfg.Timeout = 5 * time.Second
			}
			if err := e.AddFault(c.fault); err != nil {
				t.Fatal(err)
			}
			report, err := Run(t.Context(), cfg, nil)
			if err != nil {
				t.Fatal(err)
			}
			if n := report.Requests; n.Failed != 4 || n.OK != 26 || report.Errors[c.kind] != 4 {
				t.Errorf("%+v, %v, %+v", n, report.Errors, report.Samples)
			}
		})
	}
}

// An engine that dies under load: what was in flight is cut, what comes after is
// refused, and every request is accounted for.
func TestEngine_Death(t *testing.T) {
	e, cfg := startEngine(t)
	cfg.Limit, cfg.RPS = 500, 200        // goes on long after the death, also on a busy machine
	cfg.OutputTokens = FixedLength(2000) // 100 ms and more
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	killed := false
	report, err := Run(ctx, cfg, func(s Snapshot) {
		if !killed && s.Arrived > 20 {
			killed = true
			_ = e.Close() // closed again, with its error looked at, when the test ends
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	n := report.Requests
	if n.Arrived != 500 || n.OK+n.Failed != 500 || report.Errors[Reset] == 0 || report.Errors[Refused] == 0 ||
		report.Errors[Reset]+report.Errors[Refused] != n.Failed {
		t.Errorf("%+v, %v, %+v", n, report.Errors, report.Samples)
	}
}
