package connector

import (
	"strconv"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pools"
)

// First says what the token that prefill computes is for. The zero value: decode computes it
// again, and prefill's is thrown away.
type First struct {
	Wanted bool // it is the first token of the answer
	All    bool // it is all of the answer, and decode is not asked
	// Seed makes prefill and decode draw the same token, so that it does not depend on the
	// token which of them says it; 0: the token is not drawn, or the client's seed says how.
	Seed int64
}

// appendEdits appends what a prefill leg has in place of what makes its token of no use: it ends where
// the answer would.
func (f First) appendEdits(edits []api.Edit, t *Transfer) []api.Edit {
	edits = append(edits, api.Set(api.TokenIDsField, jsonTrue))
	for _, field := range [...]string{"ignore_eos", "stop_token_ids", "stop", "logprobs", "top_logprobs"} {
		edits = append(edits, api.Set(field, t.body.Get(field)))
	}
	if least, ok := t.body.Get("min_tokens").Int(); ok && least > 0 {
		edits = append(edits, api.Set("min_tokens", jsonOne)) // or a token that ends the answer may be drawn
	}
	if f.Seed != 0 {
		edits = append(edits, f.seed())
	}
	return edits
}

func (f First) seed() api.Edit { return api.Set("seed", strconv.AppendInt(nil, f.Seed, 10)) }

// SaysFirst reports whether decode can go on behind a token that prefill said. Proved is vLLM
// 0.32 with NIXL (loadtest/e2e/vllm).
func SaysFirst(from, to *pools.Server) bool { return MaySayFirst(from) && MaySayFirst(to) }

// MaySayFirst reports whether a server can do its part in that: as a prefill server it says the
// token, as a decode server it goes on behind it.
func MaySayFirst(s *pools.Server) bool {
	return Of(s) == nixl && s.IsVLLM(32) && s.ReportsTokenIDs()
}

// wholeBlocks are the KV blocks that a hand-off names, none where they are not those of one
// group that decode reads itself. With several groups, or where prefill
// writes, it is not known what decode makes of a longer prompt; and prefill of a model that
// keeps a state computes one token less than the prompt has (vllm nixl/base_scheduler.py,
// _truncate_request_for_prefill), so that its token is none of the answer.
func wholeBlocks(handoff api.Body) HandedBlocks {
	groups, n := handoff.Get("remote_block_ids"), 0
	blocks := 0
	for group := range groups.ElementsOf(handoff.Long()) {
		if n++; n > 1 || !group.IsArray() {
			return HandedBlocks{}
		}
		_, blocks = api.IDList(group)
	}
	if n == 0 || isPushed(handoff) {
		return HandedBlocks{}
	}
	return HandedBlocks{Blocks: blocks, Tokens: tokensIn(handoff)}
}

// isPushed reports a hand-off whose KV prefill writes.
func isPushed(handoff api.Body) bool {
	mode, _ := handoff.Get("transfer_mode").String()
	return mode == "push"
}

// tokensIn is how many tokens a hand-off says that its KV covers, 0 where it does not.
func tokensIn(handoff api.Body) int {
	n, _ := handoff.Get("remote_num_tokens").Int()
	return int(n)
}

// HandedBlocks are the KV blocks of a hand-off and the tokens in them. The zero value: not
// known, or not such that decode may go on behind them.
type HandedBlocks struct{ Blocks, Tokens int }

// GoOnBehind makes decode's leg the rest of the answer behind prefill's token: a request like the
// client's, whose prompt is the ids of the prompt and of that token. A chat has them in the
// transfer parameters, where vLLM reads them since 0.32 (vllm/renderers/online_renderer.py,
// _reused_prompt_token_ids), and stays a chat: its log-probabilities are a chat's, and what the
// engine's parsers do with text they do. limits are the fields that bound the answer, less the
// token.
func (h *Handoff) GoOnBehind(limits []api.Edit) {
	h.Leg = h.with(h.First.Sequence(), limits...)
	h.SharesIDs, h.goesOn = true, true
}

// GoesOn reports whether decode's leg is the rest of the answer behind prefill's token; with a
// nil hand-off it is not.
func (h *Handoff) GoesOn() bool { return h != nil && h.goesOn }

// SayFirst has decode say the first token after all: the one that prefill drew, by its seed.
func (h *Handoff) SayFirst(f First) {
	if f.Seed == 0 {
		h.Leg = h.with(h.prompt)
		return
	}
	h.Leg = h.with(h.prompt, f.seed())
}

// Usage is that of the whole answer where decode's leg is the rest of it: to decode the first
// token is one of the prompt.
func (h *Handoff) Usage(u api.Usage) api.Usage {
	if h.GoesOn() {
		u.Prompt.Tokens, u.Output.Tokens = max(0, u.Prompt.Tokens-1), u.Output.Tokens+1
	}
	return u
}

// Whole is the whole answer for the client, of which decode said all, or the rest where its leg is that; clean is what of
// it is for clients. Prefill's token ids are shown to a client that asked for them.
func (h *Handoff) Whole(d *api.Dialect, said *api.Answer, clean api.Body, showIDs bool) ([]byte, error) {
	if !h.GoesOn() {
		return said.As(clean), nil
	}
	return api.WithFirst(d, h.First, clean, showIDs)
}
