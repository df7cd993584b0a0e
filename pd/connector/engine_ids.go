package connector

import (
	"context"
	"fmt"
	"net/http"
	"sync"

	"github.com/tandem-gateway/tandem/pools"
)

// EngineIDs remembers which engines compute on prefill servers, as those said, by server and
// rank. Its zero value knows nothing.
type EngineIDs struct {
	mu      sync.Mutex // guards servers
	servers map[string]knownEngines
}

type knownEngines struct {
	life uint64 // of the server that said so: one that was down since has other ids
	ids  map[int]string
}

// Choose finds out which engine prefills, where the legs name it: the server is asked once in its
// life. What is known of servers that are not in the fleet any more is forgotten.
func (e *EngineIDs) Choose(ctx context.Context, transport http.RoundTripper, t *Transfer, fleet *pools.Fleet) error {
	query := t.Connector().QueryEngines
	if query == nil {
		return nil
	}
	life := t.From.Incarnation()
	e.mu.Lock()
	known := e.servers[t.From.ID()]
	e.mu.Unlock()
	if known.life != life || known.ids == nil {
		ids, err := query(ctx, transport, t.From)
		if err != nil {
			return fmt.Errorf("ask its bootstrap server: %w", err)
		}
		known = knownEngines{life, ids}
		e.remember(t.From.ID(), known, fleet.Servers())
	}
	return t.ChooseEngine(known.ids)
}

// remember keeps what was said of a server, and forgets those that are no longer in the fleet.
func (e *EngineIDs) remember(server string, known knownEngines, fleet []*pools.Server) {
	e.mu.Lock()
	defer e.mu.Unlock()
	servers := map[string]knownEngines{server: known}
	for _, s := range fleet {
		if was, asked := e.servers[s.ID()]; asked && s.ID() != server {
			servers[s.ID()] = was
		}
	}
	e.servers = servers
}

// Forget drops what is known of a server whose pair failed: its ids may be of an
// earlier life.
func (e *EngineIDs) Forget(server string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.servers, server)
}
