package predict

import (
	"math"
	"sync"
	"time"
)

// How lengths of prompts are learned.
const (
	// What a roughly counted token more may make: text in unusual scripts, and numbers, are at
	// the ends.
	leastRate, mostRate = 0.25, 4.0

	promptPoints  = 16   // prompts that a context remembers
	promptMemory  = 64.0 // prompts that a rate remembers
	leastDistance = 32   // between two prompts that say what a token more makes
)

// Prompts learns how many tokens prompts have: from the nearest prompt of the same context,
// which is the tools and the system prompt that an agent's prompts share, and from what a
// roughly counted token more has made there, on its API and with its model. Safe for concurrent
// use; a nil one knows nothing.
type Prompts struct {
	mu       sync.Mutex // guards the rest
	contexts map[promptKey]*promptContext
	rates    map[promptKey]*rate // by model and API, and by model
	slopes   map[promptKey]*rate // the same of what is added to prompts
	swept    time.Time
}

// Prompt is what is known of a prompt before an engine has counted it.
type Prompt struct {
	Model, API string
	Context    uint64 // a hash of its tools, system prompt and the like
	Rough      int    // tokens, as a rough count of its text has it; 0: nothing can be said
}

type promptKey struct {
	model, api string
	context    uint64
}

// promptContext is the latest prompts of one context, and the rate between them.
type promptContext struct {
	points [promptPoints]promptPoint
	count  int // ever seen
	slope  rate
	seen   time.Time
	own    uint64 // prompts that were counted here, not reported by other replicas
}

type promptPoint struct {
	rough, tokens int
	own           bool
}

// rate is tokens for each that is roughly counted, with forgetting.
type rate struct{ rough, tokens float64 }

// NewPrompts returns prompts that know nothing.
func NewPrompts() *Prompts {
	return &Prompts{contexts: make(map[promptKey]*promptContext), rates: make(map[promptKey]*rate), slopes: make(map[promptKey]*rate)}
}

func (q *Prompt) key() promptKey { return promptKey{q.Model, q.API, q.Context} }

// rateKeys are where a prompt's rate is looked for, the nearest first.
func (q *Prompt) rateKeys() []promptKey {
	return []promptKey{{model: q.Model, api: q.API}, {model: q.Model}}
}

// Expect returns how many tokens a prompt is expected to have, 0 where nothing can be said.
func (p *Prompts) Expect(q Prompt) int {
	if q.Rough <= 0 {
		return 0
	}
	if p == nil {
		return tokensOf(float64(q.Rough))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	per := valueOf(p.rates, &q, 1)
	c := p.contexts[q.key()]
	if c == nil {
		return tokensOf(per * float64(q.Rough))
	}
	near, _ := c.nearest(q.Rough)
	return tokensOf(float64(near.tokens) + c.slopeOr(valueOf(p.slopes, &q, per))*float64(q.Rough-near.rough))
}

func tokensOf(n float64) int { return max(1, int(math.Round(n))) }

// valueOf is the rate of a prompt's API, else that of its model, else another.
func valueOf(rates map[promptKey]*rate, q *Prompt, otherwise float64) float64 {
	for _, key := range q.rateKeys() {
		if r := rates[key]; r != nil && r.rough > 0 {
			return r.value()
		}
	}
	return otherwise
}

// Observe learns from a prompt that an engine has counted.
func (p *Prompts) Observe(q Prompt, tokens int, now time.Time) {
	if p == nil || q.Rough <= 0 || tokens <= 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.learnLocked(&q, promptPoint{q.Rough, tokens, true}, now)
}

func (p *Prompts) learnLocked(q *Prompt, at promptPoint, now time.Time) {
	learnAll(p.rates, q, float64(at.rough), float64(at.tokens))
	c := p.contexts[q.key()]
	if c == nil {
		if c = p.addLocked(q.key(), now); c == nil {
			return
		}
	}
	if more, made := c.learn(at, now); more > 0 {
		learnAll(p.slopes, q, more, made)
	}
}

// learnAll teaches the rates of a prompt's API and of its model.
func learnAll(rates map[promptKey]*rate, q *Prompt, rough, tokens float64) {
	for _, key := range q.rateKeys() {
		r := rates[key]
		if r == nil {
			if len(rates) >= maxKeys {
				continue
			}
			r = &rate{}
			rates[key] = r
		}
		r.learn(rough, tokens)
	}
}

// addLocked makes room for a context; nil where there is none.
func (p *Prompts) addLocked(key promptKey, now time.Time) *promptContext {
	if !makeRoom(p.contexts, &p.swept, now) {
		return nil
	}
	c := &promptContext{}
	p.contexts[key] = c
	return c
}

func (c *promptContext) lastSeen() time.Time { return c.seen }

// learn takes in a prompt, and returns what it has more than the nearest one, and how many
// tokens that made; 0 where that says nothing.
func (c *promptContext) learn(at promptPoint, now time.Time) (more, made float64) {
	c.seen = now
	if near, known := c.nearest(at.rough); known && abs(at.rough-near.rough) >= leastDistance {
		more, made = float64(at.rough-near.rough), float64(at.tokens-near.tokens)
		if more < 0 {
			more, made = -more, -made
		}
		c.slope.learn(more, made)
	}
	c.points[c.count%promptPoints] = at
	c.count++
	if at.own {
		c.own++
	}
	return more, made
}

// nearest is the prompt whose size is nearest, of equal ones the latest.
func (c *promptContext) nearest(rough int) (near promptPoint, known bool) {
	n := min(c.count, promptPoints)
	for i := range n {
		p := c.points[(c.count-1-i)%promptPoints]
		if !known || abs(p.rough-rough) < abs(near.rough-rough) {
			near, known = p, true
		}
	}
	return near, known
}

func abs(n int) int { return max(n, -n) }

// slopeOr is what a token more has made in this context, and else a rate.
func (c *promptContext) slopeOr(per float64) float64 {
	if c.slope.rough > 0 {
		per = c.slope.value()
	}
	return min(max(per, leastRate), mostRate)
}

func (r *rate) value() float64 { return r.tokens / r.rough }

// learn takes in what so many made. Older prompts count for less.
func (r *rate) learn(rough, tokens float64) {
	const keep = 1 - 1/promptMemory
	r.rough, r.tokens = r.rough*keep+rough, r.tokens*keep+tokens
}
