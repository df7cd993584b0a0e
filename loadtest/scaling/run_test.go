package scaling

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/autoscale/sizing"
	"github.com/tandem-gateway/tandem/loadtest/policy"
)

const traceFile = "../traces/mooncake_conversation.jsonl"

// compareStudy is the load that the goals were set on, one seed, a cold start of 2 min.
func compareStudy(t *testing.T, policies ...string) *Report {
	t.Helper()
	found, err := FindPolicies(policies)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Compare(t.Context(), Config{
		TracePath: traceFile, Scenarios: Scenarios()[:1], Policies: found, ColdStarts: []float64{judgedCold},
		Planner: sizing.DefaultPlanner(), Seeds: 1, Parallel: 1,
	}, func(int, int, *Outcome) {})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestCompare_PlannerReachesItsGoalsOnTheStudy(t *testing.T) {
	r := compareStudy(t, "static-peak", "token-aware-hpa", "tandem", "oracle")
	if len(r.Gates) != 9 {
		t.Fatalf("%d gates of the study are judged", len(r.Gates))
	}
	for _, g := range r.Gates {
		if !g.Reached {
			t.Errorf("%s: %.3f, want %s %.2f", g.Measure, g.Value, g.sign(), g.Bound)
		}
	}
	ours, oracle := r.Rows()[2], r.Rows()[3]
	if ours.Good > oracle.Good {
		t.Errorf("%.1f %% good without knowing the future, %.1f %% with", 100*ours.Good, 100*oracle.Good)
	}
}

func TestCompare_RunsRepeat(t *testing.T) {
	text := func() string {
		var b bytes.Buffer
		if err := compareStudy(t, "tandem").WriteTable(&b); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	if a, b := text(), text(); a != b {
		t.Errorf("two runs differ:\n%s\n%s", a, b)
	}
}

// What comes in goes out, whatever the policy does to the pods under it.
func TestRun_EveryRequestEnds(t *testing.T) {
	trace, err := policy.ReadTraceFile(traceFile, 3000)
	if err != nil {
		t.Fatal(err)
	}
	s := *Scenarios()[0]
	s.Seconds, s.Bursts = 1500, []Burst{{From: 600, Seconds: 60, Factor: 4}}
	load := buildLoad(trace, &s, 3)
	plant := &runFacts{scenario: &s, coldStart: 60, work: measureWork(&s, load), planner: sizing.DefaultPlanner()}
	plant.peak = staticPeak(plant, load)
	for _, p := range Policies() {
		o := run(&p, plant, load)
		if o.Requests != len(load) || o.Unended > 0 {
			t.Errorf("%s: %d of %d requests never ended", p.Name, o.Unended, len(load))
		}
		if missed := 1 - o.Good; missed*float64(len(load)) > float64(o.Late+o.Slow)+0.5 || missed > 0.9 {
			t.Errorf("%s: %.0f %% missed, %d late and %d slow", p.Name, 100*missed, o.Late, o.Slow)
		}
		if o.PrefillHours < o.PrefillWork*0.5 {
			t.Errorf("%s: %.1f prefill hours for %.1f hours of work", p.Name, o.PrefillHours, o.PrefillWork)
		}
	}
}

func TestReport_PageAndJSONHoldEveryPolicy(t *testing.T) {
	r := compareStudy(t, "token-aware", "tandem")
	var page, data bytes.Buffer
	if err := r.WritePage(&page); err != nil {
		t.Fatal(err)
	}
	if err := r.WriteJSON(&data); err != nil {
		t.Fatal(err)
	}
	if charts := strings.Count(page.String(), "<svg"); charts != 3 {
		t.Errorf("%d pictures, want one of cost and one for each policy", charts)
	}
	var read Report
	if err := json.Unmarshal(data.Bytes(), &read); err != nil {
		t.Fatal(err)
	}
	if len(read.Outcomes) != 2 || len(read.Outcomes[1].Lines.PrefillPods) != 240 || read.Outcomes[1].Good != r.Outcomes[1].Good {
		t.Errorf("read back: %d outcomes", len(read.Outcomes))
	}
}
