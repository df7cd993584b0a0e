package predict

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

func off(expected, tokens int) float64 {
	return math.Abs(float64(expected)/float64(tokens) - 1)
}

// From the third request of a context on, an agent's prompts are expected within 5 %: some
// fixed part of 20,000 tokens, and turns whose text has a rate of its own.
func TestPrompts_AreWithinFivePercentFromTheThirdOn(t *testing.T) {
	for _, fixedRate := range []float64{0.6, 1, 1.4} {
		for seed := range uint64(20) {
			p, rng := NewPrompts(), rand.New(rand.NewPCG(seed, 1))
			rough, tokens := 20_000, int(fixedRate*20_000)
			for turn := range 12 {
				q := Prompt{Model: "m", API: "messages", Context: 7, Rough: rough}
				if got := p.Expect(q); turn >= 2 && off(got, tokens) > 0.05 {
					t.Errorf("seed %d, turn %d: %d tokens expected of %d", seed, turn, got, tokens)
				}
				p.Observe(q, tokens, time.Time{})
				more := 100 + rng.IntN(5_000)
				rough, tokens = rough+more, tokens+int((0.8+0.4*rng.Float64())*float64(more))
			}
		}
	}
}

// What a context has shown says nothing of another one's fixed part, but all of them together
// say how good rough counts are, of an API first.
func TestPrompts_AnUnknownContextGoesByItsAPIThenItsModel(t *testing.T) {
	p := NewPrompts()
	if got := p.Expect(Prompt{Model: "m", API: "chat", Rough: 4000}); got != 4000 {
		t.Errorf("%d tokens expected of nothing known", got)
	}
	p.Observe(Prompt{Model: "m", API: "messages", Context: 1, Rough: 1000}, 500, time.Time{})
	for _, c := range []struct {
		model, api string
		want       int
	}{{"m", "messages", 2000}, {"m", "chat", 2000}, {"other", "messages", 4000}} {
		if got := p.Expect(Prompt{Model: c.model, API: c.api, Context: 2, Rough: 4000}); got != c.want {
			t.Errorf("%s of %s: %d tokens", c.api, c.model, got)
		}
	}
	p.Observe(Prompt{Model: "m", API: "chat", Context: 3, Rough: 1000}, 100, time.Time{})
	if got := p.Expect(Prompt{Model: "m", API: "chat", Context: 4, Rough: 4000}); got != 400 {
		t.Errorf("%d tokens by the rate of the API", got)
	}
}

// Two prompts of one size that differ in length say nothing of what a token more makes, and
// no answer of an engine makes an expectation that is none.
func TestPrompts_OddSamplesDoNoHarm(t *testing.T) {
	p := NewPrompts()
	q := Prompt{Model: "m", API: "chat", Context: 1, Rough: 1000}
	p.Observe(q, 400, time.Time{})
	p.Observe(q, 200, time.Time{})
	if got := p.Expect(q); got != 200 {
		t.Errorf("%d tokens, the latest had 200", got)
	}
	q.Rough = 2000
	p.Observe(q, 1, time.Time{}) // fewer tokens of more text
	for _, n := range []int{1, 1000, 1_000_000} {
		q.Rough = n
		if got := p.Expect(q); got < 1 {
			t.Errorf("%d tokens of %d", got, n)
		}
	}
	if p.Expect(Prompt{Model: "m"}) != 0 || (*Prompts)(nil).Expect(Prompt{Rough: 8}) != 8 {
		t.Error("nothing is known of it")
	}
	(*Prompts)(nil).Observe(q, 1, time.Time{})
}

// Contexts are bounded: stale ones go, and new ones wait for room.
func TestPrompts_AreBounded(t *testing.T) {
	p := NewPrompts()
	now := time.Unix(0, 0)
	for i := range maxKeys + 10 {
		p.Observe(Prompt{Model: fmt.Sprint("m", i), API: "chat", Context: uint64(i), Rough: 100}, 10, now)
	}
	if len(p.contexts) != maxKeys || len(p.rates) > maxKeys {
		t.Errorf("%d contexts, %d rates", len(p.contexts), len(p.rates))
	}
	now = now.Add(stale + time.Minute)
	p.Observe(Prompt{Model: "m", API: "chat", Context: 1, Rough: 100}, 10, now)
	if len(p.contexts) != 1 {
		t.Errorf("%d contexts after they became stale", len(p.contexts))
	}
}

// What a token more makes is learned of all contexts of an API: one that has shown a single
// prompt goes by that, and not by how good rough counts of whole prompts are.
func TestPrompts_WhatATokenMoreMakesIsLearnedOfAllContexts(t *testing.T) {
	p := NewPrompts()
	now := time.Unix(0, 0)
	for _, c := range []struct {
		context       uint64
		rough, tokens int
	}{{1, 1000, 10_000}, {1, 2000, 10_500}, {2, 1000, 10_000}} {
		p.Observe(Prompt{Model: "m", API: "chat", Context: c.context, Rough: c.rough}, c.tokens, now)
	}
	for rough, want := range map[int]int{1000: 10_000, 2000: 10_500, 3000: 11_000} {
		if got := p.Expect(Prompt{Model: "m", API: "chat", Context: 2, Rough: rough}); got != want {
			t.Errorf("%d tokens expected of roughly %d, want %d", got, rough, want)
		}
	}
}

// Looking for what is stale takes time: it is done once a minute at most, where there is no room.
func TestMakeRoom_LooksOnceAMinute(t *testing.T) {
	start := time.Unix(0, 0).Add(2 * stale)
	all := make(map[int]*promptContext, maxKeys)
	for i := range maxKeys {
		all[i] = &promptContext{} // long stale
	}
	swept := start
	if makeRoom(all, &swept, start.Add(time.Minute)) || len(all) != maxKeys {
		t.Errorf("%d are left after a minute", len(all))
	}
	if !makeRoom(all, &swept, start.Add(time.Minute+1)) || len(all) != 0 || !swept.Equal(start.Add(time.Minute+1)) {
		t.Errorf("%d are left after more than a minute", len(all))
	}
}
