package connector

import (
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pools"
)

// nixl is vLLM's NixlConnector: prefill returns where its blocks are, and decode reads
// them from there; or, with the NixlPushConnector, registers there and is written to.
// The hand-off tells which of the two it is.
var nixl = &Connector{Engine: "vllm", Pairs: true, Aggregated: true, Pulls: true, Prefill: nixlPrefill, decode: nixlDecode, CanPull: hasOffloadTier}

// hasOffloadTier reports an engine that has, beside NIXL, an OffloadingConnector with a
// P2P tier (vLLM's MultiConnector): such a server's address for KV is that of the tier,
// since NIXL's own is in the hand-off.
func hasOffloadTier(s *pools.Server) bool { return s.KVAddress != "" }

// prefillParams asks a vLLM with the NIXL connector to keep the blocks of the
// prompt for a remote decode (vllm tests/v1/kv_connector/nixl_integration).
const prefillParams = `"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null`

// nixlPrefill also says where the prompt's beginning may be pulled from: whichever of the
// engine's connectors can load takes its part of the fields (llm-d-router
// pkg/sidecar/proxy, --enable-p2p-pull).
func nixlPrefill(t *Transfer) LegRequest {
	if t.Answer != nil {
		edits := []api.Edit{api.Set(api.HandoffField, t.Answer.params(t.dialect).Bytes())}
		if t.dialect == api.Completions {
			edits = append(edits, api.Set("prompt", idList(t.Answer.IDs)))
		}
		return LegRequest{Body: oneToken(t, edits...)}
	}
	if t.First.All && t.Source == nil { // nothing is handed over
		return LegRequest{Body: oneToken(t)}
	}
	params := keepsBlocks
	if t.Source != nil {
		params = []byte("{" + prefillParams + "," + kvSource(t.Source) + "}")
	}
	return LegRequest{Body: oneToken(t, api.Set(api.HandoffField, params))}
}

var keepsBlocks = []byte("{" + prefillParams + "}")

// nixlDecode gives decode the hand-off as prefill returned it, but for prefill's cache
// hits: told of them, decode reports them as its own, whether the KV came or not (vllm
// v1/engine/output_processor.py, seen on 0.32). With it come prefill's token ids, where
// decode takes them (sharesIDs). When prefill pushes, it looks the blocks
// up by the request id (vllm nixl/push_scheduler.py), and decode must not be told of them.
func nixlDecode(t *Transfer, answer api.Answer) decodeLeg {
	object, ok := answer.Object(api.HandoffField)
	if !ok {
		return decodeLeg{request: t.legWith(), with: func(_ [][]byte, fields ...api.Edit) LegRequest { return t.legWith(fields...) }}
	}
	var blocks HandedBlocks
	if t.First.Wanted {
		blocks = wholeBlocks(object)
	}
	if object.Get("remote_prefill_cached_tokens") != nil { // a hand-off that is not edited is copied once less
		object = object.With(api.Remove("remote_prefill_cached_tokens"))
	}
	var more []api.Edit
	if isPushed(object) {
		object = object.With(api.Remove("remote_block_ids"))
		if id := answer.Get("id"); t.dialect == api.Responses && len(id) > 0 && id[0] == '"' {
			// Its request id is no header's: a response names it in its body, and is named by it
			// (entrypoints/openai/responses/protocol.py 0.32, request_id).
			more = append(more, api.Set("request_id", id))
		}
	}
	leg := decodeLeg{hasKV: true, blocks: blocks, tokens: tokensIn(object), hosts: hostsIn(object.Get("remote_host"))}
	if t.sharesIDs {
		if ids := answer.PromptIDs(); ids != nil {
			leg.prompt = [][]byte{ids}
		}
	}
	if t.First.Wanted {
		leg.with = nixlDecodeWith(t, object, more)
	} else {
		leg.request = t.nixlDecode(object, leg.prompt, more)
	}
	return leg
}

// nixlDecodeWith is decodeLeg.with for a hand-off.
func nixlDecodeWith(t *Transfer, handoff api.Body, more []api.Edit) func([][]byte, ...api.Edit) LegRequest {
	return func(prompt [][]byte, fields ...api.Edit) LegRequest {
		return t.nixlDecode(handoff, prompt, more, fields...)
	}
}

// nixlDecode is decode's request with a hand-off, and with a prompt as decodeLeg has it. more and fields are further fields.
func (t *Transfer) nixlDecode(handoff api.Body, prompt [][]byte, more []api.Edit, fields ...api.Edit) LegRequest {
	var room [8]api.Edit
	edits := append(append(room[:0], more...), fields...)
	switch {
	case prompt == nil:
	case t.dialect == api.Completions:
		edits = append(edits, api.SetParts("prompt", prompt...))
	default:
		handoff = handoff.With(api.SetParts("prompt_token_ids", prompt...))
		if t.To.ReadsPromptIDs() && !readsMessages(t.body) {
			edits = append(edits, api.Set("messages", noMessages))
		}
	}
	return t.legWith(append(edits, api.SetBody(api.HandoffField, handoff))...)
}
