package policy

import (
	"context"
	"math"
	"reflect"
	"strings"
	"sync"
	"testing"
)

const tracePath = "../traces/mooncake_conversation.jsonl"

// shortTrace is the first requests of the trace.
var shortTrace = sync.OnceValues(func() (*Trace, error) { return ReadTraceFile(tracePath, 400) })

func readShort(t *testing.T) *Trace {
	t.Helper()
	trace, err := shortTrace()
	if err != nil {
		t.Fatal(err)
	}
	return trace
}

func scenario(t *testing.T, name string) *Scenario {
	t.Helper()
	s, err := LoadScenario(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Every policy in every scenario: no request is lost, each happens in order,
// at the end nothing is held or owed, and no mean time to the first token is below its bound.
func TestRun_KeepsItsBooks(t *testing.T) {
	for _, name := range Shipped() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := scenario(t, name)
			trace := readShort(t)
			bounds := make(map[bool][2]ttftParts) // by FirstFromPrefill: the same for all policies on such engines
			for _, p := range Policies() {
				c, err := newCluster(trace, s, p, 1)
				if err != nil {
					t.Fatalf("%s: %v", p.Name, err)
				}
				if err := c.run(); err != nil {
					t.Fatalf("%s: %v", p.Name, err)
				}
				for c.cal.step() { // what is still on its way to other replicas
				}
				checkOrder(t, c, p)
				checkNothingHeld(t, c, p)
				o := c.outcome(p, 1)
				if p.Kind == Ours && o.IdleShare > 1 {
					t.Errorf("%s: a request waited %.1f times as long as it may while a server was idle", p.Name, o.IdleShare)
				}
				if _, known := bounds[p.FirstFromPrefill]; !known {
					bounds[p.FirstFromPrefill] = c.ttftBounds()
				}
				if err := o.isAbove(bounds[p.FirstFromPrefill]); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// Where prefill says the first token it comes no later than decode's, and at once where the transfer
// is predicted to be short. Where it may be a gap beyond the objective the token is held, so that hardly
// more requests miss the objective than with decode's token. The same requests are served, and no token
// is said twice.
func TestRun_FirstTokenFromPrefill(t *testing.T) {
	p, err := FindPolicies([]string{"tandem-late"})
	if err != nil {
		t.Fatal(err)
	}
	trace, err := ReadTraceFile(tracePath, 3000)
	if err != nil {
		t.Fatal(err)
	}
	const seeds = 4
	run := func(first bool, seed uint64) (*cluster, *Outcome) {
		s := scenario(t, "B") // near saturation chance is larger than a transfer
		s.FirstFromPrefill = first
		c, err := newCluster(trace, s, p[0], seed)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.run(); err != nil {
			t.Fatal(err)
		}
		checkOrder(t, c, p[0])
		return c, c.outcome(p[0], seed)
	}
	early, held, jobs := 0, 0, 0
	var fromDecode, fromPrefill Outcome // sums
	for seed := range uint64(seeds) {
		_, before := run(false, seed+1)
		c, now := run(true, seed+1)
		for sum, o := range map[*Outcome]*Outcome{&fromDecode: before, &fromPrefill: now} {
			sum.Goodput, sum.Cross, sum.SameRack = sum.Goodput+o.Goodput, sum.Cross+o.Cross, sum.SameRack+o.SameRack
			sum.TTFT.Mean, sum.ITL.Mean, sum.ITL.P99 = sum.TTFT.Mean+o.TTFT.Mean, sum.ITL.Mean+o.ITL.Mean, sum.ITL.P99+o.ITL.P99
		}
		for i := range c.jobs {
			j := &c.jobs[i]
			is := j.pair.Prefill != Aggregated && j.req.Prompt%blockTokens != 0 && j.req.Output > 1
			if late := j.firstAt < j.prefilledAt || j.firstAt > j.decodedAt; is && late || !is && j.firstAt != j.decodedAt {
				t.Fatalf("request %d of %d and %d tokens by %+v: prefilled at %v, its first token came at %v, decode's at %v", i, j.req.Prompt, j.req.Output, j.pair, j.prefilledAt, j.firstAt, j.decodedAt)
			}
			if is && j.firstAt == j.prefilledAt {
				early++
			}
			if is && j.firstAt > j.askedAt {
				held++
			}
		}
		jobs += len(c.jobs)
	}
	if held < jobs/10 || fromPrefill.Goodput < fromDecode.Goodput-0.03*seeds {
		t.Errorf("%d tokens were held; %.1f%% of the requests had their first token and every gap in time, before %.1f%%", held, 100*fromPrefill.Goodput/seeds, 100*fromDecode.Goodput/seeds)
	}
	t.Logf("%d of %d first tokens came with prefill's end, %d were to be held: mean TTFT %.3f s, before %.3f s; p99 of gaps %.3f s, before %.3f s",
		early, jobs, held, fromPrefill.TTFT.Mean/seeds, fromDecode.TTFT.Mean/seeds, fromPrefill.ITL.P99/seeds, fromDecode.ITL.P99/seeds)
	if cross, before := fromPrefill.Cross/(fromPrefill.Cross+fromPrefill.SameRack), fromDecode.Cross/(fromDecode.Cross+fromDecode.SameRack); cross > before+0.05 {
		t.Errorf("%.0f%% of the KV crosses racks, before %.0f%%: what a transfer takes is not learned", 100*cross, 100*before)
	}
	if early < jobs/20 || fromPrefill.TTFT.Mean >= fromDecode.TTFT.Mean || fromPrefill.ITL.Mean <= fromDecode.ITL.Mean {
		t.Error("the transfer is where it was")
	}
}

func checkOrder(t *testing.T, c *cluster, p *Policy) {
	t.Helper()
	for i := range c.jobs {
		j := &c.jobs[i]
		times := []float64{j.arrived, j.began, j.prefilledAt, j.firstAt, j.endedAt}
		if j.pair.Prefill == Aggregated {
			times = []float64{j.arrived, j.began, j.firstAt, j.endedAt}
		}
		for k := range times[1:] {
			if times[k+1] < times[k] || math.IsNaN(times[k+1]) {
				t.Fatalf("%s: request %d: times %v are not in order", p.Name, i, times)
			}
		}
		if j.generated != j.req.Output {
			t.Fatalf("%s: request %d has %d of %d tokens", p.Name, i, j.generated, j.req.Output)
		}
		whole := float64(j.req.Prompt-j.decodeHit) * c.hw.KVBytesPerToken
		if j.pieces > 0 && !c.scenario.Overlap { // what came before is a hit of the whole prompt
			whole += float64(j.staged) * c.hw.KVBytesPerToken
		}
		if j.pair.Prefill == Aggregated {
			whole = 0
		}
		if j.preempted == 0 && math.Abs(j.bytes-whole) > 1 {
			t.Fatalf("%s: request %d moved %.0f bytes, decode lacked %.0f", p.Name, i, j.bytes, whole)
		}
	}
}

func checkNothingHeld(t *testing.T, c *cluster, p *Policy) {
	t.Helper()
	for _, s := range c.prefills {
		s.cache.check(t)
		if s.cache.used() != 0 || len(s.waiting)+len(s.begun) != 0 {
			t.Fatalf("%s: prefill server %d still holds %d blocks", p.Name, s.id, s.cache.used())
		}
	}
	for _, d := range c.decodes {
		d.cache.check(t)
		if d.cache.used() != 0 || d.held != 0 || d.context != 0 || len(d.waiting)+len(d.joining)+len(d.batch) != 0 {
			t.Fatalf("%s: decode server %d still holds %d blocks, %d tokens of context", p.Name, d.id, d.cache.used(), d.context)
		}
	}
	if len(c.net.flows) != 0 {
		t.Fatalf("%s: %d transfers are still under way", p.Name, len(c.net.flows))
	}
	for _, g := range c.gateways {
		for i := range g.account.prefill {
			if a := &g.account.prefill[i]; a.work.Len() != 0 || a.tokens != 0 || a.prompts != 0 {
				t.Fatalf("%s: gateway %d believes that prefill server %d has work", p.Name, g.id, i)
			}
		}
		for i, a := range g.account.decode {
			if a.requests != 0 || a.streaming != 0 || a.context != 0 || a.tokens != 0 {
				t.Fatalf("%s: gateway %d believes that decode server %d has work", p.Name, g.id, i)
			}
		}
	}
}

// Computing many decode steps as one event gives what one event a step gives.
func TestRun_RunsOfStepsAreExact(t *testing.T) {
	for _, name := range []string{"B", "lockstep", "decode-bound"} {
		s, trace := scenario(t, name), readShort(t)
		var runs [2][]job
		for i, longest := range []int{1 << 20, 1} {
			c, err := newCluster(trace, s, conductor, 1)
			if err != nil {
				t.Fatal(err)
			}
			c.longestRun = longest
			if err := c.run(); err != nil {
				t.Fatal(err)
			}
			runs[i] = c.jobs
		}
		for i := range runs[0] {
			a, b := &runs[0][i], &runs[1][i]
			if math.Abs(a.firstAt-b.firstAt) > 1e-3 || math.Abs(a.endedAt-b.endedAt) > 1e-2 {
				t.Fatalf("%s: request %d: first token at %f and %f, end at %f and %f", name, i, a.firstAt, b.firstAt, a.endedAt, b.endedAt)
			}
		}
	}
}

func TestRun_IsRepeatableAndSeedsDiffer(t *testing.T) {
	s, trace := scenario(t, "B3"), readShort(t)
	for _, p := range []*Policy{randomPolicy, dynamo, lateBinding} {
		var outcomes []*Outcome
		for _, seed := range []uint64{1, 1, 2} {
			o, err := Run(trace, s, p, seed)
			if err != nil {
				t.Fatal(err)
			}
			o.DecisionNS, o.RunSeconds = 0, 0 // wall time
			outcomes = append(outcomes, o)
		}
		if !reflect.DeepEqual(outcomes[0], outcomes[1]) {
			t.Errorf("%s: one seed, two outcomes:\n%+v\n%+v", p.Name, outcomes[0], outcomes[1])
		}
		if outcomes[0].TTFT.Mean == outcomes[2].TTFT.Mean {
			t.Errorf("%s: seeds 1 and 2 agree: %f", p.Name, outcomes[0].TTFT.Mean)
		}
	}
}

// The scenario that the policies share does not change under them.
func TestRun_PoliciesMeetTheSameRequests(t *testing.T) {
	s, trace := scenario(t, "B"), readShort(t)
	var first []job
	for _, p := range []*Policy{randomPolicy, lateBinding} {
		c, err := newCluster(trace, s, p, 3)
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = c.jobs
			continue
		}
		for i := range first {
			if a, b := &first[i], &c.jobs[i]; a.arrived != b.arrived || a.noise != b.noise || a.replica != b.replica {
				t.Fatalf("request %d differs: %+v, %+v", i, a, b)
			}
		}
	}
}

func TestRun_RefusesWhatNoServerHolds(t *testing.T) {
	s := scenario(t, "B")
	s.Hardware.DecodeCapacity = 20_000
	if _, err := Run(readShort(t), s, dynamo, 1); err == nil || !strings.Contains(err.Error(), "KV tokens") {
		t.Errorf("error %v, want one about KV tokens", err)
	}
}

func TestCompare_ParallelIsSequential(t *testing.T) {
	cfg := Config{Traces: []string{tracePath}, Limit: 200, Scenarios: []*Scenario{scenario(t, "A"), scenario(t, "F"), scenario(t, "G")}, Policies: []*Policy{dynamo, lateBinding}, Seeds: 2}
	var reports []*Report
	for _, parallel := range []int{1, 4} {
		cfg.Parallel = parallel
		calls := 0
		r, err := Compare(context.Background(), cfg, func(done, total int, _ *Outcome) {
			if calls++; done != calls || total != 8 {
				t.Errorf("run %d of 8: told %d of %d", calls, done, total)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		for i := range r.Scenarios {
			for k := range r.Scenarios[i].Policies {
				delete(r.Scenarios[i].Policies[k].Metrics, "decision_ns")
				delete(r.Scenarios[i].Policies[k].Metrics, "run_s")
			}
		}
		reports = append(reports, r)
	}
	if !reflect.DeepEqual(reports[0], reports[1]) {
		t.Error("four runs at one time gave another report than one")
	}
	if len(reports[0].Skipped) != 1 || !strings.Contains(reports[0].Skipped[0], "F: no synthetic_trace.jsonl") {
		t.Errorf("skipped %q, want F", reports[0].Skipped)
	}
}

func TestCompare_StopsWhenItsContextEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cfg := Config{Traces: []string{tracePath}, Limit: 50, Scenarios: []*Scenario{scenario(t, "A")}, Policies: Policies(), Seeds: 3, Parallel: 1}
	runs := 0
	_, err := Compare(ctx, cfg, func(int, int, *Outcome) { runs++; cancel() })
	if err == nil || runs > 2 {
		t.Errorf("%d runs after the context ended, error %v", runs, err)
	}
}

// Budget (2-core VM, one core): 3 s for the whole trace under any policy; it is
// some 0.15 s for those that bind on arrival and 0.3 s for late binding.
func BenchmarkRun(b *testing.B) {
	trace, err := ReadTraceFile(tracePath, 0)
	if err != nil {
		b.Fatal(err)
	}
	for _, p := range []*Policy{roundRobin, dynamo, arrival, lateBinding} {
		b.Run(p.Name, func(b *testing.B) {
			s, err := LoadScenario("B")
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if _, err := Run(trace, s, p, 1); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// A decode server that computes a prompt stops its batch: some gaps of the answers there are
// long, and their means are not. So requests are good by the mean of their gaps that are not by
// every gap, and none the other way round.
func TestRun_AStallCountsAgainstEveryGapAndNotTheirMean(t *testing.T) {
	found, err := FindPolicies([]string{"dynamo-conditional-hot"})
	if err != nil {
		t.Fatal(err)
	}
	s := scenario(t, "B")
	c, err := newCluster(readShort(t), s, found[0], 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.run(); err != nil {
		t.Fatal(err)
	}
	stalled := 0
	for i := range c.jobs {
		j := &c.jobs[i]
		if gap := j.meanGap(); gap > j.longestGap+1e-9 || j.req.Output > 1 && gap <= 0 {
			t.Fatalf("request %d of %d tokens: mean gap %v s, longest %v s", i, j.req.Output, gap, j.longestGap)
		}
		if j.firstAt-j.arrived <= s.SLO.TTFT && j.longestGap > s.SLO.ITL && j.meanGap() <= s.SLO.ITL {
			stalled++
		}
	}
	o := c.outcome(found[0], 1)
	if got := math.Round((o.MeanGoodput - o.Goodput) * float64(len(c.jobs))); stalled == 0 || got != float64(stalled) {
		t.Errorf("%v more requests are good by the mean gap, %d had a stall and a mean that is in time", got, stalled)
	}
}

// Each call to an engine takes a round trip: one leg for a request that decode serves alone, and
// two, one after the other, for a pair. It is in the time to the first token, whatever the policy.
func TestRun_EachLegTakesARoundTrip(t *testing.T) {
	trace := &Trace{Requests: []Request{{Prompt: 400, Output: 3, Blocks: []int32{0}}}, Blocks: 1}
	for name, test := range map[string]struct {
		pair Pair
		legs float64
	}{"a pair": {Pair{Prefill: 1, Decode: 1}, 2}, "decode alone": {Pair{Prefill: Aggregated, Decode: 1}, 1}} {
		fixed := &Policy{Name: "fixed", New: stateless(func(*View) Pair { return test.pair })}
		var ttft [2]float64
		for i, trip := range []float64{0, 0.25} {
			s := scenario(t, "B")
			s.RoundTrip = trip
			o, err := Run(trace, s, fixed, 1)
			if err != nil {
				t.Fatal(err)
			}
			ttft[i] = o.TTFT.Mean
		}
		if more := ttft[1] - ttft[0]; math.Abs(more-test.legs*0.25) > 1e-9 {
			t.Errorf("%s: a round trip of 0.25 s adds %v s to the first token, want %v of them", name, more, test.legs)
		}
	}
}

// Decode takes requests whose prompts fit, however long their answers will be, and preempts the
// last when they no longer do: the others go on.
func TestRun_DecodeAdmitsWithoutKnowingTheAnswer(t *testing.T) {
	s := scenario(t, "B")
	s.Hardware.DecodeCapacity = 8 * blockTokens
	request := func(block int32) Request {
		return Request{Prompt: 1000, Output: 2000, Blocks: []int32{block, block + 1}}
	}
	trace := &Trace{Requests: []Request{request(0), request(2)}, Blocks: 4}
	fixed := &Policy{Name: "fixed", New: stateless(func(*View) Pair { return Pair{} })}
	c, err := newCluster(trace, s, fixed, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.run(); err != nil {
		t.Fatal(err)
	}
	first, second := &c.jobs[0], &c.jobs[1]
	if second.arrived < first.arrived {
		first, second = second, first
	}
	if second.firstAt > first.endedAt || first.preempted != 0 || second.preempted != 1 {
		t.Errorf("first token of the second at %v, end of the first at %v; preempted %d and %d times, want together, and the second once",
			second.firstAt, first.endedAt, first.preempted, second.preempted)
	}
}
