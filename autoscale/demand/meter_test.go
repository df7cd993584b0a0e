package demand

import (
	"github.com/tandem-gateway/tandem/autoscale/sizing"
	"math"
	"testing"
	"time"
)

// clock is a time that a test moves.
type clock struct{ at time.Time }

func (c *clock) Now() time.Time { return c.at }

func (c *clock) pass(d time.Duration) { c.at = c.at.Add(d) }

func newClock() *clock { return &clock{time.Unix(1_700_000_000, 0)} }

// demandOf is what one meter measured of model m over its last bins.
func demandOf(m *Meter, c *clock, bins int) Total {
	return Sum([]Reading{m.Read()}, "m", BinOf(c.Now())-int64(bins), BinOf(c.Now()))
}

func TestMeter_RefusedIsDemandAndItsRetriesAreNot(t *testing.T) {
	c := newClock()
	m := NewMeter(c.Now)
	for range 5 { // one request, refused, and four retries
		m.RecordArrival(Arrival{Model: "m", Fingerprint: 7, PromptTokens: 1000}).RecordRefusal()
		c.pass(time.Second)
	}
	m.RecordArrival(Arrival{Model: "m", Fingerprint: 8, PromptTokens: 500}).RecordRefusal() // another one
	c.pass(sizing.Bin)
	if d := demandOf(m, c, 2); math.Abs(d.Prompt.Mean()-1500/20.0) > 1e-9 || d.Waiting.Requests != 0 {
		t.Errorf("%+v, want 1500 tokens in two bins", d)
	}
	c.pass(3 * time.Minute) // no client retries after so long: it is new
	m.RecordArrival(Arrival{Model: "m", Fingerprint: 7, PromptTokens: 1000})
	c.pass(sizing.Bin)
	if d := demandOf(m, c, 1); d.Prompt.Mean() != 100 || d.Waiting.Requests != 1 || d.Waiting.Prompt != 1000 {
		t.Errorf("%+v, want 1000 tokens in one bin, and waiting", d)
	}
}

func TestMeter_LearnsWhatIsCachedAndHowLongAnswersAre(t *testing.T) {
	c := newClock()
	m := NewMeter(c.Now)
	for i := range 400 {
		v := m.RecordArrival(Arrival{Model: "m", Fingerprint: uint64(i), PromptTokens: 1000})
		v.RecordFirstToken(1200, 300) // the prompt was longer than was thought, and mostly cached
		v.RecordEnd(64, false)
	}
	c.pass(sizing.Bin)
	m.RecordArrival(Arrival{Model: "m", Fingerprint: 1000, PromptTokens: 1000})
	c.pass(sizing.Bin)
	d := demandOf(m, c, 1)
	if got := d.Prompt[0] * sizing.Bin.Seconds(); math.Abs(got-300) > 6 {
		t.Errorf("predicted %.1f tokens to compute, want 300", got)
	}
	if got := d.Output[0] * sizing.Bin.Seconds(); math.Abs(got-64) > 2 {
		t.Errorf("predicted %.1f tokens of output, want 64", got)
	}
	if math.Abs(d.Seen.Prompt-1200) > 5 {
		t.Errorf("prompts of %.1f tokens, want 1200", d.Seen.Prompt)
	}
}

// Half of the answers are long. A decode server is full of them nevertheless, and what it
// can do follows from them.
func TestMeter_ContextIsThatOfWhoIsThere(t *testing.T) {
	c := newClock()
	m := NewMeter(c.Now)
	for i := range 4000 {
		v := m.RecordArrival(Arrival{Model: "m", Fingerprint: uint64(i), PromptTokens: 100})
		v.RecordFirstToken(100, 100)
		v.RecordEnd(10+990*(i%2), false)
	}
	const want = (10*(100+5) + 1000*(100+500)) / 1010.0
	if d := demandOf(m, c, 1); math.Abs(d.Seen.Context()-want) > want/100 {
		t.Errorf("a sequence holds %.0f tokens, want %.0f", d.Seen.Context(), want)
	}
}

// A gateway that is gone is missed: what it measured stays, and others go on.
func TestSum_KilledGatewayIsNoLessDemand(t *testing.T) {
	c := newClock()
	meters := [2]*Meter{NewMeter(c.Now), NewMeter(c.Now)}
	single := NewMeter(c.Now)
	ask := func(m *Meter, i int) {
		a := Arrival{Model: "m", Fingerprint: uint64(i), PromptTokens: 100}
		m.RecordArrival(a)
		single.RecordArrival(a)
	}
	for i := range 600 { // each second a request, to one and the other
		ask(meters[i%2], i)
		c.pass(time.Second)
	}
	last := meters[1].Read() // it dies here
	for i := 600; i < 900; i++ {
		ask(meters[0], i)
		c.pass(time.Second)
	}
	since, now := BinOf(c.Now())-KeptBins, BinOf(c.Now())
	both := Sum([]Reading{meters[0].Read(), last}, "m", since, now)
	one := Sum([]Reading{single.Read()}, "m", since, now)
	for i := range both.Prompt {
		if math.Abs(both.Prompt[i]-one.Prompt[i]) > 1e-9 || both.Prompt[i] == 0 {
			t.Fatalf("bin %d: %.1f of both, %.1f of a single one", i, both.Prompt[i], one.Prompt[i])
		}
	}
}

func TestMeter_ForgetsOldBinsAndOldRefusals(t *testing.T) {
	c := newClock()
	m := NewMeter(c.Now)
	for i := range 3 * KeptBins {
		m.RecordArrival(Arrival{Model: "m", Fingerprint: uint64(i), PromptTokens: 10}).RecordRefusal()
		c.pass(sizing.Bin)
		m.Read()
	}
	if n := len(m.Models["m"].Bins); n > KeptBins+1 {
		t.Errorf("%d bins are kept", n)
	}
	for i := range 3 * mostRefused {
		m.RecordArrival(Arrival{Model: "m", Fingerprint: uint64(1e6 + i), PromptTokens: 10}).RecordRefusal()
	}
	if n := len(m.refused[0]) + len(m.refused[1]); n > 2*mostRefused {
		t.Errorf("%d refused requests are remembered", n)
	}
}

// Other gateways are told once of what was refused, and what they refused is no new demand here
// either; so many are remembered.
func TestMeter_RefusalsOfOthers(t *testing.T) {
	c := newClock()
	here, there := NewMeter(c.Now), NewMeter(c.Now)
	here.RecordArrival(Arrival{Model: "m", Fingerprint: 7, PromptTokens: 1000}).RecordRefusal()
	told := here.TakeRefused()
	if len(told) != 1 || told[0] != 7 || here.TakeRefused() != nil {
		t.Errorf("told %v, and again", told)
	}
	there.ReceiveRefused(told[0])
	if r := there.RecordArrival(Arrival{Model: "m", Fingerprint: 7, PromptTokens: 1000}); !r.Retry {
		t.Error("a retry of what another refused is new demand")
	}
	if r := there.RecordArrival(Arrival{Model: "m", Fingerprint: 8, PromptTokens: 1000}); r.Retry {
		t.Error("another request is a retry")
	}
	for i := range uint64(2 * mostRefused) {
		there.ReceiveRefused(100 + i)
		here.RecordArrival(Arrival{Model: "m", Fingerprint: 100 + i}).RecordRefusal()
	}
	if n, m := len(there.refused[0]), len(here.TakeRefused()); n != mostRefused || m != mostRefused {
		t.Errorf("%d are remembered and %d are told, want %d", n, m, mostRefused)
	}
}

// What the caches of servers saved is that of all gateways.
func TestSumSavings(t *testing.T) {
	got := SumSavings([]Reading{{Savings: map[string]float64{"a": 1, "b": 2}}, {}, {Savings: map[string]float64{"b": 3}}})
	if len(got) != 2 || got["a"] != 1 || got["b"] != 5 {
		t.Errorf("%v", got)
	}
}

// What a gateway that is gone was asked counts on, older; no request waits there any more.
func TestReading_OfAGatewayThatIsGone(t *testing.T) {
	c := newClock()
	m := NewMeter(c.Now)
	m.Queued = func() map[string]int { return map[string]int{"m": 1} }
	m.RecordArrival(Arrival{Model: "m", PromptTokens: 1000})
	r := m.Read()
	before := r.Models["m"].Traffic
	r.Silent()
	r.Decay(r.At + int64(Lately/time.Second))
	own := r.Models["m"]
	if own.Waiting != (Work{}) || own.Queued != 0 {
		t.Errorf("%+v waits", own)
	}
	for class := range before {
		if got, want := own.Traffic[class].Requests, before[class].Requests/math.E; math.Abs(got-want) > 1e-9 {
			t.Errorf("%g requests of class %d, want %g", got, class, want)
		}
	}
	all := Sum([]Reading{r, r}, "m", BinOf(c.Now())-2, BinOf(c.Now()))
	if all.Asked() {
		t.Error("no request asks")
	}
	if none := Sum([]Reading{{}}, "m", 0, 1); none.Asked() || none.Seen.Prompt != 0 {
		t.Errorf("of no gateway: %+v", none)
	}
}

// The traffic of a class is as it was predicted, then as it was, and older at each look.
func TestMeter_Traffic(t *testing.T) {
	c := newClock()
	m := NewMeter(c.Now)
	if got := m.Traffic("m"); got != (Traffic{}) {
		t.Errorf("no request asked: %+v", got)
	}
	first := m.RecordArrival(Arrival{Model: "m", Fingerprint: 1, PromptTokens: 1000, OutputTokens: 100})
	class := first.class
	c.pass(Lately)
	second := m.RecordArrival(Arrival{Model: "m", Fingerprint: 2, PromptTokens: 1000, OutputTokens: 100})
	got := m.Traffic("m")[class]
	if want := 1 + 1/math.E; math.Abs(got.Requests-want) > 1e-9 || math.Abs(got.Prompt-1000*want) > 1e-6 {
		t.Errorf("%+v, want %g requests of 1000", got, want)
	}
	if waiting := m.Read().Models["m"].Waiting; waiting != (Work{Requests: 2, Prompt: 2000}) {
		t.Errorf("%+v waits", waiting)
	}
	second.RecordFirstToken(1200, 300)
	if waiting := m.Read().Models["m"].Waiting; waiting != (Work{Requests: 1, Prompt: 1000}) {
		t.Errorf("%+v waits when one has its first token", waiting)
	}
	second.RecordEnd(40, false)
	of := m.Traffic("m")[class]
	if math.Abs(of.Prompt-got.Prompt-200) > 1e-6 || math.Abs(of.Computed-got.Computed+700) > 1e-6 || math.Abs(of.Output-got.Output+60) > 1e-6 || of.Requests != got.Requests {
		t.Errorf("%+v became %+v", got, of)
	}
	prompt, computed, output, ok := of.Mean()
	if !ok || prompt != of.Prompt/of.Requests || computed != of.Computed/of.Requests || output != of.Output/of.Requests {
		t.Errorf("on the mean %g, %g and %g", prompt, computed, output)
	}
	if rate := of.Rate(); rate != of.Requests/Lately.Seconds() {
		t.Errorf("%g a second", rate)
	}
	least := Lengths{Requests: LeastRequests}
	if p, n, o, ok := least.Mean(); !ok || p != 1 || n != 1 || o != 1 {
		t.Errorf("the fewest: %g, %g, %g, %v", p, n, o, ok)
	}
	none := Lengths{Requests: LeastRequests / 2, Prompt: 5}
	if p, n, o, ok := none.Mean(); ok || p+n+o != 0 {
		t.Errorf("fewer: %g, %g, %g, %v", p, n, o, ok)
	}
}

// The first answers teach fast: one is worth as much as the guess before it.
func TestMeter_LearnsFromTheFirst(t *testing.T) {
	c := newClock()
	m := NewMeter(c.Now)
	v := m.RecordArrival(Arrival{Model: "m", Fingerprint: 1, PromptTokens: 1000})
	v.RecordFirstToken(1600, 500)
	if s := m.Models["m"].Seen; s.Prompt != 1300 || s.Computed != 0.75 {
		t.Errorf("%+v: want half of the way to 1600 tokens, and to half of those predicted", s)
	}
	before := m.Models["m"].Seen
	m.RecordArrival(Arrival{Model: "m", Fingerprint: 2}).RecordFirstToken(100, 0)
	m.RecordArrival(Arrival{Model: "m", Fingerprint: 3, PromptTokens: 10}).RecordFirstToken(0, 0)
	if s := m.Models["m"].Seen; s != before {
		t.Errorf("of prompts whose length is not known nothing is learned: %+v", s)
	}
}

// A refusal is remembered for a minute at least, and for two at most.
func TestMeter_ForHowLongARetryIsOne(t *testing.T) {
	for _, of := range []struct {
		asked []time.Duration // after the refusal
		retry bool            // the last of them
	}{
		{[]time.Duration{refusedFor}, true}, {[]time.Duration{2 * refusedFor}, true}, {[]time.Duration{2*refusedFor + 1}, false},
		{[]time.Duration{refusedFor, refusedFor + 1, 2*refusedFor + 1}, true}, {[]time.Duration{refusedFor + 1, 2*refusedFor + 2}, false},
	} {
		c := newClock()
		m := NewMeter(c.Now)
		began := c.Now()
		m.RecordArrival(Arrival{Model: "m", Fingerprint: 7}).RecordRefusal()
		var last *RequestRecord
		for _, after := range of.asked {
			c.at = began.Add(after)
			last = m.RecordArrival(Arrival{Model: "m", Fingerprint: 7})
		}
		if last.Retry != of.retry {
			t.Errorf("after %v it is a retry: %v", of.asked, last.Retry)
		}
	}
}

// A bin is told when it is over; those of a clock that was ahead are forgotten, but for the
// next, which may have begun.
func TestMeter_BinsOfAClock(t *testing.T) {
	c := newClock()
	m := NewMeter(c.Now)
	now := BinOf(c.Now())
	for i := int64(-1); i <= 3; i++ {
		c.at = time.Unix((now+i)*int64(sizing.Bin/time.Second), 0)
		m.RecordArrival(Arrival{Model: "m", Fingerprint: uint64(10 + i), PromptTokens: 100})
	}
	c.at = time.Unix(now*int64(sizing.Bin/time.Second), 0)
	if told := m.Read().Models["m"].Bins; len(told) != 1 || told[now-1].Prompt != 100 {
		t.Errorf("%+v, want the one that is over", told)
	}
	if kept := m.Models["m"].Bins; len(kept) != 3 || kept[now+1].Prompt != 100 {
		t.Errorf("%+v are kept", kept)
	}
}

// A model is remembered for a day after its last request, and for as long as one waits.
func TestMeter_ForgetsAModel(t *testing.T) {
	for _, of := range []struct {
		after time.Duration
		waits bool
		known bool
	}{{modelRetention, false, true}, {modelRetention + 1, false, false}, {modelRetention + 1, true, true}} {
		c := newClock()
		m := NewMeter(c.Now)
		if r := m.RecordArrival(Arrival{Model: "m"}); !of.waits {
			r.RecordEnd(1, false)
		}
		c.pass(of.after)
		m.Read()
		if known := m.Models["m"] != nil; known != of.known {
			t.Errorf("%+v: known %v", of, known)
		}
	}
}

// What another gateway measured by a clock that is ahead is not of the past: it counts when
// its time has come.
func TestSum_ABinThatIsNotOver(t *testing.T) {
	const now = 1000
	bins := map[int64]bin{now - 1: {Prompt: 10, TTFT: Attained{1, 1}}, now: {Prompt: 50, TTFT: Attained{1, 0}}}
	got := Sum([]Reading{{Models: map[string]*ModelReading{"m": {Bins: bins}}}}, "m", now-2, now)
	if len(got.Prompt) != 2 || got.Prompt[0] != 0 || got.Prompt[1] != 1 || got.TTFT != (Attained{1, 1}) {
		t.Errorf("%+v", got)
	}
}
