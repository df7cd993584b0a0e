package connector

import (
	"strings"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/requestid"
	"github.com/tandem-gateway/tandem/pools"
)

// ncclPort is where a vLLM with the P2pNcclConnector listens by default (kv_port).
const ncclPort = 14579

// nccl is vLLM's P2pNcclConnector: prefill sends its KV to the decode server that the
// request id names, and decode waits for it from the prefill server that it names (vllm
// v1/kv_connector p2p_nccl_connector.py, parse_request_id). Nothing is relayed. The
// engines must not randomise request ids (VLLM_DISABLE_REQUEST_ID_RANDOMIZATION=1).
var nccl = &Connector{
	Engine: "vllm", Pairs: true, Aggregated: true, DecodeBound: true,
	requestID: func(from, to *pools.Server) string {
		id := requestid.New()
		return "___prefill_addr_" + kvAddress(from, ncclPort) + "___decode_addr_" + kvAddress(to, ncclPort) +
			"_" + strings.ReplaceAll(string(id[:]), "-", "")
	},
	Prefill: func(t *Transfer) LegRequest { return LegRequest{Body: oneToken(t)} },
	decode:  func(t *Transfer, _ api.Answer) decodeLeg { return decodeLeg{request: t.legWith(), hasKV: true} },
}
