package gateway

import (
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/pd/predict"
)

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

// What answers show of prompts' lengths counts for a message that goes on as a chat, as it does for a chat.
func TestSalt_AMessageThatGoesOnAsAChatIsAsLongAsOthersWere(t *testing.T) {
	spec := alone(t)
	spec.URL = listing(t, `{"data":[{"id":"m","owned_by":"vllm"}]}`)
	e := &engines{answer: response(200, "application/json", strings.Replace(chat, `"prompt_tokens":2`, `"prompt_tokens":700`, 1))}
	g := run(t, usual(t, "ada"), e.roundTrip, spec)
	g.pd.Binder.Prompts = predict.NewPrompts()
	predicted := 0
	for range 3 {
		if got := g.ask("POST", "/v1/messages", hello, as("ada")...); got.status != 200 || gjson.Get(got.body, "usage.input_tokens").Int() != 700 {
			t.Fatalf("%d %s", got.status, got.body)
		}
		predicted = g.pd.Decisions.Newest(1)[0].Choices[0].Demand.PromptTokens
	}
	if predicted != 700 {
		t.Errorf("the third is expected to have %d tokens, as the first two had 700", predicted)
	}
}

// A client's plain mistake is called that, and not that engines cannot keep tenants apart.
func TestSalt_AMistakeInAMessageIsNoMatterOfTenants(t *testing.T) {
	spec := alone(t)
	spec.URL = listing(t, `{"data":[{"id":"m","owned_by":"vllm"}]}`)
	e := &engines{answer: response(200, "application/json", chat)}
	g := run(t, usual(t, "ada"), e.roundTrip, spec)
	for body, want := range map[string]string{
		`{"model":"m","messages":[{"role":"user","content":"hi"}]}`:                                                   "max_tokens: Field required",
		`{"model":"m","max_tokens":0,"messages":[{"role":"user","content":"hi"}]}`:                                    "max_tokens: ",
		`{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"hi"},{"role":"tool","content":"secret"}]}`: "messages.1.role: ",
		`{"model":"m","max_tokens":5,"messages":[{"role":"user"}]}`:                                                   "messages.0.content: Field required",
		`{"model":"m","max_tokens":5,"messages":[{"role":"user","content":7}]}`:                                       "messages.0.content: ",
	} {
		got := g.ask("POST", "/v1/messages", body, as("ada")...)
		message := gjson.Get(got.body, "error.message").String()
		if got.status != 400 || !strings.HasPrefix(message, want) || strings.Contains(message, "tenants") || strings.Contains(message, "secret") || len(e.take()) != 0 {
			t.Errorf("%s: %d %s", body, got.status, got.body)
		}
	}
}

// A field that has no place in a chat is named, by no more of it than a person needs, and never its value.
func TestSalt_NamesTheFieldThatNoChatHas(t *testing.T) {
	spec := alone(t)
	spec.URL = listing(t, `{"data":[{"id":"m","owned_by":"vllm"}]}`)
	e := &engines{answer: response(200, "application/json", chat)}
	g := run(t, usual(t, "ada"), e.roundTrip, spec)
	long := strings.Repeat("x", 1000)
	for field, want := range map[string]string{
		`"thinking":{"type":"secret"},"messages":[{"role":"user","content":"hi"}]`:                               `the field "thinking"`,
		`"` + long + `":"secret","messages":[{"role":"user","content":"hi"}]`:                                    `the field "` + long[:64] + `"`,
		`"messages":[{"role":"user","content":"hi","name":"secret"}]`:                                            `the field "name" of a message`,
		`"messages":[{"role":"user","content":[{"type":"text","text":"hi","citations":["secret"]}]}]`:            `the field "citations" of a text block`,
		`"messages":[{"role":"user","content":"hi"}],"tools":[{"name":"f","input_schema":{},"strict":"secret"}]`: `the field "strict" of a tool`,
	} {
		got := g.ask("POST", "/v1/messages", `{"model":"m","max_tokens":5,`+field+`}`, as("ada")...)
		message := gjson.Get(got.body, "error.message").String()
		if got.status != 400 || !strings.Contains(message, want+".") || strings.Contains(message, "secret") || len(e.take()) != 0 {
			t.Errorf("%d %s, want %s", got.status, got.body, want)
		}
	}
}

// What no chat means the same as is refused, or sent without a salt where operators say so.
func TestSalt_AMessageThatNoChatMeans(t *testing.T) {
	spec, other := alone(t), alone(t)
	spec.URL, other.URL = listing(t, `{"data":[{"id":"m","owned_by":"vllm"}]}`), listing(t, `{"data":[{"id":"m","owned_by":"sglang"}]}`)
	e := &engines{answer: response(200, "application/json", `{"type":"message","content":[{"type":"text","text":"a"}],"usage":{"input_tokens":1,"output_tokens":1}}`)}
	const inexact = `{"model":"m","max_tokens":5,"messages":[{"role":"user","content":[{"type":"image"}]}]}`
	of := usual(t, "ada")
	g := run(t, of, e.roundTrip, spec)
	got := g.ask("POST", "/v1/messages", inexact, as("ada")...)
	if message := gjson.Get(got.body, "error.message").String(); got.status != 400 || !strings.Contains(message, "/v1/chat/completions") || !strings.Contains(message, "an image, which not every version of vLLM") || len(e.take()) != 0 {
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
