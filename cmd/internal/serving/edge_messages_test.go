package serving

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/loadtest/engine"
)

const messagesPath = "/v1/messages"

// agentTurn is a message of an agent in the middle of its work: a system prompt of two
// parts, a call and what came of it, tools, and a prompt that fills some blocks of KV.
func agentTurn(extra string) string {
	prompt, _ := json.Marshal(longPrompt)
	return `{"model":"` + testModel + `","max_tokens":24,"metadata":{"user_id":"u"},"temperature":0,
		"system":[{"type":"text","text":"You are an agent.","cache_control":{"type":"ephemeral"}},{"type":"text","text":"Be brief."}],
		"messages":[{"role":"user","content":[{"type":"text","text":` + string(prompt) + `},{"type":"text","text":"How is the weather in Köln?"}]},
			{"role":"assistant","content":[{"type":"text","text":"Let me see."},{"type":"tool_use","id":"t1","name":"weather","input":{"city":"Köln","days":[1,2.5]}}]},
			{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"rain"},{"type":"text","text":"And tomorrow?"}]}],
		"tools":[{"name":"weather","description":"tells it","input_schema":{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"array"}},"required":["city"]}}]` + extra + `}`
}

// An engine that drops the salt from messages gets the chat that it would have made of
// the message: the answer is the one that it gives to the message itself, streamed or not.
func TestEdge_AMessageAsAChatIsAnsweredAsTheMessage(t *testing.T) {
	for name, kind := range map[string]func(*engine.Config){
		"SGLang": sglangEngine, "vLLM before 0.32": nil,
		"SGLang that reasons": func(cfg *engine.Config) { sglangEngine(cfg); cfg.ReasoningTokens = 7 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			alone := startTestEngine(t, engine.RoleBoth, kind)
			c := newCluster(t, shape{prefill: 1, decode: 1, engine: kind, config: withKeys(t, "sk-ada tenant=ada", "sk-bob tenant=bob")})
			for what, extra := range map[string]string{
				"text": "", "a stop sequence": `,"stop_sequences":[" the"," a"," of"]`,
				"a call": `,"tool_choice":{"type":"any"}`, "the call": `,"tool_choice":{"type":"tool","name":"weather"}`,
			} {
				for _, stream := range []string{"", `,"stream":true`} {
					body := agentTurn(extra + stream)
					want := messageOf(t, askEngine(t, alone, messagesPath, body))
					for _, key := range []string{"sk-ada", "sk-bob"} {
						answer := c.post(messagesPath, body, "X-Api-Key", key)
						if got := messageOf(t, answer); got != want {
							t.Errorf("%s%s of %s: got\n%s\nwant\n%s", what, stream, key, got, want)
						}
						if thought := gjson.Get(answer.body, `content.#(type=="thinking")`); thought.Exists() && thought.Get("signature").Type != gjson.String {
							t.Errorf("%s: %s has no signature, which clients require", what, thought)
						}
						if answer.header.Get("X-Tandem-Prefill") == "" {
							t.Errorf("%s%s ran alone", what, stream)
						}
					}
				}
			}
			if legs := append(requests(c.prefill, messagesPath), requests(c.decode, messagesPath)...); len(legs) > 0 {
				t.Errorf("%d legs are messages", len(legs))
			}
		})
	}
}

// A stream that is continued elsewhere counts its prompt once: clients take of the usage at the end what is there, and
// keep the rest of that at the start.
func TestEdge_AMessageAsAChatThatIsContinuedCountsItsPromptOnce(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 2, config: withKeys(t, "sk-ada tenant=ada")})
	body := `{"model":"test-model","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"` + longPrompt + `"}]}`
	c.post(messagesPath, body, "X-Api-Key", "sk-ada") // prefill has cached it
	whole := c.post(messagesPath, body, "X-Api-Key", "sk-ada")
	for _, e := range c.decode {
		e.SetFault(engine.Fault{Kind: engine.FaultDieAfterTokens, Tokens: 3, Path: chatPath, Count: 1})
	}
	continued := c.post(messagesPath, body, "X-Api-Key", "sk-ada")
	if got, want := usageAtClient(continued), usageAtClient(whole); continued.err != nil || !maps.Equal(got, want) || want["cache_read_input_tokens"] == 0 {
		t.Errorf("%v %s: got %v, want %v", continued.err, continued.body, got, want)
	}
	if c.metric("tandem_continuations_total", `outcome="continued"`) == 0 {
		t.Error("it was not continued")
	}
}

// usageAtClient is the usage of a streamed message as Anthropic's SDKs add it up.
func usageAtClient(a answer) map[string]int64 {
	usage := make(map[string]int64)
	for _, event := range a.events {
		for _, path := range []string{"message.usage", "usage"} {
			for field, n := range gjson.Get(event, path).Map() {
				usage[field] = n.Int()
			}
		}
	}
	return usage
}

// Agents send what a tool answered as a list of texts, which each engine joins in its own way.
func TestEdge_AToolResultOfTextsIsAnsweredAsTheMessage(t *testing.T) {
	body := strings.Replace(agentTurn(""), `"content":"rain"`, `"content":[{"type":"text","text":"rain"},{"type":"text","text":"and wind","cache_control":{"type":"ephemeral"}}]`, 1)
	for name, kind := range map[string]func(*engine.Config){
		"SGLang": sglangEngine, "vLLM 0.24": func(cfg *engine.Config) { cfg.Version = "0.24.0" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			alone := startTestEngine(t, engine.RoleBoth, kind)
			c := newCluster(t, shape{prefill: 1, decode: 1, engine: kind, config: withKeys(t, "sk-ada tenant=ada")})
			want := messageOf(t, askEngine(t, alone, messagesPath, body))
			if got := messageOf(t, c.post(messagesPath, body, "X-Api-Key", "sk-ada")); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// messageOf says of an answer, streamed or whole, what must not depend on how it was
// asked: each block, how it ended, and the tokens of prompt and answer.
func messageOf(t *testing.T, a answer) string {
	t.Helper()
	if a.status != 200 || a.err != nil {
		t.Fatalf("%d %v %s", a.status, a.err, a.body)
	}
	var blocks []string
	block := func(b gjson.Result) {
		input := b.Get("input").Raw
		if len(a.events) > 0 {
			input = "" // it comes in deltas
		}
		blocks = append(blocks, b.Get("type").String()+" "+b.Get("name").String()+b.Get("thinking").String()+b.Get("text").String()+input)
	}
	m, end := gjson.Parse(a.body), gjson.Parse(a.body)
	for _, content := range m.Get("content").Array() {
		block(content)
	}
	kinds := make(map[string]int)
	for _, data := range a.events {
		e := gjson.Parse(data)
		kind := e.Get("type").String()
		kinds[kind]++
		switch kind {
		case "message_start":
			m = e.Get("message")
		case "content_block_start":
			block(e.Get("content_block"))
		case "content_block_delta":
			blocks[e.Get("index").Int()] += e.Get("delta.thinking").String() + e.Get("delta.text").String() + e.Get("delta.partial_json").String()
		case "message_delta":
			end = gjson.Parse(`{"stop_reason":` + e.Get("delta.stop_reason").Raw + `,"stop_sequence":` + orNull(e.Get("delta.stop_sequence").Raw) + `,"usage":` + e.Get("usage").Raw + `}`)
		}
	}
	if len(a.events) > 0 && (kinds["message_start"] != 1 || kinds["message_delta"] != 1 || kinds["message_stop"] != 1 || kinds["content_block_start"] != kinds["content_block_stop"]) {
		t.Errorf("events %v", kinds)
	}
	if !strings.HasPrefix(m.Get("id").String(), "msg_") || m.Get("type").String() != "message" || m.Get("role").String() != "assistant" || m.Get("model").String() != testModel {
		t.Errorf("the message is %s", m.Raw)
	}
	u := end.Get("usage")
	prompt := u.Get("input_tokens").Int() + u.Get("cache_read_input_tokens").Int() + u.Get("cache_creation_input_tokens").Int()
	return fmt.Sprintf("%q %s %s, %d and %d tokens", blocks, end.Get("stop_reason").Raw, orNull(end.Get("stop_sequence").Raw), prompt, u.Get("output_tokens").Int())
}

func orNull(raw string) string {
	if raw == "" {
		return "null"
	}
	return raw
}

// Two tenants who send the same message share no KV; each finds its own.
func TestEdge_MessagesAsChatsAreKeptApart(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 1, engine: sglangEngine, config: withKeys(t, "sk-ada tenant=ada", "sk-bob tenant=bob max-output-tokens=24")})
	cached := func(key, extra string) int64 {
		t.Helper()
		answer := c.post(messagesPath, agentTurn(extra), "X-Api-Key", key)
		if answer.status != 200 {
			t.Fatalf("%d %s", answer.status, answer.body)
		}
		u := gjson.Get(answer.body, "usage")
		if len(answer.events) > 0 {
			u = gjson.Get(answer.events[len(answer.events)-2], "usage")
		}
		return u.Get("cache_read_input_tokens").Int()
	}
	for _, x := range []struct {
		key, extra string
		cached     bool
	}{{"sk-ada", "", false}, {"sk-bob", "", false}, {"sk-ada", "", true}, {"sk-bob", `,"stream":true`, true}, {"sk-ada", `,"thinking":{"type":"disabled"}`, true}} {
		if n := cached(x.key, x.extra); (n > 0) != x.cached {
			t.Errorf("%s%s found %d cached tokens", x.key, x.extra, n)
		}
	}
	salts := make(map[string]int)
	for _, leg := range append(requests(c.prefill, chatPath), requests(c.decode, chatPath)...) {
		salts[gjson.Get(leg.Body, "cache_salt").String()]++
	}
	if len(salts) != 2 || salts[""] > 0 {
		t.Errorf("the legs' salts are %v", salts)
	}
	for extra, param := range map[string]string{`,"container":"c"`: "as a chat", `,"max_tokens":25`: "max_tokens"} {
		body := strings.Replace(agentTurn(extra), `"max_tokens":24,`, `"max_tokens":24,`, 1)
		if strings.Contains(extra, "max_tokens") {
			body = strings.Replace(agentTurn(""), `"max_tokens":24,`, `"max_tokens":25,`, 1)
		}
		answer := c.post(messagesPath, body, "X-Api-Key", "sk-bob")
		if answer.status != 400 || gjson.Get(answer.body, "type").String() != "error" || !strings.Contains(gjson.Get(answer.body, "error.message").String(), param) {
			t.Errorf("%s: %d %s", extra, answer.status, answer.body)
		}
	}
}

// What fails at the engine fails as a message fails.
func TestEdge_AMessageAsAChatFailsAsAMessage(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 1, engine: sglangEngine, config: withKeys(t, "sk-ada tenant=ada")})
	refused := c.post(messagesPath, strings.Replace(agentTurn(""), `"temperature":0`, `"temperature":-1`, 1), "X-Api-Key", "sk-ada")
	e := gjson.Parse(refused.body)
	if refused.status != 400 || e.Get("type").String() != "error" || e.Get("error.type").String() != "invalid_request_error" || e.Get("request_id").String() == "" {
		t.Errorf("an engine's refusal: %d %s", refused.status, refused.body)
	}
	c.decode[0].SetFault(engine.Fault{Kind: engine.FaultDieAfterTokens, Tokens: 2, Path: chatPath})
	broken := c.post(messagesPath, agentTurn(`,"stream":true`), "X-Api-Key", "sk-ada")
	last := gjson.Parse(broken.events[len(broken.events)-1])
	if broken.err == nil || last.Get("type").String() != "error" || last.Get("request_id").String() != broken.header.Get("Request-Id") {
		t.Errorf("a stream that breaks ends with %s, %v", last.Raw, broken.err)
	}
}
