package pd

import (
	"context"
	"fmt"
	"sync"

	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pools"
)

// engineIDs remembers which engines compute on prefill servers, as those said, by server and
// rank. Its zero value knows nothing.
type engineIDs struct {
	mu      sync.Mutex // guards servers
	servers map[string]knownEngines
}

type knownEngines struct {
	life uint64 // of the server that said so: one that was down since has other ids
	ids  map[int]string
}

// findEngine finds out which engine prefills, where the legs name it: the server is asked
// once in its life.
func (o *Orchestrator) findEngine(ctx context.Context, t *connector.Transfer) error {
	query := t.Connector().QueryEngines
	if query == nil {
		return nil
	}
	life := t.From.Incarnation()
	o.engines.mu.Lock()
	known := o.engines.servers[t.From.ID()]
	o.engines.mu.Unlock()
	if known.life != life || known.ids == nil {
		ids, err := query(ctx, o.Transport, t.From)
		if err != nil {
			return fmt.Errorf("ask its bootstrap server: %w", err)
		}
		known = knownEngines{life, ids}
		o.engines.remember(t.From.ID(), known, o.Fleet.Servers())
	}
	return t.ChooseEngine(known.ids)
}

// remember keeps what was said of a server, and forgets those that are no longer in the fleet.
func (e *engineIDs) remember(server string, known knownEngines, fleet []*pools.Server) {
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

// forget drops what is known of a server whose pair failed: its ids may be of an
// earlier life.
func (e *engineIDs) forget(server string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.servers, server)
}
