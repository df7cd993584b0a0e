package loadtest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// runInMemory runs cfg against handler under synctest's clock.
func runInMemory(t *testing.T, ctx context.Context, cfg Config, handler http.HandlerFunc, watch func(Snapshot)) *Report {
	t.Helper()
	client, stop := memoryClient(cfg, handler)
	defer stop()
	report, err := runWith(ctx, cfg, client, watch)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// An arrival log notes when requests reach the server.
type arrivalLog struct {
	mu    sync.Mutex
	start time.Time
	times []time.Duration
}

func (l *arrivalLog) record() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.times = append(l.times, time.Since(l.start))
}

func TestRun_ASlowServerDoesNotSlowTheArrivals(t *testing.T) {
	for _, answer := range []time.Duration{time.Millisecond, 20 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			cfg := testConfig()
			cfg.Arrivals, cfg.RPS, cfg.Duration = Constant, 10, 5*time.Second
			log := &arrivalLog{start: time.Now()}
			serve := streamTokens(4, answer, 0)
			report := runInMemory(t, t.Context(), cfg, func(w http.ResponseWriter, r *http.Request) {
				log.record()
				serve(w, r)
			}, nil)
			for i, at := range log.times {
				if want := time.Duration(i) * 100 * time.Millisecond; at != want {
					t.Errorf("answers take %v: request %d came at %v, want %v", answer, i, at, want)
				}
			}
			if report.Requests.OK != 50 || report.Requests.Failed != 0 || report.SendLag.Max != 0 {
				t.Errorf("answers take %v: %+v", answer, report.Requests)
			}
			if want := min(50, int(answer/(100*time.Millisecond))); answer > time.Second && report.Requests.InFlightPeak != want {
				t.Errorf("answers take %v: %d in flight, want %d", answer, report.Requests.InFlightPeak, want)
			}
		})
	}
}

func TestRun_MaxInFlightIsCountedAsOurOwnRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig()
		cfg.Arrivals, cfg.RPS, cfg.Duration, cfg.MaxInFlight = Constant, 10, 5*time.Second, 7
		report := runInMemory(t, t.Context(), cfg, streamTokens(4, time.Minute, 0), nil)
		if n := report.Requests; n.Arrived != 50 || n.OK != 7 || n.Failed != 43 || report.Errors[ClientBound] != 43 || n.InFlightPeak != 7 {
			t.Errorf("%+v, %v", n, report.Errors)
		}
	})
}

func TestRun_MeasuresExactly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig()
		cfg.Arrivals, cfg.RPS, cfg.Limit = Constant, 2, 10
		cfg.SLO = SLO{TTFT: 300 * time.Millisecond, ITL: 100 * time.Millisecond}
		n := 0 // requests do not overlap
		report := runInMemory(t, t.Context(), cfg, func(w http.ResponseWriter, r *http.Request) {
			n++
			ttft, itl := 100*time.Millisecond, 10*time.Millisecond
			switch n {
			case 3:
				ttft = 400 * time.Millisecond
			case 4, 5:
				itl = 110 * time.Millisecond
			case 6:
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			streamTokens(3, ttft, itl)(w, r)
		}, nil)
		if n := report.Requests; n.Arrived != 10 || n.OK != 9 || n.Failed != 1 || report.Errors["http_503"] != 1 {
			t.Fatalf("%+v, %v", n, report.Errors)
		}
		if g := report.Goodput; g.Met != 6 || !near(g.PerSecond, 6/4.62) {
			t.Errorf("goodput %+v in %v s", g, report.TotalSeconds)
		}
		if s := report.TTFT; s.Count != 9 || !near(s.P50, 0.1) || !near(s.Max, 0.4) || !near(s.Mean, 1.2/9) {
			t.Errorf("TTFT %+v", s)
		}
		if s := report.ITL; s.Count != 18 || !near(s.P50, 0.01) || !near(s.P99, 0.11) {
			t.Errorf("ITL %+v", s)
		}
		if s := report.TPOT; s.Count != 9 || !near(s.Max, 0.11) {
			t.Errorf("TPOT %+v", s)
		}
		if s := report.E2E; s.Count != 9 || !near(s.P50, 0.12) || !near(s.Max, 0.42) {
			t.Errorf("E2E %+v", s)
		}
		if k := report.Tokens; k.Prompt != 900 || k.Cached != 576 || k.Output != 27 || !near(k.OutputPerSecond, 27/4.62) {
			t.Errorf("tokens %+v", k)
		}
	})
}

func near(a, b float64) bool { return a-b < 1e-6 && b-a < 1e-6 }

func TestRun_InterruptedReportsWhatWasDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig()
		cfg.Arrivals, cfg.RPS, cfg.Duration = Constant, 10, time.Hour
		ctx, cancel := context.WithTimeout(t.Context(), 2950*time.Millisecond)
		defer cancel()
		report := runInMemory(t, ctx, cfg, streamTokens(4, time.Second, 0), nil)
		n := report.Requests
		if !report.Interrupted || n.Arrived != 30 || n.OK != 20 || n.Interrupted != 10 || n.Failed != 0 {
			t.Errorf("interrupted %v, %+v, %v", report.Interrupted, n, report.Errors)
		}
	})
}

func TestRun_WatcherSeesTheRunAndItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig()
		cfg.Arrivals, cfg.RPS, cfg.Duration = Constant, 10, 2*time.Second
		var seen []Snapshot
		runInMemory(t, t.Context(), cfg, streamTokens(4, time.Second, 0), func(s Snapshot) { seen = append(seen, s) })
		last := seen[len(seen)-1]
		if len(seen) < 10 || last.OK != 20 || last.InFlight != 0 || last.Planned != 2*time.Second || last.MeanTTFT != time.Second {
			t.Errorf("%d snapshots, the last %+v", len(seen), last)
		}
		if middle := seen[len(seen)/2]; middle.InFlight == 0 || middle.Elapsed == 0 {
			t.Errorf("snapshot under way: %+v", middle)
		}
	})
}

func TestRun_TurnsKeepTheRateAndAppendTheAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig()
		cfg.Arrivals, cfg.RPS, cfg.Duration = Constant, 10, 10*time.Second
		cfg.Turns, cfg.ThinkTime = 3, 500*time.Millisecond
		var mu sync.Mutex
		lengths := map[int]int{} // requests by messages in their history
		serve := streamTokens(2, 50*time.Millisecond, 0)
		report := runInMemory(t, t.Context(), cfg, func(w http.ResponseWriter, r *http.Request) {
			var body requestBody
			if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
				t.Error(err)
			}
			if n := len(body.Messages); n > 1 && body.Messages[1] != (message{"assistant", " t0 t1"}) {
				t.Errorf("history of %d: %v", n, body.Messages)
			}
			mu.Lock()
			lengths[len(body.Messages)]++
			mu.Unlock()
			serve(w, r)
		}, nil)
		if report.Requests.OK != 100 {
			t.Errorf("%+v", report.Requests)
		}
		if lengths[1] < 33 || lengths[3] < 28 || lengths[5] < 25 || lengths[1]+lengths[3]+lengths[5] != 100 {
			t.Errorf("requests by length of history: %v", lengths)
		}
	})
}

func TestRun_TraceOverRealSockets(t *testing.T) {
	var mu sync.Mutex
	var prompts []string
	var limits []int
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			fmt.Fprint(w, `{"data":[{"id":"m1"}]}`)
			return
		}
		var body requestBody
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body.Model != "m1" || r.URL.Path != "/v1/completions" || !body.IgnoreEOS {
			t.Errorf("%s %+v: %v", r.URL.Path, body, err)
		}
		mu.Lock()
		prompts, limits = append(prompts, body.Prompt), append(limits, body.MaxTokens)
		mu.Unlock()
		say(w, `data: {"choices":[{"index":0,"text":" a","finish_reason":"length"}]}`+"\n\n", doneEvent)
	}))
	defer server.Close()
	cfg := testConfig()
	cfg.URL, cfg.Model, cfg.Endpoint, cfg.IgnoreEOS = server.URL, "", Completions, true
	cfg.Trace, cfg.Duration, cfg.Limit, cfg.TimeScale = mooncakeTrace, 0, 40, 0.01
	report, err := Run(t.Context(), cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	if report.Requests.OK != 40 || report.Target.Model != "m1" || report.Workload.Trace != mooncakeTrace {
		t.Fatalf("%+v, %v, %+v", report.Requests, report.Errors, report.Samples)
	}
	rows, err := readTraceFile(mooncakeTrace, 40)
	if err != nil {
		t.Fatal(err)
	}
	var want []int
	for _, row := range rows {
		want = append(want, row.OutputTokens)
	}
	slices.Sort(want)
	slices.Sort(limits)
	if !slices.Equal(limits, want) {
		t.Errorf("max_tokens %v, want %v", limits, want)
	}
	first := string(passage{keys: []uint64{0}, tokens: blockTokens}.appendText(nil, 1))
	for _, p := range prompts {
		if !strings.HasPrefix(p, first) {
			t.Error("a prompt does not begin with the trace's block 0")
		}
	}
}

func TestRun_RefusesBeforeItSends(t *testing.T) {
	asked := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = asked || r.Method == http.MethodPost
		http.NotFound(w, r)
	}))
	defer server.Close()
	empty := filepath.Join(t.TempDir(), "empty.jsonl")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Config){
		"no model":      func(c *Config) { c.Model = "" },
		"no such trace": func(c *Config) { c.Trace = "traces/none.jsonl" },
		"empty trace":   func(c *Config) { c.Trace = empty },
		"bad rate":      func(c *Config) { c.RPS = -1 },
	} {
		cfg := testConfig()
		cfg.URL = server.URL
		change(&cfg)
		if _, err := Run(t.Context(), cfg, nil); err == nil {
			t.Errorf("%s: ran", name)
		}
	}
	if asked {
		t.Error("a request was sent all the same")
	}
}
