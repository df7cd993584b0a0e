package tokens

// A law is what the prompts of one family have shown so far about a template: that it
// writes the messages up to one of a kind in the same way whether one tail follows or
// another. It is a rule found by example, for prompts that no second witness covers
// yet: mostly the next turn of a conversation, whose beginning was a whole prompt (an
// empty tail) until now.
type law struct {
	kept   int // examples in a row that kept it
	needed int // before it is relied on
	short  int // most tokens at the end of a whole prompt that its next turn did not have
}

// lawKey is what a law is about.
type lawKey struct {
	family uint64
	kind   kind // of the message that the text is shared up to
	since  tail // kinds of that message and those before it, back to one of the user
	from   tail
	to     tail
}

const (
	firstNeeded = 2
	mostNeeded  = 4096
	maxLaws     = 4096
)

// keep counts an example, with the tokens that were missing at the end.
func (l *law) keep(short int) {
	l.kept++
	l.short = max(l.short, short)
}

// breach counts a counter-example: the law must be kept eight times as often before it
// is relied on again. One prompt may breach a law in several places; that counts once.
func (l *law) breach() {
	if l.kept > 0 || l.needed == firstNeeded {
		l.needed = min(8*l.needed, mostNeeded)
	}
	l.kept = 0
}

func (l *law) holds() bool { return l != nil && l.kept >= l.needed }

// laws are bounded: when there are too many, some go, and are found again.
type laws map[lawKey]*law

// of is the law for a prompt at a place, from what prompts with another tail have
// there; nil if there is none yet.
func (m laws) of(family uint64, at place, from tail) *law {
	return m[lawKey{family, at.kind, at.since, from, at.tail}]
}

func (m laws) make(family uint64, at place, from tail) *law {
	key := lawKey{family, at.kind, at.since, from, at.tail}
	if l := m[key]; l != nil {
		return l
	}
	if len(m) >= maxLaws {
		for old := range m {
			delete(m, old)
			if len(m) < maxLaws/2 {
				break
			}
		}
	}
	l := &law{needed: firstNeeded}
	m[key] = l
	return l
}
