package tokens

// A rule is what the prompts of one family have shown so far about a template: that it
// writes the messages up to one of a kind in the same way whether one tail follows or
// another. It is found by example, for prompts that no second sample covers
// yet: mostly the next turn of a conversation, whose beginning was a whole prompt (an
// empty tail) until now.
type rule struct {
	kept   int // examples in a row that kept it
	needed int // before it is relied on
	short  int // most tokens at the end of a whole prompt that its next turn did not have
}

// ruleKey is what a rule is about.
type ruleKey struct {
	family uint64
	kind   kind // of the message that the text is shared up to
	since  tail // kinds of that message and those before it, back to one of the user
	from   tail
	to     tail
}

const (
	firstNeeded = 2
	mostNeeded  = 4096
	maxRules    = 4096
)

// recordExample counts an example, with the tokens that were missing at the end.
func (r *rule) recordExample(short int) {
	r.kept++
	r.short = max(r.short, short)
}

// recordViolation counts a counter-example: the rule must be kept eight times as often
// before it is relied on again. One prompt may violate a rule in several places; that
// counts once.
func (r *rule) recordViolation() {
	if r.kept > 0 || r.needed == firstNeeded {
		r.needed = min(8*r.needed, mostNeeded)
	}
	r.kept = 0
}

func (r *rule) holds() bool { return r != nil && r.kept >= r.needed }

// rules are bounded: when there are too many, some go, and are found again.
type rules map[ruleKey]*rule

// of is the rule for a prompt at a place, from what prompts with another tail have
// there; nil if there is none yet.
func (m rules) of(family uint64, at place, from tail) *rule {
	return m[ruleKey{family, at.kind, at.since, from, at.tail}]
}

func (m rules) make(family uint64, at place, from tail) *rule {
	key := ruleKey{family, at.kind, at.since, from, at.tail}
	if r := m[key]; r != nil {
		return r
	}
	if len(m) >= maxRules {
		for old := range m {
			delete(m, old)
			if len(m) < maxRules/2 {
				break
			}
		}
	}
	r := &rule{needed: firstNeeded}
	m[key] = r
	return r
}
