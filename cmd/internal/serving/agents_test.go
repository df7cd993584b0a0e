package serving

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/loadtest/engine"
)

// agentAPI writes an agent's conversation as one API has it.
type agentAPI struct {
	path string
	// body is the request of a turn; all before it are history.
	body func(conversation, turn int) string
	// usage of an answer: the whole prompt, and what of it was cached.
	usage func(body string) (prompt, cached int)
}

// vocabulary is what agents' texts are made of here: prose, code and what tools print.
var vocabulary = strings.Fields(`the file that holds a list of names was read before and after each change, so the result must
	be written again when it fails func (s *Server) Start(ctx context.Context) error { return nil } if err != nil { "path": "/src/main.go",
	"line": 12, total 48 drwxr-xr-x 2 root 4096 Jan 7 12:01 README.md we should look at the river and the bridge, then go home; tests ok 0.013s
	for i := range 10 { fmt.Println(i) } use this tool to search for text in files and to show where it was found // a comment`)

// words are some of it, others for each seed.
func words(n int, seed string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(seed))
	chance := rand.New(rand.NewPCG(h.Sum64(), 1))
	var b strings.Builder
	for range n {
		b.WriteString(vocabulary[chance.IntN(len(vocabulary))] + " ")
	}
	return b.String()
}

func quoted(text string) string {
	raw, _ := json.Marshal(text)
	return string(raw)
}

// agentTools are ten, each in the form of an API.
func agentTools(form string) string {
	var all []string
	for i := range 10 {
		schema := fmt.Sprintf(`{"type":"object","properties":{"path":{"type":"string","description":%s},"limit":{"type":"integer","minimum":%d}},"required":["path"],"additionalProperties":false}`, quoted(words(6, "field")), i)
		all = append(all, fmt.Sprintf(form, fmt.Sprintf("tool_%d", i), quoted(words(80, fmt.Sprintf("tool%d", i))), schema))
	}
	return "[" + strings.Join(all, ",") + "]"
}

// What an agent's conversation is made of.
func asked(conversation, turn int) string {
	return quoted(fmt.Sprintf("%d-%d. %s", turn, conversation, words(60, fmt.Sprintf("ask%dx%d", turn, conversation))))
}

func found(conversation, turn int) string {
	return quoted(fmt.Sprintf("%d/%d: %s", turn, conversation, words(400, fmt.Sprintf("found%dx%d", turn, conversation))))
}

func arguments(conversation, turn int) string {
	return fmt.Sprintf(`{"path":"/src/größe_%d.go","limit":%d,"deep":{"ratio":0.5,"on":true}}`, conversation, turn)
}

var agentAPIs = map[string]agentAPI{
	"chat": {path: "/v1/chat/completions", body: func(c, turns int) string {
		messages := `{"role":"system","content":` + quoted(words(900, "system")) + `},{"role":"user","content":` + asked(c, 0) + `}`
		for t := 1; t <= turns; t++ {
			messages += fmt.Sprintf(`,{"role":"assistant","content":"Let me see.","tool_calls":[{"id":"call_%d","type":"function","function":{"name":"tool_1","arguments":%s}}]},{"role":"tool","tool_call_id":"call_%d","content":%s},{"role":"assistant","content":"So it is."},{"role":"user","content":%s}`,
				t, quoted(arguments(c, t)), t, found(c, t), asked(c, t))
		}
		return fmt.Sprintf(`{"model":%q,"max_tokens":30,"ignore_eos":true,"messages":[%s],"tools":%s}`, testModel, messages,
			agentTools(`{"type":"function","function":{"name":%q,"description":%s,"parameters":%s}}`))
	}, usage: func(body string) (int, int) {
		return int(gjson.Get(body, "usage.prompt_tokens").Int()), int(gjson.Get(body, "usage.prompt_tokens_details.cached_tokens").Int())
	}},
	"messages": {path: "/v1/messages", body: func(c, turns int) string {
		messages := `{"role":"user","content":[{"type":"text","text":"<reminder>Be brief.</reminder>"},{"type":"text","text":` + asked(c, 0) + `}]}`
		for t := 1; t <= turns; t++ {
			mark := ""
			if t == turns {
				mark = `,"cache_control":{"type":"ephemeral"}`
			}
			messages += fmt.Sprintf(`,{"role":"assistant","content":[{"type":"thinking","thinking":%s,"signature":"c2ln"},{"type":"text","text":"Let me see."},{"type":"tool_use","id":"toolu_%d","name":"tool_1","input":%s}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_%d","content":[{"type":"text","text":%s},{"type":"text","text":"(end)"}],"is_error":false%s}]},{"role":"assistant","content":[{"type":"text","text":"So it is."}]},{"role":"user","content":[{"type":"text","text":%s%s}]}`,
				quoted(words(20, "think")), t, arguments(c, t), t, found(c, t), mark, asked(c, t), mark)
		}
		return fmt.Sprintf(`{"model":%q,"max_tokens":30,"metadata":{"user_id":"u"},"thinking":{"type":"adaptive"},"ignore_eos":true,"system":[{"type":"text","text":"x-anthropic-billing-header: cch=%d%d;"},{"type":"text","text":"You are an agent.","cache_control":{"type":"ephemeral"}},{"type":"text","text":%s}],"messages":[%s],"tools":%s}`,
			testModel, c, turns, quoted(words(900, "system")), messages, agentTools(`{"name":%q,"description":%s,"input_schema":%s}`))
	}, usage: func(body string) (int, int) {
		u := gjson.Get(body, "usage")
		cached := u.Get("cache_read_input_tokens").Int()
		return int(u.Get("input_tokens").Int() + cached + u.Get("cache_creation_input_tokens").Int()), int(cached)
	}},
	"responses": {path: "/v1/responses", body: func(c, turns int) string {
		input := `{"type":"message","role":"developer","content":[{"type":"input_text","text":"Be brief."}]},{"role":"user","content":[{"type":"input_text","text":` + asked(c, 0) + `}]}`
		for t := 1; t <= turns; t++ {
			input += fmt.Sprintf(`,{"type":"reasoning","id":"rs_%d","summary":[],"content":[{"type":"reasoning_text","text":%s}]},{"type":"function_call","id":"fc_%d","call_id":"call_%d","name":"tool_1","arguments":%s,"status":"completed"},{"type":"function_call_output","call_id":"call_%d","output":%s},{"type":"message","id":"msg_%d","role":"assistant","status":"completed","content":[{"type":"output_text","text":"So it is.","annotations":[]}]},{"role":"user","content":%s}`,
				t, quoted(words(20, "think")), t, t, quoted(arguments(c, t)), t, found(c, t), t, asked(c, t))
		}
		return fmt.Sprintf(`{"model":%q,"max_output_tokens":30,"ignore_eos":true,"store":false,"parallel_tool_calls":true,"include":["reasoning.encrypted_content"],"prompt_cache_key":"k%d","instructions":%s,"input":[%s],"tools":%s}`,
			testModel, c, quoted(words(900, "system")), input, agentTools(`{"type":"function","name":%q,"description":%s,"strict":false,"parameters":%s}`))
	}, usage: func(body string) (int, int) {
		return int(gjson.Get(body, "usage.input_tokens").Int()), int(gjson.Get(body, "usage.input_tokens_details.cached_tokens").Int())
	}},
}

// agentRun is what became of an agent's conversations.
type agentRun struct {
	later, strayed int     // turns after the first, and those of them that changed their server
	prompt, cached int     // tokens of those turns, as engines report
	believed       int     // of them, those that the gateway took for cached
	known          float64 // share of all prompts that were known whole
	worst          float64 // how far off the predicted length of a later turn's prompt was, as a share
}

// runAgents runs conversations that take turns on one API.
func (c *cluster) runAgents(api agentAPI, conversations, turns int) (r agentRun) {
	c.t.Helper()
	homes := make([]string, conversations)
	chance := rand.New(rand.NewPCG(14, 1))
	for turn := range turns {
		for _, i := range chance.Perm(conversations) {
			seen := c.askTurn(api, api.body(i, turn))
			if turn > 0 {
				r.later++
				if seen.home != homes[i] {
					r.strayed++
				}
				r.prompt, r.cached, r.believed = r.prompt+seen.prompt, r.cached+seen.cached, r.believed+seen.believed
				r.worst = max(r.worst, seen.off)
			}
			homes[i] = seen.home
		}
	}
	r.known = c.metric("tandem_tokens_prompts_total", `outcome="whole"`) / c.metric("tandem_tokens_prompts_total")
	return r
}

// turnSeen is what became of one request of an agent.
type turnSeen struct {
	home                     string  // its prefill server
	prompt, cached, believed int     // tokens: of the prompt, cached by the engine's usage, taken for cached
	off                      float64 // how far off the predicted length was, as a share
}

// askTurn sends a request and waits until what it left in caches is known.
func (c *cluster) askTurn(api agentAPI, body string) (seen turnSeen) {
	c.t.Helper()
	got := c.post(api.path, body)
	if got.status != 200 {
		c.t.Fatalf("%d %s", got.status, got.body)
	}
	seen.home = got.header.Get("X-Tandem-Prefill")
	seen.prompt, seen.cached = api.usage(got.body)
	choice := gjson.Get(c.get("/debug/decisions/"+got.header.Get("X-Request-Id")).body, "attempts.0")
	for _, a := range choice.Get("alternatives").Array() {
		if a.Get("prefill").String() == seen.home {
			seen.believed = int(a.Get("prefill_cached").Int())
			break
		}
	}
	seen.off = math.Abs(choice.Get("prompt_tokens").Float()/float64(seen.prompt) - 1)
	if seen.home != "" {
		c.settle(seen.home)
	}
	return seen
}

func (r agentRun) String() string {
	return fmt.Sprintf("%d of %d later turns changed their prefill server, cached %.1f %% of %d tokens, believed %.1f %%, %.0f %% of prompts known whole, length off by at most %.1f %%",
		r.strayed, r.later, 100*float64(r.cached)/float64(r.prompt), r.prompt, 100*float64(r.believed)/float64(r.prompt), 100*r.known, 100*r.worst)
}

// agentEngines are engines by how the gateway learns the tokens of an agent's prompts there.
var agentEngines = map[string]func(*engine.Config){
	"render paths of all APIs":  func(cfg *engine.Config) { cfg.Version = "0.33.0" },
	"the render path of chat":   func(cfg *engine.Config) { cfg.Version = "0.31.0" },
	"no render path, vLLM 0.33": func(cfg *engine.Config) { cfg.Version = "0.33.0" },
}

// An agent's conversations, with tools, their results, thoughts and a system prompt of parts,
// are known by their tokens on each API: what the gateway takes for cached is what engines
// report, and next turns find the server that holds what came before.
func TestAgents_PromptsAreKnownByTheirTokens(t *testing.T) {
	t.Parallel()
	for kind, change := range agentEngines {
		for name, api := range agentAPIs {
			t.Run(kind+"/"+name, func(t *testing.T) {
				engines := func(role string, n int) (all []*engine.Engine) {
					for range n {
						e := startTestEngine(t, role, func(cfg *engine.Config) {
							publishing(cfg)
							cfg.TimeScale = computing
							change(cfg)
						})
						if strings.HasPrefix(kind, "no render") {
							for _, path := range []string{"/v1/chat/completions/render", "/v1/messages/render", "/v1/responses/render"} {
								e.SetFault(engine.Fault{Kind: engine.FaultStatus, Status: 403, Path: path})
							}
						}
						all = append(all, e)
					}
					return all
				}
				for try := 1; ; try++ {
					c := newClusterOf(t, engines(engine.RolePrefill, 2), engines(engine.RoleDecode, 1), "engine", func(cfg *config) {
						asksAreAnswered(cfg)
						assumeSlowLinks(cfg)
					})
					r := c.runAgents(api, 4, 3)
					t.Log(r)
					if wrong := c.metric("tandem_tokens_checked_total", `outcome="wrong"`); wrong > 0 {
						t.Errorf("%v prompts had other tokens than the gateway said", wrong)
					}
					if r.believed > r.cached {
						t.Errorf("%d tokens were taken for cached, and %d were", r.believed, r.cached)
					}
					if r.worst > 0.05 {
						t.Errorf("a length was off by %.1f %%", 100*r.worst)
					}
					if c.metric("tandem_tokens_checked_total", `outcome="right"`) > 0 && float64(r.believed) > 0.98*float64(r.cached) && r.strayed <= 1 {
						return
					}
					if try == 5 { // on a busy machine a server may look slow, and another be the right choice
						t.Fatal("five times")
					}
				}
			})
		}
	}
}

// Where the tokens of prompts are not known, their number is: from the third request of an
// agent on within 5 %, as its answers' usage has shown, for the choice of servers and for
// quotas. Next turns go where the text before them went, and that is counted nowhere as a hit.
func TestAgents_UnknownPromptsGoByLengthAndText(t *testing.T) {
	c := newPublishingCluster(t, 2, 1, "learned", nil) // messages' prefill answers with no token ids
	r := c.runAgents(agentAPIs["messages"], 3, 3)
	t.Log(r)
	if r.known > 0 {
		t.Errorf("%.0f %% of prompts were known", 100*r.known)
	}
	if r.worst > 0.05 {
		t.Errorf("a length was off by %.1f %%", 100*r.worst)
	}
	if r.strayed > 1 {
		t.Errorf("%d of %d turns changed their server", r.strayed, r.later)
	}
	if held := c.metric("tandem_kv_hit_tokens_total"); held > 0 {
		t.Errorf("%v tokens were counted as hits", held)
	}
}

// What prefill answers teaches the tokens of chats and of responses: of later turns nearly all that
// engines have cached is known before, and nothing that they have not.
func TestAgents_TokensAreLearnedOfPrefill(t *testing.T) {
	for _, name := range []string{"chat", "responses"} {
		t.Run(name, func(t *testing.T) {
			c := newPublishingCluster(t, 2, 1, "learned", nil)
			r := c.runAgents(agentAPIs[name], 6, 4)
			t.Log(r)
			if wrong := c.metric("tandem_tokens_checked_total", `outcome="wrong"`); wrong > 0 || r.believed > r.cached {
				t.Errorf("%v prompts had other tokens than the gateway said, %d were taken for cached of %d that were", wrong, r.believed, r.cached)
			}
			// hits are counted where tokens are known, and not where the text alone is
			if hits := c.metric("tandem_kv_hit_tokens_total"); hits < 0.9*float64(r.cached) || float64(r.believed) < 0.9*float64(r.cached) {
				t.Errorf("%v tokens were found by their ids and %d taken for cached, of %d that were", hits, r.believed, r.cached)
			}
		})
	}
}

// Sixteen sub-agents that begin at once from one long conversation compute it at most twice
// all together, also where the tokens of some of them are not known in time.
func TestAgents_SiblingsComputeTheirBeginningAtMostTwice(t *testing.T) {
	for name, unanswered := range map[string]int{"all tokens are known": 0, "half of the servers render nothing": 2} {
		t.Run(name, func(t *testing.T) {
			for try := 1; ; try++ {
				change := asksAreAnswered
				if unanswered > 0 {
					change = nil
				}
				c := newClusterComputing(t, 4, 4, 1, "engine", change)
				for _, e := range c.prefill[:unanswered] {
					e.SetFault(engine.Fault{Kind: engine.FaultHangBeforeHeaders, Path: "/v1/chat/completions/render"})
				}
				times := c.runSiblings(16)
				t.Logf("computed %.1f times", times)
				if times < 2.1 { // what siblings ask has not just so many tokens
					return
				}
				if try == 6 { // on a busy machine tokens come late, and servers look slow
					t.Fatal("six times")
				}
			}
		})
	}
}

// asksAreAnswered has an engine's answer awaited that a busy machine keeps for long.
func asksAreAnswered(cfg *config) {
	cfg.kv.asking.AskWait, cfg.kv.asking.AskTimeout = time.Minute, time.Minute
}

// assumeSlowLinks keeps links from looking slow: a decode server of a busy machine answers late, and its link to
// the prefill server that it had first is charged with that until the other one's is too.
func assumeSlowLinks(cfg *config) {
	for i := range cfg.cost.links {
		cfg.cost.links[i].Latency = time.Second
	}
}

// runSiblings has so many requests with one long beginning sent at once, and returns how many
// times they computed it all together, infinitely many if not all were answered. The beginning is so short that a busy machine can read
// sixteen of them in no time: engines that compute slowly make it a long one.
func (c *cluster) runSiblings(n int) (times float64) {
	c.t.Helper()
	api := agentAPIs["chat"]
	shared := `{"role":"system","content":` + quoted(words(4_000, "shared")) + `}`
	answers := make([]answer, n)
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() {
			answers[i] = c.post(api.path, fmt.Sprintf(`{"model":%q,"max_tokens":4,"ignore_eos":true,"messages":[%s,{"role":"user","content":%s}]}`, testModel, shared, asked(i, 0)))
		})
	}
	all.Wait()
	for _, got := range answers {
		if got.status != 200 {
			c.t.Logf("%d %s", got.status, got.body)
			return math.Inf(1)
		}
		prompt, cached := api.usage(got.body)
		times += max(0, 1-float64(cached)/float64(prompt-300)) // what a sibling asks has some 200 tokens
	}
	return times
}
