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
