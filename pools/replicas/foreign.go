package replicas

import (
	"maps"
	"slices"
	"time"

	"github.com/tandem-gateway/tandem/pools"
)

const (
	// foreignAfter is how long a replica works on unknown servers alone until that is warned of: of a file that is mounted
	// gateways see a change up to two minutes apart.
	foreignAfter = 5 * time.Minute
	// foreignForgotten is how long a replica is remembered that works on unknown servers no more.
	foreignForgotten = time.Hour
	// maxForeign is of how many replicas that is known.
	maxForeign = 256
)

// foreignWork is a replica that works on servers of which none is known here.
type foreignWork struct {
	since, last time.Time
	warned      bool
}

// judgeFleet warns, once, of a replica that has worked on no server of this fleet for foreignAfter. Of two fleets that
// share a prefix one replica decides for all, by servers of which it knows half. Only a message that names all servers
// with work, and any, says which fleet a replica is of.
func (r *Exchange) judgeFleet(m *workMessage, now time.Time) {
	if m.partial || len(m.Servers) == 0 {
		return
	}
	if r.recordForeign(m.Replica, r.knowsNoneOf(m.Servers), now) {
		r.log.Warn("a gateway that shares the Redis works on servers that are all unknown here: two fleets need a redis-prefix each",
			"replica", m.Replica, "server", slices.Min(slices.Collect(maps.Keys(m.Servers))))
	}
}

// knowsNoneOf reports whether servers are known here, and none of these is one of them.
func (r *Exchange) knowsNoneOf(servers map[string][2]sharedWork) bool {
	own := r.fleet.Servers()
	return len(own) > 0 && !slices.ContainsFunc(own, func(s *pools.Server) bool {
		_, works := servers[s.ID()]
		return works
	})
}

// recordForeign records whether a replica works on foreign servers alone, and reports whether it is to be warned of now.
func (r *Exchange) recordForeign(replica string, foreign bool, now time.Time) (warn bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !foreign {
		delete(r.foreign, replica)
		return false
	}
	w, was := r.foreign[replica]
	if !was && len(r.foreign) >= maxForeign {
		maps.DeleteFunc(r.foreign, func(_ string, w foreignWork) bool { return now.Sub(w.last) > foreignForgotten })
		if len(r.foreign) >= maxForeign {
			return false
		}
	}
	if !was || now.Sub(w.last) > workExpiry {
		w.since = now
	}
	w.last = now
	warn = !w.warned && now.Sub(w.since) >= foreignAfter
	w.warned = w.warned || warn
	r.foreign[replica] = w
	return warn
}
