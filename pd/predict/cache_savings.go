package predict

import (
	"math"
	"sync"
	"time"
)

// savingsHalfLife is the time in which what a cache has saved counts for half.
const savingsHalfLife = 10 * time.Minute

// CacheSavings is how much of prompts the caches of servers have saved lately, in tokens: what
// would have to be computed again elsewhere if one of them went. The zero value knows of
// none. Safe for concurrent use.
type CacheSavings struct {
	mu      sync.Mutex // guards servers
	servers map[string]saving
}

// saving is what a server's cache has saved, at a time.
type saving struct {
	tokens float64
	at     time.Time
}

func (s saving) decayed(now time.Time) float64 {
	return s.tokens * math.Exp2(-float64(now.Sub(s.at))/float64(savingsHalfLife))
}

// Observe notes that a server held so many tokens of a prompt that it was sent.
func (c *CacheSavings) Observe(server string, tokens int, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.servers == nil {
		c.servers = make(map[string]saving)
	}
	c.servers[server] = saving{c.servers[server].decayed(now) + float64(tokens), now}
}

// Read returns the tokens by server, and forgets servers of which less than one is left.
func (c *CacheSavings) Read(now time.Time) map[string]float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make(map[string]float64, len(c.servers))
	for server, s := range c.servers {
		if tokens := s.decayed(now); tokens >= 1 {
			all[server] = tokens
		} else {
			delete(c.servers, server)
		}
	}
	return all
}
