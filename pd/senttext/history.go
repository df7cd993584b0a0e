package pd

import (
	"sync"
	"time"

	"github.com/tandem-gateway/tandem/kvstate/tokens"
	"github.com/tandem-gateway/tandem/pools"
)

// history is what is believed of servers by the text that they were sent lately: that they
// hold it, for prompts of which nothing better is known, and that they are computing it. It
// knows chunks of text and never token ids, so the two cannot mix.
type history struct {
	mu     sync.Mutex // guards the rest
	seen   map[chunkOn]sighting
	oldest []chunkOn // in the order of their first note; a ring
	next   int
	// computes is the latest of all sightings.
	computes time.Time
}

type chunkOn struct {
	of     saltedModel
	server serverVersion
	chunk  tokens.Chunk
}

// serverVersion is a server as it was: what one of other weights was sent is not its.
type serverVersion struct {
	id    string
	class uint64
}

func versionOf(s *pools.Server) serverVersion { return serverVersion{s.ID(), s.CompatibilityKey()} }

// saltedModel is what makes the KV of equal text differ: a base model, an adapter and a
// cache_salt.
type saltedModel struct{ model, adapter, salt string }

const (
	historyLife = 2 * time.Minute // what is believed without a confirmation
	historySize = 1 << 18         // chunks that are remembered
	// chunkTokens is a guess: English and code run near four bytes a token.
	chunkTokens = tokens.ChunkBytes / 4
)

func newHistory() *history { return &history{seen: make(map[chunkOn]sighting)} }

// sighting is from when on a server is believed to hold a chunk, and until when to compute it.
type sighting struct {
	held, computes time.Time
	heldBefore     bool // it was, when it was sent to be computed
}

// isHeld reports whether the server is believed to hold it now.
func (s sighting) isHeld(now time.Time) bool {
	age := now.Sub(s.held)
	return age >= 0 && age <= historyLife
}

// record remembers what becomes of the chunks on a server. What it holds it goes on to hold.
func (h *history) record(of saltedModel, server serverVersion, chunks []tokens.Chunk, s sighting) {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.computes.After(h.computes) {
		h.computes = s.computes
	}
	for _, c := range chunks {
		key := chunkOn{of, server, c}
		at, known := h.seen[key]
		if !known {
			h.remember(key)
		}
		next := s
		next.heldBefore = at.isHeld(now)
		if next.heldBefore && s.held.After(now) {
			next.held = now
		}
		h.seen[key] = next
	}
}

// remember makes room for a key by forgetting the oldest. The mutex is held.
func (h *history) remember(key chunkOn) {
	if len(h.oldest) < historySize {
		h.oldest = append(h.oldest, key)
		return
	}
	delete(h.seen, h.oldest[h.next])
	h.oldest[h.next] = key
	h.next = (h.next + 1) % historySize
}

// cachedTokens returns how many leading tokens of the chunks a server is believed to hold.
func (h *history) cachedTokens(of saltedModel, server serverVersion, chunks []tokens.Chunk) int {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, c := range chunks {
		if !h.seen[chunkOn{of, server, c}].isHeld(now) {
			return i * chunkTokens
		}
	}
	return len(chunks) * chunkTokens
}

// computing returns how many leading chunks a server is believed to compute.
func (h *history) computing(of saltedModel, server serverVersion, chunks []tokens.Chunk) int {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if !now.Before(h.computes) {
		return 0
	}
	for i, c := range chunks {
		if !now.Before(h.seen[chunkOn{of, server, c}].computes) {
			return i
		}
	}
	return len(chunks)
}

// withdraw takes back that a server holds chunks which it computes until a time, unless it held
// them before.
func (h *history) withdraw(of saltedModel, server serverVersion, chunks []tokens.Chunk, computes time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range chunks {
		key := chunkOn{of, server, c}
		at := h.seen[key]
		switch {
		case !at.computes.Equal(computes):
		case at.heldBefore:
			h.seen[key] = sighting{held: at.held, heldBefore: true}
		default:
			h.seen[key] = sighting{} // it keeps its place among the oldest
		}
	}
}
