package engine

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

func TestMessages_Shape(t *testing.T) {
	e := start(t, nil)
	body := fields{"messages": []fields{{"role": "user", "content": []fields{{"type": "text", "text": "of the sea"}}}}, "system": "be brief", "max_tokens": 6, "ignore_eos": true}
	got := ask[messageAnswer](t, e, "/v1/messages", body)
	if *got.StopReason != "max_tokens" || got.Usage.OutputTokens != 6 || *got.Content[0].Text == "" {
		t.Errorf("%+v", got)
	}
	events, err := stream(t, e, "/v1/messages", body.with(fields{"stream": true}))
	must(t, err)
	text := ""
	var names []string
	for _, event := range events[:len(events)-1] {
		var data messageEvent
		must(t, json.Unmarshal([]byte(event.data), &data))
		if data.Delta != nil && data.Delta.Text != nil {
			text += *data.Delta.Text
		}
		if len(names) == 0 || names[len(names)-1] != event.name {
			names = append(names, event.name)
		}
	}
	if want := []string{"message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop"}; !slices.Equal(names, want) {
		t.Errorf("events %v", names)
	}
	if text != *got.Content[0].Text {
		t.Errorf("streamed %q, want %q", text, *got.Content[0].Text)
	}
	called := ask[messageAnswer](t, e, "/v1/messages", body.with(fields{"max_tokens": 200, "tool_choice": fields{"type": "tool", "name": "f"},
		"tools": []fields{{"name": "f", "input_schema": fields{"type": "object", "properties": fields{"x": fields{"type": "boolean"}}}}}}))
	if called.Content[0].Type != "tool_use" || called.Content[0].Name != "f" || *called.StopReason != "tool_use" || len(called.Content[0].Input) < 5 {
		t.Errorf("%+v", called)
	}
	cut := body.with(fields{"max_tokens": 1, "tool_choice": fields{"type": "tool", "name": "f"}, "tools": []fields{{"name": "f", "input_schema": fields{"type": "object", "properties": fields{"x": fields{"type": "boolean"}}}}}})
	if status, raw := post(t, e, "/v1/messages", cut); status != 400 {
		t.Errorf("a whole message with a call that is cut short: %d %s", status, raw)
	}
	if status, raw := post(t, e, "/v1/messages", fields{"messages": []fields{}}); status != 400 || !strings.Contains(string(raw), `{"type":"error","error":{"type":"invalid_request_error"`) {
		t.Errorf("%d %s", status, raw)
	}
}

// What the request classes of engines do not know they drop: tenants share the KV.
func TestMessages_SaltIsKeptByNewerVLLMAlone(t *testing.T) {
	for name, x := range map[string]struct {
		change func(*Config)
		shared bool
	}{
		"vLLM 0.31": {nil, true},
		"vLLM 0.32": {func(cfg *Config) { cfg.Version = "0.32.0" }, false},
		"SGLang":    {func(cfg *Config) { cfg.Connector, cfg.Version = ConnectorSGLang, "0.5.18" }, true},
	} {
		t.Run(name, func(t *testing.T) {
			e := start(t, x.change)
			ask[messageAnswer](t, e, "/v1/messages", chatBody(60, 3).with(fields{"cache_salt": "mine"}))
			other := ask[messageAnswer](t, e, "/v1/messages", chatBody(60, 3).with(fields{"cache_salt": "theirs"}))
			if cached := other.Usage.CacheRead != nil && *other.Usage.CacheRead > 0; cached != x.shared {
				t.Errorf("another salt found the prompt cached: %v", cached)
			}
		})
	}
}

// The prompt's number leaves out what was cached, and what was written to the cache where
// the engine tells that; the start of a stream knows of neither.
func TestMessages_UsageIsSubtracted(t *testing.T) {
	for version, created := range map[string]bool{"0.31.0": false, "0.32.0": true} {
		e := start(t, func(cfg *Config) { cfg.Version = version })
		body := fields{"max_tokens": 3, "ignore_eos": true, "messages": []fields{{"role": "user", "content": strings.Repeat("the river ", 39)}}}
		first := ask[messageAnswer](t, e, "/v1/messages", body)
		total := ask[chatAnswer](t, e, "/v1/chat/completions", body).Usage.PromptTokens
		sum := first.Usage.InputTokens
		if first.Usage.CacheCreation != nil {
			sum += *first.Usage.CacheCreation
		}
		if sum != total {
			t.Errorf("%s: %+v of %d tokens", version, first.Usage, total)
		}
		events, err := stream(t, e, "/v1/messages", body.with(fields{"stream": true}))
		must(t, err)
		var begun, last messageEvent
		must(t, json.Unmarshal([]byte(events[0].data), &begun))
		must(t, json.Unmarshal([]byte(events[len(events)-3].data), &last))
		if u := begun.Message.Usage; u.InputTokens != total || u.CacheRead != nil {
			t.Errorf("%s: the start tells %+v", version, u)
		}
		if u := last.Usage; u == nil || u.CacheRead == nil || u.InputTokens+*u.CacheRead != total || (u.CacheCreation != nil) != created {
			t.Errorf("%s: the end tells %+v", version, u)
		}
	}
}

// A conversation with tools has the same tokens on all three APIs where it means the same,
// and the render paths say the tokens that the request itself has.
func TestMessages_TheThreeAPIsMakeOnePrompt(t *testing.T) {
	e := start(t, func(cfg *Config) { cfg.Version = "0.33.0" })
	schema := fields{"type": "object", "properties": fields{"at": fields{"type": "string"}}}
	bodies := map[string]fields{
		"/v1/chat/completions": {"max_tokens": 2, "tools": []fields{{"type": "function", "function": fields{"name": "tide", "description": "tells it", "parameters": schema}}}, "messages": []fields{
			{"role": "system", "content": "be brief"}, {"role": "user", "content": "when?"},
			{"role": "assistant", "content": "wait", "reasoning": "hm", "tool_calls": []fields{{"id": "c1", "type": "function", "function": fields{"name": "tide", "arguments": `{"at":"Köln"}`}}}},
			{"role": "tool", "tool_call_id": "c1", "content": "noon"}}},
		"/v1/messages": {"max_tokens": 2, "tools": []fields{{"name": "tide", "description": "tells it", "input_schema": schema}},
			"system": []fields{{"type": "text", "text": "x-anthropic-billing-header: 1"}, {"type": "text", "text": "be "}, {"type": "text", "text": "brief"}}, "messages": []fields{
				{"role": "user", "content": "when?"},
				{"role": "assistant", "content": []fields{{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "wait"}, {"type": "tool_use", "id": "c1", "name": "tide", "input": fields{"at": "Köln"}}}},
				{"role": "user", "content": []fields{{"type": "tool_result", "tool_use_id": "c1", "content": []fields{{"type": "text", "text": "noon"}}}}}}},
		"/v1/responses": {"max_output_tokens": 2, "instructions": "be brief", "tools": []fields{{"type": "function", "name": "tide", "description": "tells it", "parameters": schema}}, "input": []fields{
			{"role": "user", "content": "when?"}, {"type": "reasoning", "summary": []fields{}, "content": []fields{{"type": "reasoning_text", "text": "hm"}}},
			{"type": "message", "role": "assistant", "content": []fields{{"type": "output_text", "text": "wait"}}},
			{"type": "function_call", "call_id": "c1", "name": "tide", "arguments": `{"at":"Köln"}`},
			{"type": "function_call_output", "call_id": "c1", "output": "noon"}}},
	}
	var first []int32
	for path, body := range bodies {
		ids := ask[generateRequest](t, e, path+"/render", body).TokenIDs
		if first == nil {
			first = ids
		}
		if !slices.Equal(ids, first) {
			t.Errorf("%s: %d tokens, another API %d", path, len(ids), len(first))
		}
		usage := ask[struct {
			Usage struct {
				Prompt  int  `json:"prompt_tokens"`
				Input   int  `json:"input_tokens"`
				Created *int `json:"cache_creation_input_tokens"`
				Read    *int `json:"cache_read_input_tokens"`
			}
		}](t, e, path, body).Usage
		total := usage.Prompt + usage.Input
		for _, n := range []*int{usage.Created, usage.Read} {
			if n != nil {
				total += *n
			}
		}
		if total != len(ids) {
			t.Errorf("%s: %d tokens rendered, %d used", path, len(ids), total)
		}
	}
}
