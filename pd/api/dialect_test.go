package api

import (
	"encoding/json"
	"fmt"
	"testing"
)

func TestInspect(t *testing.T) {
	for _, c := range []struct {
		d    *Dialect
		data string
		want string // content, end, failure, or nothing
	}{
		{Chat, `{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`, ""},
		{Chat, `{"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":null}]}`, "content"},
		{Chat, `{"choices":[{"index":0,"delta":{"role":"assistant","content":"Hi"}}]}`, "content"},
		{Chat, `{"choices":[{"index":0,"delta":{"role":"assistant","reasoning_content":"Hm"}}]}`, "content"},
		{Chat, `{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0}]}}]}`, "content"},
		{Chat, `{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`, "content"},
		{Chat, `{"choices":[{"index":0,"delta":{"role":"assistant"},"finish_reason":"stop"}]}`, "content"},
		{Chat, `{"choices":[{"index":0,"delta":{},"finish_reason":"error"}]}`, "failure"},
		{Chat, `{"choices":[],"usage":{"prompt_tokens":3}}`, ""},
		{Chat, `[DONE]`, "end"},
		{Chat, `{"error":{"message":"boom","type":"x","code":500}}`, "failure"},
		{Chat, `{"error":null,"choices":[{"delta":{"content":"x"}}]}`, "content"},
		{Chat, `{"object":"error","message":"old boom"}`, "failure"},
		{Chat, `garbage`, "failure"},
		{Chat, `{"choices":[{"delta":{"content":"the text says [DONE] and {\"error\":{}}"}}]}`, "content"},
		{Completions, `{"choices":[{"index":0,"text":"","finish_reason":null}]}`, "content"},
		{Completions, `{"choices":[],"usage":{}}`, ""},
		{Responses, `{"type":"response.created"}`, ""},
		{Responses, `{"type":"response.output_item.added"}`, ""},
		{Responses, `{"type":"response.output_text.delta","delta":"x"}`, "content"},
		{Responses, `{"type":"response.completed","response":{}}`, "end"},
		{Responses, `{"type":"response.failed","response":{"error":{"message":"boom"}}}`, "failure"},
		{Responses, `{"type":"error","message":"boom"}`, "failure"},
		{Responses, `{"error":{"message":"boom"}}`, "failure"},
		{Messages, `{"type":"message_start","message":{}}`, ""},
		{Messages, `{"type":"content_block_start"}`, ""},
		{Messages, `{"type":"content_block_delta","delta":{"text":"x"}}`, "content"},
		{Messages, `{"type":"message_stop"}`, "end"},
		{Messages, `{"type":"error","error":{"message":"boom"}}`, "failure"},
	} {
		g := c.d.Inspect([]byte(c.data))
		got := ""
		switch {
		case g.Failure != "":
			got = "failure"
		case g.End:
			got = "end"
		case g.Content:
			got = "content"
		}
		if got != c.want {
			t.Errorf("%s %s: %q, want %q", c.d.Name, c.data, got, c.want)
		}
	}
}

func TestErrors_AreInTheShapeOfEachAPI(t *testing.T) {
	e := ErrorText{Status: 404, Type: "invalid_request_error", Code: "model_not_found", Param: "model", Message: "no <such> model"}
	for _, c := range []struct{ got, want string }{
		{string(Chat.ErrorBody(e)), `{"error":{"code":"model_not_found","message":"no <such> model","param":"model","type":"invalid_request_error"}}`},
		{string(Messages.ErrorBody(e)), `{"error":{"message":"no <such> model","type":"not_found_error"},"type":"error"}`},
		{string(Chat.ErrorEvent(e)), "data: " + string(Chat.ErrorBody(e)) + "\n\n"},
		{string(Messages.ErrorEvent(e)), "event: error\ndata: " + string(Messages.ErrorBody(e)) + "\n\n"},
		{string(Responses.ErrorEvent(e)), "event: error\ndata: {\"code\":\"model_not_found\",\"error\":{\"code\":\"model_not_found\",\"message\":\"no <such> model\",\"param\":\"model\",\"type\":\"invalid_request_error\"},\"message\":\"no <such> model\",\"param\":\"model\",\"sequence_number\":0,\"type\":\"error\"}\n\n"},
	} {
		if c.got != c.want {
			t.Errorf("got  %s\nwant %s", c.got, c.want)
		}
	}
}

func TestPromptSide_IsPrefillsAfterAHandoff(t *testing.T) {
	of := func(usage string) PromptUsage { return PromptUsage{Override: true, Prefill: Value(usage)} }
	nothing, own := of(""), PromptUsage{}
	for _, c := range []struct {
		name string
		d    *Dialect
		data string
		side PromptUsage
		want string
	}{
		{"prefill's numbers", Chat,
			`{"id":"x","usage":{"prompt_tokens":48,"total_tokens":55,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":47,"created_cache_tokens":0}}}`,
			of(`{"prompt_tokens":47,"total_tokens":48,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":16,"created_cache_tokens":16,"multimodal_tokens":null}}`),
			`{"id":"x","usage":{"prompt_tokens":47,"total_tokens":54,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":16,"created_cache_tokens":16,"multimodal_tokens":null}}}`},
		{"decode tells none", Completions, `{"usage":{"prompt_tokens":48,"prompt_tokens_details":null}}`, of(`{"prompt_tokens":48,"prompt_tokens_details":{"cached_tokens":0}}`),
			`{"usage":{"prompt_tokens":48,"prompt_tokens_details":{"cached_tokens":0}}}`},
		{"absent stays absent", Chat, `{"usage":{"prompt_tokens":48}}`, of(`{"prompt_tokens":48}`), `{"usage":{"prompt_tokens":48}}`},
		{"prefill tells none of caches", Chat, `{"usage":{"prompt_tokens":48,"prompt_tokens_details":{"cached_tokens":47}}}`, of(`{"prompt_tokens":48}`),
			`{"usage":{"prompt_tokens":48,"prompt_tokens_details":null}}`},
		{"prefill told nothing yet", Chat, `{"usage":{"prompt_tokens":48,"prompt_tokens_details":{"cached_tokens":47,"created_cache_tokens":1,"audio":1}}}`, nothing,
			`{"usage":{"prompt_tokens":48,"prompt_tokens_details":{"audio":1}}}`},
		{"decode alone keeps its own", Chat, `{"usage":{"prompt_tokens_details":{"cached_tokens":47}}}`, own,
			`{"usage":{"prompt_tokens_details":{"cached_tokens":47}}}`},
		{"responses", Responses, `{"type":"response.completed","response":{"usage":{"input_tokens":48,"output_tokens":2,"total_tokens":50,"input_tokens_details":{"cached_tokens":47,"cache_write_tokens":0}}}}`,
			of(`{"input_tokens":48,"output_tokens":1,"total_tokens":49,"input_tokens_details":{"cached_tokens":16,"cache_write_tokens":32}}`),
			`{"type":"response.completed","response":{"usage":{"input_tokens":48,"output_tokens":2,"total_tokens":50,"input_tokens_details":{"cached_tokens":16,"cache_write_tokens":32}}}}`},
		{"messages", Messages, `{"usage":{"input_tokens":1,"cache_read_input_tokens":47,"output_tokens":7}}`,
			of(`{"input_tokens":2,"cache_read_input_tokens":16,"cache_creation_input_tokens":30,"output_tokens":1}`),
			`{"usage":{"input_tokens":2,"cache_read_input_tokens":16,"output_tokens":7,"cache_creation_input_tokens":30}}`},
		{"the start of a message", Messages, `{"type":"message_start","message":{"usage":{"input_tokens":48,"output_tokens":0}}}`,
			of(`{"input_tokens":2,"cache_read_input_tokens":46,"output_tokens":1}`),
			`{"type":"message_start","message":{"usage":{"input_tokens":2,"output_tokens":0,"cache_read_input_tokens":46}}}`},
		{"messages, of which prefill told nothing", Messages, `{"usage":{"input_tokens":1,"cache_read_input_tokens":47,"output_tokens":7}}`, nothing,
			`{"usage":{"input_tokens":48,"output_tokens":7}}`},
		{"output alone", Messages, `{"type":"message_delta","usage":{"output_tokens":7}}`, of(`{"input_tokens":2,"cache_read_input_tokens":46}`),
			`{"type":"message_delta","usage":{"output_tokens":7}}`},
		{"the hand-off is removed", Chat, `{"a":1,"kv_transfer_params":{"remote_host":"10.0.0.1"},"b":2}`, own, `{"a":1,"b":2}`},
		{"also inside a response", Responses, `{"response":{"kv_transfer_params":{"x":1},"id":"r"}}`, own, `{"response":{"id":"r"}}`},
		{"and an encoder's", Chat, `{"a":1,"ec_transfer_params":{"h":{"peer_host":"10.0.0.1"}},"b":2}`, own, `{"a":1,"b":2}`},
		{"also that inside a response", Responses, `{"response":{"ec_transfer_params":{"x":1},"id":"r"}}`, own, `{"response":{"id":"r"}}`},
		{"text that names it stays", Chat, `{"choices":[{"delta":{"content":"\"kv_transfer_params\""}}]}`, own,
			`{"choices":[{"delta":{"content":"\"kv_transfer_params\""}}]}`},
	} {
		if got, err := c.d.CleanAnswer([]byte(c.data), c.side); err != nil || string(got) != c.want {
			t.Errorf("%s: %v\ngot  %s\nwant %s", c.name, err, got, c.want)
		}
	}
}

// The prompt of a message is what was computed, cached and written to a cache together.
func TestReadUsage_OfAMessageIsTheWholePrompt(t *testing.T) {
	for data, want := range map[string]int{
		`{"usage":{"input_tokens":2,"cache_read_input_tokens":16,"cache_creation_input_tokens":30}}`: 48,
		`{"usage":{"input_tokens":0,"cache_read_input_tokens":48}}`:                                  48,
		`{"message":{"usage":{"input_tokens":48}}}`:                                                  48,
	} {
		if got, ok := Messages.ReadUsage([]byte(data)); !ok || got.Prompt != (Count{want, true}) {
			t.Errorf("%s: %+v", data, got)
		}
	}
}

// What no request has is no count: it would stay in metrics and in a key's limits.
func TestReadUsage_OfCoheresEmbeddings(t *testing.T) {
	const answer = `{"embeddings":{"float":[[1]]},"meta":{"api_version":{"version":"2"},"billed_units":{"input_tokens":7}},"usage":{"prompt_tokens":9}}`
	if got, ok := CohereEmbed.ReadUsage([]byte(answer)); !ok || got.Prompt != (Count{7, true}) || got.Output.Known {
		t.Errorf("%+v, %v", got, ok)
	}
}

func TestReadUsage_OfTooManyTokensIsNone(t *testing.T) {
	for said, known := range map[string]bool{"0": true, "131072": true, "-1": false, "2147483649": false, "9223372036854775807": false, "1e300": false, `"7"`: false} {
		got, ok := Chat.ReadUsage([]byte(`{"usage":{"prompt_tokens":` + said + `,"completion_tokens":1}}`))
		if !ok || got.Prompt.Known != known || !known && got.Prompt.Tokens != 0 || !got.Output.Known {
			t.Errorf("%s tokens: %+v", said, got)
		}
	}
}

// What cannot be read must not pass: it may hold a hand-off.
func TestCleanAnswer_WhatCannotBeReadDoesNotPass(t *testing.T) {
	for _, data := range []string{
		`{"a":1,"a":2,"kv_transfer_params":{"remote_host":"10.0.0.1"}}`,
		"{\"a\":\"\xff\",\"kv_transfer_params\":{}}",
	} {
		if out, err := Chat.CleanAnswer([]byte(data), PromptUsage{}); err == nil {
			t.Errorf("%s passed as %s", data, out)
		}
	}
}

func TestRecomputed(t *testing.T) {
	cached := func(n int) Usage { return Usage{Cached: Count{n, true}} }
	for _, c := range []struct {
		name   string
		decode Usage
		handed int
		tells  bool
		want   bool
	}{
		{"all came", cached(1000), 1000, true, false},
		{"all but a block", cached(984), 1000, true, false},
		{"nothing came", cached(0), 1000, true, true},
		{"only an old prefix was there", cached(64), 1000, true, true},
		{"no number from a server that tells", Usage{Prompt: Count{1000, true}}, 1000, true, true},
		{"no usage at all", Usage{}, 1000, true, false},
		{"a server that never tells", Usage{Prompt: Count{1000, true}}, 1000, false, false},
		{"nothing was handed over", cached(0), 0, true, false},
	} {
		if got := Recomputed(c.decode, c.handed, c.tells); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

func FuzzCleanAnswer(f *testing.F) {
	f.Add([]byte(`{"usage":{"prompt_tokens_details":{"cached_tokens":47}},"kv_transfer_params":{"x":[1]},"response":{"usage":1}}`), 3)
	f.Fuzz(func(t *testing.T, data []byte, cached int) {
		for _, d := range []*Dialect{Chat, Responses, Messages} {
			d.Inspect(data)
			out, err := d.CleanAnswer(data, PromptUsage{Override: true, Prefill: fmt.Appendf(nil, `{"prompt_tokens":9,"input_tokens":9,"cache_read_input_tokens":%d}`, cached)})
			if err != nil {
				continue // it does not pass
			}
			if json.Valid(data) && !json.Valid(out) {
				t.Fatalf("%s made %s out of %s", d.Name, out, data)
			}
			var object map[string]json.RawMessage
			if _, err := ParseBody(data); err == nil && json.Unmarshal(out, &object) == nil && object[HandoffField] != nil {
				t.Fatalf("the hand-off is still in %s", out)
			}
		}
	})
}

// What comes right behind the last token, without one of its own, closes an answer or a part of it.
func TestInspect_WhatCloses(t *testing.T) {
	for _, c := range []struct {
		d      *Dialect
		data   string
		closes bool
	}{
		{Chat, `{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`, true},
		{Chat, `{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":"length"}]}`, true},
		{Chat, `{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"length"}]}`, false},
		{Chat, `{"choices":[{"index":0,"delta":{"reasoning":"a"},"finish_reason":"length"}]}`, false},
		{Chat, `{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0}]},"finish_reason":"tool_calls"}]}`, false},
		{Chat, `{"choices":[{"index":0,"delta":{"content":""},"finish_reason":null}]}`, false},
		{Chat, `{"choices":[{"index":0,"delta":{},"finish_reason":"stop"},{"index":1,"delta":{"content":"a"}}]}`, false},
		{Chat, `{"choices":[],"usage":{"prompt_tokens":3}}`, false},
		{Completions, `{"choices":[{"index":0,"text":"","finish_reason":"stop"}]}`, true},
		{Completions, `{"choices":[{"index":0,"text":"a","finish_reason":"length"}]}`, false},
		{Completions, `{"choices":[{"index":0,"text":"","finish_reason":null}]}`, false},
		{Messages, `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a"}}`, false},
		{Messages, `{"type":"content_block_stop","index":0}`, true},
		{Messages, `{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":4}}`, true},
		{Messages, `{"type":"message_stop"}`, true},
		{Responses, `{"type":"response.output_text.delta","delta":"a"}`, false},
		{Responses, `{"type":"response.output_text.done","text":"a"}`, true},
		{Responses, `{"type":"response.content_part.done"}`, true},
		{Responses, `{"type":"response.output_item.done"}`, true},
		{Responses, `{"type":"response.completed","response":{}}`, true},
		{Responses, `{"type":"response.output_item.added"}`, false},
	} {
		if got := c.d.Inspect([]byte(c.data)); got.Closes != c.closes || got.Closes && !got.Content {
			t.Errorf("%s %s: %+v", c.d.Name, c.data, got)
		}
	}
}

// What an event of SGLang's own API means.
func TestInspect_OfSGLangsOwnAPI(t *testing.T) {
	for data, want := range map[string]Meaning{
		`[DONE]`:                          {End: true},
		`{"text":"a","meta_info":{}}`:     {Content: true},
		`{"output_ids":[1]}`:              {Content: true},
		`{"meta_info":{"id":"x"}}`:        {},
		`{"error":{"message":"no room"}}`: {Failure: "no room"},
		`{"text":"","meta_info":{"finish_reason":{"type":"abort","message":"too long"}}}`: {Failure: "too long"},
		`{"text":"","meta_info":{"finish_reason":{"type":"abort"}}}`:                      {Failure: "the engine reported an error"},
		`{"text":"a","meta_info":{"finish_reason":{"type":"stop"}}}`:                      {Content: true},
	} {
		got := Generate.Inspect([]byte(data))
		if got.Content != want.Content || got.End != want.End || got.Failure != want.Failure {
			t.Errorf("%s: %+v, want %+v", data, got, want)
		}
	}
}

// Decode has computed a prompt again where it had less than half of what was handed over.
func TestRecomputed_BeginsBelowHalf(t *testing.T) {
	for cached, want := range map[int]bool{47: true, 48: false, 49: false} {
		if got := Recomputed(Usage{Cached: Count{cached, true}}, 96, false); got != want {
			t.Errorf("%d of 96 tokens were there: computed again %v", cached, got)
		}
	}
}

// The status of an error event is one of HTTP's errors, or not known.
func TestErrorStatus_IsOneOfAnError(t *testing.T) {
	for code, want := range map[string]int{"399": 0, "400": 400, "599": 599, "600": 0, "null": 0, `"429"`: 429} {
		if got := ErrorStatus([]byte(`{"error":{"code":` + code + `}}`)); got != want {
			t.Errorf("%s: %d", code, got)
		}
	}
}
