package serving

import (
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/loadtest/engine"
)

// longerTemplate gives decode servers another version of the chat template, whose prompts
// have a KV block more.
func longerTemplate(version string) func(*engine.Config) {
	return func(cfg *engine.Config) {
		cfg.Version = version
		if cfg.Role == engine.RoleDecode {
			cfg.TemplateTokens = cfg.BlockSize
		}
	}
}

func deaths(s engine.State) int { return s.EngineDeaths }

// Decode gets prefill's own token ids, so that its own template does not matter.
func TestTokenise_DecodeTakesPrefillsTokens(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 1, engine: longerTemplate("0.32.0")})
	completion := `{"model":"` + testModel + `","max_tokens":9,"prompt":"` + strings.Repeat("of the river and the bridge ", 20) + `"`
	for path, bodies := range map[string][]string{
		"/v1/chat/completions": {chatBody(""), chatBody(`,"stream":true,"stream_options":{"include_usage":true}`)},
		"/v1/completions":      {completion + "}", completion + `,"stream":true,"stream_options":{"include_usage":true}}`},
	} {
		for _, body := range bodies {
			want := reference(t, path, body)
			got := c.post(path, body)
			if got.status != 200 || got.text() != want.text() || got.header.Get("X-Tandem-Prefill") == "" {
				t.Errorf("%s: %d by prefill %q: %s", path, got.status, got.header.Get("X-Tandem-Prefill"), got.body)
			}
			if strings.Contains(got.body, "token_ids") && !strings.Contains(want.body, `"prompt_token_ids":[`) && strings.Contains(got.body, `"prompt_token_ids":[`) {
				t.Errorf("ids that the client did not ask for: %s", got.body)
			}
		}
	}
	if n := sum(c.decode, deaths); n != 0 {
		t.Errorf("%d engines died", n)
	}
	for _, leg := range requests(c.decode, "/v1/completions") {
		if !gjson.Get(leg.Body, "prompt").IsArray() {
			t.Errorf("decode got %.200s", leg.Body)
		}
	}
}

// An engine without them dies of a prompt that is a block longer than its hand-off. The
// request is answered all the same, and asked again it kills no other server.
func TestTokenise_AnEngineDiesOfALongerPromptOnce(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 2, engine: longerTemplate("0.31.0")})
	for range 3 {
		if got := c.post("/v1/chat/completions", chatBody("")); got.status != 200 || got.text() == "" {
			t.Errorf("%d %s", got.status, got.body)
		}
	}
	if n := sum(c.decode, deaths); n != 1 {
		t.Errorf("%d engines died", n)
	}
	list := gjson.Parse(c.get("/debug/suspects").body)
	if cause := list.Get("0.causes.0").String(); !strings.Contains(cause, "chat template") || list.Get("0.servers.#").Int() != 1 {
		t.Errorf("suspects: %s", list.Raw)
	}
}

// Prompts that the engine cuts by the length of the answer have no second leg.
func TestTokenise_PromptsCutByTheAnswersLengthRunWhole(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 1})
	got := c.post("/v1/chat/completions", chatBody(`,"truncate_prompt_tokens":-1`))
	if got.status != 200 || got.header.Get("X-Tandem-Prefill") != "" {
		t.Errorf("%d by prefill %q: %s", got.status, got.header.Get("X-Tandem-Prefill"), got.body)
	}
}

// Once decode has shown that it reads a prompt's ids, it is sent no text beside them, and answers as before.
func TestTokenise_DecodeIsSpared(t *testing.T) {
	t.Parallel()
	const path = "/v1/chat/completions"
	c := newCluster(t, shape{prefill: 1, decode: 1, engine: takesFirst})
	texts := []int{}
	eventually(t, "decode is sent no text", func() bool {
		body := askFor(path, 40+len(texts)%10, `,"max_tokens":9,"stream":true,"stream_options":{"include_usage":true}`)
		sameAnswer(t, body, c.post(path, body), reference(t, path, body))
		legs := requests(c.decode, path)
		leg := legs[len(legs)-1].Body
		if ids := gjson.Get(leg, "kv_transfer_params.prompt_token_ids.#").Int(); ids < 40 {
			t.Fatalf("%d ids: %.300s", ids, leg)
		}
		texts = append(texts, len(gjson.Get(leg, "messages.0.content").String()))
		return texts[len(texts)-1] == 0
	})
	if len(texts) < 2 {
		t.Error("decode is sent no text before it has shown that it reads the ids")
	}
}
