package serving

import (
	"testing"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/pd/api"
)

// The bound of a key is 16. An API's engines read the fields that its dialect lists, some
// only the first of them; what other APIs' engines read bounds nothing.
var outputBounds = []struct {
	path, fields string
	status       int
	own          int64 // in the dialect's own field, as decode gets it
}{
	{chatPath, ``, 200, 16},
	{chatPath, `,"max_tokens":5`, 200, 5},
	{chatPath, `,"max_tokens":17`, 400, 0},
	{chatPath, `,"max_completion_tokens":17`, 400, 0},
	{chatPath, `,"max_completion_tokens":5`, 200, 5},
	{chatPath, `,"max_tokens":17,"max_completion_tokens":5`, 400, 0},
	{chatPath, `,"max_tokens":5,"max_completion_tokens":17`, 400, 0},
	{chatPath, `,"max_tokens":17,"max_output_tokens":5`, 400, 0},
	{chatPath, `,"max_output_tokens":5`, 200, 16},
	{chatPath, `,"max_tokens":null,"max_completion_tokens":null`, 200, 16},
	{chatPath, `,"max_tokens":null,"max_completion_tokens":7`, 200, 7},
	{chatPath, `,"max_tokens":5,"max_completion_tokens":null`, 200, 5},
	{chatPath, `,"max_completion_tokens":0`, 400, 16}, // the engine's own refusal: 16 of some, none of others
	{chatPath, `,"max_tokens":0`, 200, 16},            // which some engines take for none
	{chatPath, `,"max_tokens":0,"max_completion_tokens":5`, 200, 5},
	{chatPath, `,"max_tokens":-0,"max_completion_tokens":-0`, 400, 16},
	{chatPath, `,"max_tokens":17.0`, 400, 0},
	{chatPath, `,"max_tokens":"17"`, 400, 0},
	{chatPath, `,"max_tokens":1.7e1`, 400, 0},
	{chatPath, `,"max\u005ftokens":17`, 400, 0},
	{chatPath, `,"max_tokens":5,"max\u005ftokens":17`, 400, 0},
	{"/v1/completions", ``, 200, 16},
	{"/v1/completions", `,"max_tokens":17`, 400, 0},
	{"/v1/completions", `,"max_completion_tokens":5`, 200, 16},
	{"/v1/completions", `,"max_tokens":17,"max_completion_tokens":5`, 400, 0},
	{"/v1/responses", ``, 200, 16},
	{"/v1/responses", `,"max_tokens":5`, 200, 16},
	{"/v1/responses", `,"max_output_tokens":17,"max_tokens":5`, 400, 0},
	{"/v1/responses", `,"max_output_tokens":7`, 200, 7},
	{"/v1/messages", `,"max_tokens":17`, 400, 0},
	{"/v1/messages", `,"max_tokens":17,"max_output_tokens":5`, 400, 0},
	{"/v1/messages", `,"max_tokens":6`, 200, 6},
}

// boundedBody is a request to an API with more fields.
func boundedBody(path, fields string) string {
	prompt := map[string]string{"/v1/completions": `"prompt":"the river"`, "/v1/responses": `"input":"the river"`}[path]
	if prompt == "" {
		prompt = `"messages":[{"role":"user","content":"the river"}]`
	}
	return `{"model":"test-model","ignore_eos":true,` + prompt + fields + `}`
}

func TestEdge_EveryBoundOfAnAnswerIsHeldToTheKey(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1, engine: saltsMessages, config: withKeys(t, "sk-ada tenant=ada max-output-tokens=16")})
	dialects := make(map[string]*api.Dialect)
	for _, d := range api.Dialects() {
		dialects[d.Path] = d
	}
	for _, x := range outputBounds {
		before := len(requests(c.decode, x.path))
		got := c.post(x.path, boundedBody(x.path, x.fields), "Authorization", "Bearer sk-ada")
		if got.status != x.status {
			t.Errorf("%s {%s}: %d %s", x.path, x.fields, got.status, got.body)
			continue
		}
		legs := requests(c.decode, x.path)[before:]
		if x.own == 0 {
			if len(legs) != 0 {
				t.Errorf("%s {%s}: was refused and reached an engine", x.path, x.fields)
			}
			continue
		}
		if len(legs) != 1 {
			t.Errorf("%s {%s}: %d decodes", x.path, x.fields, len(legs))
			continue
		}
		limits := dialects[x.path].Limits()
		if own := gjson.Get(legs[0].Body, limits[0]); own.Int() != x.own {
			t.Errorf("%s {%s}: the engine got %s %s, want %d", x.path, x.fields, limits[0], own.Raw, x.own)
		}
		for _, field := range limits {
			if v := gjson.Get(legs[0].Body, field); v.Exists() && (v.Type != gjson.Number || v.Int() > 16) {
				t.Errorf("%s {%s}: the engine got %s %s", x.path, x.fields, field, v.Raw)
			}
		}
		for _, told := range []string{"usage.completion_tokens", "usage.output_tokens"} {
			if n := gjson.Get(got.body, told).Int(); n > x.own {
				t.Errorf("%s {%s}: an answer of %d tokens", x.path, x.fields, n)
			}
		}
	}
}

// A bound that the model's context cannot hold is refused before a prefill, by the field
// that the API's engines read.
func TestEdge_TheContextBoundsTheFieldThatEnginesRead(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1, engine: func(cfg *engine.Config) { cfg.MaxModelLen = 256 }})
	for _, x := range []struct {
		path, fields string
		status       int
	}{
		{chatPath, `,"max_tokens":300,"max_output_tokens":5`, 400},
		{chatPath, `,"max_tokens":5,"max_output_tokens":300`, 200},
		{chatPath, `,"max_tokens":300,"max_completion_tokens":5`, 200},
		{"/v1/responses", `,"max_output_tokens":300,"max_tokens":5`, 400},
		{"/v1/responses", `,"max_output_tokens":5,"max_tokens":300`, 200},
	} {
		before := len(requests(c.prefill, x.path))
		got := c.post(x.path, boundedBody(x.path, x.fields))
		if got.status != x.status {
			t.Errorf("%s {%s}: %d %s", x.path, x.fields, got.status, got.body)
		}
		if n := len(requests(c.prefill, x.path)) - before; x.status == 400 && n != 0 {
			t.Errorf("%s {%s}: %d prefills were spent", x.path, x.fields, n)
		}
	}
}
