package connector

import (
	"testing"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/pd/api"
)

func TestTRTLLM_AContextsAnswerNamesItsRequest(t *testing.T) {
	for name, test := range map[string]struct {
		answer string
		good   bool
	}{
		"in the choice":   {`{"choices":[{"finish_reason":"length","disaggregated_params":{"ctx_request_id":7}}]}`, true},
		"at the top":      {`{"choices":[{"finish_reason":"not_finished"}],"disaggregated_params":{"ctx_request_id":7}}`, true},
		"none":            {`{"choices":[{"finish_reason":"length","disaggregated_params":{"disagg_request_id":7}}]}`, false},
		"null":            {`{"choices":[{"finish_reason":"length","disaggregated_params":{"ctx_request_id":null}}]}`, false},
		"no params":       {`{"choices":[{"finish_reason":"length"}]}`, false},
		"over, no params": {`{"choices":[{"finish_reason":"stop"}]}`, true},
	} {
		if err := trtllmVerify(answered(t, api.Chat, test.answer)); (err == nil) != test.good {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Generation is named the request as the context was, whatever the context repeats.
func TestTRTLLM_GenerationHasTheContextsID(t *testing.T) {
	body, err := api.ParseBody([]byte(`{"model":"m","messages":[]}`))
	if err != nil {
		t.Fatal(err)
	}
	leg := &Transfer{dialect: api.Chat, body: body, bootstrapRooms: []int64{5}}
	sent := gjson.GetBytes(trtllm.Prefill(leg).Body.Bytes(), "disaggregated_params.disagg_request_id").Int()
	for _, repeated := range []string{`"disagg_request_id":null,`, `"disagg_request_id":9,`, ``} {
		got := trtllm.decode(leg, answered(t, leg.dialect, `{"choices":[{"disaggregated_params":{`+repeated+`"ctx_request_id":7}}]}`))
		params := gjson.GetBytes(got.request.Body.Bytes(), "disaggregated_params")
		if id := params.Get("disagg_request_id").Int(); !got.hasKV || id != sent || id != leastDisaggID+5 || params.Get("ctx_request_id").Int() != 7 {
			t.Errorf("%q: %s, and the context was sent %d", repeated, params.Raw, sent)
		}
	}
}

// The signatures are those that Python's hmac and json write for these fields.
func TestTRTLLM_SignsWhatCouldReachOtherHosts(t *testing.T) {
	body, err := api.ParseBody([]byte(`{"model":"m","messages":[]}`))
	if err != nil {
		t.Fatal(err)
	}
	for params, want := range map[string]string{
		`"ctx_info_endpoint":"tcp://10.0.0.1:5000","encoded_opaque_state":"b3BhcXVl+/="`:                         "sha256=687a3376e25cc77a6bb9c64ec0471cd120ad1465056c4459e55bd96a6e2dfddc",
		`"ctx_info_endpoint":null,"encoded_opaque_state":"b3BhcXVl+\/="`:                                         "sha256=398bddca6820d1c9ffe63d6251c58729a8c40408e69be0c6757a3571bbf74f6a",
		`"encoded_opaque_state":"b3BhcXVl+/="`:                                                                   "sha256=398bddca6820d1c9ffe63d6251c58729a8c40408e69be0c6757a3571bbf74f6a",
		`"ctx_info_endpoint":["tcp://10.0.0.1:5000","tcp://10.0.0.2:5000"],"encoded_opaque_state":"b3BhcXVl+/="`: "sha256=687a3376e25cc77a6bb9c64ec0471cd120ad1465056c4459e55bd96a6e2dfddc",
		`"ctx_info_endpoint":null`: "",
	} {
		answer := answered(t, api.Chat, `{"choices":[{"disaggregated_params":{`+params+`,"ctx_request_id":7}}]}`)
		for key, want := range map[string]string{"secret": want, "": ""} {
			leg := &Transfer{dialect: api.Chat, body: body, bootstrapRooms: []int64{5}, HandoffKey: key}
			if got := trtllm.decode(leg, answer).request.Header.Get("X-Trtllm-Disagg-Auth"); got != want {
				t.Errorf("%s with the key %q: %q", params, key, got)
			}
		}
	}
}
