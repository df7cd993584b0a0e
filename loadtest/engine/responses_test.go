package engine

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

func TestResponses_Shape(t *testing.T) {
	e := start(t, nil)
	body := fields{"input": "tell me of the sea", "instructions": "be brief", "max_output_tokens": 6, "ignore_eos": true}
	type answer struct {
		Status string
		Output []struct{ Content []struct{ Text string } }
		Usage  struct {
			Input  int `json:"input_tokens"`
			Output int `json:"output_tokens"`
		}
	}
	got := ask[answer](t, e, "/v1/responses", body)
	if got.Status != "incomplete" || got.Usage.Output != 6 || got.Usage.Input == 0 {
		t.Errorf("%+v", got)
	}
	events, err := stream(t, e, "/v1/responses", body.with(fields{"stream": true}))
	must(t, err)
	text := ""
	var names []string
	for i, event := range events {
		var data struct {
			Type   string
			Number int `json:"sequence_number"`
			Delta  string
		}
		must(t, json.Unmarshal([]byte(event.data), &data))
		if data.Type != event.name || data.Number != i {
			t.Errorf("event %d: %+v", i, data)
		}
		text += data.Delta
		if len(names) == 0 || names[len(names)-1] != event.name {
			names = append(names, event.name)
		}
	}
	want := []string{"response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
		"response.output_text.delta", "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.incomplete"}
	if !slices.Equal(names, want) {
		t.Errorf("events %v", names)
	}
	if text != got.Output[0].Content[0].Text || text == "" {
		t.Errorf("streamed %q, want %q", text, got.Output[0].Content[0].Text)
	}
	for _, more := range []fields{{"previous_response_id": "resp_1"}, {"background": true}} {
		if status, _ := post(t, e, "/v1/responses", body.with(more)); status < 400 || status > 404 {
			t.Errorf("%v: status %d", more, status)
		}
	}
}

func TestResponsesAndMessages_HandOver(t *testing.T) {
	for path, body := range map[string]fields{
		"/v1/responses": {"input": strings.Repeat("the sea and the river ", 20), "max_output_tokens": 20, "ignore_eos": true},
		"/v1/messages":  {"messages": []fields{{"role": "user", "content": strings.Repeat("the sea and the river ", 20)}}, "max_tokens": 20, "ignore_eos": true},
	} {
		p, d := start(t, nil), start(t, nil)
		leg := ask[struct {
			Params fields `json:"kv_transfer_params"`
		}](t, p, path, body.with(fields{"max_tokens": 1, "max_output_tokens": 1, "kv_transfer_params": fields{"do_remote_decode": true}}))
		_, err := stream(t, d, path, body.with(fields{"stream": true, "kv_transfer_params": leg.Params}))
		must(t, err)
		if ps, ds := p.State(), d.State(); ps.HandoffsPulled != 1 || ds.DecodesDone != 1 || ds.Recomputed != 0 {
			t.Errorf("%s: pulled %d, decoded %d, recomputed %v", path, ps.HandoffsPulled, ds.DecodesDone, ds.RecomputedByReason)
		}
	}
}

// A tool loop: a call, which the client answers with the call and its output, and the text
// that follows. Reasoning without a text is no part of the prompt.
func TestResponses_AToolLoop(t *testing.T) {
	e := start(t, nil)
	tools := []fields{{"type": "function", "name": "tide", "parameters": fields{"type": "object", "properties": fields{"at": fields{"type": "string"}}, "required": []string{"at"}}}}
	asked := fields{"role": "user", "content": "when is high tide?"}
	body := fields{"input": []fields{asked}, "tools": tools, "max_output_tokens": 60}
	type answer struct {
		Output []fields
		Usage  struct {
			Input int `json:"input_tokens"`
		}
	}
	first := ask[answer](t, e, "/v1/responses", body.with(fields{"tool_choice": "required"}))
	call := first.Output[0]
	if call["type"] != "function_call" || call["name"] != "tide" || call["content"] != nil {
		t.Fatalf("%v", call)
	}
	output := fields{"type": "function_call_output", "call_id": call["call_id"], "output": "at noon"}
	second := ask[answer](t, e, "/v1/responses", body.with(fields{"input": []fields{asked, call, output}}))
	if second.Output[0]["type"] != "message" || second.Usage.Input <= first.Usage.Input {
		t.Errorf("%v, %d tokens after %d", second.Output[0], second.Usage.Input, first.Usage.Input)
	}
	reasoning := fields{"type": "reasoning", "id": "rs_1", "summary": []fields{}}
	if third := ask[answer](t, e, "/v1/responses", body.with(fields{"input": []fields{asked, reasoning, call, output}})); third.Usage.Input != second.Usage.Input {
		t.Errorf("%d tokens with reasoning, %d without", third.Usage.Input, second.Usage.Input)
	}
	for name, item := range map[string]fields{"an output without its call": output, "an unknown item": {"type": "image_generation_call"}} {
		if status, raw := post(t, e, "/v1/responses", body.with(fields{"input": []fields{asked, item}})); status != 400 {
			t.Errorf("%s: %d %s", name, status, raw)
		}
	}
}

// The SDKs' stream helpers add parts to the content of the item that was opened: it is
// there, and empty.
func TestResponses_AMessageOpensWithEmptyContent(t *testing.T) {
	events, err := stream(t, start(t, nil), "/v1/responses", fields{"input": "the sea", "max_output_tokens": 3, "stream": true})
	must(t, err)
	for _, event := range events {
		if event.name == "response.output_item.added" && !strings.Contains(event.data, `"content":[]`) {
			t.Errorf("%s", event.data)
		}
	}
}
