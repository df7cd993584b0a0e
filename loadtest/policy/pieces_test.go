package policy

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/tandem-gateway/tandem/pd/cost"
)

// In pieces the mean time to the first token is shorter where prompts are long, decode has pulled
// most before the last piece ends, and nothing is moved twice.
func TestRun_PiecesLetShortRequestsBetween(t *testing.T) {
	trace, err := ReadTraceFile(tracePath, 3000)
	if err != nil {
		t.Fatal(err)
	}
	run := func(p *Policy) (*cluster, *Outcome) {
		c, err := newCluster(trace, scenario(t, "G"), p, 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.run(); err != nil {
			t.Fatal(err)
		}
		checkOrder(t, c, p)
		return c, c.outcome(p, 1)
	}
	_, whole := run(lateBinding)
	c, cut := run(pieces)
	staged, pieced := 0, 0
	for i := range c.jobs {
		if j := &c.jobs[i]; j.pieces > 0 {
			pieced++
			staged += j.staged
		}
	}
	t.Logf("%d of %d prompts in pieces, %d tokens pulled before the last one; mean TTFT %.2f s, whole %.2f s", pieced, len(c.jobs), staged, cut.TTFT.Mean, whole.TTFT.Mean)
	if pieced == 0 || staged == 0 || cut.TTFT.Mean > 0.95*whole.TTFT.Mean {
		t.Error("pieces gain nothing")
	}
	if cut.Goodput < whole.Goodput-0.005 {
		t.Errorf("%.3f of the requests are in time, %.3f with whole prompts", cut.Goodput, whole.Goodput)
	}
	if moved, before := cut.SameRack+cut.Cross, whole.SameRack+whole.Cross; moved > 1.02*before {
		t.Errorf("%.2f TB are moved, %.2f with whole prompts", moved/1e12, before/1e12)
	}
}

// Where decode computes prompts in pieces more of them go there, and no gap of its streams is longer
// than the objective, but for what a prefill is longer than predicted.
func TestRun_DecodeComputesBetweenTheStepsOfItsStreams(t *testing.T) {
	trace, err := ReadTraceFile(tracePath, 2000)
	if err != nil {
		t.Fatal(err)
	}
	s := *scenario(t, "G")
	s.Noise = 0
	run := func(p *Policy) (*cluster, *Outcome) {
		c, err := newCluster(trace, &s, p, 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.run(); err != nil {
			t.Fatal(err)
		}
		return c, c.outcome(p, 1)
	}
	_, whole := run(lateBinding)
	c, cut := run(pieces)
	pieced := 0
	for i := range c.jobs {
		if j := &c.jobs[i]; j.decodePieces.Seconds > 0 && j.decodePieces.End(j.decodeHit, j.req.Prompt) < j.req.Prompt {
			pieced++
		}
	}
	t.Logf("decode computed %d prompts, %d of them in pieces; whole ones %d; p99.9 and longest of gaps %.0f and %.0f ms, %.0f and %.0f with whole ones",
		cut.Aggregated, pieced, whole.Aggregated, 1000*cut.ITL.P999, 1000*cut.ITL.Max, 1000*whole.ITL.P999, 1000*whole.ITL.Max)
	if pieced < len(c.jobs)/20 || cut.Aggregated <= whole.Aggregated {
		t.Error("decode computes no more than whole prompts")
	}
	if cut.ITL.P999 > s.SLO.ITL {
		t.Errorf("one gap in a thousand is longer than %v s", cut.ITL.P999)
	}
}

// A prompt that is too short for pieces is cut in two where its transfer takes long: decode pulls most of it
// while the rest is computed, which follows at once; a pull costs decode's engine two steps. Where KV leaves layer by layer there is nothing to hide.
func TestRun_ACutHidesTheTransfer(t *testing.T) {
	alone := &Trace{Requests: []Request{{Prompt: 4000, Output: 10}}}
	alone.Requests[0].Blocks = alone.newBlocks(nil, 4000)
	pairs := func(p cost.Pieces) *Policy { // decode would compute it by itself
		return &Policy{Name: "pairs", Kind: Ours, OneDecider: true, New: func(s *Scenario, _ *rand.Rand) any {
			b := newLateBinder(s, false)
			b.pieces = p
			return b
		}}
	}
	for name, hides := range map[string]bool{"A": false, "B": true} {
		s := *scenario(t, name)
		s.Noise = 0
		c := newRun(t, alone, &s, pairs(cost.DefaultPieces))
		if err := c.run(); err != nil {
			t.Fatal(err)
		}
		j := &c.jobs[0]
		moves, gained := 4000*s.Hardware.KVBytesPerToken/s.Hardware.NIC, meanTTFT(t, alone, &s, pairs(0))-(j.firstAt+s.trip()-j.arrived)
		most := moves - s.RoundTrip - s.Hardware.PrefillStep
		if hides && (j.pieces != 1 || j.staged < 2000 || gained < most/2 || gained > most) || !hides && (j.pieces != 0 || gained != 0) {
			t.Errorf("%s: %d pieces, %d tokens pulled before the end, %.3f s gained of %.3f s that the transfer takes", name, j.pieces, j.staged, gained, moves)
		}
		if hides && (j.waited < s.RoundTrip || j.waited > 2*s.RoundTrip) {
			t.Errorf("%s: it waited %.4f s, want a round trip and the way there", name, j.waited)
		}
	}
}

// A pull of a piece takes the time of its KV over the link, and of decode's engine the step that ends it; where that
// has a batch, the rest of the step that runs when the pull is asked for as well, and of that when its KV is there.
func TestRun_APullOfAPieceCostsDecodeSteps(t *testing.T) {
	s := *scenario(t, "B")
	s.Noise, s.Decode, s.DecodeRacks = 0, 1, s.DecodeRacks[:1]
	pull := func(trace *Trace) (steps float64) {
		timed := &timedPulls{lateBinder: newLateBinder(&s, false)}
		timed.pieces = cost.DefaultPieces
		c := newRun(t, trace, &s, &Policy{Name: "timed", Kind: Ours, OneDecider: true, New: func(*Scenario, *rand.Rand) any { return timed }})
		if timed.calendar = c.cal; c.run() != nil || len(timed.took) != 1 {
			t.Fatalf("pulls: %v, want one", timed.took)
		}
		moves := float64(c.jobs[len(c.jobs)-1].staged) * s.Hardware.KVBytesPerToken / s.Hardware.NIC
		return (timed.took[0] - s.handOff() - moves) / s.Hardware.step(1, 2000)
	}
	alone, between := &Trace{}, &Trace{Requests: []Request{{Prompt: 600, Output: 1000}}}
	for _, trace := range []*Trace{alone, between} {
		trace.Requests = append(trace.Requests, Request{Stamp: 1.006, Prompt: 4000, Output: 10}) // just behind the beginning of a step
		for i := range trace.Requests {
			trace.Requests[i].Blocks = trace.newBlocks(nil, trace.Requests[i].Prompt)
		}
	}
	if steps := pull(alone); steps < 0.99 || steps > 1.01 {
		t.Errorf("alone it took %.2f steps, want 1", steps)
	}
	if steps := pull(between); steps < 2.1 || steps > 3.1 {
		t.Errorf("between the steps of a batch it took %.2f, want one and most of the rest of two", steps)
	}
}

// timedPulls notes how long each pull of a piece took.
type timedPulls struct {
	*lateBinder
	calendar *calendar
	began    float64
	took     []float64
}

func (p *timedPulls) BeginPull(v *View, j *job, bytes float64) {
	p.began = p.calendar.now
	p.lateBinder.BeginPull(v, j, bytes)
}

func (p *timedPulls) EndPull(v *View, j *job) {
	p.took = append(p.took, p.calendar.now-p.began)
	p.lateBinder.EndPull(v, j)
}

// What a decode step takes more because it computes prompts is counted once in a step, however many it computes.
func TestLocalPrefill_AStepThatComputesPromptsTakesLonger(t *testing.T) {
	trace := &Trace{Requests: []Request{{Prompt: 512, Output: 2}, {Prompt: 512, Output: 2}, {Prompt: 512, Output: 2}}}
	for i := range trace.Requests {
		trace.Requests[i].Blocks = trace.newBlocks(nil, 512)
	}
	seconds := func(step float64, prompts int) float64 {
		s := *scenario(t, "B")
		s.Hardware.DecodePrefillStep = step
		c := newRun(t, trace, &s, lateBinding)
		d := c.decodes[0]
		for i := range c.jobs {
			if j := &c.jobs[i]; i < prompts {
				j.compute = 512
			}
			d.batch = append(d.batch, &c.jobs[i])
		}
		return d.localPrefill() / d.speed
	}
	for prompts, want := range []float64{0, 0.25, 0.25, 0.25} {
		if got := seconds(0.25, prompts) - seconds(0, prompts); math.Abs(got-want) > 1e-9 {
			t.Errorf("a step with %d prompts takes %v s more, want %v", prompts, got, want)
		}
	}
}
