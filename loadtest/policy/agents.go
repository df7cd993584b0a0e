package policy

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
)

// Agents describes sessions of agents, from which a trace is generated: the same one for
// the same values. Each session belongs to one of a few products, and its prompts begin
// with the product's instructions and tools, which all its sessions share. A turn's prompt
// is that of the turn before, its answer, and what the tools returned. Turns come at
// their time, whether or not the turn before has ended, as in any trace.
type Agents struct {
	Seed         uint64  `yaml:"seed"`
	Products     int     `yaml:"products"`      // each session has one of them, all are as likely
	SharedTokens int     `yaml:"shared_tokens"` // of each product, at the head of its prompts
	Sessions     int     `yaml:"sessions"`
	Rate         float64 `yaml:"rate"`          // sessions that begin in a second, at random
	Turns        int     `yaml:"turns"`         // mean of a session; uniform from half of it to one and a half
	TurnSeconds  Bounds  `yaml:"turn_seconds"`  // from one turn to the next, uniform
	TurnTokens   Bounds  `yaml:"turn_tokens"`   // that a turn adds beside the answer before, log-uniform
	AnswerTokens Bounds  `yaml:"answer_tokens"` // uniform
}

// Bounds are the least and the most of what is drawn.
type Bounds struct {
	Least float64 `yaml:"least"`
	Most  float64 `yaml:"most"`
}

func (b Bounds) valid() bool { return b.Least > 0 && b.Most >= b.Least }

func (b Bounds) uniform(rng *rand.Rand) float64 { return b.Least + (b.Most-b.Least)*rng.Float64() }

// logUniform draws so that halving and doubling are as likely: most are small.
func (b Bounds) logUniform(rng *rand.Rand) float64 {
	return b.Least * math.Pow(b.Most/b.Least, rng.Float64())
}

func (a *Agents) check() error {
	switch {
	case a.Products < 1 || a.SharedTokens < 1 || a.Sessions < 1 || a.Turns < 2 || a.Rate <= 0:
		return errors.New("agents: products, shared_tokens, sessions and rate must be positive, turns at least 2")
	case !a.TurnSeconds.valid() || !a.TurnTokens.valid() || !a.AnswerTokens.valid():
		return errors.New("agents: turn_seconds, turn_tokens and answer_tokens want least and most, positive and in this order")
	}
	return nil
}

// trace generates the first requests of the sessions, at most limit (0: all).
func (a *Agents) trace(name string, limit int) *Trace {
	rng := rand.New(rand.NewPCG(a.Seed, 0))
	t := &Trace{Name: name}
	shared := make([][]int32, a.Products)
	for i := range shared {
		shared[i] = t.newBlocks(nil, a.SharedTokens)
	}
	start := 0.0
	for range a.Sessions {
		a.session(t, rng, shared[rng.IntN(a.Products)], start)
		start += rng.ExpFloat64() / a.Rate
	}
	slices.SortStableFunc(t.Requests, func(x, y Request) int {
		switch {
		case x.Stamp < y.Stamp:
			return -1
		case x.Stamp > y.Stamp:
			return 1
		}
		return 0
	})
	if limit > 0 && limit < len(t.Requests) {
		t.Requests = t.Requests[:limit]
	}
	return t
}

// session adds the turns of one session to a trace.
func (a *Agents) session(t *Trace, rng *rand.Rand, shared []int32, start float64) {
	turns := a.Turns/2 + rng.IntN(a.Turns+1)
	prompt, blocks, at := a.SharedTokens, slices.Clone(shared), start
	for range turns {
		prompt += int(a.TurnTokens.logUniform(rng))
		blocks = t.newBlocks(blocks, prompt)
		answer := int(a.AnswerTokens.uniform(rng))
		t.Requests = append(t.Requests, Request{Stamp: at, Prompt: prompt, Output: max(1, answer), Blocks: slices.Clip(blocks)})
		prompt += answer
		at += a.TurnSeconds.uniform(rng)
	}
}

// newBlocks appends new blocks until so many tokens are in them.
func (t *Trace) newBlocks(blocks []int32, tokens int) []int32 {
	for len(blocks) < blocksOf(tokens) {
		blocks = append(blocks, int32(t.Blocks))
		t.Blocks++
	}
	return blocks
}
