package engine

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

const reasoningTokens = 7

func startReasoning(t *testing.T) *Engine {
	t.Helper()
	return start(t, func(cfg *Config) { cfg.ReasoningTokens = reasoningTokens })
}

var tideTool = fields{"type": "function", "name": "tide", "parameters": fields{"type": "object", "properties": fields{"at": fields{"type": "string"}}, "required": []string{"at"}}}

type responseAnswer struct {
	Status string
	Output []fields
	Usage  struct {
		Input   int `json:"input_tokens"`
		Output  int `json:"output_tokens"`
		Details struct {
			Reasoning int `json:"reasoning_tokens"`
		} `json:"output_tokens_details"`
	}
}

func (a responseAnswer) types() (all []string) {
	for _, item := range a.Output {
		all = append(all, item["type"].(string))
	}
	return all
}

// A tool loop with a model that reasons: the client sends back what it got, and the prompt
// of the second turn has the call, its output and the reasoning before it. That is gone once
// the user says more.
func TestReasoning_AToolLoopOfResponses(t *testing.T) {
	e := startReasoning(t)
	asked := fields{"role": "user", "content": "when is high tide?"}
	body := fields{"input": []fields{asked}, "tools": []fields{tideTool}, "max_output_tokens": 200}
	first := ask[responseAnswer](t, e, "/v1/responses", body.with(fields{"tool_choice": "required"}))
	if !slices.Equal(first.types(), []string{"reasoning", "function_call"}) || first.Usage.Details.Reasoning != reasoningTokens {
		t.Fatalf("%+v", first)
	}
	if arguments := first.Output[1]["arguments"].(string); !json.Valid([]byte(arguments)) {
		t.Errorf("arguments %q", arguments)
	}
	output := fields{"type": "function_call_output", "call_id": first.Output[1]["call_id"], "output": "at noon"}
	input := append([]fields{asked}, append(first.Output, output)...)
	// An answer may end at once, as the call's random id has it.
	second := ask[responseAnswer](t, e, "/v1/responses", body.with(fields{"input": input, "ignore_eos": true}))
	if !slices.Equal(second.types(), []string{"reasoning", "message"}) {
		t.Fatalf("%+v", second)
	}
	without := slices.Concat(input[:1], input[2:])
	tokens := func(items []fields) int {
		return ask[responseAnswer](t, e, "/v1/responses", body.with(fields{"input": items})).Usage.Input
	}
	if n := tokens(without); second.Usage.Input <= n || n <= first.Usage.Input {
		t.Errorf("%d tokens, %d without the reasoning, %d without the call", second.Usage.Input, n, first.Usage.Input)
	}
	if with, n := tokens(append(slices.Clone(input), asked)), tokens(append(slices.Clone(without), asked)); with != n {
		t.Errorf("%d tokens once the user said more, %d without the reasoning", with, n)
	}
}

// The events of vLLM (entrypoints/openai/responses/streaming_events.py, emit_simple_*), and
// of each the item that it is of.
func TestReasoning_EventsOfResponses(t *testing.T) {
	e := startReasoning(t)
	body := fields{"input": "tell me of the sea", "max_output_tokens": reasoningTokens + 6, "ignore_eos": true}
	whole := ask[responseAnswer](t, e, "/v1/responses", body)
	events, err := stream(t, e, "/v1/responses", body.with(fields{"stream": true}))
	must(t, err)
	var order []string
	texts := map[string]string{}
	for i, event := range events {
		var data struct {
			Number int     `json:"sequence_number"`
			Index  *int    `json:"output_index"`
			ItemID string  `json:"item_id"`
			Delta  string  `json:"delta"`
			Part   *fields `json:"part"`
			Item   *fields `json:"item"`
		}
		must(t, json.Unmarshal([]byte(event.data), &data))
		if data.Number != i {
			t.Errorf("event %d has number %d", i, data.Number)
		}
		if event.name == "response.output_text.delta" && !strings.Contains(event.data, `"logprobs":[]`) {
			t.Errorf("a delta without logprobs, which the SDKs' types demand: %s", event.data)
		}
		id, _, _ := strings.Cut(data.ItemID, "_")
		texts[id] += data.Delta
		line := strings.TrimPrefix(event.name, "response.")
		if data.Index != nil {
			line += " " + string(rune('0'+*data.Index)) + id
		}
		if data.Part != nil {
			line += " " + (*data.Part)["type"].(string)
		}
		if data.Item != nil {
			line += " " + (*data.Item)["type"].(string) + " " + (*data.Item)["status"].(string)
		}
		if len(order) == 0 || order[len(order)-1] != line {
			order = append(order, line)
		}
	}
	want := []string{
		"created", "in_progress",
		"output_item.added 0 reasoning in_progress", "content_part.added 0rs reasoning_text", "reasoning_text.delta 0rs",
		"reasoning_text.done 0rs", "content_part.done 0rs reasoning_text", "output_item.done 0 reasoning completed",
		"output_item.added 1 message in_progress", "content_part.added 1msg output_text", "output_text.delta 1msg",
		"output_text.done 1msg", "content_part.done 1msg output_text", "output_item.done 1 message completed",
		"incomplete",
	}
	if !slices.Equal(order, want) {
		t.Errorf("events\n%s", strings.Join(order, "\n"))
	}
	for i, id := range []string{"rs", "msg"} {
		content := whole.Output[i]["content"].([]any)[0].(map[string]any)["text"]
		if texts[id] != content || texts[id] == "" {
			t.Errorf("streamed %q, want %q", texts[id], content)
		}
	}
}

// An answer that is cut short while the model reasons has nothing but reasoning.
func TestReasoning_CutShort(t *testing.T) {
	e := startReasoning(t)
	got := ask[responseAnswer](t, e, "/v1/responses", fields{"input": "the sea", "max_output_tokens": 3, "tools": []fields{tideTool}, "tool_choice": "required"})
	if got.Status != "incomplete" || !slices.Equal(got.types(), []string{"reasoning"}) || got.Usage.Details.Reasoning != 3 {
		t.Errorf("%+v", got)
	}
	chat := ask[reasoningAnswer](t, e, "/v1/chat/completions", chatBody(10, 3))
	if m := chat.Choices[0].Message; m.Content != nil || m.Reasoning == "" {
		t.Errorf("%+v", m)
	}
	message := ask[messageBlocks](t, e, "/v1/messages", chatBody(10, 3))
	if len(message.Content) != 1 || message.Content[0].Type != "thinking" {
		t.Errorf("%+v", message)
	}
}

type reasoningAnswer struct {
	Choices []struct {
		Message struct {
			Content          *string
			Reasoning        string
			ReasoningContent string `json:"reasoning_content"`
		}
	}
}

type messageBlocks struct {
	Content []struct{ Type, Text, Thinking, Signature string }
}

// The three chats have the same reasoning and the same answer, streamed or not, each in its
// own place; SGLang's has another name.
func TestReasoning_IsTheSameOnAllChats(t *testing.T) {
	e := startReasoning(t)
	body := chatBody(10, 40)
	whole := ask[reasoningAnswer](t, e, "/v1/chat/completions", body).Choices[0].Message
	if whole.Reasoning == "" || whole.Content == nil || *whole.Content == "" {
		t.Fatalf("%+v", whole)
	}
	chunks, err := stream(t, e, "/v1/chat/completions", body.with(fields{"stream": true}))
	must(t, err)
	var reasoning, text string
	for _, chunk := range chunks {
		var data struct {
			Choices []struct {
				Delta struct{ Content, Reasoning string }
			}
		}
		if chunk.data == "[DONE]" {
			continue
		}
		must(t, json.Unmarshal([]byte(chunk.data), &data))
		for _, choice := range data.Choices {
			reasoning, text = reasoning+choice.Delta.Reasoning, text+choice.Delta.Content
		}
	}
	if reasoning != whole.Reasoning || text != *whole.Content {
		t.Errorf("streamed %q and %q, want %q and %q", reasoning, text, whole.Reasoning, *whole.Content)
	}
	blocks := ask[messageBlocks](t, e, "/v1/messages", body).Content
	if len(blocks) != 2 || blocks[0].Thinking != whole.Reasoning || blocks[0].Signature == "" || blocks[1].Text != *whole.Content {
		t.Errorf("a message of %+v", blocks)
	}
	sglang := start(t, func(cfg *Config) { cfg.ReasoningTokens, cfg.Connector = reasoningTokens, ConnectorSGLang })
	if got := ask[reasoningAnswer](t, sglang, "/v1/chat/completions", body).Choices[0].Message; got.ReasoningContent != whole.Reasoning || got.Reasoning != "" {
		t.Errorf("SGLang says %+v", got)
	}
}

// A streamed message has a block for each, closed before the next opens, and the reasoning
// is signed.
func TestReasoning_BlocksOfAMessage(t *testing.T) {
	e := startReasoning(t)
	events, err := stream(t, e, "/v1/messages", chatBody(10, 30).with(fields{
		"stream": true, "tool_choice": fields{"type": "any"},
		"tools": []fields{{"name": "tide", "input_schema": tideTool["parameters"]}},
	}))
	must(t, err)
	var order []string
	for _, event := range events {
		var data struct {
			Index *int
			Block struct{ Type string } `json:"content_block"`
			Delta struct{ Type string }
		}
		if event.data == "[DONE]" {
			continue
		}
		must(t, json.Unmarshal([]byte(event.data), &data))
		line := event.name
		if data.Index != nil {
			line = strings.TrimSpace(strings.TrimPrefix(event.name, "content_block_") + " " + string(rune('0'+*data.Index)) + " " + data.Block.Type + data.Delta.Type)
		}
		if len(order) == 0 || order[len(order)-1] != line {
			order = append(order, line)
		}
	}
	want := []string{
		"message_start", "start 0 thinking", "delta 0 thinking_delta", "delta 0 signature_delta", "stop 0",
		"start 1 tool_use", "delta 1 input_json_delta", "stop 1", "message_delta", "message_stop",
	}
	if !slices.Equal(order, want) {
		t.Errorf("events\n%s", strings.Join(order, "\n"))
	}
}

// What was reasoned before is no part of the prompt, and an answer that is continued is not
// reasoned about again.
func TestReasoning_IsOfNewAnswersOnly(t *testing.T) {
	e := startReasoning(t)
	got := ask[reasoningAnswer](t, e, "/v1/chat/completions", chatBody(10, 20).with(fields{
		"messages":              []fields{{"role": "user", "content": "the sea"}, {"role": "assistant", "content": "It is"}},
		"add_generation_prompt": false, "continue_final_message": true,
	}))
	if m := got.Choices[0].Message; m.Reasoning != "" || m.Content == nil || *m.Content == "" {
		t.Errorf("%+v", m)
	}
}

// A chat may hide its reasoning, and with it what tokens are; or have it told when it is over.
func TestReasoning_ThatIsHiddenOrLate(t *testing.T) {
	body := chatBody(10, 40).with(fields{"logprobs": true, "return_token_ids": true})
	hidden := body.with(fields{"include_reasoning": false})
	e := start(t, func(cfg *Config) { cfg.ReasoningTokens, cfg.Version = reasoningTokens, "0.32.0" })
	want := *ask[reasoningAnswer](t, e, "/v1/chat/completions", body).Choices[0].Message.Content
	if got := ask[reasoningAnswer](t, e, "/v1/chat/completions", hidden).Choices[0].Message; got.Reasoning != "" || *got.Content != want {
		t.Errorf("%+v, want %q", got, want)
	}
	for name, x := range map[string]struct {
		of     *Engine
		body   fields
		shown  bool
		events int // before the answer
	}{
		"hidden": {e, hidden, false, 1}, // the role
		"late":   {start(t, func(cfg *Config) { cfg.ReasoningTokens, cfg.Connector = reasoningTokens, ConnectorSGLang }), chatBody(10, 40).with(fields{"stream_reasoning": false}), true, 2},
	} {
		chunks, err := stream(t, x.of, "/v1/chat/completions", x.body.with(fields{"stream": true}))
		must(t, err)
		text, before, shown := "", 0, false
		for _, chunk := range chunks {
			var data struct {
				Choices []struct {
					Delta struct {
						Content          string
						ReasoningContent string `json:"reasoning_content"`
						Reasoning        string
					}
					Logprobs any
					TokenIDs []int32 `json:"token_ids"`
				}
			}
			if chunk.data == "[DONE]" {
				continue
			}
			must(t, json.Unmarshal([]byte(chunk.data), &data))
			for _, choice := range data.Choices {
				if text += choice.Delta.Content; text == "" {
					before++
				}
				shown = shown || choice.Delta.Reasoning+choice.Delta.ReasoningContent != ""
				if choice.Logprobs != nil || choice.TokenIDs != nil {
					t.Errorf("%s: %s tells the token", name, chunk.data)
				}
			}
		}
		if text != want || before != x.events || shown != x.shown {
			t.Errorf("%s: %q behind %d events, shown %v", name, text, before, shown)
		}
	}
}
