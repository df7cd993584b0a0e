package serving

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/loadtest/testlog"
	"github.com/tandem-gateway/tandem/pd/answerkv"
)

// keepsAnswers makes engines keep answers' KV for the next turn's prefill, as vLLM does with
// bidirectional_kv_xfer; computing takes time, so that reading it pays.
func keepsAnswers(cfg *engine.Config) {
	cfg.Version, cfg.TimeScale, cfg.KeepAnswers = "0.33.0", patient, true
	cfg.LinkLatency = 0
}

// answerCluster has prefill servers and a decode server that keep answers' KV.
func answerCluster(t *testing.T, s shape) *cluster {
	t.Helper()
	start := func(role string) *engine.Engine {
		return startTestEngine(t, role, func(cfg *engine.Config) {
			publishing(cfg)
			keepsAnswers(cfg)
			if s.engine != nil {
				s.engine(cfg)
			}
		})
	}
	var prefill []*engine.Engine
	for range max(1, s.prefill) {
		prefill = append(prefill, start(engine.RolePrefill))
	}
	var log io.Writer = io.Discard
	if s.log != nil {
		log = s.log
	}
	return newLoggedClusterOf(t, log, prefill, []*engine.Engine{start(engine.RoleDecode)}, "engine", func(cfg *config) {
		cfg.pd.AnswerKV = answerkv.All
		believe(cfg, patient/computing)
		if s.config != nil {
			s.config(cfg)
		}
	})
}

// talk is a conversation as a client has it.
type talk struct {
	messages []map[string]any
	extra    map[string]any
}

func (c *talk) body(words int) string {
	c.messages = append(c.messages, map[string]any{"role": "user", "content": fmt.Sprintf("turn %d: %s", len(c.messages), strings.Repeat("tell me of the river and the bridge ", words))})
	body := map[string]any{"model": testModel, "messages": c.messages, "max_tokens": 120, "ignore_eos": true}
	for k, v := range c.extra {
		body[k] = v
	}
	text, _ := json.Marshal(body)
	return string(text)
}

// say is a turn: the answer is that of one engine, and goes into the conversation.
func (c *talk) say(t *testing.T, on *cluster, words int) answer {
	t.Helper()
	body := c.body(words)
	got := on.post("/v1/chat/completions", body)
	want := reference(t, "/v1/chat/completions", strings.Replace(body, `"stream":true`, `"stream":false`, 1))
	text := want.text()
	if got.status != 200 || got.text() != text || text == "" {
		t.Fatalf("%d: %q, want %q\n%s", got.status, got.text(), text, got.body)
	}
	c.messages = append(c.messages, map[string]any{"role": "assistant", "content": text})
	return got
}

// answerKV is what is explained of the KV that a request's last attempt was to read.
func (c *cluster) answerKV(of answer) gjson.Result {
	attempts := gjson.Get(c.get("/debug/decisions/"+of.header.Get("X-Request-Id")).body, "attempts").Array()
	if len(attempts) == 0 {
		return gjson.Result{}
	}
	return attempts[len(attempts)-1].Get("answer_kv")
}

func (c *cluster) answers(outcome string) float64 {
	return c.metric("tandem_answer_kv_total", `outcome="`+outcome+`"`)
}

// The next turn's prefill reads the KV of the answer from decode: whole and streamed, where the
// stream could be continued and where it could not, and with ids that the client wants to see.
func TestAnswerKV_TheNextTurnReadsIt(t *testing.T) {
	for name, extra := range map[string]map[string]any{
		"whole":                  nil,
		"streamed":               {"stream": true},
		"streamed, not to go on": {"stream": true, "seed": 3, "temperature": 0.5, "min_tokens": 3},
		"whole, with its ids":    {"return_token_ids": true},
		"streamed, with its ids": {"stream": true, "return_token_ids": true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := answerCluster(t, shape{})
			conversation := talk{extra: extra}
			for turn := range 3 {
				got := conversation.say(t, c, 40)
				why := c.answerKV(got)
				if read := why.Get("tokens").Int(); turn == 0 && why.Exists() || turn > 0 && (why.Get("outcome").Str != "read" || read < 7*16 || why.Get("server").Str == "") {
					t.Errorf("turn %d: explained as %s", turn, why)
				}
				if strings.Contains(got.body, "kv_transfer_params\":{") || strings.Contains(got.body, "token_ids\":[") != (extra["return_token_ids"] == true) {
					t.Fatalf("the client sees %s", got.body)
				}
				eventually(t, "its KV is known", func() bool { return c.answers("kept") == float64(turn+1) })
			}
			if d := c.decode[0].State(); d.AnswersKept != 3 || d.AnswersPulled != 2 || d.HandoffsRejected+d.Recomputed != 0 {
				t.Errorf("decode kept %d and gave %d, rejected %v, computed %v", d.AnswersKept, d.AnswersPulled, d.HandoffsRejectedByReason, d.RecomputedByReason)
			}
			if p := c.prefill[0].State(); p.Recomputed+p.HandoffsRejected != 0 || p.PrefixBlocksPulled < 2*7 {
				t.Errorf("prefill read %d blocks, rejected %v, computed %v", p.PrefixBlocksPulled, p.HandoffsRejectedByReason, p.RecomputedByReason)
			}
			if c.answers("read") != 2 || c.answers("failed")+c.answers("late")+c.answers("computed") != 0 {
				t.Errorf("read %v", c.answers("read"))
			}
			// What goes to prefill are the ids that were compared, so many blocks, and as many tokens.
			all := requests(c.prefill, "/v1/chat/completions")
			params := gjson.Get(all[len(all)-1].Body, "kv_transfer_params")
			blocks := len(params.Get("remote_block_ids.0").Array())
			if len(params.Get("prompt_token_ids").Array()) == 0 || blocks == 0 || params.Get("remote_num_tokens").Int() != int64(16*blocks) || !params.Get("do_remote_decode").Bool() {
				t.Errorf("prefill was told %s", params)
			}
		})
	}
}

// A server that says so itself keeps answers' KV without any configuration; one that only does so does not
// count, and its operator is warned.
func TestAnswerKV_IsUsedWhereServersSayThatTheyKeepIt(t *testing.T) {
	for name, connector := range map[string]string{"reported": "", "not asked": "nixl"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log testlog.Buffer
			c := answerCluster(t, shape{log: &log, config: func(cfg *config) {
				cfg.pd.AnswerKV = defaultConfig().pd.AnswerKV
				for i := range cfg.servers {
					for k := range cfg.servers[i].specs {
						cfg.servers[i].specs[k].Connector = connector
					}
				}
			}})
			conversation := talk{}
			conversation.say(t, c, 40)
			conversation.say(t, c, 40)
			read, warned := c.decode[0].State().AnswersPulled == 1, strings.Contains(log.String(), "decode answers with a hand-off")
			if says := connector == ""; read != says || warned == says || (c.metric("tandem_handoffs_retained_total") == 0) != says {
				t.Errorf("read %v, warned %v", read, warned)
			}
		})
	}
}

// A template that leaves the reasoning of earlier turns out makes other tokens of the conversation: what
// the engine keeps is not read, and nothing of it is.
func TestAnswerKV_OtherTokensAreNeverRead(t *testing.T) {
	t.Parallel()
	c := answerCluster(t, shape{engine: func(cfg *engine.Config) { cfg.ReasoningTokens = 40 }})
	ask := func(messages string) string {
		return fmt.Sprintf(`{"model":%q,"max_tokens":120,"ignore_eos":true,"messages":[{"role":"user","content":%q}%s]}`, testModel, strings.Repeat("of the river ", 90), messages)
	}
	first := c.post("/v1/chat/completions", ask(""))
	eventually(t, "its KV is known", func() bool { return c.answers("kept") == 1 })
	next := c.post("/v1/chat/completions", ask(fmt.Sprintf(`,{"role":"assistant","content":%q},{"role":"user","content":"and then?"}`, first.text())))
	if next.status != 200 || c.decode[0].State().AnswersPulled != 0 || c.answers("read")+c.answers("late") != 0 {
		t.Errorf("%d: read %v", next.status, c.answers("read"))
	}
}

// Of two requests that go on behind one answer one reads it; the other computes, and neither is wrong.
func TestAnswerKV_IsReadOnce(t *testing.T) {
	t.Parallel()
	c := answerCluster(t, shape{prefill: 2})
	conversation := talk{}
	conversation.say(t, c, 40)
	eventually(t, "its KV is known", func() bool { return c.answers("kept") == 1 })
	var both sync.WaitGroup
	for i := range 2 {
		branch := talk{messages: append([]map[string]any{}, conversation.messages...)}
		both.Go(func() { branch.say(t, c, 10+i) })
	}
	both.Wait()
	eventually(t, "one reads it", func() bool { return c.decode[0].State().AnswersPulled >= 1 && c.answers("read") >= 1 })
	d := c.decode[0].State()
	if d.AnswersPulled != 1 || d.HandoffsRejected != 0 || c.answers("read") != 1 {
		t.Errorf("read %d times (%v), rejected %v", d.AnswersPulled, c.answers("read"), d.HandoffsRejectedByReason)
	}
}

// Whatever becomes of the KV meanwhile, the same server computes the prompt, and it is counted.
func TestAnswerKV_WhatCannotBeReadIsComputed(t *testing.T) {
	gone := func(cfg *engine.Config) { cfg.AnswerLife = 10 * time.Millisecond }
	for name, c := range map[string]struct {
		shape   shape
		outcome string
	}{
		"too old for the gateway":              {shape{config: func(cfg *config) { cfg.pd.AnswerLife = time.Nanosecond }}, ""},
		"given up by decode, prefill computes": {shape{engine: gone}, "computed"},
		"given up by decode, prefill fails":    {shape{engine: func(cfg *engine.Config) { gone(cfg); cfg.LoadFailure = engine.LoadFailureFail }}, "failed"},
		"prefill is not set up for it": {shape{
			engine: func(cfg *engine.Config) { cfg.KeepAnswers = cfg.Role == engine.RoleDecode },
			config: func(cfg *config) { cfg.pd.AnswerPatience = 10 * time.Millisecond },
		}, "failed"},
		"on another machine, as the engine says": {shape{engine: func(cfg *engine.Config) {
			if cfg.Role == engine.RoleDecode {
				cfg.AdvertiseHost = "10.11.12.13"
			}
		}}, "late"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			on := answerCluster(t, c.shape)
			conversation := talk{}
			for turn := range 3 {
				if why := on.answerKV(conversation.say(t, on, 40)); turn == 1 && why.Get("outcome").Str != c.outcome {
					t.Errorf("explained as %s", why)
				}
				eventually(t, "its KV is known", func() bool { return on.answers("kept") == float64(turn+1) })
				if strings.HasPrefix(name, "given up") {
					eventually(t, "its KV is gone", func() bool { return on.decode[0].State().HandoffsExpired == turn+1 })
				}
			}
			want := 2.0 // two turns had one before
			if name == "prefill is not set up for it" {
				want = 1 // which is seen once
			}
			for _, outcome := range []string{"read", "computed", "failed", "late"} {
				if n := on.answers(outcome); (outcome == c.outcome) != (n == want) || n > 0 && outcome != c.outcome {
					t.Errorf("%v %s", n, outcome)
				}
			}
			if p := on.prefill[0].State(); p.PrefillsDone < 3 || on.metric("tandem_retries_total") != 0 || on.metric("tandem_server_up") != 2 {
				t.Errorf("prefill ran %d times, %v retries", p.PrefillsDone, on.metric("tandem_retries_total"))
			}
		})
	}
}
