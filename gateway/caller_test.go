package gateway

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/tidwall/gjson"
)

// A key may stand in either header, as OpenAI's or Anthropic's clients send it.
func TestAuthenticate(t *testing.T) {
	g := run(t, usual(t, "ada"), complete().roundTrip, alone(t))
	for _, x := range []struct {
		headers []string
		status  int
		message string
	}{
		{[]string{"Authorization", "Bearer sk-ada"}, 200, ""},
		{[]string{"Authorization", "bearer  sk-ada "}, 200, ""},
		{[]string{"X-Api-Key", "sk-ada"}, 200, ""},
		{[]string{"Authorization", "Basic x", "X-Api-Key", "sk-ada"}, 200, ""},
		{[]string{"Authorization", "Bearer sk-eve", "X-Api-Key", "sk-ada"}, 401, "not known"},
		{[]string{"Authorization", "sk-ada"}, 401, "is needed"},
		{[]string{"Authorization", "Bearer "}, 401, "is needed"},
		{[]string{"X-Api-Key", "sk-eve"}, 401, "not known"},
		{nil, 401, "is needed"},
	} {
		got := g.post(`{"model":"m","prompt":"hi"}`, x.headers...)
		if got.status != x.status || !strings.Contains(gjson.Get(got.body, "error.message").String(), x.message) || (got.header.Get("WWW-Authenticate") == "Bearer") != (x.status == 401) {
			t.Errorf("%q: %d %s", x.headers, got.status, got.body)
		}
	}
}

// What a client wishes is heard as far as its key allows; what cannot be read is refused, by
// the header's name.
func TestApplyPolicy(t *testing.T) {
	g := run(t, usual(t, "ada may-set=[priority,objectives,deadline]", "bob"), complete().roundTrip, alone(t))
	for _, x := range []struct {
		key, header, value string
		status             int
	}{
		{"ada", "X-Tandem-Priority", "interactive", 200}, {"ada", "X-Tandem-Priority", "royal", 400},
		{"ada", "X-Tandem-Deadline-Ms", "60000", 200}, {"ada", "X-Tandem-Deadline-Ms", "soon", 400},
		{"ada", "X-Tandem-Ttft-Slo-Ms", "1000", 200}, {"ada", "X-Tandem-Ttft-Slo-Ms", "0", 400}, {"bob", "X-Tandem-Ttft-Slo-Ms", "0", 200},
		{"ada", "X-Tandem-Itl-Slo-Ms", "x", 400}, {"bob", "X-Tandem-Priority", "interactive", 200},
	} {
		got := g.post(`{"model":"m","prompt":"hi"}`, append(as(x.key), x.header, x.value)...)
		if got.status != x.status || x.status == 400 && gjson.Get(got.body, "error.param").String() != x.header {
			t.Errorf("%s: %s %s: %d %s", x.key, x.header, x.value, got.status, got.body)
		}
	}
	for key, class := range map[string]string{"ada": "interactive", "bob": "interactive"} {
		want := map[string]float64{"ada": 1}[key] // bob's key may not set it
		if n := testutil.ToFloat64(g.server.metrics.tenantRequests.WithLabelValues(key, class, "ok")); n != want {
			t.Errorf("%v of %s as %s, want %v", n, key, class, want)
		}
	}
}

// A key's bound holds every field that bounds the answer; the API's own is always set.
func TestLimitOutput(t *testing.T) {
	e := &engines{answer: response(200, "application/json", chat)}
	g := run(t, usual(t, "ada max-output-tokens=16", "bob"), e.roundTrip, alone(t))
	for _, x := range []struct {
		fields string
		param  string // that refuses it
		own    string // max_tokens, as the engine got it
		newer  string // max_completion_tokens
	}{
		{``, "", "16", ""},
		{`,"max_tokens":5`, "", "5", ""},
		{`,"max_tokens":16`, "", "16", ""},
		{`,"max_tokens":17`, "max_tokens", "", ""},
		{`,"max_completion_tokens":17`, "max_completion_tokens", "", ""},
		{`,"max_completion_tokens":5`, "", "5", "5"},
		{`,"max_tokens":5,"max_completion_tokens":17`, "max_completion_tokens", "", ""},
		{`,"max_tokens":null,"max_completion_tokens":null`, "", "16", ""},
		{`,"max_tokens":7,"max_completion_tokens":null`, "", "7", ""},
		{`,"max_tokens":0,"max_completion_tokens":5`, "", "5", "5"},
		{`,"max_tokens":0`, "", "16", ""},
	} {
		body := `{"model":"m","messages":[{"role":"user","content":"hi"}]` + x.fields + `}`
		got := g.ask("POST", "/v1/chat/completions", body, as("ada")...)
		if x.param != "" {
			if got.status != 400 || gjson.Get(got.body, "error.param").String() != x.param || len(e.take()) != 0 {
				t.Errorf("{%s}: %d %s, want it refused for %s", x.fields, got.status, got.body, x.param)
			}
			continue
		}
		sent := e.body(t)
		if own, newer := gjson.Get(sent, "max_tokens").Raw, gjson.Get(sent, "max_completion_tokens").Raw; got.status != 200 || own != x.own || newer != x.newer {
			t.Errorf("{%s}: %d, the engine got %s", x.fields, got.status, sent)
		}
	}
	g.ask("POST", "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"hi"}]}`, as("bob")...)
	if sent := e.body(t); gjson.Get(sent, "max_tokens").Exists() {
		t.Errorf("without a bound the engine got %s", sent)
	}
	g.ask("POST", "/v1/completions", `{"model":"m","prompt":"hi","max_tokens":0}`, as("ada")...)
	if sent := e.body(t); gjson.Get(sent, "max_tokens").Raw != "0" { // the engine refuses it
		t.Errorf("where no other field bounds it the client's zero is the engine's to refuse: %s", sent)
	}
}

// One request asks for no more answers than its key allows.
func TestLimit_Answers(t *testing.T) {
	e := &engines{answer: response(200, "application/json", chat)}
	g := run(t, usual(t, "ada max-samples=4"), e.roundTrip, alone(t))
	for fields, status := range map[string]int{
		`"prompt":"a","n":4`: 200, `"prompt":"a","n":5`: 400, `"prompt":["a","b"],"n":2`: 200, `"prompt":["a","b"],"n":3`: 400, `"prompt":"a","n":1,"best_of":5`: 400,
		`"prompt":"a","logit_bias":{"a":1}`: 200, `"prompt":"a","logit_bias":{"a":1,"a":2}`: 400, `"prompt":"a","logit_bias":[1]`: 400, `"prompt":"a","logit_bias":null`: 200,
	} {
		if got := g.post(`{"model":"m",`+fields+`}`, as("ada")...); got.status != status {
			t.Errorf("{%s}: %d %s", fields, got.status, got.body)
		}
	}
}

// Tenants' prompts go to engines with a salt of their own, which a client cannot choose.
func TestSalt_KeepsTenantsApart(t *testing.T) {
	e := complete()
	g := run(t, usual(t, "ada", "eve"), e.roundTrip, alone(t))
	salts := make(map[string]string)
	for _, key := range []string{"ada", "eve"} {
		for range 2 {
			g.post(`{"model":"m","prompt":"hi","cache_salt":"mine"}`, as(key)...)
			salt := gjson.Get(e.body(t), "cache_salt").String()
			if salts[key] != "" && salts[key] != salt {
				t.Errorf("%s has another salt each time", key)
			}
			salts[key] = salt
		}
	}
	if len(salts["ada"]) < 16 || salts["ada"] == salts["eve"] {
		t.Errorf("%v", salts)
	}
	open := run(t, usual(t), e.roundTrip, alone(t))
	open.post(`{"model":"m","prompt":"hi"}`)
	if sent := e.body(t); gjson.Get(sent, "cache_salt").Exists() {
		t.Errorf("without tenants: %s", sent)
	}
	g.ask("POST", "/tokenize", `{"model":"m","prompt":"hi"}`, as("ada")...)
	if sent := e.body(t); gjson.Get(sent, "cache_salt").Exists() {
		t.Errorf("where no KV is kept: %s", sent)
	}
}

const hello = `{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"hi"}]}`

// Engines that drop the salt of a message get it as the chat that means the same, and the
// client a message.
func TestSalt_AMessageThatGoesOnAsAChat(t *testing.T) {
	spec := alone(t)
	spec.URL = listing(t, `{"data":[{"id":"m","owned_by":"vllm"}]}`)
	e := &engines{answer: response(200, "application/json", chat)}
	g := run(t, usual(t, "ada"), e.roundTrip, spec)
	got := g.ask("POST", "/v1/messages", hello, as("ada")...)
	if got.status != 200 || gjson.Get(got.body, "type").String() != "message" || gjson.Get(got.body, "content.0.text").String() != "Hello" || gjson.Get(got.body, "usage.output_tokens").Int() != 3 {
		t.Errorf("%d %s", got.status, got.body)
	}
	if legs := e.take(); len(legs) != 1 || legs[0].path != "/v1/chat/completions" || !gjson.Get(legs[0].body, "cache_salt").Exists() {
		t.Errorf("the engine got %+v", legs)
	}

	e.answer = response(200, "application/json", `{"choices":[]}`)
	if got := g.ask("POST", "/v1/messages", hello, as("ada")...); got.status != 502 || gjson.Get(got.body, "type").String() != "error" {
		t.Errorf("an answer that is no chat: %d %s", got.status, got.body)
	}
	e.take()

	e.answer = response(200, "text/event-stream", `data: {"id":"1","model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"Hel"},"finish_reason":null}]}`+"\n\n"+
		`data: {"choices":[{"index":0,"delta":{"content":"lo"},"finish_reason":"stop"}]}`+"\n\n"+`data: {"choices":[],"usage":{"prompt_tokens":2,"completion_tokens":3,"total_tokens":5}}`+"\n\ndata: [DONE]\n\n")
	streaming := strings.Replace(hello, `"max_tokens"`, `"stream":true,"max_tokens"`, 1)
	if got := g.ask("POST", "/v1/messages", streaming, as("ada")...); got.status != 200 || !strings.Contains(got.body, "event: message_start") || !strings.Contains(got.body, `"text":"lo"`) || !strings.Contains(got.body, "event: message_stop") {
		t.Errorf("streamed: %d %s", got.status, got.body)
	}
	e.answer = response(200, "text/event-stream", `data: {"id":"1","model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"Hel"},"finish_reason":null}]}`+"\n\n"+`data: {"choices":[{"index":0,"delta":{"content":"lo"},"finish_reason":"abort"}]}`+"\n\ndata: [DONE]\n\n")
	if got := g.ask("POST", "/v1/messages", streaming, as("ada")...); !strings.Contains(got.body, "event: error") {
		t.Errorf("a stream that ends for no reason that messages have: %d %s", got.status, got.body)
	}
}

// What no chat means the same as is refused, or sent without a salt where operators say so.
func TestSalt_AMessageThatNoChatMeans(t *testing.T) {
	spec, other := alone(t), alone(t)
	spec.URL, other.URL = listing(t, `{"data":[{"id":"m","owned_by":"vllm"}]}`), listing(t, `{"data":[{"id":"m","owned_by":"sglang"}]}`)
	e := &engines{answer: response(200, "application/json", `{"type":"message","content":[{"type":"text","text":"a"}],"usage":{"input_tokens":1,"output_tokens":1}}`)}
	const inexact = `{"model":"m","max_tokens":5,"messages":[{"role":"user","content":7}]}`
	of := usual(t, "ada")
	g := run(t, of, e.roundTrip, spec)
	got := g.ask("POST", "/v1/messages", inexact, as("ada")...)
	if message := gjson.Get(got.body, "error.message").String(); got.status != 400 || !strings.Contains(message, "/v1/chat/completions") || !strings.Contains(message, "content must be") || len(e.take()) != 0 {
		t.Errorf("%d %s", got.status, got.body)
	}
	mixed := run(t, usual(t, "ada"), e.roundTrip, spec, other)
	got = mixed.ask("POST", "/v1/messages", hello, as("ada")...)
	if message := gjson.Get(got.body, "error.message").String(); got.status != 400 || !strings.Contains(message, "cannot keep tenants apart on /v1/messages. Use") {
		t.Errorf("engines of two kinds: %d %s", got.status, got.body)
	}
	of.config = func(c *Config) { c.SharedKV = true }
	shared := run(t, of, e.roundTrip, spec)
	shared.ask("POST", "/v1/messages", inexact, as("ada")...)
	if legs := e.take(); len(legs) != 1 || legs[0].path != "/v1/messages" || gjson.Get(legs[0].body, "cache_salt").Exists() {
		t.Errorf("tenants may share: %+v", legs)
	}
}

// A client reads in OpenAI's headers what is left of its key's limits; who has none reads none.
func TestRateLimitHeaders(t *testing.T) {
	g := run(t, usual(t, "ada requests-per-minute=10 prompt-tokens-per-minute=10 output-tokens-per-minute=10", "bob"), complete().roundTrip, alone(t))
	got := g.post(`{"model":"m","prompt":"hi"}`, as("ada")...)
	for name, want := range map[string]string{"Limit-Requests": "10", "Remaining-Requests": "9", "Limit-Tokens": "10", "Limit-Output-Tokens": "10", "Remaining-Output-Tokens": "7"} {
		if is := got.header.Get("X-Ratelimit-" + name); is != want {
			t.Errorf("%s is %q, want %s", name, is, want)
		}
	}
	if reset := got.header.Get("X-Ratelimit-Reset-Requests"); !strings.HasPrefix(reset, "5.") && !strings.HasPrefix(reset, "6") {
		t.Errorf("one of ten a minute is there again in %s, want 6 s", reset)
	}
	if got := g.post(`{"model":"m","prompt":"hi"}`, as("bob")...); got.header.Get("X-Ratelimit-Limit-Requests") != "" {
		t.Errorf("no limit: %v", got.header)
	}
	if got := g.post(`{`, as("ada")...); got.header.Get("X-Ratelimit-Remaining-Requests") != "9" {
		t.Errorf("what was refused cost a request: %v", got.header)
	}
}

// Who has used up a limit is told for how long, and which; it is counted.
func TestAdmit_BeyondTheLimit(t *testing.T) {
	g := run(t, usual(t, "ada requests-per-minute=1", "eve prompt-tokens-per-minute=10"), complete().roundTrip, alone(t))
	g.post(`{"model":"m","prompt":"hi"}`, as("ada")...)
	got := g.post(`{"model":"m","prompt":"hi"}`, as("ada")...)
	if got.status != 429 || gjson.Get(got.body, "error.type").String() != "requests" || got.header.Get("Retry-After") == "" || got.header.Get("X-Should-Retry") != "" {
		t.Errorf("%d %s %v", got.status, got.body, got.header)
	}
	got = g.post(`{"model":"m","prompt":"`+strings.Repeat("long ", 100)+`"}`, as("eve")...)
	if got.status != 429 || gjson.Get(got.body, "error.type").String() != "tokens" || got.header.Get("Retry-After") != "" || got.header.Get("X-Should-Retry") != "false" {
		t.Errorf("more than the limit ever is: %d %s %v", got.status, got.body, got.header)
	}
	for tenant, limit := range map[string]string{"ada": "requests", "eve": "prompt_tokens"} {
		if n := testutil.ToFloat64(g.server.metrics.limited.WithLabelValues(tenant, limit)); n != 1 {
			t.Errorf("%v refusals of %s by %s", n, tenant, limit)
		}
	}
}

// What a request cost is given back as far as the service did not serve it: all of it where
// the service failed, the tokens where the request was at fault.
func TestRefund(t *testing.T) {
	e := complete()
	g := run(t, usual(t, "ada requests-per-minute=10 prompt-tokens-per-minute=10 output-tokens-per-minute=10"), e.roundTrip, alone(t))
	left := func(of string) string {
		return g.post(`{`, as("ada")...).header.Get("X-Ratelimit-Remaining-" + of) // costs nothing
	}
	for _, x := range []struct {
		name           string
		status         int
		requests, left string // of the output tokens
	}{
		{"served", 200, "9", "7"}, {"an engine's failure", 500, "9", "7"}, {"the request's own fault", 422, "8", "7"},
	} {
		body := completion
		if x.status != 200 {
			body = `{"error":{"message":"no"}}`
		}
		e.answer = response(x.status, "application/json", body)
		g.post(`{"model":"m","prompt":"hi"}`, as("ada")...)
		if requests, output := left("Requests"), left("Output-Tokens"); requests != x.requests || output != x.left {
			t.Errorf("%s: %s requests and %s tokens are left, want %s and %s", x.name, requests, output, x.requests, x.left)
		}
	}
	if prompt := left("Tokens"); prompt != "8" {
		t.Errorf("%s prompt tokens are left of 10: two were served", prompt)
	}
}

// Metrics name so many tenants, the first that come.
func TestTenantLabels(t *testing.T) {
	labels := tenantLabels{most: 2, named: make(map[string]bool)}
	for i, x := range []struct{ tenant, want string }{{"a", "a"}, {"b", "b"}, {"c", "other"}, {"a", "a"}, {"b", "b"}, {"d", "other"}} {
		if got := labels.label(x.tenant); got != x.want {
			t.Errorf("%d: %s is %s, want %s", i, x.tenant, got, x.want)
		}
	}
	none := tenantLabels{named: make(map[string]bool)}
	if got := none.label("a"); got != "other" {
		t.Errorf("none is named, and %s is", got)
	}
}
