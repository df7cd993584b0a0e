// Package senttext remembers the text that servers were sent lately, and says by it what they hold
// and what they are computing, for prompts of which nothing better is known: a belief for two
// minutes, that nothing confirms. It knows chunks of text (kvstate/tokens), servers by name and
// class, and times; pd imports it, and pd/textsync, which tells other replicas.
package senttext

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/tandem-gateway/tandem/kvstate/tokens"
)

// History is what is believed of servers by the text that they were sent lately: that they
// hold it, for prompts of which nothing better is known, and that they are computing it. It
// knows chunks of text and never token ids, so the two cannot mix. Safe for concurrent use.
type History struct {
	// Share takes what other replicas are to be told; nil: nothing. It is set before the first prompt,
	// and must not wait.
	Share func(Sent)

	origin   time.Time    // of the times that are kept
	wall     atomic.Int64 // the origin by the wall clock, as of when that was set last, in microseconds since 1970
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
	// wallSlack is how far the wall clock may drift from the monotonic one before it counts as set.
	wallSlack = time.Second
	// mostServers is of how many servers other replicas may tell.
	mostServers = 1 << 12
	// ChunkTokens is a guess: English and code run near four bytes a token.
	ChunkTokens = tokens.ChunkBytes / 4
)

// New returns a history of nothing.
func New() *History {
	h := &History{origin: time.Now(), servers: make(map[Server]*serverText)}
	h.wall.Store(h.origin.UnixMicro())
	return h
}

// Sighting is from when on a server is believed to hold a chunk, and until when to compute it.
type Sighting struct {
	Held, Computes time.Time
	Shared         bool // other replicas are told
}

// Sent is what a server was sent, as replicas tell each other.
type Sent struct {
	Server   Server
	KVTokens int    // Record's
	Marks    []Mark // of the prompt, from its beginning on
	Sighting
	Withdrawn bool // the server will not compute them after all; only Computes counts then
}

// Record remembers what becomes of the leading chunks of a prompt on a server, of which as many are kept
// as its KV has room for, in tokens; 0: that is not known. What it holds it goes on to hold.
func (h *History) Record(of Salted, server Server, kvTokens int, chunks []tokens.Chunk, s Sighting) {
	salt, sent := saltOf(of), Sent{Server: server, KVTokens: kvTokens, Sighting: s}
	h.record(sent, marksAmong(len(chunks)), func(i int) Mark { return markAt(salt, chunks, i) })
	h.share(sent, of, chunks)
}

// Withdraw takes back that a server holds chunks which it computes until a time, unless it held
// them before: what was recorded with the same sighting.
func (h *History) Withdraw(of Salted, server Server, chunks []tokens.Chunk, s Sighting) {
	salt, sent := saltOf(of), Sent{Server: server, Sighting: s, Withdrawn: true}
	h.withdraw(sent, marksAmong(len(chunks)), func(i int) Mark { return markAt(salt, chunks, i) })
	h.share(sent, of, chunks)
}

func (h *History) share(sent Sent, of Salted, chunks []tokens.Chunk) {
	if sent.Shared && h.Share != nil {
		sent.Marks = marksOf(of, chunks)
		h.Share(sent)
	}
}

// Receive takes in what another replica says, by a clock that is like ours. What it says of other times
// than ours is not believed.
func (h *History) Receive(sent Sent) {
	mark := func(i int) Mark { return sent.Marks[i] }
	sent.Held, sent.Computes = h.ownTime(sent.Held), h.ownTime(sent.Computes)
	switch {
	case sent.Withdrawn:
		h.withdraw(sent, len(sent.Marks), mark)
	case time.Since(sent.Held).Abs() < life && (h.existing(sent.Server) != nil || h.count() < mostServers):
		h.record(sent, len(sent.Marks), mark)
	}
}

// ownTime is a time of another replica, which has the wall clock alone, by the monotonic clock: ours may have been
// set since the origin. Between two times that it was set it shifts all by the same, so that what is withdrawn is found.
func (h *History) ownTime(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	now := time.Now().Add(-time.Since(h.origin)).UnixMicro()
	if off := time.Duration(now-h.wall.Load()) * time.Microsecond; off.Abs() > wallSlack {
		h.wall.Store(now)
	}
	return h.origin.Add(time.Duration(t.UnixMicro()-h.wall.Load()) * time.Microsecond)
}

// record records the first n marks of a prompt.
func (h *History) record(s Sent, n int, mark func(i int) Mark) {
	now := h.now()
	seen := sighting{from: s.Held.Sub(h.origin), until: s.Held.Sub(h.origin) + life, computes: s.Computes.Sub(h.origin)}
	for latest := h.computes.Load(); int64(seen.computes) > latest && !h.computes.CompareAndSwap(latest, int64(seen.computes)); {
		latest = h.computes.Load()
	}
	t := h.textOf(s.Server, now)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.until = max(t.until, seen.until)
	t.record(n, mark, seen, capacity(s.KVTokens), now)
}

// withdraw takes them back.
func (h *History) withdraw(s Sent, n int, mark func(i int) Mark) {
	t := h.existing(s.Server)
	if t == nil {
		return
	}
	until := s.Computes.Sub(h.origin)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.withdraw(n, mark, until)
}

// CachedTokens returns how many leading tokens of the chunks a server is believed to hold.
func (h *History) CachedTokens(of Salted, server Server, chunks []tokens.Chunk) int {
	t := h.existing(server)
	if t == nil {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return ChunkTokens * t.held(saltOf(of), chunks, h.now())
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
	return t.computing(saltOf(of), chunks, now)
}

// existing is what a server was sent, nil if that is nothing.
func (h *History) existing(server Server) *serverText {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.servers[server]
}

// count is of how many servers something is remembered.
func (h *History) count() int {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return len(h.servers)
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
		t = &serverText{until: now + life}
		h.servers[server] = t
	}
	return t
}

func (h *History) now() time.Duration { return time.Since(h.origin) }

// saltOf is what makes marks of chunks differ by what else makes their KV differ: on each replica the same.
func saltOf(of Salted) (salt uint64) {
	for _, text := range [...]string{of.Model, of.Adapter, of.Salt} {
		const odd = 0x9e3779b97f4a7c15
		salt = (bits.RotateLeft64(salt, 23) ^ xxhash.Sum64String(text)) * odd
	}
	return salt
}
