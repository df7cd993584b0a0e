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
		{"a large bound", api.Chat, `{"model":"m","messages":[{}],"max_tokens":9000}`, 1, 256, false, false},
		{"token ids", api.Completions, `{"model":"m","prompt":[5,6,7]}`, 3, 256, false, false},
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
		if controlFields[name] {
			return key
		}
		if inner, ok := value.(map[string]any); ok && containers[name] {
			if field := findControl(inner); field != "" {
				return field
			}
		}
	}
	return ""
}
