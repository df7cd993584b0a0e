package loadtest

import (
	"bytes"
	"encoding/json"
	"flag"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

var rewrite = flag.Bool("rewrite", false, "write testdata anew")

// goldenRun is a run with made-up outcomes, one of each sort.
func goldenRun(t *testing.T) *Report {
	t.Helper()
	cfg := DefaultConfig()
	cfg.SLO = SLO{TTFT: 250 * time.Millisecond, ITL: 50 * time.Millisecond}
	cfg.Turns, cfg.ThinkTime, cfg.SharedPrefixTokens = 3, time.Second, 100
	cfg.PromptTokens = Length{shape: lognormalShape, a: 1200, b: 0.8}
	r := &run{
		cfg: cfg, model: "sim", words: WordRate{PerToken: 0.66, Source: "measured"},
		tally: newTally(cfg), started: time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC),
	}
	ms := time.Millisecond
	for i, o := range []*outcome{
		{ttft: 100 * ms, gaps: []time.Duration{20 * ms, 30 * ms}, e2e: 150 * ms, promptTokens: 1000, cachedTokens: 512, repeated: 0.55, outputTokens: 3, counted: true},
		{ttft: 200 * ms, gaps: []time.Duration{20 * ms, 60 * ms}, e2e: 280 * ms, promptTokens: 900, outputTokens: 3, counted: true},
		{ttft: 300 * ms, e2e: 300 * ms, outputTokens: 1},
		{kind: "http_503", detail: "no server for the role decode", requestID: "req-4"},
		{kind: Truncated, detail: "the answer ended without a finish_reason after 2 content events"},
		{kind: Truncated, detail: "the answer ended without a finish_reason after 5 content events", requestID: "req-6"},
		{kind: Interrupted},
	} {
		o.due = time.Duration(i) * 500 * ms
		if !r.tally.arrive(o.due) {
			t.Fatal("refused")
		}
		r.tally.end(o, time.Duration(i)*100*time.Microsecond)
	}
	return r.report(4*time.Second, true)
}

func golden(t *testing.T, path string, got []byte) {
	t.Helper()
	if *rewrite {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s (go test ./loadtest -run Report -rewrite writes it anew); got\n%s", path, got)
	}
}

func TestReport_JSON(t *testing.T) {
	var out bytes.Buffer
	if err := goldenRun(t).WriteJSON(&out); err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/report.json", out.Bytes())
	var back Report
	dec := json.NewDecoder(&out)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&back); err != nil {
		t.Errorf("the report does not read back: %v", err)
	}
}

func TestReport_Table(t *testing.T) {
	var out bytes.Buffer
	if err := goldenRun(t).WriteTable(&out); err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/report.txt", out.Bytes())
}

func TestReport_OfARunWithoutAnswersHasNoNaN(t *testing.T) {
	server := testServer(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) })
	cfg := testConfig()
	cfg.URL, cfg.Limit = server, 1
	report, err := Run(t.Context(), cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := report.WriteJSON(&out); err != nil || report.Errors["http_500"] != 1 {
		t.Errorf("%v: %v", err, report.Errors)
	}
	if err := report.WriteTable(&out); err != nil || strings.Contains(out.String(), "NaN") {
		t.Errorf("%v: %s", err, out.String())
	}
}

func TestTally_KeepsFewSamplesOfEachKind(t *testing.T) {
	cfg := testConfig()
	tally := newTally(cfg)
	for i := range 1000 {
		tally.arrive(0)
		tally.end(&outcome{kind: []Kind{Reset, Truncated}[i%2]}, 0)
	}
	if len(tally.samples) != 2*samplesPerKind || tally.errors[Reset] != 500 {
		t.Errorf("%d samples, %v", len(tally.samples), tally.errors)
	}
}

func TestProgress_LinesEveryFiveSeconds(t *testing.T) {
	var out strings.Builder
	show := lines(&out)
	for ms := 0; ms <= 16_000; ms += 250 {
		show(Snapshot{
			Counts:  Counts{OK: ms / 100, Failed: 1, InFlight: 2},
			Errors:  map[Kind]int{Reset: 1},
			Elapsed: time.Duration(ms) * time.Millisecond, Planned: 30 * time.Second,
			MeanTTFT: 120 * time.Millisecond,
		})
	}
	const want = `5s of 30s: 50 ok, 1 failed, 2 in flight, mean TTFT 120 ms, reset 1
10s of 30s: 100 ok, 1 failed, 2 in flight, mean TTFT 120 ms, reset 1
15s of 30s: 150 ok, 1 failed, 2 in flight, mean TTFT 120 ms, reset 1
`
	if out.String() != want {
		t.Errorf("got\n%s", out.String())
	}
}
