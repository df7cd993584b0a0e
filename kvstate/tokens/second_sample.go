package tokens

import "math/bits"

// learn takes in a prompt's tokens. It reports whether they are as the memory would
// have claimed.
func (m *memory) learn(t *text, ids []uint32, by Method) (asClaimed bool) {
	if t.partial || len(ids) == 0 {
		return true
	}
	return m.take(newKnown(t, ids, by))
}

// take is learn for a prompt that may bring proofs along.
func (m *memory) take(k *known) (asClaimed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	asClaimed = m.checkLocked(k)
	m.takeSecondSampleLocked(k)
	m.insertLocked(k)
	return asClaimed
}

// checkLocked compares what would have been claimed with the truth. A rule that was
// wrong is broken; where a proof was wrong the template, or what it writes of its own
// accord (a date), has changed, and all of its context is forgotten.
func (m *memory) checkLocked(k *known) bool {
	c := m.recallLocked(&k.text)
	if shared(c.ids, k.ids) == len(c.ids) {
		return true
	}
	if c.rule != nil {
		c.rule.recordViolation()
		if shared(c.ids[:c.certain], k.ids) == c.certain {
			return false
		}
	}
	m.forgetLocked(k.root)
	return false
}

// takeSecondSampleLocked compares a new prompt with the known one that shares most text.
func (m *memory) takeSecondSampleLocked(k *known) {
	for i := len(k.cuts) - 1; i >= 0; i-- {
		var best *known
		most := int32(0)
		for _, other := range m.index[k.cuts[i].hash] {
			if n := k.common(other.prints); n > most {
				best, most = other, n
			}
		}
		if best != nil {
			m.shareLocked(k, best)
			m.compareLocked(k, best, most)
			return
		}
	}
}

// compareLocked draws what can be drawn from a pair: the new prompt k and an old one
// share the first cells of their texts.
func (m *memory) compareLocked(k, old *known, cell int32) {
	n := old.leadingIn(k.ids)
	echo := newEcho(k.turns)
	m.inheritLocked(k, old, cell, n, echo)
	mine, its := k.at(cell), old.at(cell)
	if int(cell) == len(old.prints) {
		m.extendLocked(k, old, mine, n, echo)
		return
	}
	if echo.from(mine) || newEcho(old.turns).from(its) || k.fields(mine) || old.fields(its) ||
		meet(k.turns[mine.turn+1:], old.turns[its.turn:]) || meet(k.turns[mine.turn:], old.turns[its.turn+1:]) {
		return
	}
	if n -= lookahead + cellSlack; n > 0 {
		p := proof{cell: cell, n: int32(n), tails: tails(0).with(mine.tail).with(its.tail)}
		k.addProof(p)
		old.addProof(p)
	}
}

// inheritLocked hands the old prompt's proofs on to the new one, which is one more
// sample of them, and of the rules between their tails and its own.
func (m *memory) inheritLocked(k, old *known, cell int32, n int, echo echo) {
	for i := range old.proofs {
		p := &old.proofs[i]
		if p.cell > cell {
			break
		}
		at := k.at(p.cell)
		agrees, counts := int(p.n) <= n, !echo.from(at)
		for from := p.tails; from != 0; from &= from - 1 {
			one := tail(bits.TrailingZeros64(uint64(from)))
			switch {
			case one == at.tail:
			case !agrees:
				m.rules.make(k.family, at, one).recordViolation()
			case p.full && counts:
				m.rules.make(k.family, at, one).recordExample(0)
			}
		}
		if agrees && counts {
			p.tails = p.tails.with(at.tail)
		}
		if agrees {
			k.addProof(*p)
		}
	}
}

// extendLocked handles a prompt that goes on where the old one ended.
func (m *memory) extendLocked(k, old *known, at place, n int, echo echo) {
	short := old.count() - n
	full := short <= maxShort
	further := int(at.cell) < len(k.prints) || k.open
	if further && !full {
		m.rules.make(k.family, at, 0).recordViolation()
	}
	if echo.from(at) {
		return
	}
	if further && full {
		m.rules.make(k.family, at, 0).recordExample(short)
	}
	if sure := n - lookahead - old.slack(); sure > 0 {
		p := proof{at.cell, int32(sure), tails(0).with(0).with(at.tail), full}
		k.addProof(p)
		old.addProof(p)
	}
	if full {
		m.dropLocked(old) // the new one covers all that it covered
	}
}
