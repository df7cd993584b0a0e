package agents

import (
	"slices"
	"time"
)

// changes is what became of the later turns whose server of the turn before held as much of the
// prompt as any. A sub-agent's first turn follows its parent's last one. What decode servers
// computed alone changes nothing.
type changes struct {
	// needNot are those for which that was so when they were sent, and that server computed no other
	// prompt then; changed, of these, those that another server computed.
	needNot int
	changed []change
	// needless are those for which that was so when their servers were chosen, and that server
	// could have begun no later than the other one that computed them.
	needless []change
}

// change is a turn, the server of the turn before, and how many tokens of the prompt its own one and
// that one held.
type change struct {
	*turn
	before           string
	held, heldBefore int
}

// findChanges replays where a log's requests really went.
func findChanges(log []*turn, capacity int) (found changes) {
	chosen := slices.SortedStableFunc(slices.Values(log), func(a, b *turn) int { return a.chosen().Compare(b.chosen()) })
	replay(chosen, capacity, func(i int, c change) {
		if c.prefill != c.before && freeAt(chosen[:i], c.before, c.chosen()) <= freeAt(chosen[:i], c.prefill, c.chosen()) {
			found.needless = append(found.needless, c)
		}
	})
	replay(log, capacity, func(i int, c change) {
		if computes(log[:i], c.before, c.sent) {
			return
		}
		found.needNot++
		if c.prefill != c.before {
			found.changed = append(found.changed, c)
		}
	})
	return found
}

// losing is how many went to a server that held less than that of the turn before.
func losing(changes []change) (n int) {
	for i := range changes {
		if changes[i].held < changes[i].heldBefore {
			n++
		}
	}
	return n
}

// replay keeps each prompt where it was computed, and visits, before that, the later turns whose
// server of the turn before holds as much as any.
func replay(log []*turn, capacity int, visit func(i int, c change)) {
	caches := make(map[string]*lru)
	last := make(map[*conversation]string)
	for i, t := range log {
		if t.prefill == "" {
			continue
		}
		at := caches[t.prefill]
		if at == nil {
			at = newLRUs(1, capacity)[0]
			caches[t.prefill] = at
		}
		if before, later := serverBefore(last, t); later && holdsMost(caches, before, t.request) {
			visit(i, change{t, before, at.match(t.request), caches[before].match(t.request)})
		}
		last[t.request.conversation] = t.prefill
		at.serve(t.request)
	}
}

// chosen is when its servers were.
func (t *turn) chosen() time.Time { return t.sent.Add(t.waited) }

// serverBefore is that of the turn before, false if there is none.
func serverBefore(last map[*conversation]string, t *turn) (server string, later bool) {
	c := t.request.conversation
	if server, later = last[c]; !later && c.parent != nil {
		server, later = last[c.parent]
	}
	return server, later
}

// computes reports whether a server has a prompt whose first token is not there at a time.
func computes(log []*turn, server string, at time.Time) bool {
	return slices.ContainsFunc(log, func(t *turn) bool { return t.prefill == server && t.sent.Add(t.ttft).After(at) })
}

// freeAt is how long after a moment a server has computed the prompts of a log.
func freeAt(log []*turn, server string, moment time.Time) (after time.Duration) {
	for _, t := range log {
		if t.prefill == server {
			after = max(after, t.chosen().Add(t.prefillTook).Sub(moment))
		}
	}
	return after
}

func holdsMost(caches map[string]*lru, server string, r *request) bool {
	own := caches[server].match(r)
	for _, c := range caches {
		if c.match(r) > own {
			return false
		}
	}
	return true
}
