package pd

import (
	"fmt"
	"slices"

	"github.com/tandem-gateway/tandem/kvstate/tokens"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pools"
)

// ContextLengthError says that a prompt and its answer are longer than the model's context.
type ContextLengthError struct {
	Dialect *api.Dialect
	Longest int    // context of the model, in tokens
	Prompt  int    // tokens
	Output  int    // tokens that are asked for; 0: the prompt alone is too long
	Field   string // that bounds the answer; "" where the prompt alone is too long
}

func (e *ContextLengthError) Error() string {
	if e.Output == 0 {
		return fmt.Sprintf("This model's maximum context length is %d tokens. However, your prompt has %d. Please shorten it.", e.Longest, e.Prompt)
	}
	return fmt.Sprintf("This model's maximum context length is %d tokens. However, you requested %d tokens (%d in the prompt, %d in the completion). Please reduce the length of the prompt or completion.",
		e.Longest, e.Prompt+e.Output, e.Prompt, e.Output)
}

// checkContext refuses what every decode server is certain to refuse for its length. Prefill, cut to
// one token, would accept it and compute the whole prompt for nothing. Where that is not certain it
// is the engine's to say; so it is where decode runs alone, since it refuses before it computes.
func (o *Orchestrator) checkContext(st *requestState) error {
	prompt := st.exactPrompt()
	if prompt == 0 || st.bind.continues || st.client.Aggregated || !st.client.Body.Get("truncate_prompt_tokens").Null() {
		return nil
	}
	longest := o.Fleet.LongestContext(st.bind.base)
	output, field := st.client.bound()
	if longest == 0 || prompt+max(1, output) <= longest {
		return nil
	}
	engines := o.decodeEngines(st.bind.base)
	if slices.ContainsFunc(engines, func(e pools.Identity) bool { return e.Engine != "vllm" }) {
		return nil // SGLang may be set to cut what does not fit, and TensorRT-LLM cuts the answer
	}
	if prompt < longest {
		// Since 0.32 vLLM gives as much as there is room for; of a response it always did.
		if st.client.Dialect == api.Responses || slices.ContainsFunc(engines, func(e pools.Identity) bool { return !e.IsBefore(0, 32) }) {
			return nil
		}
		return &ContextLengthError{Dialect: st.client.Dialect, Longest: longest, Prompt: prompt, Output: output, Field: field}
	}
	return &ContextLengthError{Dialect: st.client.Dialect, Longest: longest, Prompt: prompt}
}

// decodeEngines are the engines of a base model's decode servers.
func (o *Orchestrator) decodeEngines(base string) (engines []pools.Identity) {
	for _, s := range o.Fleet.Servers() {
		if s.Role.Serves(pools.Decode) && s.Health().Serves(base) {
			engines = append(engines, s.Identity())
		}
	}
	return engines
}

// exactPrompt is how many tokens the prompt has, by what the client or an engine said of this very
// prompt; 0 where that is not known.
func (st *requestState) exactPrompt() int {
	if st.client.PromptIsIDs {
		return st.client.PromptTokens
	}
	p := st.bind.prefix
	if p == nil || p.isClaimed() || p.tokens.Mode == tokens.Approximate || p.tokens.By == tokens.ByTokenize { // which applies the template to gpt-oss too
		return 0
	}
	return p.promptTokens()
}
