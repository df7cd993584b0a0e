package predict

import (
	"sync"
	"time"
)

const (
	// morePieces is by how much the pieces of a server become larger when one was lost.
	morePieces = 2
	// mostPieces is how many times as large they become before it gets none.
	mostPieces = 8
	// withoutPieces is for how long a server then gets none.
	withoutPieces = time.Minute
)

// PieceLosses is what became of pieces of prompts in the caches of prefill servers: one that is
// evicted before the next piece comes was computed in vain. Where that happens pieces become
// larger, and prompts are prefilled whole for a while where it happens again and again. The zero
// value knows of none. Safe for concurrent use.
type PieceLosses struct {
	mu      sync.Mutex // guards servers
	servers map[string]pieceLoss
}

// pieceLoss is how many times as large the pieces of a server are, and until when it gets none.
type pieceLoss struct {
	factor int
	until  time.Time
}

// Factor returns how many times as large as usual a server's pieces are to be, 0 where it is to
// get none.
func (p *PieceLosses) Factor(server string, now time.Time) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	loss, lost := p.servers[server]
	switch {
	case !lost:
		return 1
	case now.Before(loss.until):
		return 0
	}
	return loss.factor
}

// Observe notes whether a server still had a piece when the next one came.
func (p *PieceLosses) Observe(server string, kept bool, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	loss, lost := p.servers[server]
	switch {
	case kept && !lost:
		return
	case kept && loss.factor == morePieces:
		delete(p.servers, server)
		return
	case kept:
		loss.factor /= morePieces
	case !lost:
		loss.factor = morePieces
	case loss.factor < mostPieces:
		loss.factor *= morePieces
	default:
		loss.until = now.Add(withoutPieces)
	}
	if p.servers == nil {
		p.servers = make(map[string]pieceLoss)
	}
	p.servers[server] = loss
}
