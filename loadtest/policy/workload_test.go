package policy

import (
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// A workload without a seed of its own gives each run another trace, and the same one again
// for the same seed; with one all runs have the same.
func TestWorkload_TheTraceIsThatOfItsSeed(t *testing.T) {
	w := scenario(t, "bimodal").workload()
	l := &load{name: "bimodal", workload: w}
	if !reflect.DeepEqual(l.trace(1), w.trace("bimodal", 1, 0)) {
		t.Error("the same seed gives another trace")
	}
	if reflect.DeepEqual(l.trace(1), l.trace(2)) {
		t.Error("another seed gives the same trace")
	}
	agents := &load{name: "short", workload: scenario(t, "short").workload()}
	if agents.trace(1) != agents.trace(2) {
		t.Error("a workload with a seed of its own gives another trace for another run")
	}
}

// What every generated trace is: a trace as a file could have it, in order, whose prompts have
// the blocks of their tokens.
func TestWorkload_RowsAreThoseOfATrace(t *testing.T) {
	for _, name := range Shipped() {
		w := scenario(t, name).workload()
		if w == nil {
			continue
		}
		trace := w.trace(name, 1, 0)
		for i := range trace.Requests {
			r := &trace.Requests[i]
			if err := checkRow(r, len(r.Blocks), trace.Requests[:i]); err != nil {
				t.Fatalf("%s: request %d: %v", name, i, err)
			}
			if w.Seconds > 0 && r.Stamp >= w.Seconds {
				t.Fatalf("%s: request %d comes at %.1f s, after the end", name, i, r.Stamp)
			}
		}
		if len(trace.Requests) < 1000 {
			t.Errorf("%s: %d requests", name, len(trace.Requests))
		}
	}
}

func TestWorkload_BimodalHasOneLongPromptInTwenty(t *testing.T) {
	long := 0
	trace := scenario(t, "bimodal").workload().trace("bimodal", 1, 0)
	for _, r := range trace.Requests {
		switch r.Prompt {
		case 100_000:
			long++
		case 500:
		default:
			t.Fatalf("a prompt of %d tokens", r.Prompt)
		}
	}
	if share := float64(long) / float64(len(trace.Requests)); math.Abs(share-0.05) > 0.01 {
		t.Errorf("%.3f of the prompts are long", share)
	}
}

// Siblings come at one instant with one head, and share nothing else; no other family has it.
func TestWorkload_SiblingsShareTheirHeadOnly(t *testing.T) {
	w := scenario(t, "siblings").workload()
	w.Kinds[0].Turns = Draw{Least: 1, Most: 1}
	trace := w.trace("siblings", 1, 0)
	head, n := int(w.Kinds[0].HeadTokens.Least)/blockTokens, w.Kinds[0].Siblings
	seen := map[int32]int{} // family of a block
	for i := 0; i < len(trace.Requests); i += n {
		first := &trace.Requests[i]
		for k := range n {
			r := &trace.Requests[i+k]
			if r.Stamp != first.Stamp || !slices.Equal(r.Blocks[:head], first.Blocks[:head]) {
				t.Fatalf("request %d is no sibling of %d", i+k, i)
			}
			own := r.Blocks[head:]
			if k == 0 {
				own = r.Blocks
			}
			for _, b := range own {
				if of, known := seen[b]; known {
					t.Fatalf("request %d has block %d, which is of request %d", i+k, b, of)
				}
				seen[b] = i + k
			}
		}
	}
}

// The next turn's prompt begins with what was said, and no session has a block of another's but
// for whole blocks of the head.
func TestWorkload_TurnsContinueTheirSession(t *testing.T) {
	w := &Workload{Rate: 1, Sessions: 40, Kinds: []SessionKind{{
		Share: 1, Heads: 2, HeadSkew: 1, HeadTokens: Draw{Least: 1300, Most: 1300}, Turns: Draw{Least: 3, Most: 3},
		FirstTokens: Draw{Least: 700, Most: 700}, TurnTokens: Draw{Least: 100, Most: 900}, AnswerTokens: Draw{Least: 10, Most: 600},
		TurnSeconds: Draw{Least: 1, Most: 5}, MostTokens: 3000,
	}}}
	if err := w.check(); err != nil {
		t.Fatal(err)
	}
	trace := w.trace("turns", 1, 0)
	last := map[int32]*Request{} // by the first block that is the session's own
	later := 0
	for i := range trace.Requests {
		r := &trace.Requests[i]
		if r.Prompt > w.Kinds[0].MostTokens {
			t.Fatalf("a prompt of %d tokens", r.Prompt)
		}
		own := r.Blocks[1300/blockTokens]
		if before := last[own]; before != nil {
			later++
			if r.Prompt < before.Prompt+before.Output+100 || !slices.Equal(r.Blocks[:len(before.Blocks)], before.Blocks) {
				t.Fatalf("request %d does not continue its session", i)
			}
		}
		last[own] = r
	}
	if len(last) != w.Sessions || later == 0 {
		t.Errorf("%d sessions, %d later turns", len(last), later)
	}
}

func TestDraw_KeepsToItsShape(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, c := range []struct {
		draw   Draw
		median float64
	}{
		{Draw{Least: 10, Most: 30}, 20},
		{Draw{Shape: logUniform, Least: 10, Most: 1000}, 100},
		{Draw{Shape: lognormal, Least: 1, Most: 1e6, Median: 300, Sigma: 1}, 300},
		{Draw{Shape: exponential, Least: 1, Most: 1e6, Mean: 100}, 1 + 100*math.Ln2},
		{Draw{Shape: pareto, Least: 100, Most: 1e6, Alpha: 1.2}, 100 * math.Pow(2, 1/1.2)},
	} {
		if err := c.draw.check(); err != nil {
			t.Fatalf("%+v: %v", c.draw, err)
		}
		values := make([]float64, 20_000)
		for i := range values {
			values[i] = c.draw.value(rng)
			if values[i] < c.draw.Least || values[i] > c.draw.Most {
				t.Fatalf("%+v drew %v", c.draw, values[i])
			}
		}
		slices.Sort(values)
		if median := values[len(values)/2]; math.Abs(median/c.median-1) > 0.05 {
			t.Errorf("%+v: median %.1f, want %.1f", c.draw, median, c.median)
		}
	}
}

func TestWorkload_SaysWhatIsWrong(t *testing.T) {
	const kind = "{share: 1, turns: {least: 1, most: 1}, first_tokens: {least: 9, most: 9}, answer_tokens: {least: 9, most: 9}}"
	for text, want := range map[string]string{
		"{rate: 1, kinds: [" + kind + "]}":                                                   "sessions or seconds",
		"{rate: 0, seconds: 9, kinds: [" + kind + "]}":                                       "want a rate",
		"{rate: 1, seconds: 9}":                                                              "kinds",
		"{rate: 1, seconds: 9, kinds: [{name: x}]}":                                          `kind "x": share`,
		"{rate: 1, seconds: 9, kinds: [{share: 1}]}":                                         "turns: want least",
		"{rate: 1, seconds: 9, kinds: [{share: 1, turns: {least: 1, most: 1, shape: cat}}]}": `shape "cat"`,
	} {
		if _, err := ParseScenario([]byte("like: B\nworkload: " + text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one with %q", text, err, want)
		}
	}
}

// In a flash crowd the requests of five times its seconds come, and on the ramp as many as the
// rate says; none is lost, and their order is the trace's.
func TestSurge_ArrivalsFollowTheRate(t *testing.T) {
	s := &Surge{From: 0.5, To: 1.5, Flashes: []FlashCrowd{{At: 100, Seconds: 30, Factor: 5}}}
	at := make([]float64, 10_000) // ten a second
	for i := range at {
		at[i] = float64(i) / 10
	}
	s.shift(at)
	if !slices.IsSorted(at) {
		t.Fatal("arrivals are not in order")
	}
	between := func(from, to float64) (n float64) {
		for _, a := range at {
			if a >= from && a < to {
				n++
			}
		}
		return n
	}
	for _, c := range []struct{ from, to, rate float64 }{{0, 100, 0.55}, {100, 130, 5 * 0.615}, {130, 230, 0.68}, {500, 600, 1.05}} {
		if want := c.rate * 10 * (c.to - c.from); math.Abs(between(c.from, c.to)/want-1) > 0.02 {
			t.Errorf("from %v to %v s %v requests come, want %.0f", c.from, c.to, between(c.from, c.to), want)
		}
	}
}

// Gateways are told links that are not; transfers take as long as ever.
func TestScenario_LinksToldChangesWhatGatewaysBelieveOnly(t *testing.T) {
	b, told := scenario(t, "B"), scenario(t, "links-told-fast")
	if told.bandwidth(0, 0) != 4*b.bandwidth(0, 0) || told.bandwidth(0, 7) != 4*b.bandwidth(0, 7) {
		t.Errorf("told %v and %v bytes/s", told.bandwidth(0, 0), told.bandwidth(0, 7))
	}
	if told.uplink() != b.uplink() || told.Hardware.NIC != b.Hardware.NIC {
		t.Error("the links themselves are faster")
	}
}

// The answers of a scenario are drawn by the run's seed, the same for all policies.
func TestRun_OutputsOfTheScenario(t *testing.T) {
	s, trace := scenario(t, "heavy-outputs"), readShort(t)
	before := slices.Clone(trace.Requests)
	var first []job
	for _, p := range []*Policy{randomPolicy, lateBinding} {
		c, err := newCluster(trace, s, p, 3)
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = c.jobs
		}
		for i := range c.jobs {
			if got := c.jobs[i].req.Output; got < 400 || got != first[i].req.Output {
				t.Fatalf("request %d: %d tokens, and %d under another policy", i, got, first[i].req.Output)
			}
		}
	}
	if !reflect.DeepEqual(trace.Requests, before) {
		t.Error("the trace itself changed")
	}
}
