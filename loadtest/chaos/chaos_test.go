package chaos

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest"
	"github.com/tandem-gateway/tandem/loadtest/process"
)

func TestScenarios_AreWellFormed(t *testing.T) {
	seen := make(map[string]bool)
	for _, c := range Scenarios {
		if err := c.validate(); err != nil {
			t.Error(err)
		}
		if seen[c.Name] {
			t.Errorf("%s is there twice", c.Name)
		}
		seen[c.Name] = true
		for i := range c.Events[1:] {
			if c.Events[i].at > c.Events[i+1].at {
				t.Errorf("%s: %q comes after %q", c.Name, c.Events[i].label, c.Events[i+1].label)
			}
		}
	}
}

func TestScenario_MistakesAreFound(t *testing.T) {
	good := Scenario{Name: "n", Title: "t", Checks: Checks{NoErrors}}
	for mistake, events := range map[string]Events{
		"there is no component decode-2":  {At(s, Kill("decode-2"))},
		"there is no component redis":     {At(s, Network(Refusing, "gateway-0>redis"))},
		"after the load":                  {At(time.Hour, Kill("decode-1"))},
		"there is no component prefill-9": {At(s, Restore("prefill-9"))},
	} {
		c := good
		c.Events = events
		if err := c.validate(); err == nil || !strings.Contains(err.Error(), mistake) {
			t.Errorf("want %q, got %v", mistake, err)
		}
	}
	good.Events = Events{At(s, Hang(Busiest("decode")))}
	if err := good.validate(); err != nil {
		t.Error(err)
	}
	if _, err := Find([]string{"no-such"}); err == nil {
		t.Error("a scenario that does not exist was found")
	}
}

// request is one that arrived at a time and waited for its first token.
func request(at, ttft time.Duration) loadtest.Ended {
	return loadtest.Ended{Due: at, TTFT: ttft}
}

func TestRecovery(t *testing.T) {
	const ms = time.Millisecond
	var calm []loadtest.Ended
	for i := range 20 {
		calm = append(calm, request(time.Duration(i)*50*ms, 20*ms))
	}
	failed := func(at time.Duration) loadtest.Ended { return loadtest.Ended{Due: at, Kind: loadtest.Reset} }
	events := Events{At(s, Kill("decode-0")), At(3*s, Restart("decode-0"))}
	for _, c := range []struct {
		name  string
		after []loadtest.Ended
		want  time.Duration
	}{
		{"nothing shows", []loadtest.Ended{request(1100*ms, 150*ms)}, 0},
		{"slow for a while", []loadtest.Ended{request(1100*ms, 400*ms), request(1500*ms, 400*ms), request(1600*ms, 20*ms)}, 500 * ms},
		{"failures", []loadtest.Ended{failed(1200 * ms), request(1300*ms, 20*ms)}, 200 * ms},
		{"each event has its own", []loadtest.Ended{failed(1900 * ms), failed(3100 * ms)}, 900 * ms},
		{"what arrived before does not count", []loadtest.Ended{failed(990 * ms)}, 0},
	} {
		if got := recovery(append(calm[:len(calm):len(calm)], c.after...), events); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	if got := recovery([]loadtest.Ended{failed(s)}, nil); got != 0 {
		t.Errorf("without events: %v", got)
	}
}

func TestChecks_SayWhatDoesNotHold(t *testing.T) {
	o := &Outcome{
		Requests: 100, Failed: 2, Continued: 1, WorstTTFT: 3 * s, WorstE2E: 4 * s, Recovery: 2 * s,
		Reached: map[string]int{"decode-0": 30, "prefill-0": 30, "prefill-1": 10}, Metrics: []process.Metrics{"m{a=\"x\"} 3\nm{a=\"y\"} 4\nmm 9\n", "m{a=\"x\"} 2\n"},
	}
	for name, check := range map[string][2]Check{ // one that holds, one that does not
		"errors":    {MaxErrors(2), NoErrors},
		"recovery":  {RecoveredWithin(2 * s), RecoveredWithin(s)},
		"ttft":      {WorstTTFT(3 * s), WorstTTFT(2 * s)},
		"answer":    {WorstAnswer(4 * s), WorstAnswer(3 * s)},
		"continued": {Continued(1), Continued(2)},
		"share":     {MaxShare("decode-0", 0.3), MaxShare("decode-0", 0.29)},
		"balanced":  {Balanced("prefill", 1.5), Balanced("prefill", 1.49)},
		"metric":    {Metric(9, 9, "m"), Metric(10, 99, "m")},
		"by labels": {Metric(5, 5, "m", `a="x"`), Metric(0, 4, "m", `a="x"`)},
	} {
		if broken := check[0](o); broken != "" {
			t.Errorf("%s: %s", name, broken)
		}
		if check[1](o) == "" {
			t.Errorf("%s: what does not hold was not said", name)
		}
	}
}

func TestReport_TableAndPage(t *testing.T) {
	r := &Report{Scenarios: []Row{
		{Name: "one", Title: "a <thing> breaks", Peer: "other: 7 of 20", Events: []string{"2s kill decode-0"}, Requests: 160, Continued: 3, WorstTTFT: 0.061, Recovery: 0},
		{Name: "another", Requests: 80, Failed: 2, WorstTTFT: 5.44, Recovery: 1.25, Broken: []string{"2 of 80 requests failed"}, Log: "/tmp/x"},
	}}
	var table strings.Builder
	if err := r.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	want := strings.Join([]string{
		"  scenario  requests  failed  continued  worst TTFT  recovery",
		"       one       160       0          3       61 ms      0 ms",
		"   another        80       2          0       5.4 s     1.2 s",
		"another: 2 of 80 requests failed (log: /tmp/x)",
		"",
	}, "\n")
	if table.String() != want {
		t.Errorf("got\n%s\nwant\n%s", table.String(), want)
	}
	var page strings.Builder
	if err := r.WritePage(&page); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"a &lt;thing&gt; breaks", "other: 7 of 20", "2s kill decode-0", "2 of 80 requests failed"} {
		if !strings.Contains(page.String(), part) {
			t.Errorf("the page lacks %q", part)
		}
	}
	if err := r.Err(); err == nil || !strings.Contains(err.Error(), "1 of 2 scenarios") {
		t.Errorf("%v", err)
	}
}

// A dot a request at its time, by how it ended; a numbered line an event.
func TestStrip_ShowsEachRequestAndEvent(t *testing.T) {
	const ms = time.Millisecond
	ended := []loadtest.Ended{
		{Due: 0, TTFT: 20 * ms}, {Due: s, TTFT: 20 * ms}, {Due: 2 * s, TTFT: 900 * ms}, {Due: 3 * s, Kind: loadtest.Reset}, {Due: 4 * s, TTFT: 25 * ms},
	}
	c := Scenario{Load: Load{For: 4 * s}, Events: Events{At(1500*ms, Kill("decode-0")), At(3500*ms, Restart("decode-0"))}}
	drawn := string(stripOf(ended, c).draw())
	for part, n := range map[string]int{
		`class="fine"`: 3, `class="slow"`: 1, `class="failed"`: 1, `class="event"`: 2, `<title>kill decode-0</title>`: 1,
		`cx="54.0"`: 1, `cx="708.0"`: 1, // the first and the last request at the edges
	} {
		if got := strings.Count(drawn, part); got != n {
			t.Errorf("%d times %s, want %d:\n%s", got, part, n, drawn)
		}
	}
	if empty := stripOf(nil, c).draw(); empty != "" {
		t.Errorf("of nothing: %s", empty)
	}
}

func TestSlope(t *testing.T) {
	line := func(from, perHour, wobble float64) (samples []sample) {
		for i := range 600 {
			at := time.Duration(i) * 2 * time.Second
			v := from + perHour*at.Hours() + wobble*float64(i%2)
			samples = append(samples, sample{at: at, values: []float64{v}})
		}
		return samples
	}
	g := gauge{name: "descriptors", unit: 1, noise: 10}
	for _, c := range []struct {
		name    string
		samples []sample
		perHour float64
		grows   bool
	}{
		{"flat", line(100, 0, 3), 0, false},
		{"a leak", line(100, 60, 3), 60, true},
		{"less than noise", line(100, 20, 0), 20, false},
		{"shrinks", line(1000, -300, 0), -300, false},
		{"grows, but little of what is there", line(1e6, 100, 0), 100, false},
		{"no samples", nil, 0, false},
	} {
		if got := slopeOf(g, 0, c.samples); got.Growing != c.grows || math.Abs(got.PerHour-c.perHour) > 0.5 {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}
