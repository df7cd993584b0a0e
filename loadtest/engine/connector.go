package engine

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strconv"
)

// Connectors: how KV gets from a prefill to a decode engine, and so which fields of a
// request say it.
const (
	ConnectorNIXL     = "nixl"         // vLLM: prefill answers where its blocks are, decode reads them
	ConnectorNIXLPush = "nixl-push"    // vLLM: the same, but prefill writes; found by the request id
	ConnectorMooncake = "mooncake"     // vLLM: both at once, found by an id that the gateway mints
	ConnectorOffload  = "offload"      // vLLM's OffloadingConnector with a P2P tier: likewise
	ConnectorP2PNCCL  = "p2p-nccl"     // vLLM: both addresses stand in the request id
	ConnectorSGLang   = "sglang"       // both engines meet in a room of prefill's bootstrap server
	ConnectorTRTLLM   = "trtllm"       // TensorRT-LLM: context first, its parameters relayed
	ConnectorStore    = "store"        // a KV store that all engines share; nothing on the wire
	ConnectorSidecar  = "llmd-sidecar" // decode has llm-d's sidecar, which calls prefill
)

// Connectors lists them all.
func Connectors() []string {
	return []string{ConnectorNIXL, ConnectorNIXLPush, ConnectorMooncake, ConnectorOffload, ConnectorP2PNCCL, ConnectorSGLang,
		ConnectorTRTLLM, ConnectorStore, ConnectorSidecar}
}

// transferOf reads what a request says about its KV. It asks for n answers to each of its prompts.
func (e *Engine) transferOf(x *exchange, f *requestFields, prompts, n int) (p transferParams, err error) {
	switch e.cfg.Connector {
	case ConnectorSGLang:
		return e.sglangParams(f, prompts, n)
	case ConnectorNIXLPush:
		p, err = pushParams(x, f)
	case ConnectorMooncake:
		p, err = mooncakeParams(f)
	case ConnectorOffload:
		p, err = offloadParams(f)
	case ConnectorTRTLLM:
		if err := e.checkSignature(x, f.Disaggregated); err != nil {
			return p, err
		}
		p, err = trtllmParams(f.Disaggregated)
	case ConnectorStore:
		return transferParams{decodeLeg: e.cfg.Role == RoleDecode, looksUp: true}, nil
	case ConnectorP2PNCCL:
		p = ncclParams(x, e.cfg.Role)
	default:
		p, err = parseTransferParams(f.KVTransferParams)
	}
	if err != nil {
		return p, badRequest("kv_transfer_params", "%v", err)
	}
	if p.prefillLeg && f.Stream {
		return p, badRequest("stream", "A prefill that hands its KV over cannot be streamed.")
	}
	return p, nil
}

// pushParams are NIXL's without the blocks: prefill writes them to the decode that has
// its request id. One that still names blocks was not made for a push.
func pushParams(x *exchange, f *requestFields) (transferParams, error) {
	p, err := parseTransferParams(f.KVTransferParams)
	if err != nil || !p.decodeLeg {
		p.name = x.requestID(f, "resp_"+x.id)
		return p, err
	}
	var in struct {
		EngineID *string         `json:"remote_engine_id"`
		Request  *string         `json:"remote_request_id"`
		Host     *string         `json:"remote_host"`
		Port     *int            `json:"remote_port"`
		Blocks   json.RawMessage `json:"remote_block_ids"`
	}
	if err := json.Unmarshal(f.KVTransferParams, &in); err != nil {
		return p, err
	}
	p.handoff = nil
	if in.EngineID != nil && in.Request != nil && in.Host != nil && in.Port != nil && len(in.Blocks) == 0 {
		p.bootstraps = []*bootstrapRoom{{id: x.requestID(f, newID("resp_")), host: *in.Host, port: *in.Port, engineID: *in.EngineID}}
	}
	return p, nil
}

// requestID is what an engine calls the request: a response is called what its body says, or by the name that it
// gets here, and what has another path what a header says (vllm/entrypoints/openai/responses/protocol.py 0.32).
func (x *exchange) requestID(f *requestFields, name string) string {
	if x.r.URL.Path != "/v1/responses" {
		return x.id
	}
	return cmp.Or(f.RequestID, name)
}

// mooncakeParams name a transfer for both legs; decode's also where prefill's
// bootstrap server is and which engine behind it computes.
func mooncakeParams(f *requestFields) (p transferParams, err error) {
	var in struct {
		Prefill  bool   `json:"do_remote_decode"`
		Decode   bool   `json:"do_remote_prefill"`
		Transfer string `json:"transfer_id"`
		Address  string `json:"remote_bootstrap_addr"`
		EngineID string `json:"remote_engine_id"`
	}
	if !present(f.KVTransferParams) {
		return p, nil
	}
	if err := json.Unmarshal(f.KVTransferParams, &in); err != nil {
		return p, err
	}
	if (in.Prefill || in.Decode) && in.Transfer == "" {
		return p, fmt.Errorf("transfer_id is missing")
	}
	p.prefillLeg, p.decodeLeg, p.name = in.Prefill, in.Decode, in.Transfer
	if !in.Decode {
		return p, nil
	}
	u, err := url.Parse(in.Address)
	if err != nil || u.Scheme != "http" || in.EngineID == "" {
		return p, fmt.Errorf("remote_bootstrap_addr %q with remote_engine_id %q", in.Address, in.EngineID)
	}
	at, err := appointmentAt(u.Host, in.Transfer)
	if err != nil {
		return p, err
	}
	at.engineID = in.EngineID
	p.bootstraps = []*bootstrapRoom{at}
	return p, nil
}

// offloadParams nest the id under the name of the other party.
func offloadParams(f *requestFields) (p transferParams, err error) {
	var in struct {
		Decoder *struct {
			ID string `json:"kv_request_id"`
		} `json:"remote_decoder"`
		Prefiller *kvSource `json:"remote_prefiller"`
		Source    *kvSource `json:"remote_kv_source"`
	}
	if !present(f.KVTransferParams) {
		return p, nil
	}
	if err := json.Unmarshal(f.KVTransferParams, &in); err != nil {
		return p, err
	}
	if in.Decoder != nil {
		p.prefillLeg, p.name = true, in.Decoder.ID
		if p.name == "" {
			return p, fmt.Errorf("remote_decoder without kv_request_id")
		}
	}
	if in.Source != nil {
		if p.source, err = in.Source.bootstrapRoom(); err != nil {
			return p, err
		}
	}
	if in.Prefiller == nil {
		return p, nil
	}
	p.decodeLeg = true
	at, err := in.Prefiller.bootstrapRoom()
	p.bootstraps = []*bootstrapRoom{at}
	return p, err
}

// kvSource is where KV lies, and the name of the transfer.
type kvSource struct {
	ID   string `json:"kv_request_id"`
	Host string `json:"remote_host"`
	Port int    `json:"remote_port"`
}

func (s *kvSource) bootstrapRoom() (*bootstrapRoom, error) {
	return appointmentAt(net.JoinHostPort(s.Host, strconv.Itoa(s.Port)), s.ID)
}

var ncclID = regexp.MustCompile(`^___prefill_addr_(.+:\d+)___decode_addr_(.+:\d+)_[0-9a-f]+$`)

// ncclParams reads both addresses out of the request id; a request with a plain one
// takes part in no transfer. Prefill sends only to the address that its id names.
func ncclParams(x *exchange, role string) (p transferParams) {
	m := ncclID.FindStringSubmatch(x.id)
	if m == nil {
		return p
	}
	p.prefillLeg, p.decodeLeg, p.name, p.reader = role == RolePrefill, role == RoleDecode, x.id, m[2]
	if p.decodeLeg {
		at, err := appointmentAt(m[1], x.id)
		if err != nil {
			return transferParams{}
		}
		p.bootstraps = []*bootstrapRoom{at}
	}
	return p
}

func appointmentAt(hostPort, name string) (*bootstrapRoom, error) {
	host, text, err := net.SplitHostPort(hostPort)
	if err != nil {
		return nil, err
	}
	port, err := strconv.Atoi(text)
	if err != nil || host == "" || name == "" {
		return nil, fmt.Errorf("%q at %q is no transfer", name, hostPort)
	}
	return &bootstrapRoom{id: name, host: host, port: port}, nil
}
