package replicas

import (
	"time"

	"github.com/tandem-gateway/tandem/pools"
)

// report is what the other replicas know of this one's work, so that only changes are
// reported.
type report struct {
	servers     map[string]serverWork
	decisions   uint64
	unconfirmed bool // the last message may not have got through
	size        int  // bytes of the last one
	replicas    int  // that read it
	mixed       bool // some of them know only JSON
}

// changesOf returns what is to be reported of a replica's own work: what the others would not
// believe by themselves, or everything.
func (r *report) changesOf(own workMessage, whole bool, now time.Time) workMessage {
	if whole || r.unconfirmed || r.servers == nil {
		return own
	}
	changed := workMessage{Replica: own.Replica, Decisions: own.Decisions, Servers: make(map[string][2]sharedWork), partial: true}
	for id, both := range own.Servers {
		known := r.servers[id]
		for i := range both {
			is, _ := both[i].inFlight()
			if !closeTo(is, after(known.both[i], now.Sub(known.at))) {
				changed.Servers[id] = both
			}
		}
	}
	for id := range r.servers {
		if _, busy := own.Servers[id]; !busy {
			changed.Servers[id] = [2]sharedWork{}
		}
	}
	return changed
}

// has reports whether the others know all of a message.
func (r *report) has(m *workMessage) bool {
	return m.partial && len(m.Servers) == 0 && m.Decisions == r.decisions
}

// closeTo reports whether work is as it is believed to be, nearly.
func closeTo(w, believed pools.InFlight) bool {
	return w.Requests == believed.Requests && w.Tokens == believed.Tokens && w.Prompts == believed.Prompts && w.Computing == believed.Computing &&
		(w.Queue-believed.Queue).Abs() <= workDrift && (w.Stays-believed.Stays).Abs() <= workDrift
}

// recordPublished notes what was reported, and whether it got to Redis.
func (r *report) recordPublished(m workMessage, bytes int, ok bool, now time.Time) {
	r.unconfirmed, r.size = !ok, bytes
	if !ok {
		return
	}
	if !m.partial || r.servers == nil {
		r.servers = make(map[string]serverWork, len(m.Servers))
	}
	r.decisions = m.Decisions
	for id, both := range m.Servers {
		if both == [2]sharedWork{} {
			delete(r.servers, id)
			continue
		}
		w := serverWork{at: now}
		for i := range both {
			w.both[i], _ = both[i].inFlight()
		}
		r.servers[id] = w
	}
}

// delay is for how long changes are gathered: longer where they are large and many read them.
func (r *report) delay() time.Duration {
	reading := time.Duration(r.size*max(1, r.replicas-1)) * time.Second / workBytes
	return min(max(workDelay, reading), workBeat/4)
}
