package gateway

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/pd/api"
)

func TestParse_ReadsWhatTheChoiceNeeds(t *testing.T) {
	for _, c := range []struct {
		name       string
		d          *api.Dialect
		body       string
		prompt     int
		output     int
		aggregated bool
		forced     bool
	}{
		{"messages", api.Chat, `{"model":"m","messages":[{"role":"user","content":"12345678"}]}`, 10, 256, false, false},
		{"a bound", api.Chat, `{"model":"m","messages":[{}],"max_tokens":9}`, 1, 9, false, false},
		{"the newer bound", api.Chat, `{"model":"m","messages":[{}],"max_tokens":9,"max_completion_tokens":3}`, 1, 3, false, false},
		{"a bound with an empty fraction", api.Chat, `{"model":"m","messages":[{}],"max_tokens":9.0,"top_logprobs":2.0,"n":1.0,"min_tokens":1e0}`, 1, 9, false, false},
		{"more answers, with an empty fraction", api.Chat, `{"model":"m","messages":[{}],"n":2.0}`, 1, 256, true, false},
		{"a large bound", api.Chat, `{"model":"m","messages":[{}],"max_tokens":9000}`, 1, 256, false, false},
		{"token ids", api.Completions, `{"model":"m","prompt":[5,6,7]}`, 3, 256, false, false},
		{"token ids beside what no engine reads", api.Completions, `{"model":"m","prompt":[5,6,7],"system":"be brief","tools":null}`, 3, 256, false, false},
		{"one prompt in a list", api.Completions, `{"model":"m","prompt":["abcdefgh"]}`, 3, 256, false, false},
		{"two prompts", api.Completions, `{"model":"m","prompt":["a","b"]}`, 3, 256, true, false},
		{"two id lists", api.Completions, `{"model":"m","prompt":[[1],[2]]}`, 3, 256, true, false},
		{"n", api.Chat, `{"model":"m","messages":[{}],"n":2}`, 1, 256, true, false},
		{"prompt logprobs", api.Chat, `{"model":"m","messages":[{}],"prompt_logprobs":1}`, 1, 256, true, false},
		{"echo with logprobs", api.Completions, `{"model":"m","prompt":"ab","echo":true,"logprobs":1}`, 1, 256, true, false},
		{"echo", api.Completions, `{"model":"m","prompt":"ab","echo":true}`, 1, 256, false, false},
		{"required", api.Chat, `{"model":"m","messages":[{}],"tool_choice":"required"}`, 1, 256, false, true},
		{"a tool by name", api.Chat, `{"model":"m","messages":[{}],"tool_choice":{"type":"function"}}`, 1, 256, false, true},
		{"auto", api.Messages, `{"model":"m","messages":[{}],"max_tokens":256,"tool_choice":{"type":"auto"}}`, 1, 256, false, false},
		{"a limit that messages need", api.Messages, `{"model":"m","messages":[{}]}`, 1, 256, true, false},
		{"an odd stop", api.Chat, `{"model":"m","messages":[{}],"stop":7}`, 1, 256, true, false},
		{"good stops", api.Chat, `{"model":"m","messages":[{}],"stop":["a","b"],"logprobs":true,"top_logprobs":2}`, 1, 256, false, false},
		{"tools count", api.Chat, `{"model":"m","messages":[{}],"tools":[{"a":1}]}`, 4, 256, false, false},
	} {
		req, err := parse(c.d, []byte(c.body))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if req.PromptTokens != c.prompt || req.OutputTokens != c.output || req.Aggregated != c.aggregated || req.ForcedTool != c.forced {
			t.Errorf("%s: %d prompt and %d output tokens, aggregated %v, forced %v", c.name, req.PromptTokens, req.OutputTokens, req.Aggregated, req.ForcedTool)
		}
	}
}

// Engines get numbers in digits: some read no other whole number.
func TestParse_WritesWholeNumbersInDigits(t *testing.T) {
	for sent, want := range map[string]string{"9.0": "9", "9e0": "9", "12E2": "1200", "9": "9", "null": "null", "0.0": "0"} {
		req, err := parse(api.Chat, []byte(`{"model":"m","messages":[{}],"max_tokens":`+sent+`}`))
		if err != nil || string(req.Body.Get("max_tokens")) != want {
			t.Errorf("%s: %v, %v", sent, req, err)
		}
	}
	for _, odd := range []string{"9.5", `"9"`, "true", "1e400", "9007199254740993.0", "-1.0", "5e9"} {
		if _, err := parse(api.Chat, []byte(`{"model":"m","messages":[{}],"max_tokens":`+odd+`}`)); err == nil {
			t.Errorf("%s is taken", odd)
		}
	}
}

// What engines would refuse is refused before a prefill, by the field's name.
func TestParse_Refuses(t *testing.T) {
	for _, x := range []struct {
		d     *api.Dialect
		body  string
		param string
		good  bool
	}{
		{api.Chat, `{"messages":[{}]}`, "", true}, // the only one is meant
		{api.Chat, `{"model":"","messages":[{}]}`, "", true},
		{api.Messages, `{"max_tokens":5,"messages":[{}]}`, "model", false},
		{api.CountTokens, `{"messages":[{}]}`, "model", false},
		{api.Chat, `{"model":7,"messages":[{}]}`, "model", false},
		{api.Chat, `{"model":"m"}`, "messages", false},
		{api.Chat, `{"model":"m","messages":null}`, "messages", false},
		{api.Chat, `{"model":"m","messages":"hi"}`, "messages", false},
		{api.Chat, `{"model":"m","messages":[]}`, "messages", false},
		{api.Completions, `{"model":"m","prompt":[]}`, "prompt", false},
		{api.Completions, `{"model":"m","prompt":7}`, "prompt", false},
		{api.Completions, `{"model":"m","prompt":{}}`, "prompt", false},
		{api.Responses, `{"model":"m"}`, "input", false},
		{api.Chat, `{"model":"m","messages":[{}],"max_tokens":0}`, "", true},
		{api.Chat, `{"model":"m","messages":[{}],"max_tokens":-1}`, "max_tokens", false},
		{api.Chat, `{"model":"m","messages":[{}],"max_tokens":"5"}`, "max_tokens", false},
		{api.Chat, `{"model":"m","messages":[{}],"max_tokens":2147483648}`, "", true},
		{api.Chat, `{"model":"m","messages":[{}],"max_tokens":2147483649}`, "max_tokens", false},
		{api.Chat, `{"model":"m","messages":[{}],"max_tokens":5,"min_tokens":5}`, "", true},
		{api.Chat, `{"model":"m","messages":[{}],"max_tokens":5,"min_tokens":6}`, "min_tokens", false},
		{api.Chat, `{"model":"m","messages":[{}],"min_tokens":6}`, "", true},
		{api.Chat, `{"model":"m","messages":[{}],"stream":"yes"}`, "stream", false},
		{api.Chat, `{"model":"m","messages":[{}],"stream":null}`, "", true},
		{api.Chat, `{"model":"m","messages":[{}],"stream_options":{}}`, "", true},
		{api.Chat, `{"model":"m","messages":[{}],"stream_options":{"include_usage":true}}`, "stream_options", false},
		{api.Chat, `{"model":"m","messages":[{}],"stream_options":[]}`, "stream_options", false},
		{api.Chat, `{"model":"m","messages":[{}],"stream":true,"stream_options":[]}`, "stream_options", false},
		{api.Chat, `{"model":"m","messages":[{}],"n":0}`, "n", false},
		{api.Chat, `{"model":"m","messages":[{}],"n":1}`, "", true},
		{api.Chat, `{"model":"m","messages":[{}],"n":null}`, "", true},
		{api.Completions, `{"model":"m","prompt":"a","best_of":"2"}`, "best_of", false},
		{api.Responses, `{"model":"m","input":"a","previous_response_id":"x"}`, "previous_response_id", false},
		{api.Responses, `{"model":"m","input":"a","previous_response_id":null}`, "", true},
		{api.Responses, `{"model":"m","input":"a","background":true}`, "background", false},
		{api.Responses, `{"model":"m","input":"a","background":false}`, "", true},
		{api.Responses, `{"model":"m","input":"a","background":null}`, "", true},
		{api.Chat, `{"model":"m","messages":[{}],"background":true,"previous_response_id":"x"}`, "", true},
		{api.Embeddings, `{"model":"m","input":"a","stream":7}`, "", true},
		{api.Embeddings, `{"input":"a"}`, "", true},
		{api.Chat, `{"model":"m","messages":[{}]`, "", false},
		{api.Chat, `[]`, "", false},
	} {
		_, err := parse(x.d, []byte(x.body))
		var bad *badRequest
		if (err == nil) != x.good || err != nil && (!errors.As(err, &bad) || bad.param != x.param || bad.status != 400) {
			t.Errorf("%s: %+v, want %q", x.body, err, x.param)
		}
	}
}

// A Response that refers to what another service keeps would be answered without it.
func TestParse_RefusesConversationsAndPromptTemplates(t *testing.T) {
	for field, value := range map[string]string{"conversation": `"conv_1"`, "prompt": `{"id":"pmpt_1"}`, "previous_response_id": `"resp_1"`} {
		for _, input := range []string{`,"input":"a"`, ""} {
			_, err := parse(api.Responses, []byte(`{"model":"m","`+field+`":`+value+input+`}`))
			var bad *badRequest
			if !errors.As(err, &bad) || bad.param != field || bad.status != 400 || !strings.Contains(bad.message, "The field "+field+" is not supported") {
				t.Errorf("%s, input %q: %v", field, input, err)
			}
		}
		if _, err := parse(api.Responses, []byte(`{"model":"m","input":"a","`+field+`":null}`)); err != nil {
			t.Errorf("%s of null: %v", field, err)
		}
	}
	for d, body := range map[*api.Dialect]string{
		api.Chat:        `{"model":"m","messages":[{}],"conversation":"c","prompt":{"id":"p"}}`,
		api.Completions: `{"model":"m","prompt":"a","conversation":"c"}`,
	} {
		if _, err := parse(d, []byte(body)); err != nil {
			t.Errorf("%s: %v", body, err)
		}
	}
}

// The bounds of an answer, how many are asked for, and what must be computed by one server.
func TestParse_AnswersAndBounds(t *testing.T) {
	stops := func(n int) string { return `["x"` + strings.Repeat(`,"x"`, n-1) + `]` }
	for _, x := range []struct {
		d          *api.Dialect
		fields     string
		most       int
		field      string
		answers    int
		aggregated bool
	}{
		{api.Chat, `"messages":[{}],"max_tokens":1`, 1, "max_tokens", 1, false},
		{api.Chat, `"messages":[{}],"max_tokens":5,"max_completion_tokens":7`, 7, "max_completion_tokens", 1, false},
		{api.Chat, `"messages":[{}],"max_tokens":5,"max_completion_tokens":0`, 5, "max_tokens", 1, true},
		{api.Chat, `"messages":[{}],"max_tokens":0`, 0, "", 1, true},
		{api.Chat, `"messages":[{}],"max_output_tokens":5`, 0, "", 1, false},
		{api.Responses, `"input":"a","max_output_tokens":5`, 5, "max_output_tokens", 1, false},
		{api.Completions, `"prompt":"a","n":3`, 0, "", 3, true},
		{api.Completions, `"prompt":"a","n":2,"best_of":4`, 0, "", 4, true},
		{api.Completions, `"prompt":["a","b"],"n":2`, 0, "", 4, true},
		{api.Completions, `"prompt":["a"]`, 0, "", 1, false},
		{api.Completions, `"prompt":[[1,2],[3]]`, 0, "", 2, true},
		{api.Completions, `"prompt":[1,2,3]`, 0, "", 1, false},
		{api.Completions, `"prompt":"a","prompt_embeds":["x","y"]`, 0, "", 2, true},
		{api.Completions, `"prompt":["a","b"],"prompt_embeds":["x"]`, 0, "", 3, true},
		{api.Completions, `"prompt":"a","prompt_embeds":[]`, 0, "", 1, false},
		{api.Completions, `"prompt":"a","prompt_logprobs":null`, 0, "", 1, false},
		{api.Completions, `"prompt":"a","echo":false,"logprobs":1`, 0, "", 1, false},
		{api.Completions, `"prompt":"a","use_beam_search":true`, 0, "", 1, true},
		{api.Completions, `"prompt":"a","use_beam_search":false`, 0, "", 1, false},
		{api.Completions, `"prompt":"a","n":1`, 0, "", 1, false},
		{api.Completions, `"prompt":"a","stop":` + stops(manyStops), 0, "", 1, false},
		{api.Completions, `"prompt":"a","stop":` + stops(manyStops+1), 0, "", 1, true},
		{api.Completions, `"prompt":"a","stop":["a",1]`, 0, "", 1, true},
		{api.Completions, `"prompt":"a","stop":"a"`, 0, "", 1, false},
		{api.Completions, `"prompt":"a","stop":null`, 0, "", 1, false},
		{api.Completions, `"prompt":"a","stop_token_ids":[0,1]`, 0, "", 1, false},
		{api.Completions, `"prompt":"a","stop_token_ids":[-1]`, 0, "", 1, true},
		{api.Completions, `"prompt":"a","logprobs":20`, 0, "", 1, false},
		{api.Completions, `"prompt":"a","logprobs":21`, 0, "", 1, true},
		{api.Completions, `"prompt":"a","logprobs":0`, 0, "", 1, false},
		{api.Completions, `"prompt":"a","logprobs":-1`, 0, "", 1, true},
		{api.Completions, `"prompt":"a","logprobs":false`, 0, "", 1, false},
		{api.Completions, `"prompt":"a","ignore_eos":true`, 0, "", 1, false},
		{api.Completions, `"prompt":"a","ignore_eos":1`, 0, "", 1, true},
		{api.Completions, `"prompt":"a","min_tokens":0`, 0, "", 1, false},
		{api.Completions, `"prompt":"a","min_tokens":-1`, 0, "", 1, true},
		{api.Messages, `"messages":[{}],"max_tokens":5,"stop_sequences":["a"]`, 5, "max_tokens", 1, false},
		{api.Messages, `"messages":[{}],"max_tokens":5,"stop_sequences":"a"`, 5, "max_tokens", 1, true},
	} {
		req, err := parse(x.d, []byte(`{"model":"m",`+x.fields+`}`))
		if err != nil || req.MaxOutput != x.most || req.MaxField != x.field || req.Answers != x.answers || req.Aggregated != x.aggregated {
			t.Errorf("%.80s: bound %d by %s, %d answers, aggregated %v, %v", x.fields, req.MaxOutput, req.MaxField, req.Answers, req.Aggregated, err)
		}
	}
}

// What is no prompt is not estimated as one: paths without a prefill go to one server whole.
func TestParse_WhatIsNotSplit(t *testing.T) {
	req, err := parse(api.Embeddings, []byte(`{"model":"m","input":"12345678"}`))
	if err != nil || !req.Aggregated || req.PromptTokens != 8 || req.OutputTokens != 0 || req.Stream {
		t.Errorf("%+v, %v", req, err)
	}
}

// Token ids that engines would read in place of the messages are removed, with all that
// steers them, wherever they would look.
func TestParse_RemovesWhatSteersEngines(t *testing.T) {
	for body, want := range map[string]string{
		`{"model":"m","messages":[{}],"input_ids":[1],"prompt_token_ids":[1],"prompt_token_ids_b64":"x"}`: `{"model":"m","messages":[{}]}`,
		`{"model":"m","messages":[{"rid":1}],"RID":1,"Kv_Transfer_Params":{}}`:                            `{"model":"m","messages":[{"rid":1}]}`,
		`{"model":"m","messages":[{}],"extra_body":{"rid":1,"a":{"rid":1}}}`:                              `{"model":"m","messages":[{}],"extra_body":{"a":{"rid":1}}}`,
		`{"model":"m","messages":[{}],"Extra_Body":[{"rid":1,"b":2},7]}`:                                  `{"model":"m","messages":[{}],"Extra_Body":[{"b":2},7]}`,
		`{"model":"m","messages":[{}],"extra_body":"rid"}`:                                                `{"model":"m","messages":[{}],"extra_body":"rid"}`,
		`{"model":"m","messages":[{}],"tools":[{"rid":1}]}`:                                               `{"model":"m","messages":[{}],"tools":[{"rid":1}]}`,
	} {
		req, err := parse(api.Chat, []byte(body))
		if err != nil || string(req.Body.Bytes()) != want {
			t.Errorf("%s became %s, %v", body, req.Body.Bytes(), err)
		}
	}
	nested := func(depth int) string {
		return `{"model":"m","messages":[{}],` + strings.Repeat(`"extra_body":{`, depth) + `"rid":1` + strings.Repeat(`}`, depth) + `}`
	}
	if req, err := parse(api.Chat, []byte(nested(maxContainerDepth))); err != nil || strings.Contains(string(req.Body.Bytes()), "rid") {
		t.Errorf("as deep as may be: %v", err)
	}
	if _, err := parse(api.Chat, []byte(nested(maxContainerDepth+1))); err == nil || !strings.Contains(err.Error(), "deeper than 4") {
		t.Errorf("deeper: %v", err)
	}
	many := func(n int) string {
		return `{"model":"m","messages":[{}],"extra_body":[1` + strings.Repeat(`,1`, n-1) + `]}`
	}
	if _, err := parse(api.Chat, []byte(many(maxContained))); err != nil {
		t.Errorf("as many as may be: %v", err)
	}
	if _, err := parse(api.Chat, []byte(many(maxContained+1))); err == nil || !strings.Contains(err.Error(), "more than 1024 values") {
		t.Errorf("more: %v", err)
	}
	if _, err := parse(api.Chat, []byte(`{"model":"m","messages":[{}],"extra_body":{"a":1,"a":2}}`)); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("a field twice: %v", err)
	}
}

func TestParse_UsageIsAskedForOnlyWhereTheClientDidNot(t *testing.T) {
	for body, want := range map[string]struct {
		options string
		hide    bool
	}{
		`{"model":"m","prompt":"x"}`:                                                                          {"", false},
		`{"model":"m","prompt":"x","stream":true}`:                                                            {`{"include_usage":true}`, true},
		`{"model":"m","prompt":"x","stream":true,"stream_options":null}`:                                      {`{"include_usage":true}`, true},
		`{"model":"m","prompt":"x","stream":true,"stream_options":{"include_usage":false,"other":1}}`:         {`{"include_usage":true,"other":1}`, true},
		`{"model":"m","prompt":"x","stream":true,"stream_options":{"include_usage":true}}`:                    {`{"include_usage":true}`, false},
		`{"model":"m","prompt":"x","stream":true,"stream_options":{"continuous_usage_stats":true,"other":1}}`: {`{"continuous_usage_stats":true,"other":1}`, false},
	} {
		req, err := parse(api.Completions, []byte(body))
		if err != nil || string(req.Body.Get("stream_options")) != want.options || req.HideUsage != want.hide {
			t.Errorf("%s: %s, hide %v, %v", body, req.Body.Get("stream_options"), req.HideUsage, err)
		}
	}
}

// Whatever the body: no control field is left where an engine would look, and
// the request is refused with a status of the client's own making or parsed.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		`{"model":"m","messages":[{}],"kv\u005ftransfer_params":{}}`,
		`{"model":"m","prompt":"x","stream":true,"extra_body":{"vllm_xargs":{"RID":1,"a":2}}}`,
		`{"model":"m","input":"x","background":true,"priority":3}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, d := range api.Dialects() {
			req, err := parse(d, raw)
			if err != nil {
				var bad *badRequest
				if !errors.As(err, &bad) || bad.status != 400 || len(bad.message) > 300 {
					t.Fatalf("refused with %v", err)
				}
				continue
			}
			var body map[string]any
			if err := json.Unmarshal(req.Body.Bytes(), &body); err != nil {
				t.Fatalf("the body is broken: %v\n%s", err, req.Body.Bytes())
			}
			if field := findControl(body); field != "" {
				t.Fatalf("%s is still in %s", field, req.Body.Bytes())
			}
		}
	})
}

func findControl(object map[string]any) string {
	for key, value := range object {
		name := strings.ToLower(key)
		if isControl(name) {
			return key
		}
		if inner, ok := value.(map[string]any); ok && isContainer(name) {
			if field := findControl(inner); field != "" {
				return field
			}
		}
	}
	return ""
}

// Windows PowerShell begins the files that it writes with a byte order mark, which engines read over (json.loads).
func TestParse_ReadsOverAByteOrderMark(t *testing.T) {
	const body = `{"model":"m","prompt":"hi"}`
	req, err := parse(api.Completions, []byte("\ufeff"+body))
	if err != nil {
		t.Fatal(err)
	}
	if got := string(req.Body.Bytes()); got != body {
		t.Errorf("engines get %q", got)
	}
}
