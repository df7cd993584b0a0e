package transcript

import (
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/pd/api"
)

// Fields that say nothing, shape the prompt alone, or were seen to work let prefill begin the
// answer; every other one, also one that is not known yet, does not.
func TestNotFromPrefill_FieldsThatAreNotProved(t *testing.T) {
	for fields, want := range map[string]string{
		``: "", `,"temperature":0.7,"top_p":0.9,"top_k":5`: "", `,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`: "",
		`,"n":1,"seed":null,"stop":[],"logprobs":false,"tools":null,"frequency_penalty":0,"min_tokens":0`:             "",
		`,"chat_template_kwargs":{"enable_thinking":false},"user":"ada","ignore_eos":true,"skip_special_tokens":true`: "",
		`,"stop":"x","include_stop_str_in_output":true`:                                                               "", `,"stop":["x","y"]`: "", `,"logprobs":true,"top_logprobs":2`: "", `,"repetition_penalty":1.1`: "",
		`,"tools":[{}],"tool_choice":"none"`: "", `,"tools":[{}],"tool_choice":"auto"`: "tools", `,"tools":[{}],"tool_choice":"required"`: "tools",
		`,"tool_choice":{"type":"function"}`: "tool_choice", `,"tools":[{}],"tool_choice":"none","seed":1`: "seed",
		`,"seed":7`: "seed", `,"min_tokens":1`: "", `,"min_tokens":3,"stop":null`: "", `,"min_tokens":3,"stop":"x"`: "min_tokens", `,"min_tokens":"x"`: "min_tokens", `,"n":2`: "n",
		`,"skip_special_tokens":false`: "skip_special_tokens", `,"truncate_prompt_tokens":8`: "truncate_prompt_tokens",
		`,"stream_options":{"some_day":true}`: "stream_options", `,"tools":[{}]`: "tools", `,"echo":true`: "echo", `,"new":1`: "new",
		`,"presence_penalty":0.1`: "presence_penalty", `,"response_format":{"type":"json_object"}`: "response_format",
		`,"include_reasoning":false`: "include_reasoning", `,"separate_reasoning":false`: "separate_reasoning",
		`,"continue_final_message":true`: "continue_final_message", `,"bad_words":["x"]`: "bad_words",
	} {
		body, err := api.ParseBody([]byte(`{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"a"}]` + fields + `}`))
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []bool{false, true} {
			if got := NotFromPrefill(body, text); got != want {
				t.Errorf("%s: %q, want %q", fields, got, want)
			}
		}
	}
	body, err := api.ParseBody([]byte(`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}`))
	if got := NotFromPrefill(body, false); err != nil || got != "messages" {
		t.Errorf("an image: %q, %v", got, err)
	}
}

// Whether an answer may be continued is found without a copy of its prompt.
func TestContinuable_CopiesNoPrompt(t *testing.T) {
	body, err := api.ParseBody([]byte(`{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("hello ", 1000) + `"}],"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(10, func() { _ = notContinuable(body) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
	if n := testing.AllocsPerRun(10, func() { _ = NotFromPrefill(body, false) }); n > 0 {
		t.Errorf("from prefill: %v allocations", n)
	}
}
