package gateway

import (
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pools"
)

// usageAnswers are what an engine says of a prompt of 10 tokens, of which a cache had 8, by API:
// whole, and the end of a stream. Its bytes are spaced as no encoder of ours would.
var usageAnswers = map[*api.Dialect]struct {
	whole, stream string
	place         string // of the usage
	cached        string // in it
}{
	api.Chat: {
		`{"choices":[{"index":0,"message":{"content":"Hi"},"finish_reason":"stop"}] , "usage": { "prompt_tokens":10, "completion_tokens":3,"total_tokens":13,"prompt_tokens_details":{"cached_tokens": 8} } }`,
		`data: {"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":"stop"}]}` + "\n\n" +
			`data: {"choices":[] , "usage": { "prompt_tokens":10, "completion_tokens":3,"total_tokens":13,"prompt_tokens_details":{"cached_tokens": 8} } }` + "\n\ndata: [DONE]\n\n",
		"usage", "prompt_tokens_details.cached_tokens",
	},
	api.Completions: {
		`{"choices":[{"index":0,"text":"\"usage\":{}","finish_reason":"stop"}] , "usage": { "prompt_tokens":10, "completion_tokens":3,"total_tokens":13,"prompt_tokens_details":{"cached_tokens": 8} } }`,
		`data: {"choices":[{"index":0,"text":"\"usage\":{}","finish_reason":"stop"}]}` + "\n\n" +
			`data: {"choices":[] , "usage": { "prompt_tokens":10, "completion_tokens":3,"total_tokens":13,"prompt_tokens_details":{"cached_tokens": 8} } }` + "\n\ndata: [DONE]\n\n",
		"usage", "prompt_tokens_details.cached_tokens",
	},
	api.Responses: {
		`{"output":[] , "usage": { "input_tokens":10, "output_tokens":3,"total_tokens":13,"input_tokens_details":{"cached_tokens": 8} } }`,
		"event: response.output_text.delta\n" + `data: {"type":"response.output_text.delta","delta":"Hi"}` + "\n\n" + "event: response.completed\n" +
			`data: {"type":"response.completed" , "response":{"usage": { "input_tokens":10, "output_tokens":3,"total_tokens":13,"input_tokens_details":{"cached_tokens": 8} } } }` + "\n\n",
		"response.usage", "input_tokens_details.cached_tokens",
	},
	api.Messages: {
		`{"type":"message","content":[{"type":"text","text":"Hi"}] , "usage": { "input_tokens":2, "output_tokens":3,"cache_read_input_tokens": 8 } }`,
		"event: message_start\n" + `data: {"type":"message_start","message":{"usage":{"input_tokens":2,"output_tokens":0}}}` + "\n\n" +
			"event: content_block_delta\n" + `data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hi"}}` + "\n\n" +
			"event: message_delta\n" + `data: {"type":"message_delta","delta":{} , "usage": { "input_tokens":2, "output_tokens":3,"cache_read_input_tokens": 8 } }` + "\n\n" +
			"event: message_stop\n" + `data: {"type":"message_stop"}` + "\n\n",
		"usage", "cache_read_input_tokens",
	},
}

// The usage in an answer, whole and streamed, has the extension in it where operators want that,
// once; all other bytes are the engine's, also what it says of its cache.
func TestUsageExtension_IsInTheEnginesOwnUsage(t *testing.T) {
	for d, said := range usageAnswers {
		for _, on := range []bool{false, true} {
			of := usual(t)
			of.config = func(c *Config) { c.UsageExtension = on }
			e := &engines{}
			g := run(t, of, e.roundTrip, alone(t))
			more := `,"stream":true`
			if d == api.Chat || d == api.Completions {
				more += `,"stream_options":{"include_usage":true}`
			}
			for _, form := range []struct{ kind, sent, more string }{{"application/json", said.whole, ""}, {"text/event-stream", said.stream, more}} {
				e.answer = response(200, form.kind, form.sent)
				got := g.ask("POST", d.Path, promptOf(d, form.more))
				before, rest, found := strings.Cut(got.body, `,"tandem":{`)
				extension, after, _ := strings.Cut(rest, "}")
				if found != on || strings.Contains(rest, `"tandem"`) {
					t.Fatalf("%s: on is %v: %d %s", d.Path, on, got.status, got.body)
				}
				if on && before+after != form.sent || !on && got.body != form.sent {
					t.Errorf("%s: beside it\n%s\nwhere the engine said\n%s", d.Path, before+after, form.sent)
				}
				if !on {
					continue
				}
				says := gjson.Parse("{" + extension + "}")
				if says.Get("cached_tokens").Raw != "8" || says.Get("expected_cached_tokens").Raw != "0" || !says.Get("wait_ms").Exists() || says.Get("wait_share").Num < 0 || says.Get("wait_share").Num > 1 || len(says.Map()) != 4 {
					t.Errorf("%s: it says %s", d.Path, says.Raw)
				}
				if at := strings.LastIndex(before, "data: "); form.more != "" && gjson.Get(got.body[at+len("data: "):], said.place+"."+said.cached).Raw != "8" {
					t.Errorf("%s: the engine's own figure is gone: %s", d.Path, got.body)
				}
			}
		}
	}
}

// Where the client asked for no usage it gets none, and no extension.
func TestUsageExtension_OnlyWhereThereIsAUsage(t *testing.T) {
	of := usual(t)
	of.config = func(c *Config) { c.UsageExtension = true }
	g := run(t, of, stream().roundTrip, alone(t))
	if got := g.post(ask); got.status != 200 || strings.Contains(got.body, "tandem") || strings.Contains(got.body, "usage") {
		t.Errorf("%d %s", got.status, got.body)
	}
}

// A message that engines see as a chat has it in the usage that the client sees.
func TestUsageExtension_OfAMessageThatGoesOnAsAChat(t *testing.T) {
	spec := pools.Spec{URL: listing(t, `{"data":[{"id":"m","owned_by":"vllm"}]}`), Role: pools.Both, Connector: "nixl"}
	of := usual(t, "ada")
	of.config = func(c *Config) { c.UsageExtension = true }
	e := &engines{answer: response(200, "application/json", usageAnswers[api.Chat].whole)}
	g := run(t, of, e.roundTrip, spec)
	for _, more := range []string{"", `,"stream":true`} {
		if more != "" {
			e.answer = response(200, "text/event-stream", usageAnswers[api.Chat].stream)
		}
		got := g.ask("POST", "/v1/messages", promptOf(api.Messages, more), as("ada")...)
		if got.status != 200 || strings.Count(got.body, `"cache_read_input_tokens":8,`) == 0 || strings.Count(got.body, `"tandem":{"expected_cached_tokens":0,"cached_tokens":8,`) != 1 {
			t.Errorf("%d %s", got.status, got.body)
		}
	}
}
