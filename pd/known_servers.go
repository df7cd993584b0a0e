package pd

import (
	"time"

	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/curve"
)

// knownServers is what looks at the servers of one model have found, by their number in the fleet. What was found of a
// server that has not changed since is not found anew: from one choice to the next few of hundreds do, and each lies in
// some twenty places of memory. It belongs to one goroutine at a time.
type knownServers struct {
	all     []knownServer
	classes *map[string]uint64 // as Locality had them
	shares  bool               // other gateways used the servers
	one     knownServer        // where nothing is kept
}

// knownServer is what a look has found of one server that is the same for all requests.
type knownServer struct {
	server     *pools.Server
	version    uint64    // of the server
	steady     bool      // it holds while the server's version does, but for the load:
	loadSteady bool      // that does too,
	until      time.Time // and no longer; zero: for ever

	serves        bool // the model; nothing else is known of one that does not
	facts         serverFacts
	candidate     cost.Candidate
	prefill, step curve.Fading // how far the candidate's curves are known
	legs          [2]legState  // prefill, decode
}

// legState is whether a server may take a leg.
type legState struct {
	standing  pools.Standing
	slowUntil time.Time // zero: it does not start slowly
}

// dropOutdated drops what was found of the servers, of which there are so many now, where something that concerns all of
// them has changed.
func (sn *Snapshotter) dropOutdated(known *knownServers, servers int) {
	if len(known.all) != servers {
		known.all = make([]knownServer, servers)
	}
	if shares := sn.Fleet.SharesWork(); shares != known.shares {
		clear(known.all)
		known.shares = shares
	}
	if sn.Locality != nil {
		if classes := sn.Locality.sourceClasses.Load(); classes != known.classes {
			clear(known.all)
			known.classes = classes
		}
	}
}

// look is what is known of a server now, until the next look at it or, where nothing is kept, at another one.
func (n *knownServers) look(sn *Snapshotter, number int, s *pools.Server, model string, now time.Time) *knownServer {
	k := &n.one
	if len(n.all) > 0 {
		k = &n.all[number]
		if k.holds(s) {
			if !k.loadHolds(now) {
				k.findLoad(now)
			}
			k.candidate.PrefillKnown, k.candidate.StepKnown = k.prefill.At(now), k.step.At(now)
			return k
		}
	}
	k.find(sn, s, model, now)
	return k
}

// holds reports whether what was found of a server is what would be found now, its load apart.
func (k *knownServer) holds(s *pools.Server) bool {
	return k.steady && k.server == s && k.version == s.Version()
}

// loadHolds is holds of the load of a server of which the rest holds.
func (k *knownServer) loadHolds(now time.Time) bool {
	return k.loadSteady && (k.until.IsZero() || !now.After(k.until))
}

// findLoad looks at the load of a server.
func (k *knownServer) findLoad(now time.Time) {
	k.until, k.loadSteady = k.server.LoadSteadyUntil(now)
	setLoad(&k.candidate, k.server, now)
}

// find looks at a server.
func (k *knownServer) find(sn *Snapshotter, s *pools.Server, model string, now time.Time) {
	k.server, k.version = s, s.Version() // before anything that it counts
	k.steady = s.IsSteady(model, now)
	k.until, k.loadSteady = s.LoadSteadyUntil(now)
	if k.serves = s.Serves(model, now); !k.serves {
		return
	}
	k.facts = sn.factsOf(s)
	k.facts.ready, k.facts.missesHandoffs = sn.ready(s, model, now), s.MissesHandoffs(now)
	setCandidate(&k.candidate, s, now)
	k.candidate.KVBytesPerToken = s.KVBytesPerToken()
	k.prefill, k.step = s.Fadings()
	for i, leg := range [...]pools.Role{pools.Prefill, pools.Decode} {
		k.legs[i] = legState{s.Standing(leg, now), s.StartsSlowly(leg)}
	}
}
