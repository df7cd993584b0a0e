package pd

import (
	"math"
	"sync"
	"time"
)

// heatHalf is the time in which what a cache has saved counts for half.
const heatHalf = 10 * time.Minute

// heat is how much of prompts the caches of servers have saved lately, in tokens: what
// would have to be computed again elsewhere if one of them went. The zero value knows of
// none.
type heat struct {
	mu      sync.Mutex // guards servers
	servers map[string]warmth
}

// warmth is a server's heat at a time.
type warmth struct {
	tokens float64
	at     time.Time
}

func (w warmth) faded(now time.Time) float64 {
	return w.tokens * math.Exp2(-float64(now.Sub(w.at))/float64(heatHalf))
}

// saved notes that a server held so much of a prompt that it was sent.
func (h *heat) saved(server string, tokens int, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.servers == nil {
		h.servers = make(map[string]warmth)
	}
	h.servers[server] = warmth{h.servers[server].faded(now) + float64(tokens), now}
}

// read returns the heat of servers, and forgets those that have grown cold.
func (h *heat) read(now time.Time) map[string]float64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make(map[string]float64, len(h.servers))
	for server, w := range h.servers {
		if tokens := w.faded(now); tokens >= 1 {
			all[server] = tokens
		} else {
			delete(h.servers, server)
		}
	}
	return all
}

// Heat is how many tokens of prompts each server's cache has saved lately, those of ten
// minutes ago counted by half, as far as this gateway sent them.
func (ch *Chooser) Heat() map[string]float64 { return ch.heat.read(time.Now()) }
