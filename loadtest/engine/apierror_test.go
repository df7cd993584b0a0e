package engine

import (
	"strings"
	"testing"

	"github.com/tidwall/gjson"
)

func TestErrors_AreThoseOfVLLM(t *testing.T) {
	e := start(t, nil)
	chat := chatBody(5, 3)
	for _, c := range []struct {
		path   string
		body   any
		status int
		says   string
	}{
		{"/v1/chat/completions", `{"messages": [`, 400, "JSON decode error"},
		{"/v1/chat/completions", strings.Repeat("[", 100_000), 400, "JSON decode error"},
		{"/v1/chat/completions", ``, 400, "JSON decode error"},
		{"/v1/chat/completions", chat.with(fields{"model": "gpt-9"}), 404, "The model `gpt-9` does not exist."},
		{"/v1/chat/completions", chat.with(fields{"messages": []fields{}}), 400, "at least 1 item"},
		{"/v1/chat/completions", chat.with(fields{"messages": []fields{{"role": "wizard", "content": "x"}}}), 400, "role"},
		{"/v1/chat/completions", chat.with(fields{"max_tokens": "three"}), 400, "max_tokens"},
		{"/v1/chat/completions", chat.with(fields{"max_tokens": 0}), 400, "at least 1"},
		{"/v1/chat/completions", chat.with(fields{"max_tokens": 4090}), 400, "maximum context length is 4096 tokens"},
		{"/v1/chat/completions", chatBody(9000, 1), 400, "maximum context length"},
		{"/v1/chat/completions", chat.with(fields{"stream_options": fields{"include_usage": true}}), 400, "stream=True"},
		{"/v1/chat/completions", chat.with(fields{"min_tokens": 4}), 400, "min_tokens"},
		{"/v1/chat/completions", chat.with(fields{"top_logprobs": 4}), 400, "`logprobs` must be set"},
		{"/v1/chat/completions", chat.with(fields{"logprobs": true, "top_logprobs": 99}), 400, "max allowed"},
		{"/v1/chat/completions", chat.with(fields{"n": 0}), 400, "n must be at least 1"},
		{"/v1/chat/completions", chat.with(fields{"temperature": -1}), 400, "temperature"},
		{"/v1/chat/completions", chat.with(fields{"cache_salt": ""}), 400, "cache_salt"},
		{"/v1/chat/completions", chat.with(fields{"tool_choice": "required"}), 400, "`tools` must be set"},
		{"/v1/chat/completions", chat.with(fields{"continue_final_message": true}), 400, "Cannot set both"},
		{"/v1/chat/completions", chat.with(fields{"stream": true, "kv_transfer_params": fields{"do_remote_decode": true}}), 400, "cannot be streamed"},
		{"/v1/completions", fields{"max_tokens": 3}, 400, "prompt"},
		{"/v1/completions", fields{"prompt": []int{5, 99999}}, 400, "out of vocabulary"},
		{"/v1/completions", fields{"prompt": ""}, 200, ""}, // just <|begin|>
		{"/v1/nothing", fields{}, 404, "Not Found"},
		{"/v1/models", fields{}, 405, "Method Not Allowed"},
	} {
		status, raw := post(t, e, c.path, c.body)
		if status != c.status || !strings.Contains(string(raw), c.says) {
			t.Errorf("%s %.80v: %d %s", c.path, c.body, status, raw)
		}
	}
	if s := e.State(); s.KVBlocksUsed != 0 || s.ServerLoad != 0 {
		t.Errorf("left behind: %d blocks, load %d", s.KVBlocksUsed, s.ServerLoad)
	}
}

// Since 0.32 an answer is as long as there is room for behind its prompt, and only a bound beyond the context is
// refused; before, any that did not fit was.
func TestErrors_AnAnswerThatDoesNotFit(t *testing.T) {
	chat := chatBody(4000, 3)
	for version, want := range map[string]map[int]int{
		"0.31.0": {90: 200, 700: 400, 4096: 400, 4097: 400},
		"0.32.0": {90: 200, 700: 200, 4096: 200, 4097: 400},
	} {
		e := start(t, func(c *Config) { c.Version = version })
		for most, status := range want {
			got, raw := post(t, e, "/v1/chat/completions", chat.with(fields{"max_tokens": most, "ignore_eos": true}))
			prompt, said := gjson.GetBytes(raw, "usage.prompt_tokens").Int(), gjson.GetBytes(raw, "usage.completion_tokens").Int()
			if got != status || status == 200 && said != min(int64(most), 4096-prompt) {
				t.Errorf("%s, max_tokens %d: %d, %d tokens behind %d: %.200s", version, most, got, said, prompt, raw)
			}
		}
	}
}
