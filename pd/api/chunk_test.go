package api

import (
	"strings"
	"testing"
)

func TestChunk_IDsAreTakenOutWhereverTheyStand(t *testing.T) {
	for event, want := range map[string]string{
		`{"id":"x","choices":[{"index":0,"text":" a","token_ids":[7,8]}],"prompt_token_ids":[1,2]}`:                                 `{"id":"x","choices":[{"index":0,"text":" a"}]}`,
		`{"prompt_token_ids":[1,2],"choices":[{"token_ids":[7, 8],"text":" a","index":0}]}`:                                         `{"choices":[{"text":" a","index":0}]}`,
		`{"choices": [ { "prompt_token_ids": [1,2] , "token_ids" : [7,8] , "delta": {"content": " a"} } ] }`:                        `{"choices": [ { "delta": {"content": " a"} } ] }`,
		`{"choices":[{"token_ids":[7,8]}],"prompt_token_ids":[1,2]}`:                                                                `{"choices":[{}]}`,
		`{"choices":[{"index":0,"delta":{"content":" \"token_ids\":[9]"},"token_ids":[7,8],"x":1}],"prompt_token_ids":[1,2],"y":2}`: `{"choices":[{"index":0,"delta":{"content":" \"token_ids\":[9]"},"x":1}],"y":2}`,
	} {
		c := ReadChunk([]byte(event))
		if got := string(c.Without(nil, []byte(event))); got != want {
			t.Errorf("%s\nbecomes %s\nwant    %s", event, got, want)
		}
		ids, n := IDList(c.IDs)
		prompt, m := IDList(c.Prompt)
		if n != 2 || m != 2 || string(prompt) != "1,2" || ids[0] != '7' {
			t.Errorf("%s: %d ids %q, prompt %d %q", event, n, ids, m, prompt)
		}
	}
	for event, choices := range map[string]int{`[DONE]`: -1, `{"usage":{}}`: -1, `{"choices":[],"usage":{"prompt_tokens":3}}`: 0, `{"choices":[{},{}]}`: 2} {
		if c := ReadChunk([]byte(event)); c.Choices != choices || string(c.Without(nil, []byte(event))) != event {
			t.Errorf("%s: %d choices", event, c.Choices)
		}
	}
}

// What an event of a stream says of the answer: text, an end, or something that ids do not say.
func TestChunk_WhatItSaysOfTheAnswer(t *testing.T) {
	for event, want := range map[string]struct {
		text, finish    string
		notText, silent bool
	}{
		`{"choices":[{"delta":{"role":"assistant","content":""}}]}`:         {silent: true},
		`{"choices":[{"delta":{"content":"a"}}]}`:                           {text: "a"},
		`{"choices":[{"text":"a","finish_reason":"stop"}]}`:                 {text: "a", finish: "stop"},
		`{"choices":[{"delta":{},"finish_reason":"length"}]}`:               {finish: "length"},
		`{"choices":[{"delta":{"content":null,"tool_calls":[{}]}}]}`:        {notText: true},
		`{"choices":[{"delta":{"content":null,"tool_calls":null}}]}`:        {silent: true},
		`{"choices":[{"delta":{"tool_calls":[],"reasoning":""}}]}`:          {notText: true},
		`{"choices":[{"delta":{"reasoning":"hm","reasoning_content":""}}]}`: {notText: true},
		`{"choices":[{"delta":{"reasoning_content":"hm"}}]}`:                {notText: true},
		`{"choices":[{"delta":{"reasoning":""}}]}`:                          {silent: true},
		`{"choices":[{"delta":{"content":"a"}},{"delta":{"content":"b"}}]}`: {text: "a"},
		`{"choices":[]}`: {silent: true},
	} {
		c := ReadChunk([]byte(event))
		text, _ := c.Text.String()
		finish, _ := c.Finish.String()
		if text != want.text || finish != want.finish || c.NotText != want.notText || c.Silent() != want.silent {
			t.Errorf("%s: text %q, finish %q, not text %v, silent %v", event, text, finish, c.NotText, c.Silent())
		}
	}
}

// A whole answer as a stream has the role of a chat, all that was said in one event, then the
// usage, which all events have where the client wants it with each.
func TestAsStream_SaysWhatTheAnswerDid(t *testing.T) {
	const chat, text = `{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"hi","tool_calls":[]}}],"usage":{"prompt_tokens":3,"completion_tokens":1}}`,
		`{"id":"x","object":"text_completion","choices":[{"index":0,"text":"hi"}],"usage":{"prompt_tokens":3}}`
	for name, c := range map[string]struct {
		dialect *Dialect
		answer  string
		each    bool
		want    []string
	}{
		"a chat": {Chat, chat, false, []string{
			`{"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}`,
			`{"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"hi"}}]}`,
			`{"id":"x","object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}`,
		}},
		"a chat with the usage in each event": {Chat, chat, true, []string{
			`{"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":{"prompt_tokens":3,"completion_tokens":0}}`,
			`{"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"hi"}}],"usage":{"prompt_tokens":3,"completion_tokens":1}}`,
			`{"id":"x","object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}`,
		}},
		"a completion": {Completions, text, false, []string{
			`{"id":"x","object":"text_completion","choices":[{"index":0,"text":"hi"}]}`,
			`{"id":"x","object":"text_completion","choices":[],"usage":{"prompt_tokens":3}}`,
		}},
	} {
		body, err := ParseBody([]byte(c.answer))
		if err != nil {
			t.Fatal(err)
		}
		want := "data: " + strings.Join(append(c.want, "[DONE]"), "\n\ndata: ") + "\n\n"
		if got := string(AsStream(c.dialect, body, c.each)); got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", name, got, want)
		}
	}
}

// Where only prefill knows the prompt's logprobs they are put before decode's own: in a body, in
// each element of a batch, and in an event by what it says of which element it is.
func TestWithInputLogprobs_PutsPrefillsBeforeDecodes(t *testing.T) {
	one := func(own string) string { return `{"meta_info":{"input_token_logprobs":[` + own + `]}}` }
	at := func(index, own string) string {
		return `{"index":` + index + `,"meta_info":{"input_token_logprobs":[` + own + `]}}`
	}
	batch := `[` + one("1,2") + `,` + one("3") + `]`
	for name, c := range map[string]struct{ decode, prefill, want string }{
		"a body":                       {one("9"), one("1,2"), one("1,2,9")},
		"prefill has none":             {one("9"), `{"meta_info":{}}`, one("9")},
		"decode has none":              {`{"meta_info":{}}`, one("1"), one("1")},
		"a batch":                      {`[` + one("8") + `,` + one("9") + `]`, batch, `[` + one("1,2,8") + `,` + one("3,9") + `]`},
		"a batch that is longer":       {`[` + one("7") + `,` + one("8") + `,` + one("9") + `]`, batch, `[` + one("1,2,7") + `,` + one("3,8") + `,` + one("9") + `]`},
		"the first of a batch":         {at("0", "9"), batch, at("0", "1,2,9")},
		"the last of a batch":          {at("1", "9"), batch, at("1", "3,9")},
		"an event behind the batch":    {at("2", "9"), batch, at("2", "9")},
		"an event before the batch":    {at("-1", "9"), batch, at("-1", "9")},
		"the end of a stream":          {`[DONE]`, one("1"), `[DONE]`},
		"all that prefill alone knows": {`{"meta_info":{}}`, `{"meta_info":{"input_top_logprobs":[1],"input_token_ids_logprobs":[2],"other":[3]}}`, `{"meta_info":{"input_top_logprobs":[1],"input_token_ids_logprobs":[2]}}`},
	} {
		if got := string(WithInputLogprobs([]byte(c.decode), []byte(c.prefill))); got != c.want {
			t.Errorf("%s:\ngot  %s\nwant %s", name, got, c.want)
		}
	}
	for body, want := range map[string]bool{`{"return_logprob":true}`: true, `{"return_logprob":false}`: false, `{}`: false} {
		parsed, _ := ParseBody([]byte(body))
		if Generate.WantsInputLogprobs(parsed) != want || Chat.WantsInputLogprobs(parsed) {
			t.Errorf("%s: %v, of a chat %v", body, Generate.WantsInputLogprobs(parsed), Chat.WantsInputLogprobs(parsed))
		}
	}
}
