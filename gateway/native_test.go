package gateway

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/pd/api"
)

const generated = `{"text":"Hello","meta_info":{"prompt_tokens":2,"completion_tokens":3,"finish_reason":{"type":"stop"}}}`

// SGLang's own API: what a request asks for is found where its engines read it.
func TestReadNative(t *testing.T) {
	for _, x := range []struct {
		body                   string
		prompt, output, answer int
		stream                 bool
		param                  string // that refuses it
	}{
		{`{"text":"12345678"}`, 3, 256, 1, false, ""},
		{`{"text":["a","b"]}`, 3, 256, 2, false, ""},
		{`{"input_ids":[1,2,3]}`, 3, 256, 1, false, ""},
		{`{"input_ids":[[1],[2],[3]]}`, 4, 256, 3, false, ""},
		{`{"text":null,"input_ids":[1]}`, 1, 256, 1, false, ""},
		{`{"text":"a","input_ids":[1]}`, 0, 0, 0, false, "input_ids"},
		{`{"text":[]}`, 0, 0, 0, false, "text"},
		{`{"text":7}`, 0, 0, 0, false, "text"},
		{`{}`, 0, 0, 0, false, "input_ids"},
		{`{"text":"a","stream":true}`, 1, 256, 1, true, ""},
		{`{"text":"a","stream":null}`, 1, 256, 1, false, ""},
		{`{"text":"a","stream":"yes"}`, 0, 0, 0, false, "stream"},
		{`{"text":"a","sampling_params":{"n":3,"max_new_tokens":7}}`, 1, 7, 3, false, ""},
		{`{"text":["a","b"],"sampling_params":{"n":3}}`, 3, 256, 6, false, ""},
		{`{"text":"a","sampling_params":{"max_new_tokens":9000}}`, 1, 256, 1, false, ""},
		{`{"text":"a","sampling_params":{"max_new_tokens":-1}}`, 1, 0, 1, false, ""},
		{`{"text":"a","sampling_params":{"n":0}}`, 0, 0, 0, false, "sampling_params"},
		{`{"text":"a","sampling_params":{"n":1}}`, 1, 256, 1, false, ""},
		{`{"text":"a","sampling_params":{"n":"2"}}`, 0, 0, 0, false, "sampling_params"},
		{`{"text":["a","b"],"sampling_params":[{"n":1},{"n":4}]}`, 3, 256, 8, false, ""},
		{`{"text":["a","b"],"sampling_params":[{"n":1}]}`, 0, 0, 0, false, "sampling_params"},
		{`{"text":["a","b"],"sampling_params":[{"n":1},7]}`, 0, 0, 0, false, "sampling_params"},
		{`{"text":"a","sampling_params":7}`, 0, 0, 0, false, "sampling_params"},
		{`{"text":"a","sampling_params":null}`, 1, 256, 1, false, ""},
	} {
		req, err := parse(api.Generate, []byte(x.body))
		if x.param != "" {
			if bad, ok := err.(*badRequest); !ok || bad.param != x.param || bad.status != 400 {
				t.Errorf("%s: %v", x.body, err)
			}
			continue
		}
		if err != nil || req.PromptTokens != x.prompt || req.OutputTokens != x.output || req.Answers != x.answer || req.Stream != x.stream {
			t.Errorf("%s: %+v, %v", x.body, req, err)
		}
	}
}

// A request that names no model is for the one of the servers that speak the API; engines get
// the fields that clients may set, and no others.
func TestNative_AnswersWhereAServerSpeaksIt(t *testing.T) {
	native, other := alone(t), alone(t)
	native.URL, native.Native = listing(t, `{"data":[{"id":"lora","parent":"big"},{"id":"big"}]}`), true
	e := &engines{answer: response(200, "application/json", generated)}
	g := run(t, usual(t, "ada max-output-tokens=16", "bob"), e.roundTrip, other, native)
	got := g.ask("POST", "/generate", `{"text":"hi","model":"big","lora_path":"x","sampling_params":{"max_new_tokens":5,"custom_logit_processor":"y"},"return_logprob":true}`, as("bob")...)
	if got.status != 200 || got.body != generated {
		t.Errorf("%d %s", got.status, got.body)
	}
	sent := e.body(t)
	for field, there := range map[string]bool{"text": true, "return_logprob": true, "sampling_params.max_new_tokens": true, "model": false, "lora_path": false, "sampling_params.custom_logit_processor": false, "extra_key": true} {
		if gjson.Get(sent, field).Exists() != there {
			t.Errorf("%s: %s", field, sent)
		}
	}
	if n := testutil.ToFloat64(g.server.metrics.requests.WithLabelValues("generate", "big", "ok", "http")); n != 1 {
		t.Errorf("%v are counted of the model, which no adapter is", n)
	}
	g.ask("POST", "/generate", `{"text":"hi"}`, as("bob")...)
	if n := testutil.ToFloat64(g.server.metrics.requests.WithLabelValues("generate", "big", "ok", "http")); n != 2 {
		t.Errorf("%v, with one that names no model", n)
	}
	for _, x := range []struct {
		key, params string
		status      int
	}{
		{"bob", ``, 200}, {"ada", ``, 400}, {"ada", `,"sampling_params":{"max_new_tokens":16}`, 200}, {"ada", `,"sampling_params":{"max_new_tokens":17}`, 400},
		{"ada", `,"sampling_params":{}`, 400}, {"ada", `,"sampling_params":[{"max_new_tokens":16}]`, 200}, {"ada", `,"sampling_params":null`, 400},
		{"bob", `,"sampling_params":{"n":128}`, 200}, {"bob", `,"sampling_params":{"n":129}`, 400},
	} {
		if got := g.ask("POST", "/generate", `{"text":"hi"`+x.params+`}`, as(x.key)...); got.status != x.status {
			t.Errorf("%s asks {%s}: %d %s", x.key, x.params, got.status, got.body)
		}
	}
	for _, leg := range e.take() {
		if "http://"+leg.host != native.URL {
			t.Errorf("%s got a request of an API that it does not speak", leg.host)
		}
	}
}

// A gateway that knows no server yet waits for its servers, and refuses as on other paths where there are none; there is
// nothing at the path only where servers are there and none speaks the API.
func TestNative_OfAGatewayThatKnowsNoServer(t *testing.T) {
	t.Parallel()
	ask := func(g *running) reply { return g.ask("POST", "/generate", `{"text":"hi"}`) }
	none := run(t, usual(t), complete().roundTrip)
	other := none.post(`{"model":"m","prompt":"hi"}`)
	got := ask(none)
	if got.status != 503 || got.body != other.body || got.header.Get("Retry-After") == "" {
		t.Errorf("without a server: %d %v %s, and on another path %s", got.status, got.header, got.body, other.body)
	}
	if got := none.ask("GET", "/generate", ""); got.status != 405 {
		t.Errorf("another method: %d %s", got.status, got.body)
	}
	for name, x := range map[string]struct {
		native bool
		status int
	}{"one speaks it": {true, 200}, "none speaks it": {false, 404}} {
		g, arrive := starting(t, usual(t), (&engines{answer: response(200, "application/json", generated)}).roundTrip)
		waits := g.wait(1, func() reply { return ask(g) })
		spec := alone(t)
		spec.Native = x.native
		arrive(spec)
		eventually(t, name+": it has its answer", func() bool { return len(waits) > 0 })
		if got := <-waits; got.status != x.status {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
	}
}
