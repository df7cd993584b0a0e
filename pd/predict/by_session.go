package predict

import (
	"container/list"
	"time"
)

// bySession keeps a value for each session, apart by tenant. A tenant that names more sessions
// than it has room for pushes out its own, those that were longest without a request. The zero
// value is ready; its owner's lock guards it.
type bySession[V any] struct {
	tenants map[string]*tenantSessions[V]
	swept   time.Time
}

// tenantSessionsMost is how many sessions of one tenant are remembered. Half as many cost a
// quarter of what sessions gain in TestOutputs_TraceSessionsArePredictedBetter, where one tenant
// has 8,000 sessions in an hour.
const tenantSessionsMost = 2048

// tenantSessions are one tenant's.
type tenantSessions[V any] struct {
	entries map[sessionKey]*list.Element
	order   list.List // of *sessionEntry[V], the one with the latest request first
	seen    time.Time
}

func (t *tenantSessions[V]) lastSeen() time.Time { return t.seen }

type sessionKey struct {
	model string
	hash  uint64
}

type sessionEntry[V any] struct {
	sessionKey
	value V
}

// get returns the session's value, if there is one.
func (b *bySession[V]) get(of Session) (v V, known bool) {
	t := b.tenants[of.Tenant]
	if t == nil {
		return v, false
	}
	e, known := t.entries[sessionKey{of.Model, of.Hash}]
	if !known {
		return v, false
	}
	return e.Value.(*sessionEntry[V]).value, true
}

// put remembers the session's value, unless there is no room for its tenant.
func (b *bySession[V]) put(of Session, v V, now time.Time) {
	t := b.tenants[of.Tenant]
	if t == nil {
		if !makeRoom(b.tenants, &b.swept, now) {
			return
		}
		if b.tenants == nil {
			b.tenants = make(map[string]*tenantSessions[V])
		}
		t = &tenantSessions[V]{entries: make(map[sessionKey]*list.Element)}
		b.tenants[of.Tenant] = t
	}
	t.seen = now
	t.put(sessionKey{of.Model, of.Hash}, v)
}

func (t *tenantSessions[V]) put(key sessionKey, v V) {
	if e, known := t.entries[key]; known {
		e.Value.(*sessionEntry[V]).value = v
		t.order.MoveToFront(e)
		return
	}
	t.entries[key] = t.order.PushFront(&sessionEntry[V]{key, v})
	if t.order.Len() > tenantSessionsMost {
		oldest := t.order.Remove(t.order.Back()).(*sessionEntry[V])
		delete(t.entries, oldest.sessionKey)
	}
}
