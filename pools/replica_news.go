package pools

import "time"

// news is what the other replicas were told of this one's work, so that they are told what
// changed only.
type news struct {
	servers  map[string]serverWork
	taken    uint64
	unsure   bool // the last message may not have got through
	size     int  // bytes of the last one
	replicas int  // that read it
	mixed    bool // some of them know only JSON
}

// of returns what is to be told of a replica's own work: what the others would not believe
// by themselves, or everything.
func (n *news) of(own workMessage, whole bool, now time.Time) workMessage {
	if whole || n.unsure || n.servers == nil {
		return own
	}
	changed := workMessage{Replica: own.Replica, Taken: own.Taken, Servers: make(map[string][2]sharedWork), partial: true}
	for id, both := range own.Servers {
		told := n.servers[id]
		for i := range both {
			is, _ := both[i].inFlight()
			if !is.like(told.both[i].after(now.Sub(told.at))) {
				changed.Servers[id] = both
			}
		}
	}
	for id := range n.servers {
		if _, busy := own.Servers[id]; !busy {
			changed.Servers[id] = [2]sharedWork{}
		}
	}
	return changed
}

// like reports whether work is as it is believed to be, nearly.
func (w InFlight) like(believed InFlight) bool {
	return w.Requests == believed.Requests && w.Tokens == believed.Tokens &&
		(w.Queue-believed.Queue).Abs() <= workDrift && (w.Stays-believed.Stays).Abs() <= workDrift
}

// published notes what was told, and whether it got to Redis.
func (n *news) published(m workMessage, bytes int, ok bool, now time.Time) {
	n.unsure, n.size = !ok, bytes
	if !ok {
		return
	}
	if !m.partial || n.servers == nil {
		n.servers = make(map[string]serverWork, len(m.Servers))
	}
	n.taken = m.Taken
	for id, both := range m.Servers {
		if both == [2]sharedWork{} {
			delete(n.servers, id)
			continue
		}
		w := serverWork{at: now}
		for i := range both {
			w.both[i], _ = both[i].inFlight()
		}
		n.servers[id] = w
	}
}

// delay is for how long changes are gathered: longer where they are large and many read them.
func (n *news) delay() time.Duration {
	reading := time.Duration(n.size*max(1, n.replicas-1)) * time.Second / workBytes
	return min(max(workDelay, reading), workBeat/4)
}
