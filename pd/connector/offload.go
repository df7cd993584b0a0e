package connector

import (
	"fmt"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pools"
)

// offloadPort is where a vLLM with the OffloadingConnector's P2P tier listens for rank
// 0 (VLLM_P2P_SIDE_CHANNEL_PORT; llm-d sets 7777); each further rank has the next one.
const offloadPort = 5710

// offload is vLLM's OffloadingConnector with its P2P tier: both engines get the request
// at once with an id of ours, nested under the name of the other party (key names since
// 2026-07-24; llm-d-router pkg/sidecar/proxy/connector_p2p.go). The server that computes the
// prompt may be told of a third server that holds its beginning.
var offload = &Connector{
	Engine: "vllm", ConcurrentLegs: true, Pairs: true, Aggregated: true,
	CanPull: func(*pools.Server) bool { return true },
	Prefill: func(t *Transfer) LegRequest {
		params := fmt.Sprintf(`{"remote_decoder":{"kv_request_id":%q}`, t.ID)
		if t.Source != nil {
			params += "," + kvSource(t.Source)
		}
		return LegRequest{Body: oneToken(t, api.Set(api.HandoffField, []byte(params+"}")))}
	},
	decode: func(t *Transfer, _ api.Answer) decodeLeg {
		host, port := offloadAddress(t.From)
		params := fmt.Sprintf(`{"remote_prefiller":{"kv_request_id":%q,"remote_host":%s,"remote_port":%d}}`, t.ID, quoted(host), port)
		return decodeLeg{request: t.legWith(api.Set(api.HandoffField, []byte(params))), hasKV: true}
	},
}

func offloadAddress(s *pools.Server) (host string, port int) {
	host, port = s.KVHostPort(offloadPort)
	if s.Rank != nil && s.KVAddress == "" {
		port += *s.Rank
	}
	return host, port
}

// PullFrom is the leg of a server that computes the prompt itself, and pulls its beginning
// from another one.
func PullFrom(source *pools.Server, body api.Body) LegRequest {
	return LegRequest{Body: body.With(api.Set(api.HandoffField, []byte("{"+kvSource(source)+"}")))}
}

// kvSource is what an OffloadingConnector is told of the server that it may pull a
// cached prefix from.
func kvSource(s *pools.Server) string {
	host, port := offloadAddress(s)
	return fmt.Sprintf(`"remote_kv_source":{"kv_request_id":%q,"remote_host":%s,"remote_port":%d}`, AttemptID(), quoted(host), port)
}
