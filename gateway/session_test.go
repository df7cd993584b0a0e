package gateway

import (
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/gofiber/fiber/v2"
	"github.com/valyala/fasthttp"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pools"
)

// A session is known by the most particular name that the request has for it: requests of one
// name are of one session, and a user is none where a session is named.
func TestSession_IsWhatClientsCallIt(t *testing.T) {
	app := fiber.New()
	session := func(d *api.Dialect, body string, headers ...string) uint64 {
		c := app.AcquireCtx(&fasthttp.RequestCtx{})
		defer app.ReleaseCtx(c)
		for i := 0; i < len(headers); i += 2 {
			c.Request().Header.Set(headers[i], headers[i+1])
		}
		parsed, err := api.ParseBody([]byte(body))
		if err != nil {
			t.Fatal(err)
		}
		return sessionOf(c, d, parsed)
	}
	for _, name := range []string{
		"x-session-id", "x-claude-code-session-id", "session-id", "session_id", "x-session-affinity", "x-opencode-session", "x-litellm-session-id", "conversation_id",
	} {
		named := session(api.Chat, `{"user":"u","prompt_cache_key":"k"}`, name, "s1")
		if named == 0 || named != session(api.Responses, `{}`, name, "s1") || named == session(api.Chat, `{}`, name, "s2") {
			t.Errorf("%s: %x", name, named)
		}
	}
	key, user := session(api.Chat, `{"user":"u","prompt_cache_key":"k"}`), session(api.Chat, `{"user":"u"}`)
	message := session(api.Messages, `{"user":"v","metadata":{"user_id":"u"}}`)
	if key == 0 || user == 0 || key == user || key != session(api.Responses, `{"prompt_cache_key":"k"}`) || key == session(api.Chat, `{"user":"k"}`) || message != user {
		t.Errorf("by key %x, by user %x, of a message %x", key, user, message)
	}
	for what, body := range map[string]string{
		"nothing": `{}`, "an empty name": `{"user":""}`, "a number": `{"prompt_cache_key":7}`, "no object": `{"metadata":"u"}`,
		"a name that is a text": `{"user":"` + strings.Repeat("u", longestSession+1) + `"}`,
	} {
		d := api.Chat
		if what == "no object" {
			d = api.Messages
		}
		if got := session(d, body); got != 0 {
			t.Errorf("%s is the session %x", what, got)
		}
	}
}

// Clients that are told where the time went learn of phases and of no server; none is unless it
// is configured.
func TestTiming_TellsPhasesAndNoServers(t *testing.T) {
	of := usual(t)
	of.cost.PairsFirst = true
	prefill, decode := healthy(t), healthy(t)
	specs := []pools.Spec{{URL: prefill, Role: pools.Prefill, Connector: "nixl"}, {URL: decode, Role: pools.Decode, Connector: "nixl"}}
	prompt := `{"model":"m","prompt":"` + strings.Repeat("river ", 40) + `"`
	for _, c := range []struct {
		on   bool
		more string
		want string
	}{
		{true, `}`, `^wait;dur=N, choose;dur=N, prefill;dur=N, decode;dur=N, total;dur=N$`},
		{true, `,"stream":true}`, `^wait;dur=N, choose;dur=N, prefill;dur=N, transfer;dur=N, total;dur=N$`},
		{false, `}`, `^$`},
	} {
		of.config = func(cfg *Config) { cfg.Timing = c.on }
		g := run(t, of, func(r *http.Request) (*http.Response, error) {
			switch {
			case "http://"+r.URL.Host == prefill:
				return response(200, "application/json", handOff)(), nil
			case strings.Contains(c.more, "stream"):
				return response(200, "text/event-stream", streamed)(), nil
			}
			return response(200, "application/json", completion)(), nil
		}, specs...)
		got := g.post(prompt + c.more)
		if told := got.header.Get("Server-Timing"); got.status != 200 || !regexp.MustCompile(strings.ReplaceAll(c.want, "N", `[0-9]+\.[0-9]`)).MatchString(told) {
			t.Errorf("%v %s: %d, told %q", c.on, c.more, got.status, told)
		}
		if got := g.post(`{`); got.header.Get("Server-Timing") != "" {
			t.Errorf("of a request that no server served: %v", got.header)
		}
	}
}
