package engine

import (
	"encoding/json"
	"slices"
	"testing"
)

// An agent leaves the choice of a tool to the model. The one that the user's last words name,
// with arguments, is called with these on all three APIs; once its result is there the model
// answers by text. A text that names no tool, one that is not offered, or broken arguments
// call nothing.
func TestToolCall_OneThatTheUserAsksFor(t *testing.T) {
	e := start(t, nil)
	schema := tideTool["parameters"]
	chat := fields{"max_tokens": 60, "tools": []fields{
		{"type": "function", "function": fields{"name": "ebb", "parameters": schema}},
		{"type": "function", "function": fields{"name": "tide", "parameters": schema}},
	}}
	said := func(text any) fields {
		return chat.with(fields{"messages": []fields{{"role": "user", "content": text}}})
	}
	called := ask[chatAnswer](t, e, "/v1/chat/completions", said(`first ebb({"at": "dawn"}), then tide({"at": "noon"}), please`)).Choices[0]
	if len(called.Message.ToolCalls) != 1 || *called.FinishReason != "tool_calls" {
		t.Fatalf("%+v", called)
	}
	if f := called.Message.ToolCalls[0].Function; f.Name != "tide" || f.Arguments != `{"at":"noon"}` {
		t.Errorf("called %+v", f)
	}
	for _, none := range []string{"when is high tide?", `flood({"at": "noon"})`, `tide({"at": `, `tide("noon")`} {
		if free := ask[chatAnswer](t, e, "/v1/chat/completions", said(none)); len(free.Choices[0].Message.ToolCalls) != 0 {
			t.Errorf("%q calls %+v", none, free.Choices[0].Message.ToolCalls)
		}
	}
	words := []fields{{"type": "text", "text": `tide({"at": "noon"})`}, {"type": "text", "text": "at the quay"}}
	if got := ask[chatAnswer](t, e, "/v1/chat/completions", said(words)); len(got.Choices[0].Message.ToolCalls) != 1 {
		t.Errorf("by parts: %+v", got)
	}
	refused := ask[chatAnswer](t, e, "/v1/chat/completions", said(`tide({"at": "noon"})`).with(fields{"tool_choice": "none"}))
	if len(refused.Choices[0].Message.ToolCalls) != 0 {
		t.Errorf("tool_choice none: %+v", refused)
	}
	answered := ask[chatAnswer](t, e, "/v1/chat/completions", chat.with(fields{"ignore_eos": true, "messages": []fields{ // an answer may end at once, as the call's random id has it
		{"role": "user", "content": `tide({"at": "noon"})`},
		{"role": "assistant", "tool_calls": called.Message.ToolCalls},
		{"role": "tool", "tool_call_id": called.Message.ToolCalls[0].ID, "content": "high"},
	}}))
	if len(answered.Choices[0].Message.ToolCalls) != 0 || answered.content() == "" {
		t.Errorf("after the result: %+v", answered)
	}
	response := ask[responseAnswer](t, e, "/v1/responses", fields{"input": `tide({"at": "noon"})`, "tools": []fields{tideTool}, "max_output_tokens": 60})
	if !slices.Equal(response.types(), []string{"function_call"}) || response.Output[0]["arguments"] != `{"at":"noon"}` {
		t.Errorf("%+v", response)
	}
	message := ask[messageAnswer](t, e, "/v1/messages", fields{
		"messages": []fields{{"role": "user", "content": `tide({"at": "noon"})`}}, "max_tokens": 60,
		"tools": []fields{{"name": "tide", "input_schema": schema}},
	})
	if message.Content[0].Type != "tool_use" || string(message.Content[0].Input) != `{"at":"noon"}` || *message.StopReason != "tool_use" {
		t.Errorf("%+v", message)
	}
}

// A message's answer keeps to the schema of output_config.
func TestMessages_OutputConfig(t *testing.T) {
	e := start(t, nil)
	got := ask[messageAnswer](t, e, "/v1/messages", chatBody(10, 200).with(fields{
		"output_config": fields{"format": fields{"type": "json_schema", "schema": tideTool["parameters"]}},
	}))
	var tide map[string]string
	if err := json.Unmarshal([]byte(*got.Content[0].Text), &tide); err != nil || len(tide["at"]) == 0 {
		t.Errorf("%q: %v", *got.Content[0].Text, err)
	}
}

// No answer of free text ends by itself before it has so many tokens.
func TestChat_MinOutputTokens(t *testing.T) {
	e := start(t, func(cfg *Config) { cfg.MinOutputTokens, cfg.MeanOutputTokens = 9, 1 })
	for words := range 5 {
		got := ask[chatAnswer](t, e, "/v1/chat/completions", chatBody(words+1, 50).with(fields{"ignore_eos": false}))
		if got.Usage.CompletionTokens != 10 { // and the one that ends it
			t.Errorf("%d tokens", got.Usage.CompletionTokens)
		}
	}
}
