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
	mu      sync.Mutex // guards what follows
	tenants map[string]*tenantSessions
	swept   time.Time
}

// Session is what a client calls its requests' session: a tenant's, of a model, by a hash of
// its name.
type Session struct {
	Tenant, Model string
	Hash          uint64
}

const (
	// sessionLife is for how long after its last request a session is remembered: engines'
	// caches seldom keep a prompt for longer.
	sessionLife = 10 * time.Minute
	// tenantSessionsMost is how many sessions of one tenant are remembered.
	tenantSessionsMost = 1024
)

// tenantSessions are one tenant's, the oldest first in a ring.
type tenantSessions struct {
	homes map[sessionKey]home
	ring  []sessionKey
	next  int
	seen  time.Time
}

func (t *tenantSessions) lastSeen() time.Time { return t.seen }

type sessionKey struct {
	model string
	hash  uint64
}

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
	t := s.tenants[of.Tenant]
	if t == nil {
		return cost.Home{}
	}
	h, known := t.homes[sessionKey{of.Model, of.Hash}]
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
	t := s.tenants[of.Tenant]
	if t == nil {
		if !makeRoom(s.tenants, &s.swept, now) {
			return
		}
		if s.tenants == nil {
			s.tenants = make(map[string]*tenantSessions)
		}
		t = &tenantSessions{homes: make(map[sessionKey]home)}
		s.tenants[of.Tenant] = t
	}
	t.seen = now
	t.put(sessionKey{of.Model, of.Hash}, home{at, now})
}

// put remembers a session, in the place of the one that came first where there is no room.
func (t *tenantSessions) put(key sessionKey, h home) {
	if _, known := t.homes[key]; !known {
		if len(t.ring) < tenantSessionsMost {
			t.ring = append(t.ring, key)
		} else {
			delete(t.homes, t.ring[t.next])
			t.ring[t.next] = key
			t.next = (t.next + 1) % tenantSessionsMost
		}
	}
	t.homes[key] = h
}
