package connector

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/tandem-gateway/tandem/pd/api"
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
var mooncake = &Connector{
	Engine: "vllm", ConcurrentLegs: true, Pairs: true, Aggregated: true,
	QueryEngines: queryBootstrap,
	Prefill: func(t *Transfer) LegRequest {
		params := fmt.Sprintf(`{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"xfer-%s"}`, t.ID)
		return LegRequest{
			Body:   oneToken(t, api.Set(api.HandoffField, []byte(params))),
			Header: http.Header{"X-Data-Parallel-Rank": {strconv.Itoa(t.engine.rank)}},
		}
	},
	decode: func(t *Transfer, _ api.Answer) decodeLeg {
		params := fmt.Sprintf(`{"do_remote_decode":false,"do_remote_prefill":true,"transfer_id":"xfer-%s","remote_bootstrap_addr":%s,"remote_engine_id":%s}`,
			t.ID, quoted("http://"+kvAddress(t.From, bootstrapPort)), quoted(t.engine.id))
		return decodeLeg{request: t.legWith(api.Set(api.HandoffField, []byte(params))), hasKV: true}
	},
}

// engineRank is one engine behind a bootstrap server. Its id changes when it restarts.
type engineRank struct {
	id   string
	rank int
}

// ChooseEngine has one of the engines of the prefill server compute, by rank: that of the
// server's rank, any where it has none.
func (t *Transfer) ChooseEngine(ids map[int]string) error {
	if t.From.Rank != nil {
		t.engine = engineRank{ids[*t.From.Rank], *t.From.Rank}
	} else {
		rank := slices.Collect(maps.Keys(ids))[rand.IntN(len(ids))]
		t.engine = engineRank{ids[rank], rank}
	}
	if t.engine.id == "" {
		return fmt.Errorf("its bootstrap server knows no rank %d", t.engine.rank)
	}
	return nil
}

// queryBootstrap asks a prefill server's bootstrap server, which answers
// {"0":{"engine_id":"..."},...}.
func queryBootstrap(ctx context.Context, transport http.RoundTripper, s *pools.Server) (map[int]string, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+kvAddress(s, bootstrapPort)+"/query", nil)
	if err != nil {
		return nil, err
	}
	resp, err := transport.RoundTrip(req)
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
