package gateway

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/pd/scalefromzero"
)

// fleetOfModels is a gateway with two served models, an adapter, one at zero, and aliases of
// them.
func fleetOfModels(t *testing.T) *running {
	t.Helper()
	one, other := alone(t), alone(t)
	one.URL = listing(t, `{"data":[{"id":"big","max_model_len":1000,"created":5},{"id":"big-lora","parent":"big","max_model_len":1000}]}`)
	other.URL = listing(t, `{"data":[{"id":"small","max_model_len":100,"created":6}]}`)
	of := usual(t, "ada", "eve models=[small,chat]")
	of.config = func(c *Config) {
		c.Aliases = []Alias{
			{Name: "chat", Targets: []Target{{"big", 1}, {"small", 1}, {"nobody", 1}}}, {Name: "small", Targets: []Target{{"big", 1}}},
			{Name: "void", Targets: []Target{{"nobody", 1}}}, {Name: "later", Targets: []Target{{"cold", 1}, {"nobody", 1}}},
			{Name: "equal", Targets: []Target{{"big", 1}, {"big-lora", 1}}}, {Name: "org/big", Targets: []Target{{"big", 1}}},
		}
	}
	of.from0 = &scalefromzero.Activator{
		Config: scalefromzero.Config{MaxWait: time.Minute, MaxWaiting: 10},
		Base: func(model string) (string, bool) {
			return map[string]string{"cold": "cold", "cold-lora": "cold", "big": "big"}[model], model == "cold" || model == "cold-lora" || model == "big"
		},
		Models: func() []string { return []string{"cold", "cold-lora", "big"} },
		Begin:  func() {},
	}
	return run(t, of, complete().roundTrip, one, other)
}

// Clients see what they may ask for: what is served, what comes when it is asked for, and
// aliases, which go before models of the name.
func TestModels(t *testing.T) {
	g := fleetOfModels(t)
	got := g.ask("GET", "/v1/models", "", as("ada")...)
	const want = `{"object":"list","data":[` +
		`{"id":"big","object":"model","created":5,"owned_by":"tandem","max_model_len":1000},` +
		`{"id":"big-lora","object":"model","created":0,"owned_by":"tandem","parent":"big","max_model_len":1000},` +
		`{"id":"chat","object":"model","created":6,"owned_by":"tandem","max_model_len":100},` +
		`{"id":"cold","object":"model","created":0,"owned_by":"tandem"},` +
		`{"id":"cold-lora","object":"model","created":0,"owned_by":"tandem","parent":"cold"},` +
		`{"id":"equal","object":"model","created":5,"owned_by":"tandem","max_model_len":1000},` + // as old as the first
		`{"id":"later","object":"model","created":0,"owned_by":"tandem"},` +
		`{"id":"org/big","object":"model","created":5,"owned_by":"tandem","max_model_len":1000},` +
		`{"id":"small","object":"model","created":5,"owned_by":"tandem","max_model_len":1000}]}`
	if got.status != 200 || got.body != want {
		t.Errorf("%d %s", got.status, got.body)
	}
	got = g.ask("GET", "/v1/models", "", as("eve")...)
	if names := gjson.Get(got.body, "data.#.id").String(); names != `["chat","small"]` {
		t.Errorf("eve sees %s", names)
	}
	if got := g.ask("GET", "/v1/models", ""); got.status != 401 {
		t.Errorf("without a key: %d %s", got.status, got.body)
	}
	if n := testutil.ToFloat64(g.server.metrics.requests.WithLabelValues("models", "none", "unauthorized", "http")); n != 1 {
		t.Errorf("%v are counted", n)
	}
}

// Anthropic's clients, which name its version, get its list and its models: their SDKs promise the
// fields that OpenAI's have not.
func TestModels_AreAnthropicsForItsClients(t *testing.T) {
	g := fleetOfModels(t)
	anthropic := func(key string) []string { return append(as(key), "Anthropic-Version", "2023-06-01") }
	const (
		chat  = `{"id":"chat","type":"model","display_name":"chat","created_at":"1970-01-01T00:00:06Z","lifecycle":"active","max_input_tokens":100}`
		small = `{"id":"small","type":"model","display_name":"small","created_at":"1970-01-01T00:00:05Z","lifecycle":"active","max_input_tokens":1000}`
	)
	for path, want := range map[string]string{
		"/v1/models":       `{"data":[` + chat + `,` + small + `],"has_more":false,"first_id":"chat","last_id":"small"}`,
		"/v1/models/small": small,
	} {
		if got := g.ask("GET", path, "", anthropic("eve")...); got.status != 200 || got.body != want {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
	g = run(t, usual(t, "nobody models=[none]"), complete().roundTrip, alone(t))
	if got := g.ask("GET", "/v1/models", "", anthropic("nobody")...); got.body != `{"data":[],"has_more":false,"first_id":null,"last_id":null}` {
		t.Errorf("no model: %d %s", got.status, got.body)
	}
}

// Who asks for a model that there is not sees those that its key may use, or where many are listed.
func TestModels_ARefusalNamesThem(t *testing.T) {
	g := fleetOfModels(t)
	for key, want := range map[string]string{
		"eve": "The model does not exist or is not served here. Served are: chat, small.",
		"ada": "The model does not exist or is not served here. GET /v1/models lists those that are.",
	} {
		got := g.post(`{"model":"bigg","prompt":"hi"}`, as(key)...)
		if said := gjson.Get(got.body, "error.message").String(); got.status != 404 || said != want {
			t.Errorf("%s is told %d %q", key, got.status, said)
		}
	}
	g = run(t, usual(t, "nobody models=[none]"), complete().roundTrip, alone(t))
	got := g.post(`{"model":"m","prompt":"hi"}`, as("nobody")...)
	if said := gjson.Get(got.body, "error.message").String(); said != "The model does not exist or is not served here." {
		t.Errorf("one that may use none is told %q", said)
	}
}

func TestModel(t *testing.T) {
	g := fleetOfModels(t)
	for _, x := range []struct {
		key, id string
		status  int
		length  int64
	}{
		{"ada", "big", 200, 1000}, {"ada", "b%69g", 200, 1000}, {"ada", "org%2Fbig", 200, 1000}, {"ada", "org/big", 200, 1000}, // openai 1.109 escapes no slash
		{"ada", "chat", 200, 100}, {"ada", "cold", 200, 0}, {"ada", "later", 200, 0},
		{"ada", "void", 404, 0}, {"ada", "nobody", 404, 0}, {"eve", "big", 404, 0}, {"eve", "chat", 200, 100}, {"nobody", "big", 401, 0},
	} {
		got := g.ask("GET", "/v1/models/"+x.id, "", as(x.key)...)
		if got.status != x.status || gjson.Get(got.body, "max_model_len").Int() != x.length {
			t.Errorf("%s asks %s: %d %s", x.key, x.id, got.status, got.body)
		}
		if code := gjson.Get(got.body, "error.code").String(); x.status == 404 && code != "model_not_found" {
			t.Errorf("%s: %s", x.id, code)
		}
	}
}

// An alias is sent to engines by the name of a model that is served; requests that belong
// together stay with one.
func TestResolveAlias(t *testing.T) {
	e := complete()
	one, other := alone(t), alone(t)
	one.URL, other.URL = listing(t, `{"data":[{"id":"a"}]}`), listing(t, `{"data":[{"id":"b"}]}`)
	of := usual(t)
	of.config = func(c *Config) {
		c.Aliases = []Alias{{Name: "chat", Targets: []Target{{"a", 1}, {"b", 1}, {"nobody", 1000}}}}
	}
	g := run(t, of, e.roundTrip, one, other)
	asked := func(fields string) string {
		t.Helper()
		if got := g.post(`{"model":"chat","prompt":"hi"` + fields + `}`); got.status != 200 {
			t.Errorf("%d %s", got.status, got.body)
		}
		return gjson.Get(e.body(t), "model").String()
	}
	seen := make(map[string]int)
	for range 40 {
		seen[asked("")]++
	}
	if seen["a"] == 0 || seen["b"] == 0 || len(seen) != 2 {
		t.Errorf("requests that do not belong together went to %v", seen)
	}
	for _, field := range sharers {
		both := make(map[string]bool)
		for _, name := range []string{"x", "y", "z", "u", "v", "w", "r", "s"} {
			first := asked(`,"` + field + `":"` + name + `"`)
			both[first] = true
			for range 3 {
				if again := asked(`,"` + field + `":"` + name + `"`); again != first {
					t.Errorf("%s %s went to %s and %s", field, name, first, again)
				}
			}
		}
		if len(both) != 2 {
			t.Errorf("all went to %v", both)
		}
	}
	seen = make(map[string]int)
	for range 40 {
		seen[asked(`,"user":""`)]++
	}
	if len(seen) != 2 {
		t.Errorf("an empty name is none, and all went to %v", seen)
	}
}

// Of an alias none of whose models is served one that is started for requests is taken.
func TestServedTargets_WhatComesOnlyWhereNothingIsServed(t *testing.T) {
	g := fleetOfModels(t)
	for name, want := range map[string][]Target{
		"chat": {{"big", 1}, {"small", 1}}, "later": {{"cold", 1}}, "void": {},
	} {
		a, is := g.server.alias(name)
		got := g.server.servedTargets(a)
		if !is || len(got) != len(want) {
			t.Errorf("%s: %v", name, got)
			continue
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("%s: %v", name, got)
			}
		}
	}
}

// A request that names no model means the only one that its key may use, whatever adapters and other
// names there are of it; engines get its name. Where there are several it has to say which.
func TestModel_MayBeLeftOutWhereThereIsOne(t *testing.T) {
	one, twin, other := alone(t), alone(t), alone(t)
	one.URL = listing(t, `{"data":[{"id":"big"},{"id":"also-big"},{"id":"lora","parent":"big"}]}`)
	twin.URL = listing(t, `{"data":[{"id":"big"}]}`)
	other.URL = listing(t, `{"data":[{"id":"small"}]}`)
	single := &engines{answer: response(200, "application/json", completion)}
	several := &engines{answer: response(200, "application/json", completion)}
	alias := usual(t, "ada", "eve models=[none]")
	alias.config = func(c *Config) { c.Aliases = []Alias{{Name: "chat", Targets: []Target{{"big", 1}}}} }
	serves := map[string]*running{
		"one":     run(t, alias, single.roundTrip, one, twin),
		"several": run(t, usual(t, "ada", "bob models=[small,lora]"), several.roundTrip, one, other),
	}
	for _, x := range []struct {
		fleet, key, path, body string
		status                 int
		model                  string // that the engine is asked for
	}{
		{"one", "ada", "/v1/completions", `{"prompt":"hi"}`, 200, "big"},
		{"one", "ada", "/v1/completions", `{"model":"","prompt":"hi"}`, 200, "big"},
		{"one", "ada", "/v1/completions", `{"model":null,"prompt":"hi"}`, 200, "big"},
		{"one", "ada", "/v1/completions", `{"model":7,"prompt":"hi"}`, 400, ""},
		{"one", "ada", "/v1/completions", `{"model":"nobody","prompt":"hi"}`, 404, ""},
		{"one", "ada", "/v1/embeddings", `{"input":"hi"}`, 200, "big"},
		{"one", "ada", "/v1/messages", `{"max_tokens":5,"messages":[{"role":"user","content":"hi"}]}`, 400, ""}, // theirs demands it
		{"one", "eve", "/v1/completions", `{"prompt":"hi"}`, 400, ""},
		{"several", "ada", "/v1/completions", `{"prompt":"hi"}`, 400, ""},
		{"several", "bob", "/v1/completions", `{"prompt":"hi"}`, 200, "small"},
	} {
		e := map[string]*engines{"one": single, "several": several}[x.fleet]
		got := serves[x.fleet].ask("POST", x.path, x.body, as(x.key)...)
		if got.status != x.status {
			t.Errorf("%s: %s asks %s %s: %d %s, want %d", x.fleet, x.key, x.path, x.body, got.status, got.body, x.status)
		}
		if param := gjson.Get(got.body, "error.param").String(); x.status == 400 && param != "model" && x.path != "/v1/messages" {
			t.Errorf("%s: refused for %q", x.body, param)
		}
		for _, leg := range e.take() {
			if model := gjson.Get(leg.body, "model").String(); model != x.model {
				t.Errorf("%s asks %s: an engine is asked for %q", x.key, x.body, model)
			}
		}
	}
	if n := testutil.ToFloat64(serves["one"].server.metrics.requests.WithLabelValues("completions", "big", "ok", "http")); n != 3 {
		t.Errorf("%v are counted of the model, want 3", n)
	}
}

// A gateway that knows no server yet waits for the model of those that come.
func TestModel_LeftOutWaitsForTheFirstServer(t *testing.T) {
	t.Parallel()
	g, arrive := starting(t, usual(t), complete().roundTrip)
	waits := g.wait(1, func() reply { return g.post(`{"prompt":"hi"}`) })
	arrive(alone(t))
	eventually(t, "it has its answer", func() bool { return len(waits) > 0 })
	if got := <-waits; got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
}
