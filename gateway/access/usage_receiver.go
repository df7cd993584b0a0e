package access

import (
	"encoding/json"
	"time"
)

// usageReceiver charges this replica's quotas with what other replicas report. It belongs
// to one goroutine.
type usageReceiver struct {
	sync     *QuotaSync
	replicas map[string]*replica
}

// replica is what another one reported last.
type replica struct {
	epoch string
	since time.Time // of its first report
	last  time.Time
	sums  map[string]usage // by key ID
}

// receive reads one message. What it cannot read it counts and ignores: others may write
// to this Redis.
func (r *usageReceiver) receive(message []byte, now time.Time) {
	var m usedMessage
	if len(message) > maxMessage || json.Unmarshal(message, &m) != nil || m.Replica == "" || len(m.Replica) > 128 {
		r.sync.ignored.Add(1)
		return
	}
	r.countReplicas(now)
	if m.Replica == r.sync.id && m.Epoch == r.sync.epoch {
		return
	}
	from := r.replicas[m.Replica]
	if from == nil || from.epoch != m.Epoch {
		if from == nil && len(r.replicas) >= maxReplicas {
			r.sync.ignored.Add(1)
			return
		}
		from = &replica{epoch: m.Epoch, since: now, sums: make(map[string]usage)}
		r.replicas[m.Replica] = from
	}
	from.last = now
	for id, reported := range m.Keys {
		if q := r.sync.find(id); q != nil && reported.valid() {
			q.chargeRemote(m.Replica, from.added(id, reported, now), int(reported.Running), now, now.Add(replicaTimeout))
		}
	}
}

// added is what the replica let in since its last report. What it let in before its first
// one is over.
func (r *replica) added(id string, reported reportedUsage, now time.Time) usage {
	before, known := r.sums[id]
	r.sums[id] = reported.usage
	if !known && now.Sub(r.since).Seconds() < reported.Age {
		return usage{}
	}
	return reported.minus(before)
}

// countReplicas notes that the channel works, and how many replicas there are.
func (r *usageReceiver) countReplicas(now time.Time) {
	n := int64(1)
	for id, other := range r.replicas {
		if now.Sub(other.last) > replicaTimeout {
			delete(r.replicas, id)
			continue
		}
		n++
	}
	r.sync.replicas.Store(n)
	r.sync.received.Store(int64(now.Sub(r.sync.started)))
}
