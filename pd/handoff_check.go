package pd

import (
	"errors"
	"time"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/address"
)

var errForeignHost = errors.New("the hand-off names a host that is not known to be the server's")

// checkHost counts a hand-off that would have decode fetch KV from a host that is not the
// prefill server's, and warns of each such host once. Where hand-offs are strict decode is
// not given it, nor one with a host of which that is not known: the prefill has failed, for
// the request and not for the server's breaker.
func (o *Orchestrator) checkHost(st *requestState, t *connector.Transfer, h *connector.Handoff) *LegError {
	if h.WholeAnswer != nil {
		return nil // decode is not asked
	}
	server, strict := t.From, o.Config.StrictHandoffs
	worst, host := address.Own, ""
	for _, named := range h.Hosts { // all of them: each that is unknown is looked up
		if is := server.JudgeHost(named, t.To); is > worst {
			worst, host = is, named
		}
	}
	if worst == address.Own || worst == address.Unknown && !strict {
		return nil
	}
	o.Metrics.foreign.WithLabelValues(server.ID()).Inc()
	if server.RecordForeign(host) {
		o.warnOfHost(server, host, worst)
	}
	if !strict {
		return nil
	}
	o.Metrics.countStranded(h)
	o.recordNoHandoff(server)
	st.retryWithoutBudget = true
	return &LegError{Leg: PrefillLeg, Server: server.ID(), Kind: Broken, Err: errForeignHost}
}

func (o *Orchestrator) warnOfHost(server *pools.Server, host string, is address.Ownership) {
	text := "hand-offs name a host that is neither the prefill server's nor that of its kv-address: decode fetches the KV from another machine, or fails; " +
		"set the engine's own host there (vLLM: VLLM_NIXL_SIDE_CHANNEL_HOST), or the server's kv-address"
	if is == address.Unknown {
		text = "a hand-off names a host that is not known to be the prefill server's: it is withheld until the host is looked up and found to be; " +
			"set the engine's own host there (vLLM: VLLM_NIXL_SIDE_CHANNEL_HOST), or the server's kv-address"
	}
	o.Log.Warn(text, "server", server.ID(), "host", host, "withheld", o.Config.StrictHandoffs)
}

// Both legs must make the same tokens of a prompt: a decode that finds more KV blocks in it
// than prefill handed over ends vLLM's engine (assert num_decode_blocks <=
// len(prefill_group), nixl/base_worker.py). Another template, tokenizer or version on one
// side does that. So decode is given prefill's own tokens where its API has a place for
// them, and else the two counts are compared where they are known.

// errPromptMismatch keeps a hand-off from a decode server whose engine it would end.
var errPromptMismatch = errors.New("its prompt has more KV blocks than prefill handed over: do both servers have the same chat template and tokenizer?")

// hasMoreBlocks reports whether a prompt of so many tokens on decode has more KV blocks than one
// of so many on prefill, full ones or all, whichever the engines hand over. 0 is unknown.
func hasMoreBlocks(decode, prefill, blockTokens int) bool {
	if decode == 0 || prefill == 0 || blockTokens == 0 {
		return false
	}
	return decode/blockTokens > prefill/blockTokens || (decode+blockTokens-1)/blockTokens > (prefill+blockTokens-1)/blockTokens
}

// blockTokens is the size of a KV block on both servers of a pair, 0 where they differ or
// do not report it.
func blockTokens(from, to *pools.Server) int {
	if n := from.BlockTokens(); n == to.BlockTokens() {
		return n
	}
	return 0
}

// truncatesByAnswer reports whether the engine cuts the prompt to a length that depends on
// whether the answer is bounded: prefill's always is, so that the legs would disagree
// (vllm/renderers/params.py, max_truncation_tokens).
func truncatesByAnswer(req *Request) bool {
	if most, ok := req.Body.Get("truncate_prompt_tokens").Int(); ok && most < 0 {
		return true
	}
	if req.Dialect != api.Responses {
		return false
	}
	how, _ := req.Body.Get("truncation").String()
	return how != "" && how != "disabled"
}

// failsAtOneToken reports whether engines that let decode run alone fail a prefill leg for its one token:
// vLLM reads the arguments of a call in a whole message as JSON, which the first token of a call that
// the client wants by its name is not (0.32, entrypoints/anthropic/serving.py, messages_full_converter).
func failsAtOneToken(req *Request) bool {
	if req.Dialect != api.Messages {
		return false
	}
	choice, _ := req.Body.Get("tool_choice").Object()
	kind, _ := choice.Get("type").String()
	return kind == "tool"
}

// checkLength keeps a hand-off from decode where the prompt is known to be too long for it
// there. Decode runs alone then, on whichever server is best for that, and no server is
// to blame.
func (o *Orchestrator) checkLength(st *requestState, b *binding, t *connector.Transfer) *LegError {
	prefill, tokens := b.handoff.Coverage().Prompt, st.bind.prefix.promptTokens()
	if st.bind.prefix.isClaimed() {
		return nil // where it differs the gateway is wrong, and not decode
	}
	if !b.handoff.HasKV() || b.handoff.SharesIDs || !hasMoreBlocks(tokens, prefill, blockTokens(t.From, t.To)) {
		return nil
	}
	o.Metrics.mismatches.WithLabelValues(t.To.ID()).Inc()
	if prompts := o.differences.Add(t.To.ID(), time.Now()); prompts > 0 {
		o.Log.Warn("prefill and decode tokenise a prompt differently, it is not handed over", "request_id", st.req.ID,
			"prefill", t.From.ID(), "decode", t.To.ID(), "prefill_tokens", prefill, "decode_tokens", tokens, "prompts", prompts)
	}
	o.Metrics.countStranded(b.handoff)
	b.releaseDecode()
	st.retryWithoutBudget = true
	return &LegError{Leg: DecodeLeg, Server: t.To.ID(), Kind: Broken, Err: errPromptMismatch}
}

// compareCounts warns where decode counted other tokens in a prompt than prefill: the KV
// that it was given is not its prompt's, though its blocks sufficed. Behind prefill's token an equal count shows that
// decode has read the ids that it was given, which that token is one of, and not the messages.
func (o *Orchestrator) compareCounts(st *requestState, b *binding, decode api.Usage) {
	if b.handoff == nil || !decode.Prompt.Known {
		return
	}
	prefill := b.handoff.Coverage().Prompt
	if !b.handoff.HasKV() || prefill == 0 {
		return
	}
	if prefill == decode.Prompt.Tokens {
		if b.handoff.GoesOn() && st.req.Dialect == api.Chat {
			b.decode.Server().RecordReadsPromptIDs()
		}
		return
	}
	o.Metrics.mismatches.WithLabelValues(b.decode.Server().ID()).Inc()
	if prompts := o.differences.Add(b.decode.Server().ID(), time.Now()); prompts > 0 {
		o.Log.Warn("prefill and decode tokenise a prompt differently, its answer was made from other tokens", "request_id", st.req.ID,
			"prefill", b.handoff.From.ID(), "decode", b.decode.Server().ID(), "prefill_tokens", prefill, "decode_tokens", decode.Prompt.Tokens, "prompts", prompts)
	}
}
