package pd

import (
	"sync"
	"time"

	"github.com/tandem-gateway/tandem/kvstate/tokens"
	"github.com/tandem-gateway/tandem/pools"
)

// history is what is believed of a server whose engine publishes nothing: that it
// holds the text which was sent to it lately. It knows chunks of text and never
// token ids, so the two cannot mix.
type history struct {
	mu     sync.Mutex // guards the rest
	seen   map[chunkOn]time.Time
	oldest []chunkOn // in the order of their first note; a ring
	next   int
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

// saltedModel is what makes the KV of equal text differ: a base model and a cache_salt.
type saltedModel struct{ model, salt string }

const (
	historyLife = 2 * time.Minute // what is believed without a confirmation
	historySize = 1 << 18         // chunks that are remembered
	// chunkTokens is a guess: English and code run near four bytes a token.
	chunkTokens = tokens.ChunkBytes / 4
)

func newHistory() *history { return &history{seen: make(map[chunkOn]time.Time)} }

// record remembers that a server was sent the chunks.
func (h *history) record(of saltedModel, server serverVersion, chunks []tokens.Chunk) {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range chunks {
		key := chunkOn{of, server, c}
		if _, known := h.seen[key]; !known {
			h.remember(key)
		}
		h.seen[key] = now
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
		if at, known := h.seen[chunkOn{of, server, c}]; !known || now.Sub(at) > historyLife {
			return i * chunkTokens
		}
	}
	return len(chunks) * chunkTokens
}
