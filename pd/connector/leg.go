package connector

import (
	"encoding/json"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pools"
)

// LegRequest is what an engine is sent for one leg.
type LegRequest struct {
	Body   api.Body
	Header http.Header // besides the client's; nil: none
}

// decodeLeg is what prefill's answer means for decode.
type decodeLeg struct {
	request LegRequest
	// hasKV: prefill holds the KV for decode. That it does not is a normal case.
	hasKV  bool
	tokens int      // of the prompt that the KV covers; 0: as many as prefill reports
	prompt [][]byte // prefill's token ids, which decode is given: a JSON list in parts; nil: decode makes its own
	blocks HandedBlocks
	// with is the request with such a prompt and further fields, where that depends on prefill's token; nil: it is request.
	with func(prompt [][]byte, fields ...api.Edit) LegRequest
	// hosts are those from which decode fetches the KV, where prefill's answer names them.
	// nil: the leg names the server's own.
	hosts []string
}

// legWith is a leg with the client's body and edits.
func (t *Transfer) legWith(edits ...api.Edit) LegRequest {
	return LegRequest{Body: t.body.With(edits...)}
}

// oneToken returns the body of a prefill leg of vLLM: the client's, cut to one token
// and one sample, without what belongs to the answer. What shapes the prompt (messages,
// tools, response format, adapter, media) stays byte for byte, so that both legs
// tokenise alike.
func oneToken(t *Transfer, more ...api.Edit) api.Body {
	var room [32]api.Edit
	edits := append(room[:0],
		api.Set("stream", jsonFalse),
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
		api.Set("ignore_eos", jsonTrue),
	)
	edits = append(edits, more...)
	if t.TokenIDs {
		field := api.TokenIDsField
		if t.dialect == api.Responses { // its request has no such field
			field = "enable_response_messages"
		}
		edits = append(edits, api.Set(field, jsonTrue))
	}
	for i, limit := range t.dialect.Limits() {
		if i == 0 || t.body.Get(limit) != nil {
			edits = append(edits, api.Set(limit, jsonOne))
		}
	}
	for _, samples := range []string{"n", "best_of"} {
		if t.body.Get(samples) != nil {
			edits = append(edits, api.Set(samples, jsonOne))
		}
	}
	if t.First.Wanted {
		edits = t.First.appendEdits(edits, t)
	}
	return t.body.With(edits...)
}

// Values of fields, which nobody changes.
var jsonTrue, jsonFalse, jsonOne = []byte("true"), []byte("false"), []byte("1")

// kvAddress is where other engines reach the KV of a server, at the connector's usual port if
// it has no other.
func kvAddress(s *pools.Server, usual int) string {
	host, port := s.KVHostPort(usual)
	return net.JoinHostPort(host, strconv.Itoa(port))
}

// quoted is a JSON string.
func quoted(s string) []byte {
	if strings.ContainsFunc(s, func(c rune) bool { return c <= ' ' || c >= 0x7f || strings.ContainsRune(`"\<>&`, c) }) {
		text, _ := json.Marshal(s) // a string always marshals
		return text
	}
	return append(append(append(make([]byte, 0, len(s)+2), '"'), s...), '"')
}

// number is a JSON number.
func number(n int) []byte { return strconv.AppendInt(nil, int64(n), 10) }
