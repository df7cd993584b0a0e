package engine

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestChat_IsAFunctionOfEverythingBefore(t *testing.T) {
	a, b, other := start(t, nil), start(t, nil), start(t, func(cfg *Config) { cfg.Model = "other-model" })
	say := func(e *Engine, body fields) string {
		return ask[chatAnswer](t, e, "/v1/chat/completions", body).content()
	}
	body := chatBody(30, 40)
	first := say(a, body)
	if again := say(b, body); again != first {
		t.Errorf("another engine says %q, not %q", again, first)
	}
	if salted := say(a, body.with(fields{"cache_salt": "x", "seed": 3, "temperature": 0.7, "priority": 3})); salted != first {
		t.Error("the salt, seed, temperature or priority changed the answer")
	}
	changed := body.with(fields{"messages": []fields{{"role": "system", "content": "You are brieF."}, body["messages"].([]fields)[1]}})
	if say(a, changed) == first {
		t.Error("one letter more changed nothing")
	}
	delete(body, "model")
	if say(other, body) == first {
		t.Error("another model says the same")
	}
}

// A stream that breaks can be taken up elsewhere, by tokens or by text.
func TestChat_ContinuedAnswerEqualsTheWhole(t *testing.T) {
	e := start(t, nil)
	for i := range 20 {
		body := fields{"messages": []fields{{"role": "user", "content": fmt.Sprint("tell me of city ", i)}}, "max_tokens": 80, "return_token_ids": true}
		whole := ask[chatAnswer](t, e, "/v1/chat/completions", body)
		ids := whole.Choices[0].TokenIDs
		cut := len(ids) / 2
		if cut == 0 {
			continue // ended at once
		}
		prompt := slices.Concat(whole.PromptTokenIDs, ids[:cut])
		rest := ask[chatAnswer](t, e, "/v1/completions", fields{"prompt": prompt, "max_tokens": 80 - cut, "return_token_ids": true})
		if !slices.Equal(rest.Choices[0].TokenIDs, ids[cut:]) {
			t.Fatalf("by tokens: %v, want %v", rest.Choices[0].TokenIDs, ids[cut:])
		}
		said := strings.TrimSuffix(whole.content(), rest.Choices[0].Text)
		messages := append(body["messages"].([]fields), fields{"role": "assistant", "content": said})
		byText := ask[chatAnswer](t, e, "/v1/chat/completions", body.with(fields{
			"messages": messages, "max_tokens": 80 - cut, "add_generation_prompt": false, "continue_final_message": true,
		}))
		if said+byText.content() != whole.content() {
			t.Fatalf("by text: %q + %q, want %q", said, byText.content(), whole.content())
		}
		if wrong := ask[chatAnswer](t, e, "/v1/completions", fields{"prompt": prompt[1:], "max_tokens": 80 - cut}); wrong.Choices[0].Text == rest.Choices[0].Text {
			t.Fatal("a lost token changed nothing")
		}
	}
}

func TestChat_StreamShape(t *testing.T) {
	e := start(t, nil)
	events, err := stream(t, e, "/v1/chat/completions", chatBody(5, 3).with(fields{
		"stream": true, "stream_options": fields{"include_usage": true, "continuous_usage_stats": true}, "return_token_ids": true,
	}))
	must(t, err)
	if len(events) != 6 { // role, three tokens, usage, done
		t.Fatalf("%d events: %v", len(events), events)
	}
	var chunks []chatAnswer
	for _, event := range events[:5] {
		var chunk chatAnswer
		must(t, json.Unmarshal([]byte(event.data), &chunk))
		chunks = append(chunks, chunk)
		if chunk.ID != chunks[0].ID || chunk.Usage == nil {
			t.Errorf("chunk %s", event.data)
		}
	}
	if chunks[0].Choices[0].Delta.Role != "assistant" || len(chunks[0].PromptTokenIDs) == 0 {
		t.Errorf("first chunk %+v", chunks[0])
	}
	if r := chunks[3].Choices[0].FinishReason; r == nil || *r != "length" {
		t.Errorf("last token's finish reason %v", r)
	}
	if len(chunks[4].Choices) != 0 || chunks[4].Usage.CompletionTokens != 3 || !strings.Contains(events[4].data, `"choices":[]`) {
		t.Errorf("usage chunk %s", events[4].data)
	}
}

func TestChat_EndsByItselfAndByStop(t *testing.T) {
	e := start(t, nil)
	body := fields{"messages": []fields{{"role": "user", "content": "a story, please"}}, "return_token_ids": true}
	free := ask[chatAnswer](t, e, "/v1/chat/completions", body).Choices[0]
	if *free.FinishReason != "stop" || free.TokenIDs[len(free.TokenIDs)-1] != e.language.end {
		t.Fatalf("finish %q, tokens %v", *free.FinishReason, free.TokenIDs)
	}
	long := ask[chatAnswer](t, e, "/v1/chat/completions", body.with(fields{"min_tokens": len(free.TokenIDs) + 5, "max_tokens": len(free.TokenIDs) + 50})).Choices[0]
	if len(long.TokenIDs) < len(free.TokenIDs)+5 {
		t.Errorf("min_tokens: %d tokens", len(long.TokenIDs))
	}
	text := *ask[chatAnswer](t, e, "/v1/chat/completions", body.with(fields{"max_tokens": 40, "ignore_eos": true})).Choices[0].Message.Content
	stop := text[len(text)/2 : len(text)/2+7] // most likely across tokens
	for _, include := range []bool{false, true} {
		stopped := body.with(fields{"max_tokens": 40, "ignore_eos": true, "stop": []string{"never said", stop}, "include_stop_str_in_output": include})
		got := ask[chatAnswer](t, e, "/v1/chat/completions", stopped).Choices[0]
		want, _, _ := strings.Cut(text, stop)
		if include {
			want += stop
		}
		if *got.Message.Content != want || *got.FinishReason != "stop" || got.StopReason != stop {
			t.Errorf("stop %q: got %q (%v), want %q", stop, *got.Message.Content, got.StopReason, want)
		}
		if streamed, _ := chatStreamText(t, e, stopped); streamed != want {
			t.Errorf("streamed %q, want %q", streamed, want)
		}
	}
}

func TestChat_SeveralAnswers(t *testing.T) {
	e := start(t, nil)
	got := ask[chatAnswer](t, e, "/v1/chat/completions", chatBody(30, 20).with(fields{"n": 3}))
	one := ask[chatAnswer](t, e, "/v1/chat/completions", chatBody(30, 20))
	if len(got.Choices) != 3 || got.content() != one.content() || *got.Choices[1].Message.Content == one.content() {
		t.Errorf("%+v", got.Choices)
	}
	if got.Usage.CompletionTokens != 60 || got.Usage.PromptTokens != one.Usage.PromptTokens {
		t.Errorf("usage %+v", got.Usage)
	}
}

func TestChat_CachedTokens(t *testing.T) {
	e := start(t, nil)
	body := chatBody(60, 3)
	if first := ask[chatAnswer](t, e, "/v1/chat/completions", body); first.Usage.Details != nil {
		t.Errorf("first: %+v", first.Usage.Details)
	}
	second := ask[chatAnswer](t, e, "/v1/chat/completions", body)
	if want := (second.Usage.PromptTokens - 1) / 16 * 16; second.Usage.Details.CachedTokens != want {
		t.Errorf("second: %d cached of %d", second.Usage.Details.CachedTokens, second.Usage.PromptTokens)
	}
	if salted := ask[chatAnswer](t, e, "/v1/chat/completions", body.with(fields{"cache_salt": "mine"})); salted.Usage.Details != nil {
		t.Error("a salt shares the cache with others")
	}
}

func TestChat_LogprobsAreTheSameEverywhere(t *testing.T) {
	a, b := start(t, nil), start(t, nil)
	body := chatBody(30, 5).with(fields{"logprobs": true, "top_logprobs": 3})
	one, two := ask[chatAnswer](t, a, "/v1/chat/completions", body).Choices[0], ask[chatAnswer](t, b, "/v1/chat/completions", body).Choices[0]
	first, _ := json.Marshal(one.Logprobs)
	second, _ := json.Marshal(two.Logprobs)
	if string(first) != string(second) || len(one.Logprobs.Content) != 5 || len(one.Logprobs.Content[0].TopLogprobs) != 3 {
		t.Errorf("%s\n%s", first, second)
	}
}

func TestChat_ForcedTool(t *testing.T) {
	e := start(t, nil)
	tools := []fields{{"type": "function", "function": fields{"name": "weather", "parameters": fields{
		"type": "object", "properties": fields{"city": fields{"type": "string"}, "days": fields{"type": "integer", "minimum": 1, "maximum": 7}}, "required": []string{"city", "days"},
	}}}}
	for choice, finish := range map[any]string{"required": "tool_calls", "named": "stop"} {
		body := fields{"messages": []fields{{"role": "user", "content": "will it rain?"}}, "tools": tools, "tool_choice": choice}
		if choice == "named" {
			body["tool_choice"] = fields{"type": "function", "function": fields{"name": "weather"}}
		}
		got := ask[chatAnswer](t, e, "/v1/chat/completions", body).Choices[0]
		var arguments struct {
			City string
			Days int
		}
		call := got.Message.ToolCalls[0].Function
		if err := json.Unmarshal([]byte(call.Arguments), &arguments); err != nil || call.Name != "weather" || arguments.City == "" || arguments.Days < 1 || arguments.Days > 7 {
			t.Errorf("call %+v: %v", call, err)
		}
		if *got.FinishReason != finish {
			t.Errorf("%v: finish %q", choice, *got.FinishReason)
		}
		events, err := stream(t, e, "/v1/chat/completions", body.with(fields{"stream": true}))
		must(t, err)
		streamed := ""
		for _, event := range events[:len(events)-1] {
			var chunk chatAnswer
			must(t, json.Unmarshal([]byte(event.data), &chunk))
			for _, d := range chunk.Choices[0].Delta.ToolCalls {
				streamed += *d.Function.Arguments
			}
		}
		if streamed != call.Arguments {
			t.Errorf("streamed %q, want %q", streamed, call.Arguments)
		}
	}
	free := ask[chatAnswer](t, e, "/v1/chat/completions", chatBody(5, 5).with(fields{"tools": tools}))
	if len(free.Choices[0].Message.ToolCalls) != 0 || free.content() == "" {
		t.Errorf("tool_choice auto: %+v", free.Choices[0])
	}
}

func TestChat_ForcedToolPrefillMayFail(t *testing.T) {
	e := start(t, func(cfg *Config) { cfg.ForcedToolPrefillFails = true })
	body := chatBody(30, 1).with(fields{
		"tools": []fields{{"type": "function", "function": fields{"name": "f"}}}, "tool_choice": "required",
		"kv_transfer_params": fields{"do_remote_decode": true},
	})
	if status, _ := post(t, e, "/v1/chat/completions", body); status != 500 {
		t.Errorf("status %d", status)
	}
	delete(body, "kv_transfer_params")
	if status, _ := post(t, e, "/v1/chat/completions", body); status != 200 {
		t.Errorf("without transfer: status %d", status)
	}
}

func TestChat_ResponseFormat(t *testing.T) {
	e := start(t, nil)
	schema := json.RawMessage(`{"type":"object","properties":{"z":{"enum":["é","ü"]},"a":{"type":"array","items":{"$ref":"#/$defs/n"},"minItems":2},
		"next":{"anyOf":[{"$ref":"#"},{"type":"null"}]}},"required":["z","a"],"$defs":{"n":{"type":"number","minimum":5,"maximum":6}}}`)
	for i := range 10 {
		body := fields{"messages": []fields{{"role": "user", "content": fmt.Sprint(i)}}, "response_format": fields{"type": "json_schema", "json_schema": fields{"name": "x", "schema": schema}}}
		text := ask[chatAnswer](t, e, "/v1/chat/completions", body).content()
		var got struct {
			Z string
			A []float64
		}
		if err := json.Unmarshal([]byte(text), &got); err != nil || got.Z != "é" && got.Z != "ü" || len(got.A) < 2 || got.A[0] < 5 || got.A[0] > 6 {
			t.Fatalf("%v: %s", err, text)
		}
		if !strings.HasPrefix(text, `{"z": `) {
			t.Errorf("order of keys lost: %s", text)
		}
		if streamed, _ := chatStreamText(t, e, body); streamed != text {
			t.Errorf("streamed %q, want %q", streamed, text)
		}
		body["response_format"] = fields{"type": "json_object"}
		if text := ask[chatAnswer](t, e, "/v1/chat/completions", body).content(); !json.Valid([]byte(text)) {
			t.Errorf("json_object: %s", text)
		}
	}
}
