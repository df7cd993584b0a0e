package connector

import (
	"testing"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pools"
)

// keptAnswer is what vLLM 0.33 says of an answer's KV (nixl/pull_scheduler.py, request_finished).
const keptAnswer = `{"do_remote_prefill":false,"do_remote_decode":true,"remote_block_ids":[[7,9,4,12]],"remote_engine_id":"e1","remote_request_id":"chatcmpl-1",` +
	`"remote_host":"10.0.0.2","remote_port":5600,"tp_size":2,"dcp_size":1,"pp_size":1,"remote_num_tokens":59,"remote_blocks_expiry_time":812.5,` +
	`"remote_registration_generation":3,"transfer_mode":"pull"}`

// The prefill leg that reads an answer's KV names the blocks that were compared and as many tokens; the
// rest is what decode said, and the prompt goes as ids.
func TestAnswer_PrefillReadsWhatWasCompared(t *testing.T) {
	for _, c := range []struct {
		dialect *api.Dialect
		body    string
		ids     string
	}{
		{api.Chat, `{"messages":[{"role":"user","content":"hi"}],"max_tokens":9,"stream":true}`, "kv_transfer_params.prompt_token_ids"},
		{api.Completions, `{"prompt":"hi","max_tokens":9}`, "prompt"},
	} {
		body, err := api.ParseBody([]byte(c.body))
		if err != nil {
			t.Fatal(err)
		}
		tr := NewTransfer(Request{Dialect: c.dialect, Body: body}, &pools.Server{}, &pools.Server{})
		tr.Answer = &AnswerKV{Handoff: []byte(keptAnswer), IDs: []uint32{5, 6, 7}, Tokens: 32, Block: 16}
		got := string(nixlPrefill(tr).Body.Bytes())
		if ids := gjson.Get(got, c.ids).Raw; ids != "[5,6,7]" {
			t.Errorf("the prompt is %s in %s", ids, got)
		}
		params := gjson.Get(got, "kv_transfer_params")
		for field, want := range map[string]string{
			"remote_block_ids": "[[7,9]]", "remote_num_tokens": "32", "do_remote_decode": "true", "do_remote_prefill": "false",
			"remote_engine_id": `"e1"`, "remote_registration_generation": "3", "tp_size": "2", "remote_blocks_expiry_time": "812.5",
		} {
			if params.Get(field).Raw != want {
				t.Errorf("%s is %s, want %s", field, params.Get(field).Raw, want)
			}
		}
		first := tr.ID
		if tr.DropAnswer(); tr.ID == first || gjson.GetBytes(nixlPrefill(tr).Body.Bytes(), "kv_transfer_params.remote_num_tokens").Exists() {
			t.Error("what was given up is read all the same, or under the same name")
		}
	}
}

// An answer's hand-off is used where it names all that a reader needs, in blocks of one group.
func TestAnswerBlocks(t *testing.T) {
	blocks, hosts, ok := AnswerBlocks([]byte(keptAnswer))
	if !ok || blocks != (HandedBlocks{Blocks: 4, Tokens: 59}) || len(hosts) != 1 || hosts[0] != "10.0.0.2" {
		t.Errorf("%+v at %v, %v", blocks, hosts, ok)
	}
	for name, change := range map[string]func(api.Body) api.Body{
		"a prefill's":   func(b api.Body) api.Body { return b.With(api.Set("do_remote_decode", []byte("false"))) },
		"two groups":    func(b api.Body) api.Body { return b.With(api.Set("remote_block_ids", []byte("[[1],[2]]"))) },
		"no blocks":     func(b api.Body) api.Body { return b.With(api.Set("remote_block_ids", []byte("[[]]"))) },
		"a list of old": func(b api.Body) api.Body { return b.With(api.Set("remote_block_ids", []byte("[1,2]"))) },
		"no host":       func(b api.Body) api.Body { return b.With(api.Set("remote_host", []byte("null"))) },
		"no engine":     func(b api.Body) api.Body { return b.With(api.Remove("remote_engine_id")) },
		"a push":        func(b api.Body) api.Body { return b.With(api.Set("transfer_mode", []byte(`"push"`))) },
	} {
		body, err := api.ParseBody([]byte(keptAnswer))
		if err != nil {
			t.Fatal(err)
		}
		if _, _, ok := AnswerBlocks(change(body).Bytes()); ok {
			t.Errorf("%s is used", name)
		}
	}
}

// A request goes as the ids of its prompt where nothing in its answer shows the text, and its media are none.
func TestTakesIDs(t *testing.T) {
	for text, want := range map[string]bool{
		`{"prompt":"hi"}`: true, `{"prompt":[1,2]}`: true, `{"prompt":"hi","echo":true}`: false, `{"prompt":[1,2],"echo":true}`: false,
	} {
		if body, err := api.ParseBody([]byte(text)); err != nil || (Request{Dialect: api.Completions, Body: body}).TakesIDs() != want {
			t.Errorf("%s: %v", text, err)
		}
	}
	for text, want := range map[string]bool{
		`{"messages":[{"role":"user","content":"hi"}]}`:                                           true,
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}`: false,
	} {
		if body, err := api.ParseBody([]byte(text)); err != nil || (Request{Dialect: api.Chat, Body: body}).TakesIDs() != want || (Request{Dialect: api.Responses, Body: body}).TakesIDs() {
			t.Errorf("%s: %v", text, err)
		}
	}
}
