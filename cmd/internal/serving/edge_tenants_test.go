package serving

import (
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/loadtest/engine"
)

// saltsMessages makes vLLM of a version whose /v1/messages has cache_salt.
func saltsMessages(cfg *engine.Config) { cfg.Version = "0.32.0+tandem.sim" }

func trtllmEngine(cfg *engine.Config) { cfg.Connector = engine.ConnectorTRTLLM }

// Tenants are kept apart on an API whose engines keep the salt, on messages as chats where
// the engines keep it in those, and not served on others.
func TestEdge_TenantsAreServedOnlyWhereTheyAreKeptApart(t *testing.T) {
	for _, x := range []struct {
		name   string
		engine func(*engine.Config)
		status map[string]int
	}{
		{"vLLM before 0.32", nil, map[string]int{chatPath: 200, "/v1/completions": 200, "/v1/responses": 200, "/v1/messages": 200}},
		{"vLLM 0.32", saltsMessages, map[string]int{chatPath: 200, "/v1/completions": 200, "/v1/responses": 200, "/v1/messages": 200}},
		{"SGLang", sglangEngine, map[string]int{chatPath: 200, "/v1/completions": 200, "/v1/messages": 200}},
		{"TensorRT-LLM", trtllmEngine, map[string]int{chatPath: 200, "/v1/completions": 400, "/v1/responses": 400, "/v1/messages": 400}},
	} {
		t.Run(x.name, func(t *testing.T) {
			c := newCluster(t, shape{prefill: 1, decode: 1, engine: x.engine, config: withKeys(t, "sk-ada tenant=ada")})
			for path, status := range x.status {
				body := strings.Replace(boundedBody(path, tokensOf(path)), `"ignore_eos":true,`, "", 1)
				got := c.post(path, body, "Authorization", "Bearer sk-ada")
				if got.status != status {
					t.Errorf("%s: %d %s", path, got.status, got.body)
				}
				legs := append(requests(c.prefill, path), requests(c.decode, path)...)
				if path == "/v1/messages" && status == 200 && x.name != "vLLM 0.32" {
					if len(legs) != 0 {
						t.Errorf("%s: %d legs drop the salt", path, len(legs))
					}
					legs = append(requests(c.prefill, chatPath), requests(c.decode, chatPath)...)
				}
				if status == 400 {
					if len(legs) != 0 || !strings.Contains(gjson.Get(got.body, "error.message").String(), "keep tenants apart") {
						t.Errorf("%s: %d legs, %s", path, len(legs), got.body)
					}
					continue
				}
				for _, leg := range legs {
					if salt := gjson.Get(leg.Body, "cache_salt").String(); len(salt) != 32 {
						t.Errorf("%s: an engine got the salt %q", path, salt)
					}
				}
				if len(legs) == 0 {
					t.Errorf("%s: no engine was asked", path)
				}
			}
		})
	}
}

// vLLM keeps media under the names that clients give them, whoever asks: a tenant that knows a name would get another's
// medium, or give it one.
func TestEdge_AMediumIsNotAnotherTenants(t *testing.T) {
	t.Parallel()
	picture := func(part string) string {
		return `{"model":"test-model","max_tokens":12,"messages":[{"role":"user","content":[{"type":"text","text":"What is it?"},{"type":"image_url",` + part + `}]}]}`
	}
	const logo, other = `"image_url":{"url":"data:image/png;base64,QUFBQQ=="}`, `"image_url":{"url":"data:image/png;base64,QkJCQg=="}`
	alone := startTestEngine(t, engine.RoleBoth, nil)
	want := askEngine(t, alone, chatPath, picture(other)).text()
	c := newCluster(t, shape{prefill: 1, decode: 1, config: withKeys(t, "sk-ada tenant=ada", "sk-bob tenant=bob")})
	for _, name := range []string{`,"uuid":"logo"`, `,"\u0075uid":"logo"`} {
		if got := c.post(chatPath, picture(logo+name), "X-Api-Key", "sk-ada"); got.status != 200 {
			t.Fatalf("%d %s", got.status, got.body)
		}
		if got := c.post(chatPath, picture(other+name), "X-Api-Key", "sk-bob"); got.text() != want {
			t.Errorf("%s: the answer is about another's picture: %s", name, got.body)
		}
		if got := c.post(chatPath, picture(`"image_url":null`+name), "X-Api-Key", "sk-bob"); got.status != 400 || gjson.Get(got.body, "error.code").String() != "tenants_not_separated" {
			t.Errorf("%s alone: %d %s", name, got.status, got.body)
		}
	}
	if got := c.post("/tokenize", `{"model":"test-model","messages":`+gjson.Get(picture(other+`,"uuid":"logo"`), "messages").Raw+`}`, "X-Api-Key", "sk-bob"); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
	for _, path := range []string{chatPath, "/tokenize"} {
		legs := append(requests(c.prefill, path), requests(c.decode, path)...)
		for _, leg := range legs {
			if strings.Contains(leg.Body, `"logo"`) {
				t.Errorf("%s: an engine got %s", path, leg.Body)
			}
		}
		if len(legs) == 0 {
			t.Errorf("%s: no engine was asked", path)
		}
	}
}

// Without tenants a name is the client's to give: what has it is not sent again.
func TestEdge_ANamedMediumNeedNotBeSentAgain(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{both: 1})
	picture := func(part string) string {
		return `{"model":"test-model","max_tokens":12,"messages":[{"role":"user","content":[{"type":"image_url",` + part + `,"uuid":"logo"}]}]}`
	}
	sent := c.post(chatPath, picture(`"image_url":{"url":"data:image/png;base64,QUFBQQ=="}`))
	named := c.post(chatPath, picture(`"image_url":null`))
	if sent.status != 200 || named.status != 200 || sent.text() != named.text() {
		t.Errorf("%d %s, then %d %s", sent.status, sent.body, named.status, named.body)
	}
}

// tokensOf bounds an answer to an API by its own field.
func tokensOf(path string) string {
	if path == "/v1/responses" {
		return `,"max_output_tokens":4`
	}
	return `,"max_tokens":4`
}

// Where operators let tenants share KV, the gateway knows that they do: to messages that
// are no chats it neither sends a salt nor believes in one.
func TestEdge_SharedKVIsKnownToBeShared(t *testing.T) {
	for name, x := range map[string]struct {
		version string
		held    bool
	}{"dropped": {"0.31.0", true}, "kept": {"0.32.0", false}} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, shape{prefill: 1, decode: 1, engine: func(cfg *engine.Config) { cfg.Version = x.version }, config: func(cfg *config) {
				withKeys(t, "sk-ada tenant=ada", "sk-bob tenant=bob")(cfg)
				cfg.gateway.SharedKV, cfg.kv.modes = true, []string{"approximate"}
			}})
			var believed int64
			for _, key := range []string{"sk-ada", "sk-bob"} {
				got := c.post("/v1/messages", promptOf(4, `,"ignore_eos":true`), "X-Api-Key", key)
				if got.status != 200 {
					t.Fatalf("%d %s", got.status, got.body)
				}
				decision := c.get("/debug/decisions/" + got.header.Get("X-Request-Id")).body
				believed = 0
				for _, alternative := range gjson.Get(decision, "attempts.0.alternatives").Array() {
					believed = max(believed, alternative.Get("prefill_cached").Int())
				}
			}
			if (believed > 0) != x.held {
				t.Errorf("of another tenant's prompt %d tokens are believed held", believed)
			}
			for _, leg := range requests(c.prefill, "/v1/messages") {
				if gjson.Get(leg.Body, "cache_salt").Exists() == x.held {
					t.Errorf("a leg has the salt %s", gjson.Get(leg.Body, "cache_salt").Raw)
				}
			}
		})
	}
}
