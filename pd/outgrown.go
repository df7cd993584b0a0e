package pd

import (
	"errors"
	"strconv"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pools"
)

// Both legs must make the same tokens of a prompt: a decode that finds more KV blocks in it
// than prefill handed over ends vLLM's engine (assert num_decode_blocks <=
// len(prefill_group), nixl/base_worker.py). Another template, tokenizer or version on one
// side does that. So decode is given prefill's own tokens where its API has a place for
// them, and else the two counts are compared where they are known.

// errOutgrown keeps a hand-off from a decode server whose engine it would end.
var errOutgrown = errors.New("its prompt has more KV blocks than prefill handed over: do both servers have the same chat template and tokenizer?")

// outgrows reports whether a prompt of so many tokens on decode has more KV blocks than one
// of so many on prefill, full ones or all, whichever the engines hand over. 0 is unknown.
func outgrows(decode, prefill, blockTokens int) bool {
	if decode == 0 || prefill == 0 || blockTokens == 0 {
		return false
	}
	return decode/blockTokens > prefill/blockTokens || (decode+blockTokens-1)/blockTokens > (prefill+blockTokens-1)/blockTokens
}

// blockTokens is the size of a KV block on both servers of a pair, 0 where they differ or
// do not tell.
func blockTokens(from, to *pools.Server) int {
	told := to.Identity().BlockTokens
	if n, err := strconv.Atoi(told); err == nil && told == from.Identity().BlockTokens {
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
	how, _ := req.Body.Get("truncation").String()
	return req.Dialect == api.Responses && how != "" && how != "disabled"
}

// outgrown keeps a hand-off from decode where the prompt is known to be too long for it
// there. The request runs alone then, on whichever server is best for that, and nobody is
// to blame.
func (o *Orchestrator) outgrown(st *requestState, b *binding, t *connector.Transfer) *LegError {
	prefill, tokens := b.handoff.Coverage().Prompt, st.bind.prefix.promptTokens()
	if !b.handoff.HasKV() || b.handoff.SharesIDs || !outgrows(tokens, prefill, blockTokens(t.From, t.To)) {
		return nil
	}
	o.Metrics.mismatches.WithLabelValues(t.To.ID()).Inc()
	o.Log.Warn("prefill and decode tokenise a prompt differently, it is not handed over", "request_id", st.req.ID,
		"prefill", t.From.ID(), "decode", t.To.ID(), "prefill_tokens", prefill, "decode_tokens", tokens)
	o.Metrics.countStranded(b.handoff)
	b.decode.Release()
	st.retryWithoutBudget = true
	return &LegError{Leg: DecodeLeg, Server: t.To.ID(), Kind: Broken, Err: errOutgrown}
}

// compareCounts tells that decode counted other tokens in a prompt than prefill: the KV
// that it was given is not its prompt's, though its blocks sufficed.
func (o *Orchestrator) compareCounts(st *requestState, b *binding, decode api.Usage) {
	if b.handoff == nil || !decode.Prompt.Known {
		return
	}
	prefill := b.handoff.Coverage().Prompt
	if !b.handoff.HasKV() || prefill == 0 || prefill == decode.Prompt.Tokens {
		return
	}
	o.Metrics.mismatches.WithLabelValues(b.decode.Server().ID()).Inc()
	o.Log.Warn("prefill and decode tokenise a prompt differently, its answer was made from other tokens", "request_id", st.req.ID,
		"prefill", b.handoff.From.ID(), "decode", b.decode.Server().ID(), "prefill_tokens", prefill, "decode_tokens", decode.Prompt.Tokens)
}
