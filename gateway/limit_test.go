package gateway

import (
	"testing"

	"github.com/tidwall/gjson"
)

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
	if got := g.post(`{"model":"m","prompt":"a","n":2,"best_of":5}`, as("ada")...); gjson.Get(got.body, "error.param").String() != "best_of" {
		t.Errorf("what asks for too much is not named: %s", got.body)
	}
	for fields, status := range map[string]int{
		`"prompt":"a","n":4`: 200, `"prompt":"a","n":5`: 400, `"prompt":["a","b"],"n":2`: 200, `"prompt":["a","b"],"n":3`: 400, `"prompt":"a","n":1,"best_of":5`: 400,
		`"prompt":"a","logit_bias":{"a":1}`: 200, `"prompt":"a","logit_bias":{"a":1,"a":2}`: 400, `"prompt":"a","logit_bias":[1]`: 400, `"prompt":"a","logit_bias":null`: 200,
	} {
		if got := g.post(`{"model":"m",`+fields+`}`, as("ada")...); got.status != status {
			t.Errorf("{%s}: %d %s", fields, got.status, got.body)
		}
	}
}
