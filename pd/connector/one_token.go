package connector

import "github.com/tandem-gateway/tandem/pd/api"

// oneToken returns the body of a prefill leg of vLLM: the client's, cut to one token
// and one sample, without what belongs to the answer. What shapes the prompt (messages,
// tools, response format, adapter, media) stays byte for byte, so that both legs
// tokenise alike.
func oneToken(t *Transfer, more ...api.Edit) api.Body {
	edits := []api.Edit{
		api.Set("stream", []byte("false")),
		api.Remove("stream_options"), // refused without stream
		api.Remove("min_tokens"),     // refused above max_tokens
		api.Remove("min_completion_tokens"),
		api.Remove("logprobs"), // decode's business; saves work here
		api.Remove("top_logprobs"),
		// It must end by length: vLLM keeps the blocks only then (nixl
		// scheduler.py, request_finished).
		api.Remove("stop"),
		api.Remove("stop_sequences"),
		api.Remove("stop_token_ids"),
		api.Set("ignore_eos", []byte("true")),
	}
	edits = append(edits, more...)
	if t.TokenIDs {
		edits = append(edits, api.Set("return_token_ids", []byte("true")))
	}
	for i, limit := range t.dialect.Limits() {
		if i == 0 || t.body.Get(limit) != nil {
			edits = append(edits, api.Set(limit, []byte("1")))
		}
	}
	for _, samples := range []string{"n", "best_of"} {
		if t.body.Get(samples) != nil {
			edits = append(edits, api.Set(samples, []byte("1")))
		}
	}
	return t.body.With(edits...)
}
