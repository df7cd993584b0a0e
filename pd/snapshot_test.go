package pd

import (
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/curve"
	"github.com/tandem-gateway/tandem/pools/load"
)

// A server that sleeps is chosen when waking it costs less than waiting elsewhere, so its
// waking is part of what it costs.
func TestFit_ASleepingServerCostsItsWaking(t *testing.T) {
	f := newTestFleet(t, 2, testPrompt(1000))
	sleepy := f.Fleet.Servers()[2].Spec
	sleepy.GPUs = "gpu-0"
	specs := []pools.Spec{sleepy}
	for _, s := range f.Fleet.Servers() {
		if s.ID() != sleepy.ID() {
			specs = append(specs, s.Spec)
		}
	}
	if err := f.Fleet.Apply(specs); err != nil {
		t.Fatal(err)
	}
	f.await(t, func() bool { return f.Fleet.Servers()[0].Asleep() })
	now := time.Now()
	r := &f.arrives(testPrompt(1000), now).bind
	v := f.Binder.snapshotFor(r, nil, now)
	for _, c := range v.candidates.Decode {
		want := time.Duration(0)
		if c.ID == sleepy.ID() {
			want = pools.DefaultSleep().Wake
		}
		if c.Ready != want {
			t.Errorf("%s is ready in %v, want %v", c.ID, c.Ready, want)
		}
	}
}

// Servers that refused a claim are left out of the next choice, and no others.
func TestSnapshotFor_LeavesOutThoseThatRefused(t *testing.T) {
	f := newTestFleet(t, 2, testPrompt(100))
	servers := f.Fleet.Servers()
	r := &f.arrives(testPrompt(100), time.Now()).bind
	v := f.Binder.snapshotFor(r, map[string]bool{servers[0].ID(): true, servers[3].ID(): true}, time.Now())
	if p, d := v.candidates.Prefill, v.candidates.Decode; !p[0].Excluded || p[1].Excluded || d[0].Excluded || !d[1].Excluded {
		t.Errorf("prefill %v %v, decode %v %v", p[0].Excluded, p[1].Excluded, d[0].Excluded, d[1].Excluded)
	}
}

// A server supports a request whose model it serves, an adapter's too, by its API: an engine's own is
// spoken by that engine alone.
func TestSupports_TheModelAndItsAPI(t *testing.T) {
	f := newTestFleet(t, 1, testPrompt(100))
	now := time.Now()
	s := f.Fleet.Servers()[0]
	for name, c := range map[string]struct {
		model, of string
		dialect   *api.Dialect
		native    bool
		want      bool
	}{
		"its model":                        {testModel, testModel, api.Chat, false, true},
		"another":                          {otherModel, testModel, api.Chat, false, false},
		"one that it serves beside a base": {testModel, "base", api.Chat, false, true},
		"another engine's API":             {testModel, testModel, api.Generate, false, false},
		"its own API":                      {testModel, testModel, api.Generate, true, true},
	} {
		s.Native = c.native
		if got := supports(&bindRequest{req: &Request{Model: c.model, Dialect: c.dialect}}, &snapshot{model: c.of}, s, now); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// What a server's batch held when it said so counts as others' only beyond what the gateways had there
// then: a stream that has ended since makes an idle server no busier than another one.
func TestCandidateOf_AStreamThatEndedSinceTheEngineCountedItIsGone(t *testing.T) {
	f := newTestFleet(t, 1, testPrompt(100))
	s := f.Fleet.Servers()[1]
	running := func() int { return candidateOf(s, time.Now()).Running }
	claim := func() *pools.Lease {
		lease, err := s.Claim(pools.Decode, curve.Work{Tokens: 100}, false, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return lease
	}
	report := func(n float64) {
		l := s.Load()
		l.Running, l.At = load.Gauge{Value: n, Known: true}, time.Now()
		s.ReportLoad(l)
	}
	report(0)
	first, second := claim(), claim()
	for _, step := range []struct {
		name string
		do   func()
		want int
	}{
		{"two of ours", func() {}, 2},
		{"the engine has not begun one of them", func() { report(1) }, 2},
		{"and has two of others", func() { report(4) }, 4},
		{"one of ours ends", first.Release, 3},
		{"the other one too", second.Release, 2},
		{"the engine says so", func() { report(2) }, 2},
		{"another one of ours begins", func() { claim() }, 3},
	} {
		step.do()
		if got := running(); got != step.want {
			t.Errorf("%s: %d run there, want %d", step.name, got, step.want)
		}
	}
}

// What an engine says of its KV is up to a scrape old. The room of requests that have ended since is free: while it
// was not, requests waited for up to a second beside a decode server that was half empty. A twentieth is left to answers
// to grow into.
func TestCandidateOf_RoomOfWhatHasEnded(t *testing.T) {
	f := newTestFleet(t, 1, testPrompt(100))
	s := f.Fleet.Servers()[1]
	claim := func() *pools.Lease {
		lease, err := s.Claim(pools.Decode, curve.Work{Tokens: 1_000, Prompt: 900}, false, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return lease
	}
	report := func(used float64) {
		s.ReportLoad(load.Load{Engine: "vllm", Running: known(2), Waiting: known(0), KVUsed: known(used / 10_000), KVTokens: known(10_000), At: time.Now()})
	}
	first, second := claim(), claim()
	for _, step := range []struct {
		name     string
		do       func()
		in, free int
	}{
		{"two of ours", func() { report(2_000) }, 2_000, 7_500},
		{"their answers are longer than expected", func() { report(2_400) }, 2_400, 7_100},
		{"others are there too", func() { report(5_000) }, 5_000, 4_500},
		{"one of ours ends", first.Release, 4_000, 5_500},
		{"another one begins", func() { t.Cleanup(claim().Release) }, 5_000, 4_500},
		{"one more", func() { t.Cleanup(claim().Release) }, 6_000, 3_500},
		{"another one ends", second.Release, 5_000, 4_500},
	} {
		step.do()
		if c := candidateOf(s, time.Now()); c.KVUsed != step.in || c.KVFree != step.free {
			t.Errorf("%s: %d tokens in use and %d free, want %d and %d", step.name, c.KVUsed, c.KVFree, step.in, step.free)
		}
	}
}

// Each of several answers keeps its own tokens: sixteen of 1,000 to a prompt of 100 took the room of one, until the
// engine was asked.
func TestContextWork_OfSeveralAnswers(t *testing.T) {
	req := &Request{PromptTokens: 100, OutputTokens: 1_000}
	for _, want := range []struct{ answers, tokens int }{{0, 600}, {1, 600}, {16, 8_100}} {
		req.Answers = want.answers
		if got := contextWork(req).Tokens; got != want.tokens {
			t.Errorf("%d answers keep %d tokens, want %d", want.answers, got, want.tokens)
		}
	}
}

// Agents whose prompts begin alike take the room of that once: six of 30,000 tokens each fill no server for 100,000,
// and five more have room beside them at once. Without what the engine says they fill it.
func TestCandidateOf_RoomForPromptsThatBeginAlike(t *testing.T) {
	f := newTestFleet(t, 1, testPrompt(100))
	s := f.Fleet.Servers()[1]
	for range 6 {
		lease, err := s.Claim(pools.Decode, curve.Work{Tokens: 30_100, Prompt: 30_000}, false, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		lease.MarkSent(time.Hour, time.Now())
		t.Cleanup(lease.Release)
	}
	says := func(used float64) {
		s.ReportLoad(load.Load{Engine: "vllm", Running: known(6), Waiting: known(0), KVUsed: known(used), KVTokens: known(100_000), At: time.Now()})
	}
	says(0.32)
	if c := candidateOf(s, time.Now()); c.KVFree < 5*30_100 || c.KVUsed != 6*30_100 {
		t.Errorf("room for %d tokens of such requests, %d in use as steps read them", c.KVFree, c.KVUsed)
	}
	says(1) // each keeps all of its own
	if c := candidateOf(s, time.Now()); c.KVFree > 0 {
		t.Errorf("room for %d tokens beside six that fill it", c.KVFree)
	}
}

// known is what an engine says.
func known(v float64) load.Gauge { return load.Gauge{Value: v, Known: true} }
