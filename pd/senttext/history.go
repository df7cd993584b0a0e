// Package senttext remembers the text that servers were sent lately, and says by it what they hold
// and what they are computing, for prompts of which nothing better is known: a belief for two
// minutes, that nothing confirms. It knows chunks of text (kvstate/tokens), servers by name and
// class, and times; pd imports it.
package senttext

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-gateway/tandem/kvstate/tokens"
)

// History is what is believed of servers by the text that they were sent lately: that they
// hold it, for prompts of which nothing better is known, and that they are computing it. It
// knows chunks of text and never token ids, so the two cannot mix. Safe for concurrent use.
type History struct {
	seed     maphash.Seed
	origin   time.Time    // of the times that are kept
	computes atomic.Int64 // the latest time until which a server is believed to compute anything, since origin

	mu      sync.RWMutex // guards servers
	servers map[Server]*serverText
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
	// ChunkTokens is a guess: English and code run near four bytes a token.
	ChunkTokens = tokens.ChunkBytes / 4
)

// New returns a history of nothing.
func New() *History {
	return &History{seed: maphash.MakeSeed(), origin: time.Now(), servers: make(map[Server]*serverText)}
}

// Sighting is from when on a server is believed to hold a chunk, and until when to compute it.
type Sighting struct{ Held, Computes time.Time }

// Record remembers what becomes of the leading chunks of a prompt on a server, of which as many are kept
// as its KV has room for, in tokens; 0: that is not known. What it holds it goes on to hold.
func (h *History) Record(of Salted, server Server, kvTokens int, chunks []tokens.Chunk, s Sighting) {
	now, salt := h.now(), h.salt(of)
	sent := sighting{from: s.Held.Sub(h.origin), until: s.Held.Sub(h.origin) + life, computes: s.Computes.Sub(h.origin)}
	for latest := h.computes.Load(); int64(sent.computes) > latest && !h.computes.CompareAndSwap(latest, int64(sent.computes)); {
		latest = h.computes.Load()
	}
	t := h.textOf(server, now)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.until = max(t.until, sent.until)
	// The beginning last: of what must go, it goes last.
	for i := len(chunks) - 1; i >= 0; i-- {
		key := keyOf(salt, chunks[i])
		t.put(key, t.find(key).followedBy(sent, now), capacity(kvTokens))
	}
}

// CachedTokens returns how many leading tokens of the chunks a server is believed to hold.
func (h *History) CachedTokens(of Salted, server Server, chunks []tokens.Chunk) int {
	t := h.existing(server)
	if t == nil {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return ChunkTokens * t.held(h.salt(of), chunks, h.now())
}

// Computing returns how many leading chunks a server is believed to compute.
func (h *History) Computing(of Salted, server Server, chunks []tokens.Chunk) int {
	now := h.now()
	if int64(now) >= h.computes.Load() {
		return 0
	}
	t := h.existing(server)
	if t == nil {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.computing(h.salt(of), chunks, now)
}

// Withdraw takes back that a server holds chunks which it computes until a time, unless it held
// them before.
func (h *History) Withdraw(of Salted, server Server, chunks []tokens.Chunk, computes time.Time) {
	t := h.existing(server)
	if t == nil {
		return
	}
	salt, until := h.salt(of), computes.Sub(h.origin)
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range chunks {
		t.withdraw(keyOf(salt, c), until)
	}
}

// existing is what a server was sent, nil if that is nothing.
func (h *History) existing(server Server) *serverText {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.servers[server]
}

// textOf is what a server was sent. Where that is nothing yet, those go of which nothing is believed
// any more: they may have left.
func (h *History) textOf(server Server, now time.Duration) *serverText {
	if t := h.existing(server); t != nil {
		return t
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for s, t := range h.servers {
		if t.endsBefore(now) {
			delete(h.servers, s)
		}
	}
	t := h.servers[server]
	if t == nil {
		t = &serverText{until: now + life, recent: make(map[chunkKey]sighting), earlier: make(map[chunkKey]sighting)}
		h.servers[server] = t
	}
	return t
}

func (h *History) now() time.Duration { return time.Since(h.origin) }

// salt is what makes keys of chunks differ by what else makes their KV differ.
func (h *History) salt(of Salted) uint64 { return maphash.Comparable(h.seed, of) }
