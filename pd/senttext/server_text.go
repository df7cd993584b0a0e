package senttext

import (
	"sync"
	"time"

	"github.com/tandem-gateway/tandem/kvstate/tokens"
)

// serverText is the marks of the text that a server was sent last. They are kept in two generations: when
// the recent one has no room for a prompt it becomes the earlier one, which goes. So at least as many are
// kept as one generation has room for, and twice as many at most. All marks of a prompt that is recorded
// are in the recent one.
type serverText struct {
	mu              sync.Mutex // guards the rest
	recent, earlier generation
	size            int           // chunks that the marks of the recent generation stand for
	until           time.Duration // something is believed to be held
}

// A server's KV is taken for no less than leastTokens and no more than mostTokens, and for usualTokens
// where nothing is known of it.
const (
	leastTokens = 1 << 16
	usualTokens = 1 << 21
	mostTokens  = 1 << 23
)

// capacity is how many chunks a generation has room for where the server's KV has room for so many
// tokens; 0: that is not known.
func capacity(kvTokens int) int {
	if kvTokens <= 0 {
		kvTokens = usualTokens
	}
	return min(max(kvTokens, leastTokens), mostTokens) / ChunkTokens
}

// sighting is what is believed of one chunk, in times since the history's origin; zero: nothing.
type sighting struct {
	from, until time.Duration // it is held
	computes    time.Duration // it is computed until then
	// sentBefore: it had been sent when it was sent to be computed, to be held from fromBefore on.
	sentBefore bool
	fromBefore time.Duration
}

// isHeld reports whether the server is believed to hold it now.
func (s sighting) isHeld(now time.Duration) bool {
	return s.until > 0 && s.from <= now && now <= s.until
}

// followedBy is what is believed when it is sent once more.
func (s sighting) followedBy(sent sighting, now time.Duration) sighting {
	if s == (sighting{}) || now > s.until {
		return sent
	}
	sent.sentBefore, sent.fromBefore = true, s.from
	sent.from = min(sent.from, s.from)
	sent.until, sent.computes = max(sent.until, s.until), max(sent.computes, s.computes)
	return sent
}

// withdraw takes back that it is held where it is computed until a time, unless it was sent before.
func (s *sighting) withdraw(computes time.Duration) {
	switch {
	case s == nil || *s == (sighting{}) || s.computes != computes:
	case s.sentBefore:
		*s = sighting{from: s.fromBefore, until: s.until}
	default:
		*s = sighting{}
	}
}

// prompt is what both generations know of the first marks of a prompt.
type prompt struct{ recent, earlier known }

// find finds the first n marks of a prompt. The mutex is held, here and below.
func (t *serverText) find(n int, mark func(i int) Mark) prompt {
	return prompt{t.recent.find(n, mark), t.earlier.find(n, mark)}
}

// n is how many marks are known.
func (p *prompt) n() int { return max(p.recent.n, p.earlier.n) }

// at is what is believed of the mark of a number.
func (p *prompt) at(i int) sighting {
	if s := p.latest(i); s != nil {
		return *s
	}
	return sighting{}
}

// leading is how many leading chunks are believed to be so.
func (p *prompt) leading(is func(sighting) bool) int {
	i := 0
	for i < p.n() && is(p.at(i)) {
		i = min(p.recent.end(i), p.earlier.end(i))
	}
	return coveredBy(i)
}

// latest is where that is kept, nil where it is nowhere.
func (p *prompt) latest(i int) *sighting {
	if s := p.recent.at(i); s != nil && *s != (sighting{}) {
		return s
	}
	return p.earlier.at(i)
}

// split splits the runs of a prompt, so that each of its spans is a whole run that both generations know alike.
func (t *serverText) split(of *prompt) {
	t.recent.split(&of.recent, of.earlier.spans)
	t.earlier.split(&of.earlier, of.recent.spans)
}

// record notes that the chunks of the first n marks were sent, in generations with room for so many. Of more
// than that the beginning is kept.
func (t *serverText) record(n int, mark func(i int) Mark, seen sighting, room int, now time.Duration) {
	n = min(n, marksAmong(room+stride))
	of := t.find(n, mark)
	if size := t.size + coveredBy(n) - coveredBy(of.recent.n); size > room && t.size > 0 && of.recent.n < n {
		t.earlier, t.recent, t.size = t.recent, generation{}, 0
		of = prompt{earlier: of.recent}
	}
	t.split(&of)
	for _, s := range of.recent.spans {
		s.run.sighting = of.at(s.from).followedBy(seen, now)
	}
	have := of.recent.n
	if have == n {
		return
	}
	t.size += coveredBy(n) - coveredBy(have)
	added := make([]Mark, n-have)
	for k := range added {
		added[k] = mark(have + k)
	}
	for _, s := range of.earlier.spans {
		if s.from >= have {
			t.recent.add(added[:s.n:s.n], s.run.followedBy(seen, now))
			added, have = added[s.n:], have+s.n
		}
	}
	if len(added) > 0 {
		t.recent.add(added, seen)
	}
}

// withdraw takes back that chunks are held which are computed until a time, unless they were sent before.
func (t *serverText) withdraw(n int, mark func(i int) Mark, computes time.Duration) {
	of := t.find(n, mark)
	t.split(&of)
	for _, s := range of.recent.spans {
		of.latest(s.from).withdraw(computes)
	}
	for _, s := range of.earlier.spans {
		if s.from >= of.recent.n {
			s.run.withdraw(computes)
		}
	}
}

// findChunks is find of a prompt's chunks.
func (t *serverText) findChunks(salt uint64, chunks []tokens.Chunk) prompt {
	return t.find(marksAmong(len(chunks)), func(i int) Mark { return markAt(salt, chunks, i) })
}

// held is how many leading chunks are believed to be held now.
func (t *serverText) held(salt uint64, chunks []tokens.Chunk, now time.Duration) int {
	of := t.findChunks(salt, chunks)
	return of.leading(func(s sighting) bool { return s.isHeld(now) })
}

// computing is how many leading chunks are believed to be computed now.
func (t *serverText) computing(salt uint64, chunks []tokens.Chunk, now time.Duration) int {
	of := t.findChunks(salt, chunks)
	return of.leading(func(s sighting) bool { return now < s.computes })
}

// endsBefore reports whether nothing is believed any more of what the server was sent.
func (t *serverText) endsBefore(now time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.until < now
}
