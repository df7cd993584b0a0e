package connector

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pools"
)

func TestNIXL_PrefillBody(t *testing.T) {
	body, err := api.ParseBody([]byte(`{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true,"stream_options":{"include_usage":true},"max_completion_tokens":50,"min_tokens":5,"n":1,"stop":["x"],"logprobs":true,"top_logprobs":3,"tools":[{"type":"function"}],"response_format":{"type":"json_object"},"temperature":0.7,"seed":9007199254740993}`))
	if err != nil {
		t.Fatal(err)
	}
	got := nixlPrefill(&Transfer{dialect: api.Chat, body: body}).Body.Bytes()
	want := `{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":false,"max_completion_tokens":1,"n":1,` +
		`"tools":[{"type":"function"}],"response_format":{"type":"json_object"},"temperature":0.7,"seed":9007199254740993,` +
		`"ignore_eos":true,"kv_transfer_params":{` + prefillParams + `},"max_tokens":1}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// Decode gets what prefill said to the byte, but for prefill's cache hits, which it would
// report in place of its own.
func TestNIXL_HandoffIsVerbatimButForPrefillsCacheHits(t *testing.T) {
	params := `{"do_remote_prefill":true,"remote_block_ids":[[1,2],[3]],"remote_host":"10.0.0.1","remote_port":5600,"n":9007199254740993,"s":["DUMMY"],"remote_num_tokens":48`
	answer := `{"id":"x","usage":{"prompt_tokens":48,"prompt_tokens_details":{"cached_tokens":16}},"kv_transfer_params":` + params + `,"remote_prefill_cached_tokens":16}}`
	body, _ := api.ParseBody([]byte(`{"model":"m","stream":true}`))
	tr := &Transfer{dialect: api.Chat, body: body, To: &pools.Server{Spec: pools.Spec{Connector: "nixl"}}}
	h := tr.Handoff()
	h.RecordPrefill(tr, answered(t, tr.dialect, answer), time.Now())
	if told := h.Coverage(); !h.Kept || !reflect.DeepEqual(told, Coverage{48, 48, api.Count{Tokens: 16, Known: true}, api.Value(`{"prompt_tokens":48,"prompt_tokens_details":{"cached_tokens":16}}`)}) {
		t.Errorf("got %+v of %v", told, h.Kept)
	}
	if got, want := string(h.Leg.Body.Bytes()), `{"model":"m","stream":true,"kv_transfer_params":`+params+`}}`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// Decode's leg has memory of its own: prefill's answer may be as long as the prompt.
func TestNIXL_TheLegHoldsNothingOfTheAnswer(t *testing.T) {
	body, _ := api.ParseBody([]byte(`{"model":"m"}`))
	for _, params := range []string{`{"remote_host":"10.0.0.1"}`, `{"remote_host":"10.0.0.1","remote_prefill_cached_tokens":16}`} {
		answer := []byte(`{"kv_transfer_params":` + params + `}`)
		read, err := api.Chat.ReadAnswer(answer)
		if err != nil {
			t.Fatal(err)
		}
		leg := nixlDecode(&Transfer{dialect: api.Chat, body: body}, read)
		clear(answer)
		if got := string(leg.request.Body.Bytes()); got != `{"model":"m","kv_transfer_params":{"remote_host":"10.0.0.1"}}` || leg.hosts[0] != "10.0.0.1" {
			t.Errorf("%s: %s, %v", params, got, leg.hosts)
		}
	}
	text := []byte(`{"prompt_token_ids":[1,2],"kv_transfer_params":{"remote_host":"10.0.0.1"}}`)
	read, err := api.Chat.ReadAnswer(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []*api.Dialect{api.Chat, api.Completions} {
		leg := nixlDecode(&Transfer{dialect: d, body: body, sharesIDs: true, To: pools.NewServer(pools.Spec{})}, read)
		sent := string(leg.request.Body.Bytes())
		was := bytes.Clone(text)
		clear(text)
		if got := string(leg.request.Body.Bytes()); got != sent || !strings.Contains(got, "[1,2]") {
			t.Errorf("%s: %s, want %s", d.Name, got, sent)
		}
		copy(text, was)
	}
}

func TestNIXL_NoHandoffIsNormal(t *testing.T) {
	body, _ := api.ParseBody([]byte(`{"model":"m"}`))
	for _, answer := range []string{`{"id":"x"}`, `{"kv_transfer_params":null}`} {
		got := nixlDecode(&Transfer{body: body}, answered(t, api.Chat, answer))
		if got.hasKV || string(got.request.Body.Bytes()) != `{"model":"m"}` {
			t.Errorf("%s: %+v", answer, got)
		}
	}
}

// Where prefill pushes, decode's leg of a response has the id of prefill's, by which the engines find each other;
// other APIs have it in a header, and a pull needs none.
func TestNixlDecode_APushedResponseHasPrefillsID(t *testing.T) {
	body, err := api.ParseBody([]byte(`{"model":"m","input":"hi"}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		dialect *api.Dialect
		mode    string
		want    string
	}{{api.Responses, "push", `"resp_7"`}, {api.Responses, "pull", ""}, {api.Messages, "push", ""}} {
		leg := nixlDecode(&Transfer{dialect: c.dialect, body: body}, answered(t, c.dialect, `{"id":"resp_7","kv_transfer_params":{"transfer_mode":"`+c.mode+`"}}`))
		if got := string(leg.request.Body.Get("request_id")); got != c.want {
			t.Errorf("%s, %s: %q, want %q", c.dialect.Name, c.mode, got, c.want)
		}
	}
}
