package predict

import (
	"sync"
	"time"

	"github.com/tandem-gateway/tandem/pd/cost"
)

// Sessions remember where requests were served that clients say belong together. What a client
// says may be wrong or a lie: it is kept by tenant, so that it concerns that tenant's own
// requests alone, and each has room for so many; what comes beyond pushes out the tenant's
// own. The zero value is ready. Safe for concurrent use.
type Sessions struct {
	mu    sync.Mutex // guards homes
	homes bySession[home]
}

// Session is what a client calls its requests' session: a tenant's, of a model, by a hash of
// its name.
type Session struct {
	Tenant, Model string
	Hash          uint64
}

// sessionLife is for how long after its last request it counts where a session was: engines'
// caches seldom keep a prompt for longer.
const sessionLife = 10 * time.Minute

type home struct {
	cost.Home
	at time.Time
}

// Home is where the session's last request was sent, nowhere if that is not known any more.
func (s *Sessions) Home(of Session, now time.Time) cost.Home {
	if of.Hash == 0 {
		return cost.Home{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h, known := s.homes.get(of)
	if !known || now.Sub(h.at) > sessionLife {
		return cost.Home{}
	}
	return h.Home
}

// Observe notes where a request of the session was sent. A hash of 0 is none.
func (s *Sessions) Observe(of Session, at cost.Home, now time.Time) {
	if of.Hash == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.homes.put(of, home{at, now}, now)
}
