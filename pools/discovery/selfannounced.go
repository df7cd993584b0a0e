package discovery

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/tandem-gateway/tandem/pools"
)

// SelfAnnounced finds servers that announce themselves again and again, as engines with
// the P2pNcclConnector do. One that falls silent is forgotten.
type SelfAnnounced struct {
	ttl   time.Duration // of one announcement
	found func([]pools.Spec)

	mu       sync.Mutex // guards received
	received map[string]announcement
}

type announcement struct {
	spec pools.Spec
	at   time.Time
}

// announcementTTL is three of vLLM's pings, which come every three seconds, and a bit.
const (
	announcementTTL = 10 * time.Second
	maxAnnounced    = 1024
)

// NewSelfAnnounced returns a source of servers; found receives all of them whenever they
// change.
func NewSelfAnnounced(found func([]pools.Spec)) *SelfAnnounced {
	return &SelfAnnounced{ttl: announcementTTL, found: found, received: make(map[string]announcement)}
}

// OnAnnouncement takes one in. One that is no server is an error.
func (a *SelfAnnounced) OnAnnouncement(spec pools.Spec, now time.Time) error {
	if err := spec.Validate(); err != nil {
		return err
	}
	a.mu.Lock()
	old, known := a.received[spec.ID()]
	if !known && len(a.received) >= maxAnnounced {
		a.mu.Unlock()
		return fmt.Errorf("more than %d servers announce themselves", maxAnnounced)
	}
	a.received[spec.ID()] = announcement{spec: spec, at: now}
	a.mu.Unlock()
	if !known || !reflect.DeepEqual(old.spec, spec) {
		a.report()
	}
	return nil
}

// Run forgets servers that fell silent, until the context ends.
func (a *SelfAnnounced) Run(ctx context.Context) {
	for pools.Pause(ctx, a.ttl/10) {
		if a.forget(time.Now()) {
			a.report()
		}
	}
}

func (a *SelfAnnounced) forget(now time.Time) (changed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := len(a.received)
	maps.DeleteFunc(a.received, func(_ string, last announcement) bool { return now.Sub(last.at) > a.ttl })
	return len(a.received) != before
}

// report names all servers, in the order of their IDs.
func (a *SelfAnnounced) report() {
	a.mu.Lock()
	var specs []pools.Spec
	for _, id := range slices.Sorted(maps.Keys(a.received)) {
		specs = append(specs, a.received[id].spec)
	}
	a.mu.Unlock()
	a.found(specs)
}
