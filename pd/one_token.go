package pd

// oneToken returns the body of a prefill leg of vLLM: the client's, cut to one token
// and one sample, without what belongs to the answer. What shapes the prompt (messages,
// tools, response format, adapter, media) stays byte for byte, so that both legs
// tokenise alike.
func oneToken(t *transfer, more ...Edit) Body {
	edits := []Edit{
		{"stream", []byte("false")},
		{Key: "stream_options"}, // refused without stream
		{Key: "min_tokens"},     // refused above max_tokens
		{Key: "min_completion_tokens"},
		{Key: "logprobs"}, // decode's business; saves work here
		{Key: "top_logprobs"},
		// It must end by length: vLLM keeps the blocks only then (nixl
		// scheduler.py, request_finished).
		{Key: "stop"},
		{Key: "stop_sequences"},
		{Key: "stop_token_ids"},
		{"ignore_eos", []byte("true")},
	}
	edits = append(edits, more...)
	if t.tokenIDs {
		edits = append(edits, Edit{"return_token_ids", []byte("true")})
	}
	for i, limit := range t.dialect.Limits() {
		if i == 0 || t.body.Get(limit) != nil {
			edits = append(edits, Edit{limit, []byte("1")})
		}
	}
	for _, samples := range []string{"n", "best_of"} {
		if t.body.Get(samples) != nil {
			edits = append(edits, Edit{samples, []byte("1")})
		}
	}
	return t.body.With(edits...)
}
