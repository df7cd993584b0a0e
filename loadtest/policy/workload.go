package policy

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// Workload describes a load from which a trace is generated: sessions of several kinds that
// begin at random. The same values and the same seed give the same trace.
type Workload struct {
	Seed     uint64        `yaml:"seed"`     // 0: each run generates a trace of its own, from its seed
	Sessions int           `yaml:"sessions"` // that begin; 0: as many as begin within the seconds
	Seconds  float64       `yaml:"seconds"`  // after which no request comes; 0: all turns of all sessions come
	Rate     float64       `yaml:"rate"`     // sessions that begin in a second
	Kinds    []SessionKind `yaml:"kinds"`

	spread bool // the stamps are spread by each run, as those of Mooncake's traces
}

// SessionKind is one kind of sessions. A prompt is its session's head, then what came in all
// turns so far, with the answers; so each turn's prompt begins with that of the turn before.
type SessionKind struct {
	Name  string  `yaml:"name"`
	Share float64 `yaml:"share"` // of the sessions, as a weight

	// Heads are what the prompts of several sessions begin with: instructions and tools of a
	// product, a document. 0: each session has a head of its own, which its siblings share.
	Heads      int     `yaml:"heads"`
	HeadSkew   float64 `yaml:"head_skew"` // Zipf: the n-th head is n^-skew times as likely as the first; 0: all alike
	HeadTokens Draw    `yaml:"head_tokens"`
	Siblings   int     `yaml:"siblings"` // sessions that begin at one instant from one head; 0: one

	Turns        Draw `yaml:"turns"`
	FirstTokens  Draw `yaml:"first_tokens"` // of the first turn, behind the head
	TurnTokens   Draw `yaml:"turn_tokens"`  // that a later turn adds beside the answer before
	AnswerTokens Draw `yaml:"answer_tokens"`
	TurnSeconds  Draw `yaml:"turn_seconds"` // from one turn to the next, whether or not it has ended
	// MostTokens bounds a prompt: a session ends before a turn whose prompt is longer. 0: no bound.
	MostTokens int `yaml:"most_tokens"`
}

func (w *Workload) check() error {
	if w.Rate <= 0 || len(w.Kinds) == 0 || w.Sessions < 0 || w.Seconds < 0 || (w.Sessions == 0 && w.Seconds == 0) {
		return errors.New("workload: want a rate, kinds, and sessions or seconds, all positive")
	}
	for i := range w.Kinds {
		if err := w.Kinds[i].check(); err != nil {
			return fmt.Errorf("workload: kind %q: %w", w.Kinds[i].Name, err)
		}
	}
	return nil
}

func (k *SessionKind) check() error {
	if k.Share <= 0 || k.Heads < 0 || k.HeadSkew < 0 || k.Siblings < 0 || k.MostTokens < 0 {
		return errors.New("share must be positive, nothing negative")
	}
	draws := []struct {
		name string
		draw *Draw
	}{{"turns", &k.Turns}, {"first_tokens", &k.FirstTokens}, {"answer_tokens", &k.AnswerTokens}}
	if k.Turns.Most > 1 {
		draws = append(draws, []struct {
			name string
			draw *Draw
		}{{"turn_tokens", &k.TurnTokens}, {"turn_seconds", &k.TurnSeconds}}...)
	}
	for _, d := range draws {
		if err := d.draw.check(); err != nil {
			return fmt.Errorf("%s: %w", d.name, err)
		}
	}
	if k.HeadTokens != (Draw{}) {
		if err := k.HeadTokens.check(); err != nil {
			return fmt.Errorf("head_tokens: %w", err)
		}
	}
	return nil
}

// trace generates the trace of a seed, at most limit requests (0: all).
func (w *Workload) trace(name string, seed uint64, limit int) *Trace {
	g := &generator{rng: rand.New(rand.NewPCG(seed, 0)), trace: &Trace{Name: name, Exact: !w.spread}, seconds: cmp.Or(w.Seconds, math.Inf(1))}
	for i := range w.Kinds {
		g.shares = append(g.shares, w.Kinds[i].Share)
		g.heads = append(g.heads, g.newHeads(&w.Kinds[i]))
	}
	start := 0.0
	for n := 0; (w.Sessions == 0 || n < w.Sessions) && start < g.seconds; n++ {
		i := g.pick(g.shares)
		g.siblings(&w.Kinds[i], &g.heads[i], start)
		start += g.rng.ExpFloat64() / w.Rate
	}
	slices.SortStableFunc(g.trace.Requests, func(x, y Request) int { return cmp.Compare(x.Stamp, y.Stamp) })
	if limit > 0 && limit < len(g.trace.Requests) {
		g.trace.Requests = g.trace.Requests[:limit]
	}
	return g.trace
}

// generator is a trace that is being generated.
type generator struct {
	rng     *rand.Rand
	trace   *Trace
	seconds float64
	shares  []float64 // of the kinds
	heads   []heads   // of each kind
}

// heads are the heads of a kind's sessions.
type heads struct {
	all     []head
	weights []float64 // how likely they are; nil: all alike
}

// head is what several prompts begin with.
type head struct {
	tokens int
	blocks []int32
}

func (g *generator) newHeads(k *SessionKind) (h heads) {
	for n := range k.Heads {
		h.all = append(h.all, g.newHead(k))
		if k.HeadSkew > 0 {
			h.weights = append(h.weights, math.Pow(float64(n+1), -k.HeadSkew))
		}
	}
	return h
}

func (g *generator) newHead(k *SessionKind) head {
	if k.HeadTokens.Most == 0 {
		return head{}
	}
	tokens := int(k.HeadTokens.value(g.rng))
	return head{tokens: tokens, blocks: g.trace.newBlocks(nil, tokens)}
}

// pick draws an index by its weight. One alone takes nothing from the generator's chance.
func (g *generator) pick(weights []float64) int {
	if len(weights) == 1 {
		return 0
	}
	sum := 0.0
	for _, w := range weights {
		sum += w
	}
	at := g.rng.Float64() * sum
	for i, w := range weights {
		if at -= w; at < 0 {
			return i
		}
	}
	return len(weights) - 1
}

// siblings adds the sessions of one beginning.
func (g *generator) siblings(k *SessionKind, h *heads, start float64) {
	var from head
	switch {
	case len(h.all) == 0:
		from = g.newHead(k)
	case h.weights == nil:
		from = h.all[g.rng.IntN(len(h.all))]
	default:
		from = h.all[g.pick(h.weights)]
	}
	for range max(1, k.Siblings) {
		g.session(k, from, start)
	}
}

// session adds the turns of one session. The last block of a head that does not fill it is
// the session's own.
func (g *generator) session(k *SessionKind, from head, at float64) {
	turns := k.Turns.count(g.rng)
	prompt, blocks := from.tokens, slices.Clone(from.blocks[:from.tokens/blockTokens])
	adds := &k.FirstTokens
	for range turns {
		prompt += int(adds.value(g.rng))
		if k.MostTokens > 0 && prompt > k.MostTokens {
			return
		}
		blocks = g.trace.newBlocks(blocks, prompt)
		answer := max(1, int(k.AnswerTokens.value(g.rng)))
		if at >= g.seconds {
			return
		}
		// A turn's blocks are the next one's too: the last of them, which may be in part, is
		// filled by the next, and only whole blocks are ever looked up.
		g.trace.Requests = append(g.trace.Requests, Request{Stamp: at, Prompt: prompt, Output: answer, Blocks: slices.Clip(blocks)})
		prompt += answer
		adds = &k.TurnTokens
		if k.Turns.Most > 1 {
			at += k.TurnSeconds.value(g.rng)
		}
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
