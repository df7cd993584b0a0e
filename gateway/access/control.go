package access

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Control is the access control of a gateway: it knows the keys, and what they have used.
// Safe for concurrent use.
type Control struct {
	cfg       Config
	shared    *QuotaSync // nil: there are no other replicas
	anonymous *Key       // all clients, where there are no keys

	mu   sync.Mutex           // orders calls of Apply
	keys atomic.Pointer[Keys] // nil: no key is asked for
}

// New returns an access control that asks for no key. What keys use is shared with other
// replicas through shared; nil if there are none.
func New(cfg Config, shared *QuotaSync) *Control {
	c := &Control{cfg: cfg, shared: shared}
	all := cfg.TrustHeaders
	c.anonymous = &Key{
		MaySet: MaySet{Priority: all, Objectives: all, Deadline: all, Tenant: all}, Class: c.classOf(cfg.Class),
		MaxSamples: cfg.MaxSamples, Deadline: cfg.Deadline, quota: newQuota(shared, ""),
	}
	if shared != nil {
		shared.find = c.quota
	}
	return c
}

// Apply makes these the keys; nil asks for none. What a key has used stays with it.
func (c *Control) Apply(keys *Keys) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.keys.Load()
	if keys != nil {
		for _, key := range keys.byID {
			key.quota = newQuota(c.shared, key.ID)
			if old != nil {
				if before := old.byID[key.ID]; before != nil && before.digest == key.digest {
					key.quota = before.quota
				}
			}
			key.quota.setLimits(key.limits)
		}
		_, keys.tenants = keys.Len()
	}
	c.keys.Store(keys)
}

// HasSeveralTenants reports whether the keys are of more than one.
func (c *Control) HasSeveralTenants() bool {
	keys := c.keys.Load()
	return keys != nil && keys.tenants > 1
}

// AllowsAnonymous reports whether no key is asked for.
func (c *Control) AllowsAnonymous() bool { return c.keys.Load() == nil }

// Find returns the key that a client sent, nil for one that is not known or missing.
// Where no keys are asked for all clients have the same.
func (c *Control) Find(sent []byte) *Key {
	keys := c.keys.Load()
	if keys == nil {
		return c.anonymous
	}
	return keys.find(sent)
}

// Len returns how many keys there are.
func (c *Control) Len() int {
	keys := c.keys.Load()
	if keys == nil {
		return 0
	}
	n, _ := keys.Len()
	return n
}

// quota is that of the key with an ID, nil if there is none.
func (c *Control) quota(id string) *quota {
	keys := c.keys.Load()
	if keys == nil || keys.byID[id] == nil {
		return nil
	}
	return keys.byID[id].quota
}

// Class names a priority class.
func (c *Control) Class(class int) string { return c.cfg.Classes[class] }

func (c *Control) classOf(name string) int { return slices.Index(c.cfg.Classes, name) }
