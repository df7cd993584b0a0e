package door

import (
	"encoding/json"
	"time"
)

// ears are the receiving side of a ledger. They belong to one goroutine.
type ears struct {
	ledger   *Ledger
	replicas map[string]*replica
}

// replica is what another one told last.
type replica struct {
	epoch string
	since time.Time // when it was heard first
	last  time.Time
	sums  map[string]usage // by key ID
}

// take reads one message. What it cannot read it counts and ignores: others may write
// to this Redis.
func (e *ears) take(message []byte, now time.Time) {
	var m usedMessage
	if len(message) > maxMessage || json.Unmarshal(message, &m) != nil || m.Replica == "" || len(m.Replica) > 128 {
		e.ledger.ignored.Add(1)
		return
	}
	e.hear(now)
	if m.Replica == e.ledger.id && m.Epoch == e.ledger.epoch {
		return
	}
	r := e.replicas[m.Replica]
	if r == nil || r.epoch != m.Epoch {
		if r == nil && len(e.replicas) >= maxHeard {
			e.ledger.ignored.Add(1)
			return
		}
		r = &replica{epoch: m.Epoch, since: now, sums: make(map[string]usage)}
		e.replicas[m.Replica] = r
	}
	r.last = now
	for id, told := range m.Keys {
		if q := e.ledger.find(id); q != nil && told.sane() {
			q.elsewhere(m.Replica, r.news(id, told, now), int(told.Running), now, now.Add(silence))
		}
	}
}

// news is what the replica let in since it told last. What it let in before it was
// first heard is over.
func (r *replica) news(id string, told toldUsage, now time.Time) usage {
	before, known := r.sums[id]
	r.sums[id] = told.usage
	if !known && now.Sub(r.since).Seconds() < told.Age {
		return usage{}
	}
	return told.minus(before)
}

// hear notes a sign of life of the channel, and who is there.
func (e *ears) hear(now time.Time) {
	n := int64(1)
	for id, r := range e.replicas {
		if now.Sub(r.last) > silence {
			delete(e.replicas, id)
			continue
		}
		n++
	}
	e.ledger.replicas.Store(n)
	e.ledger.heard.Store(int64(now.Sub(e.ledger.started)))
}
