package pd

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/tandem-gateway/tandem/pools"
)

const (
	// queryTimeout bounds the question to a bootstrap server.
	queryTimeout = 5 * time.Second
	// maxQuery bounds its answer in bytes: an entry for each rank.
	maxQuery = 1 << 20
)

// mooncake is vLLM's MooncakeConnector: both engines get the request at once with an id
// of ours. Decode is told which of the engines behind prefill's bootstrap server (port
// 8998, VLLM_MOONCAKE_BOOTSTRAP_PORT) computes, which is asked once and remembered
// (llm-d-router pkg/sidecar/proxy/connector_mooncake.go).
var mooncake = &connector{
	engine: "vllm", together: true, pairs: true, alone: true,
	find: (*Orchestrator).findMooncake,
	prefill: func(t *transfer) legRequest {
		params := fmt.Sprintf(`{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"xfer-%s"}`, t.id)
		return legRequest{
			body:   oneToken(t, Edit{handoffField, []byte(params)}),
			header: http.Header{"X-Data-Parallel-Rank": {strconv.Itoa(t.engine.rank)}},
		}
	},
	decode: func(t *transfer, _ []byte) handed {
		params := fmt.Sprintf(`{"do_remote_decode":false,"do_remote_prefill":true,"transfer_id":"xfer-%s","remote_bootstrap_addr":%s,"remote_engine_id":%s}`,
			t.id, quoted("http://"+kvAddress(t.from, bootstrapPort)), quoted(t.engine.id))
		return handed{leg: t.req.legWith(Edit{handoffField, []byte(params)}), kept: true}
	},
}

// engineRank is one engine behind a bootstrap server. Its id changes when it restarts.
type engineRank struct {
	id   string
	rank int
}

// engineIDs remembers what bootstrap servers said, by server and rank. Its zero value
// knows nothing.
type engineIDs struct {
	mu      sync.Mutex // guards servers
	servers map[string]knownEngines
}

type knownEngines struct {
	life uint64 // of the server that said so: one that was down since has other ids
	ids  map[int]string
}

// findMooncake finds out which engine prefills.
func (o *Orchestrator) findMooncake(ctx context.Context, t *transfer) error {
	life := t.from.Life()
	o.engines.mu.Lock()
	known := o.engines.servers[t.from.ID()]
	o.engines.mu.Unlock()
	if known.life != life || known.ids == nil {
		ids, err := o.queryBootstrap(ctx, t.from)
		if err != nil {
			return fmt.Errorf("ask its bootstrap server: %w", err)
		}
		known = knownEngines{life, ids}
		o.engines.remember(t.from.ID(), known, o.Fleet.Servers())
	}
	if t.from.Rank != nil {
		t.engine = engineRank{known.ids[*t.from.Rank], *t.from.Rank}
	} else {
		ranks := make([]int, 0, len(known.ids))
		for rank := range known.ids {
			ranks = append(ranks, rank)
		}
		rank := ranks[rand.IntN(len(ranks))]
		t.engine = engineRank{known.ids[rank], rank}
	}
	if t.engine.id == "" {
		return fmt.Errorf("its bootstrap server knows no rank %d", t.engine.rank)
	}
	return nil
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

// queryBootstrap reads {"0":{"engine_id":"..."},...}.
func (o *Orchestrator) queryBootstrap(ctx context.Context, s *pools.Server) (map[int]string, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+kvAddress(s, bootstrapPort)+"/query", nil)
	if err != nil {
		return nil, err
	}
	resp, err := o.Transport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxQuery))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d", resp.StatusCode)
	}
	var answer map[int]struct {
		EngineID string `json:"engine_id"`
	}
	if err := json.Unmarshal(body, &answer); err != nil || len(answer) == 0 {
		return nil, fmt.Errorf("an answer without engines: %w", err)
	}
	ids := make(map[int]string, len(answer))
	for rank, e := range answer {
		ids[rank] = e.EngineID
	}
	return ids, nil
}
