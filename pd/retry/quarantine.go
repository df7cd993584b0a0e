package retry

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// ErrQuarantined is returned for a request that is held to have killed servers.
var ErrQuarantined = errors.New("the request was in flight on two servers when they died")

const (
	deathsToQuarantine = 2
	quarantineTime     = 10 * time.Minute
	maxSuspects        = 1024 // fingerprints that are remembered
)

// Quarantine keeps a query of death from going through the fleet server by server:
// a request that was in flight on two servers when they died is refused for a while, unless it is answered meanwhile.
// It must have been sent to the second one after the first had died: of servers that die together, as with their power
// or by one command, the same body that many send is on several, and is not what they died of. What does kill servers
// kills another one when it is tried again.
type Quarantine struct {
	suspected atomic.Bool // there are suspects: each request asks three times

	mu       sync.Mutex // guards what follows
	suspects map[uint64]*suspect
	last     time.Time // the last death
}

// Fingerprinter is a request that can be told apart from others without its text. It is asked
// only where there are suspects: a body may have megabytes.
type Fingerprinter interface{ Fingerprint() uint64 }

type suspect struct {
	deaths []Death // of different servers
	last   time.Time
	struck time.Time // when the last of deaths was
}

// Death is that of one server.
type Death struct {
	Server  string
	Cause   string    // what it was doing with the request, for people
	Handoff bool      // it was loading KV that prefill had handed over
	Sent    time.Time // when the request went there
}

// NewQuarantine returns an empty one.
func NewQuarantine() *Quarantine { return &Quarantine{suspects: make(map[uint64]*suspect)} }

// RecordDeath notes that a server died with the request in flight on it, and reports
// whether the request is in quarantine now.
func (q *Quarantine) RecordDeath(fingerprint uint64, how Death, now time.Time) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.suspects[fingerprint]
	if s == nil || now.Sub(s.last) > quarantineTime {
		q.makeRoomLocked(now)
		s = &suspect{}
		q.suspects[fingerprint] = s
	}
	s.last, q.last = now, now
	q.suspected.Store(true)
	if (len(s.deaths) == 0 || how.Sent.After(s.struck)) && !slices.ContainsFunc(s.deaths, func(d Death) bool { return d.Server == how.Server }) {
		s.deaths, s.struck = append(s.deaths, how), now
	}
	return len(s.deaths) >= deathsToQuarantine
}

// Acquit notes that a request has been answered to its end, behind a hand-off or without one: it was not what its servers
// died of, however many requests of the same body were on them. Those that died while they loaded a hand-off of it may
// have died of that, unless this one loaded one too.
func (q *Quarantine) Acquit(r Fingerprinter, handedOver bool) {
	if !q.suspected.Load() {
		return
	}
	fingerprint := r.Fingerprint()
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.suspects[fingerprint]
	if s == nil {
		return
	}
	s.deaths = slices.DeleteFunc(s.deaths, func(d Death) bool { return handedOver || !d.Handoff })
	if len(s.deaths) == 0 {
		delete(q.suspects, fingerprint)
		q.suspected.Store(len(q.suspects) > 0)
	}
}

// IsQuarantined reports whether a request is in quarantine.
func (q *Quarantine) IsQuarantined(r Fingerprinter, now time.Time) bool {
	return len(q.deathsOf(r, now)) >= deathsToQuarantine
}

// DiedOfHandoff reports whether a server died lately while it loaded a hand-off of the
// request, which had better run alone then: the next decode server may well die of it too.
func (q *Quarantine) DiedOfHandoff(r Fingerprinter, now time.Time) bool {
	return slices.ContainsFunc(q.deathsOf(r, now), func(d Death) bool { return d.Handoff })
}

// deathsOf are the deaths that a request is suspected of. The fingerprint is not made under the
// lock.
func (q *Quarantine) deathsOf(r Fingerprinter, now time.Time) []Death {
	if !q.suspected.Load() || q.acquitAll(now) {
		return nil
	}
	fingerprint := r.Fingerprint()
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.suspects[fingerprint]
	if s == nil || now.Sub(s.last) > quarantineTime {
		return nil
	}
	return slices.Clone(s.deaths)
}

// acquitAll forgets the suspects once the time of all is over, and reports whether it is: requests would be
// fingerprinted for ever after one death.
func (q *Quarantine) acquitAll(now time.Time) (over bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if over = now.Sub(q.last) > quarantineTime; over {
		clear(q.suspects)
		q.suspected.Store(false)
	}
	return over
}

// makeRoomLocked forgets those whose time is over, and the oldest if that is not
// enough.
func (q *Quarantine) makeRoomLocked(now time.Time) {
	var oldest uint64
	for f, s := range q.suspects {
		if now.Sub(s.last) > quarantineTime {
			delete(q.suspects, f)
			continue
		}
		if o := q.suspects[oldest]; o == nil || s.last.Before(o.last) {
			oldest = f
		}
	}
	if len(q.suspects) >= maxSuspects {
		delete(q.suspects, oldest)
	}
}

// Suspect is a request as people see it: its fingerprint and the servers that died.
type Suspect struct {
	Fingerprint string    `json:"fingerprint"`
	Servers     []string  `json:"servers"`
	Causes      []string  `json:"causes"` // of each server's death, as far as it is known
	Last        time.Time `json:"last"`
	Quarantined bool      `json:"quarantined"`
}

// List returns all suspects, latest first.
func (q *Quarantine) List(now time.Time) []Suspect {
	q.mu.Lock()
	defer q.mu.Unlock()
	all := []Suspect{}
	for f, s := range q.suspects {
		if now.Sub(s.last) <= quarantineTime {
			of := Suspect{Fingerprint: fmt.Sprintf("%016x", f), Last: s.last, Quarantined: len(s.deaths) >= deathsToQuarantine}
			for _, d := range s.deaths {
				of.Servers, of.Causes = append(of.Servers, d.Server), append(of.Causes, d.Cause)
			}
			all = append(all, of)
		}
	}
	slices.SortFunc(all, func(a, b Suspect) int { return b.Last.Compare(a.Last) })
	return all
}

// Quarantined is how many are in quarantine.
func (q *Quarantine) Quarantined(now time.Time) (n int) {
	for _, s := range q.List(now) {
		if s.Quarantined {
			n++
		}
	}
	return n
}
