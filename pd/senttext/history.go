// Package senttext remembers the text that servers were sent lately, and says by it what they hold
// and what they are computing, for prompts of which nothing better is known: a belief for two
// minutes, that nothing confirms. It knows chunks of text (kvstate/tokens), servers by name and
// class, and times; pd imports it.
package senttext

import (
	"sync"
	"time"

	"github.com/tandem-gateway/tandem/kvstate/tokens"
)

// History is what is believed of servers by the text that they were sent lately: that they
// hold it, for prompts of which nothing better is known, and that they are computing it. It
// knows chunks of text and never token ids, so the two cannot mix. Safe for concurrent use.
type History struct {
	mu     sync.Mutex // guards the rest
	seen   map[chunkOn]Sighting
	oldest []chunkOn // in the order of their first note; a ring
	next   int
	// computes is the latest of all sightings.
	computes time.Time
}

type chunkOn struct {
	of     Salted
	server Server
	chunk  tokens.Chunk
}

// Server is a server as it was: what one of other weights was sent is not its.
type Server struct {
	ID    string
	Class uint64 // of its weights
}

// Salted is what makes the KV of equal text differ: a base model, an adapter and a
// cache_salt.
type Salted struct{ Model, Adapter, Salt string }

const (
	life = 2 * time.Minute // what is believed without a confirmation
	size = 1 << 18         // chunks that are remembered
	// ChunkTokens is a guess: English and code run near four bytes a token.
	ChunkTokens = tokens.ChunkBytes / 4
)

// New returns a history of nothing.
func New() *History { return &History{seen: make(map[chunkOn]Sighting)} }

// Sighting is from when on a server is believed to hold a chunk, and until when to compute it.
type Sighting struct {
	Held, Computes time.Time
	heldBefore     bool // it was, when it was sent to be computed
}

// isHeld reports whether the server is believed to hold it now.
func (s Sighting) isHeld(now time.Time) bool {
	age := now.Sub(s.Held)
	return age >= 0 && age <= life
}

// Record remembers what becomes of the chunks on a server. What it holds it goes on to hold.
func (h *History) Record(of Salted, server Server, chunks []tokens.Chunk, s Sighting) {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.Computes.After(h.computes) {
		h.computes = s.Computes
	}
	for _, c := range chunks {
		key := chunkOn{of, server, c}
		at, known := h.seen[key]
		if !known {
			h.remember(key)
		}
		next := s
		next.heldBefore = at.isHeld(now)
		if next.heldBefore && s.Held.After(now) {
			next.Held = now
		}
		h.seen[key] = next
	}
}

// remember makes room for a key by forgetting the oldest. The mutex is held.
func (h *History) remember(key chunkOn) {
	if len(h.oldest) < size {
		h.oldest = append(h.oldest, key)
		return
	}
	delete(h.seen, h.oldest[h.next])
	h.oldest[h.next] = key
	h.next = (h.next + 1) % size
}

// CachedTokens returns how many leading tokens of the chunks a server is believed to hold.
func (h *History) CachedTokens(of Salted, server Server, chunks []tokens.Chunk) int {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, c := range chunks {
		if !h.seen[chunkOn{of, server, c}].isHeld(now) {
			return i * ChunkTokens
		}
	}
	return len(chunks) * ChunkTokens
}

// Computing returns how many leading chunks a server is believed to compute.
func (h *History) Computing(of Salted, server Server, chunks []tokens.Chunk) int {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if !now.Before(h.computes) {
		return 0
	}
	for i, c := range chunks {
		if !now.Before(h.seen[chunkOn{of, server, c}].Computes) {
			return i
		}
	}
	return len(chunks)
}

// Withdraw takes back that a server holds chunks which it computes until a time, unless it held
// them before.
func (h *History) Withdraw(of Salted, server Server, chunks []tokens.Chunk, computes time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range chunks {
		key := chunkOn{of, server, c}
		at := h.seen[key]
		switch {
		case !at.Computes.Equal(computes):
		case at.heldBefore:
			h.seen[key] = Sighting{Held: at.Held, heldBefore: true}
		default:
			h.seen[key] = Sighting{} // it keeps its place among the oldest
		}
	}
}
