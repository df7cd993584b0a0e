package connector

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/pd/api"
)

// disaggregatedField carries the hand-off of TensorRT-LLM.
const disaggregatedField = "disaggregated_params"

// leastDisaggID is the least id that does not collide with those of the engine's own
// (tensorrt_llm/serve/openai_disagg_service.py).
const leastDisaggID = 1 << 42

// trtllm is TensorRT-LLM, context first: the context server computes the prompt and the
// first token, and says where its KV is; the generation server fetches it and repeats
// that token. An answer that is over with its first token needs no generation
// (tensorrt_llm/serve/openai_disagg_service.py, openai_protocol.py).
var trtllm = &Connector{
	Engine: "trtllm", Pairs: true, Aggregated: true, Dialects: []*api.Dialect{api.Chat, api.Completions},
	Prefill: func(t *Transfer) LegRequest {
		params := fmt.Sprintf(`{"request_type":"context_only","disagg_request_id":%s}`, t.disaggID())
		return t.legWith(
			api.Set("stream", []byte("false")), api.Remove("stream_options"),
			api.Set(disaggregatedField, []byte(params)),
		)
	},
	Verify:      trtllmVerify,
	decode:      trtllmGeneration,
	wholeAnswer: trtllmWholeAnswer,
}

// disaggID names the request to both servers.
func (t *Transfer) disaggID() []byte {
	return strconv.AppendInt(nil, t.bootstrapRooms[0]|leastDisaggID, 10)
}

var errNoContextID = errors.New("the context's answer has no ctx_request_id")

// trtllmVerify refuses what generation could not fetch KV by, as the engine's own router
// does (openai_disagg_service.py, _verify_ctx_response). An answer that is over needs none.
func trtllmVerify(answer api.Answer) error {
	if trtllmOver(answer) || trtllmParams(answer).Get("ctx_request_id").Type == gjson.Number {
		return nil
	}
	return errNoContextID
}

// trtllmOver reports whether the context's answer is the whole answer.
func trtllmOver(answer api.Answer) bool {
	switch gjson.GetBytes(answer.Bytes(), "choices.0.finish_reason").String() {
	case "", "length", "not_finished":
		return false
	}
	return true
}

// trtllmParams are what the context says for generation, in its choice or at the top.
func trtllmParams(answer api.Answer) gjson.Result {
	if params := gjson.GetBytes(answer.Bytes(), "choices.0."+disaggregatedField); params.IsObject() {
		return params
	}
	return gjson.GetBytes(answer.Bytes(), disaggregatedField)
}

// trtllmGeneration hands the context's parameters over, and its token ids in place of
// the prompt, which is not tokenised again.
func trtllmGeneration(t *Transfer, answer api.Answer) decodeLeg {
	params, ok := api.Value(bytes.Clone([]byte(trtllmParams(answer).Raw))).Object()
	if !ok {
		return decodeLeg{request: t.legWith()}
	}
	change := []api.Edit{api.Set("request_type", []byte(`"generation_only"`)), api.Set("disagg_request_id", t.disaggID())}
	if usage := answer.Get("usage"); usage.IsObject() {
		change = append(change, api.Set("ctx_usage", usage))
	}
	edits := []api.Edit{api.Set(disaggregatedField, params.With(change...).Bytes())}
	if ids := answer.Get("prompt_token_ids"); ids.IsArray() {
		field := "prompt_token_ids"
		if t.dialect == api.Completions {
			field = "prompt"
		}
		edits = append(edits, api.Set(field, ids))
	}
	leg := t.legWith(edits...)
	if signature := t.signature(trtllmParams(answer)); signature != "" {
		leg.Header = http.Header{"X-Trtllm-Disagg-Auth": {signature}}
	}
	return decodeLeg{request: leg, hasKV: true, hosts: hostsIn(params.Get("ctx_info_endpoint"))}
}

// signature is what a generation server that shares a key with its router asks for with what could have it call other
// hosts; "" where nothing of that is handed over, or there is no key. It is over the JSON that Python writes of both
// fields, null where one is not there (tensorrt_llm/serve/disagg_auth.py, main since #16002 of July 2026).
func (t *Transfer) signature(params gjson.Result) string {
	endpoint, state := params.Get("ctx_info_endpoint"), params.Get("encoded_opaque_state")
	if endpoint.IsArray() {
		endpoint = endpoint.Get("0") // as it signs a list
	}
	if t.HandoffKey == "" || endpoint.Type != gjson.String && state.Type != gjson.String {
		return ""
	}
	mac := hmac.New(sha256.New, []byte(t.HandoffKey))
	_, _ = fmt.Fprintf(mac, `{"ctx_info_endpoint":%s,"encoded_opaque_state":%s}`, textOrNull(endpoint), textOrNull(state))
	return fmt.Sprintf("sha256=%x", mac.Sum(nil))
}

// textOrNull is the JSON of a text of ASCII.
func textOrNull(value gjson.Result) []byte {
	if value.Type != gjson.String {
		return []byte("null")
	}
	return quoted(value.String())
}

// trtllmWholeAnswer returns the context's answer, cleaned, when it is the whole answer; nil
// when generation has to follow.
func trtllmWholeAnswer(t *Transfer, answer api.Answer) []byte {
	if !trtllmOver(answer) {
		return nil
	}
	body := answer.Body()
	choices, _ := body.Get("choices").Array()
	for i, choice := range choices {
		if object, ok := choice.Object(); ok {
			choices[i] = object.With(api.Remove(disaggregatedField)).Bytes()
		}
	}
	edits := []api.Edit{api.Set("choices", api.List(choices)), api.Remove(disaggregatedField)}
	if !api.AsksForIDs(t.body) {
		edits = append(edits, api.Remove("prompt_token_ids"))
	}
	return body.With(edits...).Bytes()
}
