package api

import (
	"strings"
	"testing"

	"github.com/tidwall/gjson"
)

// An answer that begins with prefill's token goes on with what decode said: text, ids,
// log-probabilities and the reason for its end, and the token counts with the answer.
func TestWithFirst(t *testing.T) {
	const prefilled, decoded = `"usage":{"prompt_tokens":7,"completion_tokens":1,"total_tokens":8},"kv_transfer_params":{"a":1}`, `"usage":{"prompt_tokens":8,"completion_tokens":2,"total_tokens":10}`
	for _, x := range []struct {
		name        string
		d           *Dialect
		first, rest string // the choice
		want        map[string]string
	}{
		{
			"a chat", Chat,
			`{"index":0,"message":{"role":"assistant","content":"Hel"},"token_ids":[5],"logprobs":{"content":[{"token":"Hel"}]},"finish_reason":"length","stop_reason":null}`,
			`{"index":0,"message":{"content":"lo"},"token_ids":[6,7],"logprobs":{"content":[{"token":"l"},{"token":"o"}]},"finish_reason":"stop","stop_reason":9}`,
			map[string]string{
				"message.role": `"assistant"`, "message.content": `"Hello"`, "token_ids": `[5,6,7]`, "logprobs.content.#": "3", "logprobs.content.2.token": `"o"`, "finish_reason": `"stop"`, "stop_reason": "9",
			},
		},
		{
			"a completion", Completions,
			`{"index":0,"text":"Hél","token_ids":[5],"logprobs":{"tokens":["Hél"],"text_offset":[0],"top_logprobs":null,"token_logprobs":[-1]},"finish_reason":"length","stop_reason":null}`,
			`{"index":0,"text":"lo","token_ids":[6],"logprobs":{"tokens":["l","o"],"text_offset":[0,1],"top_logprobs":[{}],"token_logprobs":null},"finish_reason":"stop"}`,
			map[string]string{
				"text": `"Héllo"`, "token_ids": `[5,6]`, "logprobs.tokens": `["Hél","l","o"]`, "logprobs.text_offset": "[0,3,4]", "logprobs.top_logprobs": "null", "logprobs.token_logprobs": "[-1]",
				"finish_reason": `"stop"`, "stop_reason": "null",
			},
		},
		{
			"a token that is all", Completions, `{"index":0,"text":"Hel","logprobs":null,"finish_reason":"length"}`, `{"index":0,"text":null,"logprobs":null,"finish_reason":"stop"}`,
			map[string]string{"text": `"Hel"`, "token_ids": "", "logprobs": "null", "finish_reason": `"stop"`},
		},
	} {
		first := saidFirst(t, x.d, `{"id":"x","choices":[`+x.first+`],`+prefilled+`}`)
		rest, err := ParseBody([]byte(`{"id":"y","choices":[` + x.rest + `],` + decoded + `}`))
		if err != nil {
			t.Fatal(err)
		}
		joined, err := WithFirst(x.d, first, rest, true)
		if err != nil {
			t.Errorf("%s: %v", x.name, err)
			continue
		}
		whole, err := ParseBody(joined)
		if err != nil {
			t.Errorf("%s: %v", x.name, err)
			continue
		}
		for field, want := range x.want {
			if got := gjson.GetBytes(whole.Bytes(), "choices.0."+field).Raw; got != want {
				t.Errorf("%s: %s is %s, want %s", x.name, field, got, want)
			}
		}
		usage := gjson.GetBytes(whole.Bytes(), "usage")
		if usage.Get("prompt_tokens").Int() != 7 || usage.Get("completion_tokens").Int() != 3 || usage.Get("total_tokens").Int() != 10 || whole.Get(HandoffField) != nil || string(whole.Get("id")) != `"x"` {
			t.Errorf("%s: %s", x.name, whole.Bytes())
		}
	}
}

// saidFirst is what a prefill leg said.
func saidFirst(t testing.TB, d *Dialect, text string) *FirstToken {
	answer, err := d.ReadAnswer([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	said := ReadFirstToken(answer)
	return &said
}

// What is no answer of one choice with a usage cannot be joined.
func TestWithFirst_WhatCannotBeJoined(t *testing.T) {
	const good = `{"choices":[{"text":"a"}],"usage":{"completion_tokens":1}}`
	for _, x := range []struct{ first, rest string }{
		{`{}`, good}, {`{"choices":[]}`, good}, {`{"choices":[{"text":"a"},{"text":"b"}]}`, good}, {`{"choices":["a"]}`, good},
		{good, `{}`}, {good, `{"choices":[]}`}, {good, `{"choices":[5]}`}, {good, `{"choices":[{"text":"a"}]}`},
		{`{"choices":[{"text":"a","logprobs":[1]}]}`, `{"choices":[{"text":"a","logprobs":{"tokens":["a"]}}],"usage":{}}`},
	} {
		first := saidFirst(t, Completions, x.first)
		rest, err := ParseBody([]byte(x.rest))
		if err != nil {
			t.Fatal(err)
		}
		if whole, err := WithFirst(Completions, first, rest, false); err == nil {
			t.Errorf("%s and %s are %s", x.first, x.rest, whole)
		}
	}
}

// Tokens of a completion begin where those before them end; those of a chat have no place.
func TestShiftOffsets(t *testing.T) {
	for _, x := range []struct {
		logprobs string
		by       int
		want     string
	}{
		{`{"text_offset":[0,2],"tokens":["a"]}`, 3, `{"text_offset":[3,5],"tokens":["a"]}`}, {`{"text_offset":[0,2]}`, 0, `{"text_offset":[0,2]}`},
		{`{"content":[{}]}`, 3, `{"content":[{}]}`}, {`{"text_offset":null}`, 3, `{"text_offset":null}`}, {`{"text_offset":[]}`, 3, `{"text_offset":[]}`},
	} {
		if got := ShiftOffsets(gjson.Parse(x.logprobs), x.by); got != x.want {
			t.Errorf("%s by %d: %s", x.logprobs, x.by, got)
		}
	}
	if n := TextLength(gjson.Parse(`{"tokens":["é","ab",""]}`)); n != 3 {
		t.Errorf("%d characters", n)
	}
}

// The events of the Responses API are counted on, by the last that has a number.
func TestNextSequence(t *testing.T) {
	for events, want := range map[string]int{
		"": 0, `data: {"type":"x"}`: 0, `data: {"sequence_number":0}`: 1, `data: {"sequence_number":4}` + "\n\n" + `data: {"sequence_number":7,"a":1}`: 8,
		`data: {"sequence_number":4,"text":"\"sequence_number\":70"}`: 5,
	} {
		if got := NextSequence([]byte(events)); got != want {
			t.Errorf("%s: %d, want %d", events, got, want)
		}
	}
}

// Every status has one of the Messages API's types.
func TestAnthropicType(t *testing.T) {
	for status, want := range map[int]string{
		399: "api_error", 400: "invalid_request_error", 401: "authentication_error", 402: "billing_error", 403: "permission_error", 404: "not_found_error", 408: "timeout_error", 409: "conflict_error",
		413: "request_too_large", 422: "invalid_request_error", 429: "rate_limit_error", 499: "invalid_request_error", 500: "api_error", 502: "api_error", 503: "overloaded_error", 504: "timeout_error", 529: "overloaded_error",
	} {
		if got := anthropicType(status); got != want {
			t.Errorf("%d: %s, want %s", status, got, want)
		}
	}
}

// Decode keeps blocks of an answer that is a hand-off itself, and says so there and nowhere else.
func TestAnswerHandoff(t *testing.T) {
	for answer, want := range map[string]bool{
		`{"kv_transfer_params":{"do_remote_decode":true}}`: true, `{"response":{"kv_transfer_params":{"do_remote_decode":true}}}`: true, `{"kv_transfer_params":{"do_remote_decode":false}}`: false,
		`{"kv_transfer_params":null,"text":"do_remote_decode"}`: false, `{"other":{"do_remote_decode":true}}`: false, `{}`: false,
	} {
		if got := AnswerHandoff([]byte(answer)) != nil; got != want {
			t.Errorf("%s: %v", answer, got)
		}
	}
}

// A usage gets one more member, what has none or has it already stays as it is.
func TestAddToUsage(t *testing.T) {
	for data, want := range map[string]string{
		`{"usage":{"prompt_tokens":2}}`: `{"usage":{"prompt_tokens":2,"x":7}}`, `{"usage":{}}`: `{"usage":{"x":7}}`, `{"usage":{ "prompt_tokens":2 } }`: `{"usage":{ "prompt_tokens":2,"x":7 } }`,
		`{"usage":{"x":1}}`: "", `{"usage":null}`: "", `{"usage":5}`: "", `{}`: "", `[DONE]`: "",
	} {
		if want == "" {
			want = data
		}
		if got := string(Chat.AddToUsage([]byte(data), "x", func(Usage) []byte { return []byte("7") })); got != want {
			t.Errorf("%s became %s", data, got)
		}
	}
}

// An event ends with an empty line, with either line end.
func TestCutEvent(t *testing.T) {
	for stream, want := range map[string]string{
		"data: a\n\nrest": "data: a\n\n", "data: a\r\n\r\nrest": "data: a\r\n\r\n", "event: b\r\ndata: a\r\n\r\n": "event: b\r\ndata: a\r\n\r\n", "data: a\n\r\nrest": "data: a\n\r\n",
		"data: a\n": "", "data: a\r\n\r": "", "data: a\r\n\rX\n": "", "data: a": "", "": "",
	} {
		event, rest, found := cutEvent([]byte(stream))
		if string(event) != want || found != (want != "") || string(rest) != strings.TrimPrefix(stream, want) {
			t.Errorf("%q: %q and %q, %v", stream, event, rest, found)
		}
	}
}

// BenchmarkWithFirst: a whole chat of 16 tokens behind prefill's token, to a prompt of 1,000. Budget (2-core VM): 5 us.
func BenchmarkWithFirst(b *testing.B) {
	answer := func(said, ids, more string) string {
		return `{"id":"chatcmpl-1","object":"chat.completion","created":1760000000,"model":"m","choices":[{"index":0,"message":{"role":"assistant",` +
			`"content":"` + said + `","refusal":null,"annotations":null,"tool_calls":[]},"logprobs":null,"finish_reason":"length","stop_reason":null` + ids + `}],` +
			`"service_tier":null,"system_fingerprint":null,"usage":{"prompt_tokens":1001,"total_tokens":1016,"completion_tokens":15,"prompt_tokens_details":null}` + more + `}`
	}
	first := saidFirst(b, Chat, answer("The", `,"token_ids":[5]`, `,"prompt_token_ids":[`+strings.Repeat("1234,", 1000)+`1],"kv_transfer_params":{"do_remote_prefill":true,"remote_block_ids":[[1,2,3,4]]}`))
	rest, err := ParseBody([]byte(answer(strings.Repeat(" word", 15), "", "")))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := WithFirst(Chat, first, rest, false); err != nil {
			b.Fatal(err)
		}
	}
}
