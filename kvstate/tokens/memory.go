package tokens

import (
	"math/bits"
	"sync"
)

const (
	// lookahead is how far after a token the text may still change it, in tokens. In
	// real vocabularies merges reach across one word; a block of 16 leaves room.
	lookahead = 16
	// cellSlack is what two texts may share after the last cell that they share, in
	// tokens: at most one for each byte of a cell.
	cellSlack = cellBytes
	// maxShort is the longest end of a whole prompt, in tokens, that its next turn may
	// lack without violating the rule: what opens the turn of the assistant.
	maxShort = 32
	// sameCut is how many prompts one cut finds, and maxLooks how many a look-up
	// tries.
	sameCut  = 4
	maxLooks = 16
	// worthAsking is how much of a first turn must be unknown for an engine to be asked for all of it, as the
	// divisor of a share.
	worthAsking = 32
)

// memory remembers the tokens of prompts. See DESIGN.md for why what it claims is true.
type memory struct {
	limit int64 // bytes

	mu     sync.Mutex // guards what follows, and the proofs and links of known prompts, and where their tokens lie
	index  map[uint64][]*known
	rules  rules
	newest *known
	oldest *known
	bytes  int64
	count  int
	asks   uint64
	once   [4096]uint64 // sums of texts that were not asked for, each in a place of its own
}

// size is how much is known: prompts, and bytes of memory.
func (m *memory) size() (prompts int, bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.count, m.bytes
}

func newMemory(limit int64) *memory {
	return &memory{limit: limit, index: map[uint64][]*known{}, rules: rules{}}
}

// claim is what the memory says of a prompt: it begins with ids.
type claim struct {
	ids      []uint32 // the first n of by's
	n        int
	certain  int   // of ids, by proof; the rest is by a rule
	cell     int32 // text that the claim is about
	complete bool  // these are all
	by       *known
	rule     *rule // nil: none was needed
}

// unknownBytes is how much text of a prompt the claim says nothing of.
func (c *claim) unknownBytes(t *text) int { return t.size - int(c.cell)*cellBytes }

// isWorthAsking reports whether it is worth to ask for all of a prompt's tokens for the sake of prompts that go
// on behind it. An ask is about the whole prompt, however little of it is news: of 220 KB of text an engine makes
// tokens for some 60 ms, on the CPU that serves its other requests. So it is not worth it for a small part of a first
// turn: of a hundred questions on one document few are gone on with, and the second turn of those has but that part
// to compute again where it is sent elsewhere. A prompt with an answer in it is of a conversation that does go on, and one
// that comes again is worth to be known to its end.
func (m *memory) isWorthAsking(t *text, c *claim) bool {
	return !c.complete && (t.hasAnswer() || (len(t.prints)-int(c.cell))*worthAsking > len(t.prints) || m.seenBefore(t))
}

// seenBefore notes a text, and reports whether it was noted lately: a prompt that is sent twice may be sent many times.
func (m *memory) seenBefore(t *text) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := &m.once[t.sum%uint64(len(m.once))]
	if *at == t.sum {
		return true
	}
	*at = t.sum
	return false
}

// recall says what is known of a prompt.
func (m *memory) recall(t *text) claim {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.recallLocked(t)
	if c.by != nil {
		m.touchLocked(c.by)
		m.evictLocked()
	}
	return c
}

// recallLocked looks at the prompts that share most text first, and stops at the first
// cut where one of them says something.
func (m *memory) recallLocked(t *text) claim {
	m.asks++
	var best claim
	looks := 0
	for i := len(t.cuts) - 1; i >= 0 && looks < maxLooks && best.by == nil; i-- {
		for _, k := range m.index[t.cuts[i].hash] {
			if k.asked == m.asks {
				continue
			}
			k.asked = m.asks
			looks++
			if c := m.claimLocked(k, t); c.n > best.n {
				best = c
			}
		}
	}
	if best.by != nil {
		best.ids = m.firstLocked(best.by, best.n)
	}
	return best
}

// claimLocked is what one known prompt says of a text, without the tokens.
func (m *memory) claimLocked(k *known, t *text) claim {
	shared := t.common(k.prints)
	if t.sum == k.sum && !t.partial && int(shared) == len(t.prints) && len(k.prints) == len(t.prints) {
		return claim{n: k.count(), certain: k.count(), cell: shared, complete: true, by: k}
	}
	var c claim
	likely := 0
	for _, p := range k.proofs {
		if p.cell > shared {
			break
		}
		at := t.at(p.cell)
		if p.tails.has(at.tail) {
			if int(p.n) > c.certain {
				c.certain, c.cell = int(p.n), p.cell
			}
			continue
		}
		if r := m.anyRule(t.family, at, p.tails); r != nil && int(p.n) > likely {
			likely, c.rule, c.cell = int(p.n), r, max(c.cell, p.cell)
		}
	}
	if int(shared) == len(k.prints) {
		at := t.at(shared)
		r := m.rules.of(t.family, at, 0)
		if n := k.count() - lookahead; r.holds() && n-r.short-k.slack() > likely {
			likely, c.rule, c.cell = n-r.short-k.slack(), r, shared
		}
	}
	if likely <= c.certain {
		c.rule = nil
	}
	if c.n = max(c.certain, likely); c.n > 0 {
		c.by = k
	}
	return c
}

// anyRule is a rule that holds from one of the tails to the one at a place.
func (m *memory) anyRule(family uint64, at place, from tails) *rule {
	for ; from != 0; from &= from - 1 {
		one := tail(bits.TrailingZeros64(uint64(from)))
		if r := m.rules.of(family, at, one); r.holds() {
			return r
		}
	}
	return nil
}

// slack is what the end of the text may hide from its cells, in tokens.
func (k *known) slack() int {
	if k.open {
		return cellSlack
	}
	return 0
}

// shared is how many leading tokens two prompts share.
func shared(a, b []uint32) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}
