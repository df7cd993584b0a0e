package policy

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

func smallReport(t *testing.T, scenarios ...string) *Report {
	t.Helper()
	cfg := Config{Traces: []string{tracePath}, Limit: 150, Policies: []*Policy{leastLoad, dynamo, arrival, byDefault}, Seeds: 2, Parallel: 2}
	for _, name := range scenarios {
		cfg.Scenarios = append(cfg.Scenarios, scenario(t, name))
	}
	r, err := Compare(context.Background(), cfg, func(int, int, *Outcome) {})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A small run of every other policy, to the last digit: what changes here changes every
// figure that was published. Regenerate with:
// go test ./loadtest/policy -run TestRun_Golden -rewrite
func TestRun_Golden(t *testing.T) {
	datadriven.RunTest(t, "testdata/small.txt", func(t *testing.T, d *datadriven.TestData) string {
		var name string
		d.ScanArgs(t, "scenario", &name)
		s := scenario(t, name)
		s.Speedup *= 1.5 // so that something waits
		var b strings.Builder
		fmt.Fprintf(&b, "%-27s %8s %8s %8s %8s %9s %7s %7s\n", "policy", "mean", "p50", "p99", "wait", "ITL p99", "hits", "cross")
		for _, p := range Policies() {
			if p.Kind == Ours || p.Kind == Reference { // the gateway's code has golden texts of its own
				continue
			}
			o, err := Run(readShort(t), s, p, 1)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&b, "%-27s %8.3f %8.3f %8.3f %8.3f %9.5f %7.4f %7.4f\n", p.Name, o.TTFT.Mean, o.TTFT.P50, o.TTFT.P99, o.Wait, o.ITL.P99, o.HitRate, crossShare(o))
		}
		return b.String()
	})
}

// The names in the JSON are a promise.
func TestReport_JSONHasItsFields(t *testing.T) {
	var text bytes.Buffer
	if err := smallReport(t, "B").WriteJSON(&text); err != nil {
		t.Fatal(err)
	}
	var r map[string]any
	if err := json.Unmarshal(text.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	keys := func(v any) string { return strings.Join(slices.Sorted(maps.Keys(v.(map[string]any))), " ") }
	s := r["scenarios"].([]any)[0]
	p := s.(map[string]any)["policies"].([]any)[3].(map[string]any)
	for got, want := range map[string]string{
		keys(r):                       "first_seed gates metrics scenarios schema seeds skipped trace",
		keys(s):                       "best_default best_released decode_servers gateway_replicas name policies prefill_servers racks requests slo title ttft_bound_s ttft_pairs_bound_s",
		keys(p):                       "deciles default_ratios kind metrics name options ratios source",
		keys(p["ratios"]):             "bytes_moved goodput_gain goodput_mean_itl_gain ttft_mean ttft_p99 ttft_p99_worst_decile wait_max",
		keys(r["gates"].([]any)[0]):   "against bound limit measure policy reached scenario value",
		keys(p["deciles"].([]any)[0]): "longest_prompt_tokens metrics shortest_prompt_tokens",
		keys(p["metrics"].(map[string]any)["ttft_mean_s"]): "max mean min",
	} {
		if got != want {
			t.Errorf("fields %s\nwant   %s", got, want)
		}
	}
	if r["schema"] != 1.0 || len(p["metrics"].(map[string]any)) != len(metrics) || len(p["deciles"].([]any)) != 10 {
		t.Errorf("schema %v, %d metrics", r["schema"], len(p["metrics"].(map[string]any)))
	}
}

func TestReport_BestReleasedIsTheLeastMeanOfTheReleased(t *testing.T) {
	s := smallReport(t, "B").Scenarios[0]
	best := s.policy(s.BestReleased)
	for _, p := range s.Policies {
		if p.Kind == Released && p.Metrics["ttft_mean_s"].Mean < best.Metrics["ttft_mean_s"].Mean {
			t.Errorf("%s is better than the best released %s", p.Name, best.Name)
		}
	}
	if best.Kind != Released || best.Ratios["ttft_mean"] != (Range{1, 1, 1}) {
		t.Errorf("best released %s, %s, ratio to itself %+v", best.Name, best.Kind, best.Ratios["ttft_mean"])
	}
	if r := s.policy(judged).Ratios["ttft_mean"]; r.Mean >= 1 || r.Min > r.Mean || r.Max < r.Mean {
		t.Errorf("ratio of the default %+v", r)
	}
}

func TestReport_GatesSayWhereWeStand(t *testing.T) {
	r := smallReport(t, "B", "B3", "overload", "sick-link")
	count := make(map[string]int)
	for _, g := range r.Gates {
		count[g.Scenario]++
		if g.Reached != (g.Value <= g.Limit) || g.Policy != judged {
			t.Errorf("gate %+v", g)
		}
	}
	if count["B"] != 8 || count["B3"] != 3 || count["overload"] != 2 || count["sick-link"] != 0 {
		t.Errorf("gates %v: want means against two, p99, longest wait, goodput, deciles, ITL and cross-rack share of B, "+
			"means against two and ITL of B3, mean and p99 of overload", count)
	}
}

// Each goal is held against what it names: the released policy with the least mean whatever
// options it needs, the best without options, a policy, or one gateway instead of three.
func TestReport_GatesHoldAgainstWhatTheyName(t *testing.T) {
	means := func(seconds float64) map[string]Range {
		return map[string]Range{"ttft_mean_s": {Mean: seconds}, "itl_p99_s": {Mean: seconds}, "cross_rack_share": {Mean: 0.05, Max: 0.2}}
	}
	ratio := func(r float64) map[string]Range {
		return map[string]Range{"ttft_mean": {Mean: r}, "ttft_p99_worst_decile": {Mean: r}, "goodput_gain": {Mean: 0.1}}
	}
	scenario := func(name string, ours float64) ScenarioReport {
		return ScenarioReport{Name: name, BestReleased: "strong", BestDefault: "dynamo", Policies: []PolicyReport{
			{Name: "strong", Options: true, Metrics: means(1)}, {Name: "dynamo", Metrics: means(4)}, {Name: "least-load", Metrics: means(8)},
			{Name: judged, Metrics: means(ours), Ratios: ratio(0.9), DefaultRatios: ratio(0.5)},
		}}
	}
	r := &Report{Scenarios: []ScenarioReport{scenario("B", 2), scenario("B3", 2.5)}}
	for want, goal := range map[Gate]goal{
		{Against: "strong", Options: true, Value: 0.9, Reached: true}:  {"B", bestReleased, "ttft_mean", 0.92},
		{Against: "strong", Options: true, Value: -0.1, Reached: true}: {"B", bestReleased, "goodput_loss", 0},
		{Against: "dynamo", Value: 0.5, Reached: true}:                 {"B", bestDefault, "ttft_p99_worst_decile", 1.1},
		{Against: "dynamo", Value: 0.5}:                                {"B", "dynamo", "ttft_mean", 0.33},
		{Against: "least-load", Value: 0.25, Reached: true}:            {"B", "least-load", "itl_p99", 1.05},
		{Against: oneGateway, Value: 1.25}:                             {"B3", oneGateway, "ttft_mean", 1.05},
		{Value: 0.2}:                                                   {"B", itself, "cross_rack_share", 0.1},
	} {
		want.Scenario, want.Policy, want.Measure, want.Limit = goal.scenario, judged, goal.measure, goal.limit
		if got, ok := r.gate(goal, r.scenario(goal.scenario), judged); !ok || got != want {
			t.Errorf("goal %+v: %+v, %v\nwant %+v", goal, got, ok, want)
		}
	}
	alone := &Report{Scenarios: r.Scenarios[1:]}
	if got, ok := alone.gate(goal{"B3", oneGateway, "ttft_mean", 1.05}, &alone.Scenarios[0], judged); ok {
		t.Errorf("one gateway did not run, and the goal has %+v", got)
	}
	if got, ok := r.gate(goal{"B", "mooncake", "ttft_mean", 1}, &r.Scenarios[0], judged); ok {
		t.Errorf("mooncake did not run, and the goal has %+v", got)
	}
}

// The command fails where the gateway let a request wait long beside an idle server, if the load can be borne at all.
func TestReport_AWaitBesideAnIdleServerIsAnError(t *testing.T) {
	r := smallReport(t, "B")
	if err := r.Err(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{judged, arrival.Name} {
		r.Scenarios[0].policy(name).Metrics["idle_wait_share"] = Range{Mean: 0.9, Min: 0.5, Max: 1.5}
	}
	if err := r.Err(); err == nil || !strings.Contains(err.Error(), "scenario B, policy "+judged+":") || strings.Contains(err.Error(), arrival.Name) {
		t.Errorf("error %v", err)
	}
	for i := range r.Scenarios[0].Policies {
		r.Scenarios[0].Policies[i].Metrics["ttft_mean_s"] = Range{Mean: 61}
	}
	if err := r.Err(); err != nil {
		t.Errorf("no policy keeps up: %v", err)
	}
}

// With --goals it fails where what the gateway does by default misses a goal, and where none was judged.
func TestReport_AMissedGoalIsAnError(t *testing.T) {
	r := &Report{}
	if r.Missed() == nil {
		t.Error("without a goal all are reached")
	}
	r.Gates = []Gate{{Policy: judged, Scenario: "B", Measure: "ttft_mean", Limit: 0.75, Value: 0.7, Reached: true}}
	if err := r.Missed(); err != nil {
		t.Error(err)
	}
	r.Gates = append(r.Gates, Gate{Policy: "tandem-late", Scenario: "B", Measure: "ttft_p99", Limit: 1.05, Value: 1.2})
	if err := r.Missed(); err != nil {
		t.Errorf("a goal that another policy of ours misses: %v", err)
	}
	r.Gates = append(r.Gates, Gate{Policy: judged, Scenario: "B", Measure: "ttft_p99", Limit: 1.05, Value: 1.2})
	if err := r.Missed(); err == nil || !strings.Contains(err.Error(), "ttft_p99") || strings.Contains(err.Error(), "ttft_mean") {
		t.Errorf("error %v", err)
	}
}

func TestReport_TableAndPageShowAll(t *testing.T) {
	r := smallReport(t, "A", "B")
	r.Skipped = append(r.Skipped, "F: no trace")
	var table, page bytes.Buffer
	if err := r.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	if err := r.WritePage(&page); err != nil {
		t.Fatal(err)
	}
	if err := r.WriteParts(&table); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{judged, "*", "at least, by pairs", "goals", "skipped F: no trace", "70B on 8xA800, 100 Gb/s"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("the table does not say %q", want)
		}
	}
	for _, want := range []string{judged, "<svg", "Skipped F: no trace", `id="B"`, "best released", byDefault.Source} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	for _, never := range []string{"http:", "https:", "src=", "NaN", "%!"} {
		if strings.Contains(page.String(), never) {
			t.Errorf("the page has %q: it must stand alone, and be whole", never)
		}
	}
}

// Dots of a scenario do not cover each other, and each has the number that the list says is its
// policy's.
func TestOverview_DotsAreApartAndNamed(t *testing.T) {
	r := smallReport(t, "A", "B")
	x := ratioScale(r)
	x.length = 300
	for i := range r.Scenarios {
		dots, lanes := placeDots(&r.Scenarios[i], x)
		if len(dots) < 3 || lanes < 2 {
			t.Errorf("%d dots in %d lanes", len(dots), lanes)
		}
		for k, dot := range dots {
			for _, other := range dots[:k] {
				if dot.lane == other.lane && math.Abs(dot.x-other.x) < 2*dotRadius {
					t.Errorf("%s covers %s", dot.policy.Name, other.policy.Name)
				}
			}
		}
	}
	chart := string(overviewChart(r))
	for _, n := range numberPolicies(r) {
		if dot := fmt.Sprintf(">%d</text>", n.Number); !strings.Contains(chart, "<title>"+n.Name+":") || !strings.Contains(chart, dot) {
			t.Errorf("no dot %d for %s", n.Number, n.Name)
		}
	}
}

// Each policy is a point with its name, and the file stands by itself.
func TestPicture_EachPolicyIsAPoint(t *testing.T) {
	r := smallReport(t, "B", "G")
	text := Picture(r)
	if err := xml.Unmarshal(text, new(struct{ XMLName xml.Name })); err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	if n := bytes.Count(text, []byte("<circle")); n != 8 {
		t.Errorf("%d points, want 8", n)
	}
	for _, p := range r.Scenarios[0].Policies {
		if bytes.Count(text, []byte(">"+p.Name+"<")) != 2 {
			t.Errorf("%s is not named in each panel", p.Name)
		}
	}
}
