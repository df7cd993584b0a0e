package transcript

import "github.com/tandem-gateway/tandem/pd/api"

// Engine is what has to be known of the engine that a stream comes from.
type Engine struct {
	Name string // vllm, sglang, trtllm; "" where it is not known
	// MayReportIDs: it was not seen to ignore the wish for token ids.
	MayReportIDs bool
}

// reportsTokenIDs reports whether a stream of the engine may be asked for token ids. vLLM
// reports them since 0.10.2 (#22587) and ignores the wish before; so does SGLang, which
// reports them in streams of completions only and refuses the wish in those of chat
// (#30917). TensorRT-LLM refuses every field that it does not know (#9709), and so may
// an engine that is not known.
func (e Engine) reportsTokenIDs(d *api.Dialect) bool {
	return (e.Name == "vllm" || e.Name == "sglang" && d == api.Completions) && e.MayReportIDs
}

// continuesText reports whether the engine continues the last message of a chat.
// vLLM refuses add_generation_prompt, its default, beside that wish; SGLang takes the
// message off and puts its text behind the prompt, whatever that field says.
func (e Engine) continuesText() bool { return e.Name == "vllm" || e.Name == "sglang" }
