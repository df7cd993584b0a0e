package pd

import (
	"bytes"
	"errors"
	"time"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/pools"
)

// handoffField carries the hand-off in requests and answers of vLLM.
const handoffField = "kv_transfer_params"

// prefillParams asks a vLLM with the NIXL connector to keep the blocks of the
// prompt for a remote decode (vllm tests/v1/kv_connector/nixl_integration).
const prefillParams = `{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`

// Handoff is what prefill returns so that decode can fetch the KV. It is used
// once, never past its age: the prefill server holds the blocks on a lease, and
// after a read they are gone.
type Handoff struct {
	From    *pools.Server // that prefilled
	Params  []byte        // verbatim; nil when prefill kept nothing, a normal case
	Tokens  int           // prompt tokens that it covers
	Cached  Count         // of them, cached on the prefill server
	Created time.Time
	Attempt string // the request id that prefill saw, and decode must too
}

// nixlPrefill returns the body of the prefill leg: the client's, cut to one
// token and one sample, without what belongs to the answer. What shapes the
// prompt (messages, tools, response format, adapter, media) stays byte for byte,
// so that both legs tokenise alike. tokenIDs asks for the prompt's token ids.
func nixlPrefill(req *Request, tokenIDs bool) []byte {
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
		{handoffField, []byte(prefillParams)},
	}
	if tokenIDs {
		edits = append(edits, Edit{"return_token_ids", []byte("true")})
	}
	for i, limit := range req.Dialect.limits {
		if i == 0 || req.Body.Get(limit) != nil {
			edits = append(edits, Edit{limit, []byte("1")})
		}
	}
	for _, samples := range []string{"n", "best_of"} {
		if req.Body.Get(samples) != nil {
			edits = append(edits, Edit{samples, []byte("1")})
		}
	}
	return req.Body.With(edits...).Bytes()
}

// nixlHandoff reads the answer of a prefill server.
func nixlHandoff(d *Dialect, from *pools.Server, answer []byte, now time.Time) (Handoff, error) {
	scan := scanner{raw: answer}
	if scan.next() != '{' || scan.document() != nil {
		return Handoff{}, errors.New("prefill's answer is no JSON object")
	}
	h := Handoff{From: from, Created: now}
	if usage, ok := d.readUsage(answer); ok {
		h.Tokens, h.Cached = usage.Prompt.Tokens, usage.Cached
	}
	params := gjson.GetBytes(answer, handoffField)
	if params.IsObject() {
		h.Params = bytes.Clone([]byte(params.Raw))
		if n := params.Get("remote_num_tokens"); n.Type == gjson.Number {
			h.Tokens = int(n.Int())
		}
	}
	return h, nil
}

// nixlDecode returns the body of the decode leg: the client's own, with the
// hand-off as prefill gave it.
func nixlDecode(req *Request, h Handoff) []byte {
	if h.Params == nil {
		return req.Body.Bytes()
	}
	return req.Body.With(Edit{handoffField, h.Params}).Bytes()
}
