package senttext

import (
	"sort"
	"sync"
	"time"

	"github.com/tandem-gateway/tandem/kvstate/tokens"
)

// serverText is the marks of the text that a server was sent last. They are kept in two generations: when
// the recent one is full it becomes the earlier one, which goes. So at least as many are kept as one
// generation has room for, and twice as many at most.
//
// A server is sent text from its beginning on. So where a chunk is believed to be held all before it are,
// and the search for the last one need not look at each.
type serverText struct {
	mu              sync.Mutex // guards the rest
	recent, earlier map[Mark]sighting
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

// find is what is believed of a chunk. The mutex is held, here and below.
func (t *serverText) find(mark Mark) sighting {
	if s, ok := t.recent[mark]; ok {
		return s
	}
	return t.earlier[mark]
}

// put keeps what is believed of a mark that stands for so many chunks, in a generation with room for
// so many.
func (t *serverText) put(mark Mark, s sighting, chunks, room int) {
	if _, known := t.recent[mark]; !known {
		if t.size >= room {
			t.recent, t.earlier, t.size = t.earlier, t.recent, 0
			clear(t.recent)
		}
		t.size += chunks
	}
	t.recent[mark] = s
}

// withdraw takes back that a chunk is held which is computed until a time, unless it was sent before.
func (t *serverText) withdraw(mark Mark, computes time.Duration) {
	at, generation := t.recent[mark], t.recent
	if at == (sighting{}) {
		at, generation = t.earlier[mark], t.earlier
	}
	switch {
	case at == (sighting{}) || at.computes != computes:
	case at.sentBefore:
		generation[mark] = sighting{from: at.fromBefore, until: at.until}
	default:
		delete(generation, mark)
	}
}

// held is how many leading chunks are believed to be held now.
func (t *serverText) held(salt uint64, chunks []tokens.Chunk, now time.Duration) int {
	holds := func(i int) bool { return t.find(markOf(salt, chunks[coveredBy(i+1)-1])).isHeld(now) }
	if len(chunks) == 0 || !holds(0) { // as on most servers
		return 0
	}
	return coveredBy(sort.Search(marksAmong(len(chunks)), func(i int) bool { return !holds(i) }))
}

// computing is how many leading chunks are believed to be computed now. It looks at each mark: what is taken
// back of one prompt, others that begin like it may go on to compute.
func (t *serverText) computing(salt uint64, chunks []tokens.Chunk, now time.Duration) int {
	marks := marksAmong(len(chunks))
	for i := range marks {
		if now >= t.find(markOf(salt, chunks[coveredBy(i+1)-1])).computes {
			return coveredBy(i)
		}
	}
	return coveredBy(marks)
}

// endsBefore reports whether nothing is believed any more of what the server was sent.
func (t *serverText) endsBefore(now time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.until < now
}
