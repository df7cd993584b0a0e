package door

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Door knows the keys, and what they have used. Safe for concurrent use.
type Door struct {
	cfg       Config
	ledger    *Ledger
	anonymous *Key // everybody, where there are no keys

	mu   sync.Mutex           // orders calls of Apply
	keys atomic.Pointer[Keys] // nil: no key is asked for
}

// New returns a door that asks for no key. The ledger shares what keys use with other
// replicas; nil if there are none.
func New(cfg Config, ledger *Ledger) *Door {
	d := &Door{cfg: cfg, ledger: ledger}
	all := cfg.TrustHeaders
	d.anonymous = &Key{
		MaySet: MaySet{Priority: all, Objectives: all, Deadline: all}, Class: d.classOf(cfg.Class),
		MaxSamples: cfg.MaxSamples, Deadline: cfg.Deadline, quota: newQuota(ledger, ""),
	}
	if ledger != nil {
		ledger.find = d.quota
	}
	return d
}

// Apply makes these the keys; nil asks for none. What a key has used stays with it.
func (d *Door) Apply(keys *Keys) {
	d.mu.Lock()
	defer d.mu.Unlock()
	old := d.keys.Load()
	if keys != nil {
		for _, key := range keys.byID {
			key.quota = newQuota(d.ledger, key.ID)
			if old != nil {
				if before := old.byID[key.ID]; before != nil && before.digest == key.digest {
					key.quota = before.quota
				}
			}
			key.quota.setLimits(key.limits)
		}
	}
	d.keys.Store(keys)
}

// Open reports whether everybody may come in without a key.
func (d *Door) Open() bool { return d.keys.Load() == nil }

// Find returns the key that a client sent, nil for one that is not known or missing.
// Where no keys are asked for everybody has the same.
func (d *Door) Find(sent []byte) *Key {
	keys := d.keys.Load()
	if keys == nil {
		return d.anonymous
	}
	return keys.find(sent)
}

// Len returns how many keys there are.
func (d *Door) Len() int {
	keys := d.keys.Load()
	if keys == nil {
		return 0
	}
	n, _ := keys.Len()
	return n
}

// quota is that of the key with an ID, nil if there is none.
func (d *Door) quota(id string) *quota {
	keys := d.keys.Load()
	if keys == nil || keys.byID[id] == nil {
		return nil
	}
	return keys.byID[id].quota
}

// Class names a priority class.
func (d *Door) Class(class int) string { return d.cfg.Classes[class] }

func (d *Door) classOf(name string) int { return slices.Index(d.cfg.Classes, name) }
