package tokens

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/loadtest/engine"
)

// agentBodies are requests as agents send them, each with something that engines convert in a
// way of their own.
var agentBodies = []struct {
	what string
	api  API
	body string
}{
	{"a text", Messages, `{"system":"be brief","messages":[{"role":"user","content":"when?"}]}`},
	{"a system prompt of parts, of which one is an attribution", Messages, `{"system":[{"type":"text","text":"x-anthropic-billing-header: cch=1"},{"type":"text","text":"be ","cache_control":{"type":"ephemeral"}},{"type":"text","text":"brief\n"}],"messages":[{"role":"user","content":"when?"}]}`},
	{"several parts, an empty one among them", Messages, `{"messages":[{"role":"user","content":[{"type":"text","text":"one"},{"type":"text","text":""},{"type":"text","text":"two"}]}]}`},
	{"tools", Messages, `{"tools":[{"name":"a","description":"does \"a\"","input_schema":{"properties":{"x":{"type":"string"}}}},{"name":"b","input_schema":{"type":"object"},"strict":true,"cache_control":{"type":"ephemeral"}}],"tool_choice":{"type":"auto"},"messages":[{"role":"user","content":"when?"}]}`},
	{"no schema to speak of", Messages, `{"tools":[{"name":"a","input_schema":{ }}],"messages":[{"role":"user","content":"when?"}]}`},
	{"a tool loop", Messages, `{"tools":[{"name":"a","input_schema":{"type":"object"}}],"messages":[{"role":"user","content":"when?"},
		{"role":"assistant","content":[{"type":"thinking","thinking":"hm, ","signature":"s"},{"type":"redacted_thinking","data":"x"},{"type":"text","text":"wait"},{"type":"tool_use","id":"t1","name":"a","input":{"city":"Köln \u00e9","n":[1,2.5],"type":"image"}},{"type":"tool_use","id":"t2","name":"a","input":{}}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"noon"},{"type":"tool_result","tool_use_id":"t2","is_error":true,"content":[{"type":"text","text":"one"},{"type":"text","text":"two"}]}]}]}`},
	{"words beside a result", Messages, `{"messages":[{"role":"user","content":"when?"},{"role":"assistant","content":[{"type":"tool_use","id":"t1","name":"a","input":{}}]},
		{"role":"user","content":[{"type":"text","text":"before"},{"type":"tool_result","tool_use_id":"t1"},{"type":"text","text":"after"}]}]}`},
	{"thoughts alone", Messages, `{"messages":[{"role":"user","content":"when?"},{"role":"assistant","content":[{"type":"thinking","thinking":"hm"}]},{"role":"user","content":"so?"}]}`},
	{"a system message within", Messages, `{"system":"s","messages":[{"role":"user","content":"when?"},{"role":"system","content":[{"type":"text","text":"be quick"},{"type":"text","text":" now"}]},{"role":"assistant","content":"noon"},{"role":"system","content":"x-anthropic-billing-header: 1"},{"role":"user","content":"sure?"}]}`},
	{"no thinking", Messages, `{"thinking":{"type":"disabled"},"messages":[{"role":"user","content":"when?"}]}`},
	{"much thinking", Messages, `{"thinking":{"type":"adaptive"},"output_config":{"effort":"high"},"messages":[{"role":"user","content":"when?"}]}`},
	{"a text", Responses, `{"instructions":"be brief","input":"when?"}`},
	{"messages of parts and a developer", Responses, `{"input":[{"role":"developer","content":"be brief"},{"type":"message","role":"user","content":[{"type":"input_text","text":"one"},{"type":"input_text","text":"two"}]}]}`},
	{"a tool loop", Responses, `{"tools":[{"type":"function","name":"a","description":"d","parameters":{"type":"object","properties":{"x":{"type":"string"}}},"strict":false},{"type":"web_search"}],"reasoning":{"effort":"low"},"input":[{"role":"user","content":"when?"},
		{"type":"reasoning","id":"r1","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]},
		{"type":"message","id":"m1","role":"assistant","status":"completed","content":[{"type":"output_text","text":"wait","annotations":[]}]},
		{"type":"function_call","id":"f1","call_id":"c1","name":"a","arguments":"{\"city\": \"K\\u00f6ln\"}","status":"completed"},
		{"type":"function_call","id":"f2","call_id":"c2","name":"a","arguments":"{}"},
		{"type":"function_call_output","call_id":"c1","output":"noon"},{"type":"function_call_output","call_id":"c2","output":[{"type":"input_text","text":"one"}]}]}`},
	{"answers and questions", Responses, `{"input":[{"role":"user","content":"when?"},{"role":"assistant","content":"noon"},{"type":"message","role":"assistant","content":[{"type":"output_text","text":"or so"}]},{"type":"reasoning","summary":[{"type":"summary_text","text":"hm"}]},{"role":"user","content":"sure?"}]}`},
	{"reasoning of several turns", Responses, `{"input":[{"role":"user","content":"when?"},{"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"one"}]},{"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"two"}]},{"type":"function_call","call_id":"c1","name":"a","arguments":"{}"},{"type":"function_call_output","call_id":"c1","output":"x"}]}`},
}

// with adds what a request must have besides its prompt.
func withModel(body string, api API) []byte {
	limit := "max_tokens"
	if api == Responses {
		limit = "max_output_tokens"
	}
	return []byte(fmt.Sprintf(`{"model":"sim-model",%q:4,`, limit) + body[1:])
}

// The chat that the gateway makes of a request has the tokens that an engine makes of the
// request itself; the simulated engine's conversion is another program than this one.
func TestChatForm_IsTheEngines(t *testing.T) {
	sim := startSim(t, func(cfg *engine.Config) { cfg.Version = "0.33.0" })
	for _, c := range agentBodies {
		p := Prompt{API: c.api, Body: withModel(c.body, c.api), Model: "sim-model"}
		text, ok := p.read()
		if !ok {
			t.Fatalf("%s %s: not read", c.api, c.what)
		}
		questions := p.questions(text, func(Method) bool { return true })
		text.free()
		var want []uint32
		asked := map[Method]int{}
		for _, q := range questions {
			answer, err := sim.post(t.Context(), q.path, q.body)
			if err != nil {
				t.Errorf("%s %s: %s: %v of %s", c.api, c.what, q.path, err, q.body)
				continue
			}
			found, ok := q.read(answer, false)
			if !ok {
				t.Errorf("%s %s: %s: %.200s", c.api, c.what, q.path, answer)
				continue
			}
			if want == nil {
				want = found.IDs
			}
			asked[q.by]++
			if q.by == ByTranslation && strings.Contains(c.what, "system message within") && asked[q.by] > 2 {
				continue // the form for templates that refuse those
			}
			if !slices.Equal(found.IDs, want) {
				t.Errorf("%s %s: %s finds %d tokens, the engine makes %d of %s", c.api, c.what, q.path, len(found.IDs), len(want), q.body)
			}
		}
		if asked[ByEngine] != 1 || asked[ByTranslation] < 2 {
			t.Errorf("%s %s: asked %v", c.api, c.what, asked)
		}
	}
}

// What has no exact form as a chat is not translated.
func TestChatForm_WhatIsInexactIsRefused(t *testing.T) {
	for _, c := range []struct {
		api  API
		body string
	}{
		{Messages, `{"messages":[{"role":"user","content":[{"type":"document","source":{}}]}]}`},
		{Messages, `{"messages":[{"role":"system","content":[{"type":"tool_removal","tool":{"type":"tool_reference","name":"a"}}]},{"role":"tool","content":"a"}]}`},
		{Messages, `{"messages":[{"role":"assistant","content":[{"type":"tool_result","content":[]}]}]}`},
		{Messages, `{"messages":{}}`},
		{Messages, `{"messages":[]}`},
		{Responses, `{"input":[{"type":"item_reference","id":"a"}]}`},
		{Responses, `{"input":[{"type":"reasoning","summary":[],"encrypted_content":"abc"}]}`},
		{Responses, `{"input":"a","tools":[{"type":"custom","name":"a"}]}`},
		{Responses, `{"input":"a","previous_response_id":"r"}`},
		{Responses, `{"input":"a","truncation":"auto"}`},
	} {
		p := Prompt{API: c.api, Body: []byte(c.body), Model: "m"}
		if chat, ok := p.asChat(true); ok {
			t.Errorf("%s %s: %s", c.api, c.body, chat)
		}
	}
}

// Whatever comes, a chat form is a JSON object or none, and reading a prompt ends.
func FuzzChatForm(f *testing.F) {
	for _, c := range agentBodies {
		f.Add(c.api == Responses, c.body)
	}
	f.Fuzz(func(t *testing.T, responses bool, body string) {
		if !json.Valid([]byte(body)) || !strings.HasPrefix(body, "{") || !strings.HasSuffix(body, "}") {
			t.Skip()
		}
		for _, engine := range []string{engineVLLM, engineSGLang} {
			p := Prompt{API: Messages, Body: []byte(body), Model: "m", engine: engine}
			if responses {
				p.API = Responses
			}
			for _, inline := range []bool{true, false} {
				if chat, ok := p.asChat(inline); ok && !json.Valid(chat) {
					t.Fatalf("%s of %s", chat, body)
				}
			}
			if text, ok := p.read(); ok {
				for _, q := range p.questions(text, func(Method) bool { return true }) {
					if !json.Valid(q.body) {
						t.Fatalf("%s of %s", q.body, body)
					}
				}
				text.free()
			}
		}
	})
}

// What has no exact form as a chat has none: nothing is guessed of it.
func TestChatForm_RefusesWhatItDoesNotFollow(t *testing.T) {
	image := func(source string) string {
		return `{"messages":[{"role":"user","content":[{"type":"image","source":` + source + `}]}]}`
	}
	input := func(item string) string { return `{"input":[{"role":"user","content":"a"},` + item + `]}` }
	for _, c := range []struct {
		api  API
		body string
		want bool
	}{
		{Messages, image(`{"type":"base64","media_type":"image/png","data":"AA=="}`), true},
		{Messages, image(`{"type":"base64","data":"AA=="}`), true},
		{Messages, image(`{"type":"url","url":"http://a/b.png"}`), true},
		{Messages, image(`{"type":"base64","media_type":7,"data":"AA=="}`), false},
		{Messages, image(`{"type":"base64","media_type":"image/png","data":7}`), false},
		{Messages, image(`{"type":"base64","media_type":"image/png"}`), false},
		{Messages, image(`{"type":"url","url":7}`), false},
		{Responses, input(`{"role":"user","content":[{"type":"input_image","image_url":"http://a/b.png"}]}`), true},
		{Responses, input(`{"role":"user","content":[{"type":"input_image","image_url":{"url":"http://a/b.png"}}]}`), false},
		{Responses, input(`{"role":"user","content":[{"type":"input_image","file_id":"f"}]}`), false},
		{Responses, input(`{"role":"user","content":[{"type":"input_text","text":7}]}`), false},
		{Responses, input(`{"role":"user","content":[{"type":"input_file","file_id":"f"}]}`), false},
		{Responses, input(`{"type":"item_reference","id":"a"}`), false},
		{Responses, input(`{"type":"web_search_call","id":"a"}`), false},
	} {
		if _, ok := (&Prompt{API: c.api, Body: []byte(c.body), Model: "m"}).asChat(true); ok != c.want {
			t.Errorf("%s: %s has a form: %v, want %v", c.api, c.body, ok, c.want)
		}
	}
}
