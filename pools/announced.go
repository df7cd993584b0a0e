package pools

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"
)

// Announced finds servers that say again and again that they are there, as engines with
// the P2pNcclConnector do. One that falls silent is forgotten.
type Announced struct {
	life  time.Duration // of one announcement
	found func([]Spec)

	mu    sync.Mutex // guards heard
	heard map[string]announced
}

type announced struct {
	spec Spec
	at   time.Time
}

// announcedLife is three of vLLM's pings, which come every three seconds, and a bit.
const (
	announcedLife = 10 * time.Second
	maxAnnounced  = 1024
)

// NewAnnounced returns a source of servers; found is told all of them whenever they
// change.
func NewAnnounced(found func([]Spec)) *Announced {
	return &Announced{life: announcedLife, found: found, heard: make(map[string]announced)}
}

// Hear takes an announcement. One that is no server is an error.
func (a *Announced) Hear(spec Spec, now time.Time) error {
	if err := spec.Validate(); err != nil {
		return err
	}
	a.mu.Lock()
	old, known := a.heard[spec.ID()]
	if !known && len(a.heard) >= maxAnnounced {
		a.mu.Unlock()
		return fmt.Errorf("more than %d servers announce themselves", maxAnnounced)
	}
	a.heard[spec.ID()] = announced{spec: spec, at: now}
	a.mu.Unlock()
	if !known || !reflect.DeepEqual(old.spec, spec) {
		a.tell()
	}
	return nil
}

// Run forgets servers that fell silent, until the context ends.
func (a *Announced) Run(ctx context.Context) {
	for Pause(ctx, a.life/10) {
		if a.forget(time.Now()) {
			a.tell()
		}
	}
}

func (a *Announced) forget(now time.Time) (changed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := len(a.heard)
	maps.DeleteFunc(a.heard, func(_ string, h announced) bool { return now.Sub(h.at) > a.life })
	return len(a.heard) != before
}

// tell names all servers, in the order of their IDs.
func (a *Announced) tell() {
	a.mu.Lock()
	var specs []Spec
	for _, id := range slices.Sorted(maps.Keys(a.heard)) {
		specs = append(specs, a.heard[id].spec)
	}
	a.mu.Unlock()
	a.found(specs)
}
