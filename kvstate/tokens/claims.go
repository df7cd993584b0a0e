package tokens

import (
	"sync"
	"time"
)

// claims are what was believed of other programs and did not hold: in these contexts a
// method found other tokens than the engine counted.
type claims struct {
	mu   sync.Mutex
	lost map[claimKey]lostClaim
	// wrong is how often in a row what /tokenize said of a chat was, by context.
	wrong map[uint64]int
}

type claimKey struct {
	context uint64
	by      Method
}

// lostClaim is a method that was wrong in a context, so often, and is left alone until then:
// an engine may have been updated.
type lostClaim struct {
	until time.Time
	times int
	root  uint64    // of what is remembered of the context
	own   time.Time // until when it is left alone for what this gateway saw itself
}

const (
	distrust     = 10 * time.Minute // after the first time; twice as long after each other
	mostDistrust = 24 * time.Hour
	maxLost      = 4096
	// wrongInARow is how often what /tokenize said of chats must be wrong, and never right in between,
	// until it is not believed there: servers may differ, and then it is right for some.
	wrongInARow = 3
)

func newClaims() *claims {
	return &claims{lost: make(map[claimKey]lostClaim), wrong: make(map[uint64]int)}
}

// tokenized notes whether what /tokenize said of a chat was right, and reports whether it has been
// wrong too often. vLLM applies the model's template there, and serves chats of gpt-oss by
// another way of its own (0.32, entrypoints/serve/tokenize/serving.py and
// renderers/online_renderer.py, _make_request_with_harmony).
func (c *claims) tokenized(context uint64, right bool) (tooOften bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if right {
		delete(c.wrong, context)
		return false
	}
	if len(c.wrong) >= maxLost {
		clear(c.wrong)
	}
	c.wrong[context]++
	return c.wrong[context] >= wrongInARow
}

// believes reports whether a method may be used in a context.
func (c *claims) believes(context uint64, by Method) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !time.Now().Before(c.lost[claimKey{context, by}].until)
}

// disprove notes that a method was wrong in a context, of which prompts are remembered under a
// root.
func (c *claims) disprove(context, root uint64, by Method) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := claimKey{context, by}
	l := c.lostLocked(key)
	l.until = time.Now().Add(min(distrust<<min(l.times, 10), mostDistrust))
	l.times++
	l.root, l.own = root, l.until
	c.lost[key] = l
}

// lostLocked is what is known of a claim, and makes room for it where that is nothing.
func (c *claims) lostLocked(key claimKey) lostClaim {
	l, known := c.lost[key]
	if !known && len(c.lost) >= maxLost {
		for old := range c.lost {
			delete(c.lost, old)
			break
		}
	}
	return l
}

// Counted holds what was said of a prompt to an API against the tokens that an engine counted in it.
// A translation, or a tokenizer of the gateway's own, that was wrong is not used any more
// for what shares the prompt's API, system prompt and tools, nor is /tokenize for chats if it was so
// several times in a row. It is true where nothing was
// said that is wrong.
func (s *Source) Counted(api API, said *Tokens, count int) (right bool) {
	if said.Chunks != nil || count <= 0 {
		return true
	}
	whole, n, by := said.Complete, said.Count(), said.By
	if !whole && said.Later != nil {
		if later, ok := said.Later.Tokens(); ok {
			whole, n, by = true, len(later.IDs), later.By
		}
	}
	if n == 0 {
		return true
	}
	right = n == count || !whole && n < count
	s.metrics.checked(s.cfg.Model, api, by, right)
	disproved := !right && (by == ByTranslation || by == ByTokenizer)
	if by == ByTokenize {
		disproved = s.claims.tokenized(said.context, right)
	}
	if disproved {
		s.claims.disprove(said.context, said.root, by)
		if s.memory != nil {
			s.memory.forget(said.root)
		}
	}
	return right
}
