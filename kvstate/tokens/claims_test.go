package tokens

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// rendersChats is an engine with no render path but that of chat.
func rendersChats(_ context.Context, path string, _ []byte) ([]byte, error) {
	if path == pathRenderChat {
		return []byte(`{"token_ids":[1,2,3]}`), nil
	}
	return nil, fmt.Errorf("%s: %w", path, ErrNotServed)
}

// messageWith is a request with tools and a system prompt.
func messageWith(tool, system, text string) Prompt {
	return Prompt{API: Messages, Model: "m", Body: []byte(fmt.Sprintf(
		`{"tools":[{"name":%q,"input_schema":{"type":"object"}}],"system":%q,"messages":[{"role":"user","content":%q}]}`, tool, system, text))}
}

// A translation that found other tokens than the engine counted is not used any more for
// prompts with that system prompt and those tools, nor is what was learned by it; others keep
// it, and after a while it is tried again.
func TestClaims_AWrongTranslationIsNotUsedThereAnyMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		cfg := Default()
		cfg.Model, cfg.Mode, cfg.AskOver = "m", Engine, 0
		s, err := New(cfg, rendersChats, NewMetrics(reg))
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		said, ok := s.Tokens(t.Context(), messageWith("a", "s", "one"))
		if !ok || said.By != ByTranslation || !said.Complete {
			t.Fatalf("%v %+v", ok, said)
		}
		if !s.Counted(Messages, &said, 3) {
			t.Error("3 tokens are not 3")
		}
		if said.DropIDs(); said.IDs != nil || said.Count() != 3 {
			t.Errorf("without its ids it is %+v", said)
		}
		if s.Counted(Messages, &said, 4) {
			t.Error("3 tokens are 4")
		}
		for _, text := range []string{"one", "two"} {
			if said, ok := s.Tokens(t.Context(), messageWith("a", "s", text)); ok {
				t.Errorf("%s: still known: %+v", text, said)
			}
		}
		for _, other := range []Prompt{messageWith("b", "s", "one"), messageWith("a", "other", "one")} {
			if _, ok := s.Tokens(t.Context(), other); !ok {
				t.Errorf("not known: %s", other.Body)
			}
		}
		want := `# HELP tandem_tokens_checked_total Prompts whose tokens were known, by how (engine, tokenize, translation, tokenizer, prefill, request) and whether the engine's usage counted as many: right, wrong. A translation or a tokenizer that was wrong, or an engine's /tokenize that was wrong of three chats in a row, is left alone for prompts with the same system prompt and tools.
# TYPE tandem_tokens_checked_total counter
tandem_tokens_checked_total{api="messages",by="translation",model="m",outcome="right"} 1
tandem_tokens_checked_total{api="messages",by="translation",model="m",outcome="wrong"} 1
`
		if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "tandem_tokens_checked_total"); err != nil {
			t.Error(err)
		}
		time.Sleep(distrust)
		if _, ok := s.Tokens(t.Context(), messageWith("a", "s", "two")); !ok {
			t.Error("never tried again")
		}
	})
}

// What an engine said of the request itself stays, whatever is counted: servers may differ.
func TestClaims_WhatAnEngineSaidIsNotGivenUp(t *testing.T) {
	engine := func(_ context.Context, _ string, _ []byte) ([]byte, error) {
		return []byte(`{"token_ids":[1,2,3]}`), nil
	}
	cfg := Default()
	cfg.Model, cfg.Mode, cfg.AskOver = "m", Engine, 0
	s, err := New(cfg, engine, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	said, _ := s.Tokens(t.Context(), messageWith("a", "s", "one"))
	if said.By != ByEngine || s.Counted(Messages, &said, 4) {
		t.Errorf("%+v", said)
	}
	if _, ok := s.Tokens(t.Context(), messageWith("a", "s", "one")); !ok {
		t.Error("given up")
	}
}

// vLLM serves chats of gpt-oss with tokens that /tokenize does not have (harmony), and only the render
// path has. Where that is not served nothing is claimed of them any more once three in a row were
// wrong; where servers differ, and one of them is right now and then, it goes on to be asked.
func TestClaims_TokenizeOfAModelWithAWayOfItsOwnIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ask := func(path string) func(context.Context, string, []byte) ([]byte, error) {
			return func(_ context.Context, asked string, _ []byte) ([]byte, error) {
				if asked == path {
					return []byte(map[string]string{pathTokenize: `{"tokens":[1,2,3]}`, pathRenderChat: `{"token_ids":[1,2,3]}`}[path]), nil
				}
				return nil, fmt.Errorf("%s: %w", asked, ErrNotServed)
			}
		}
		chat := func(text string) Prompt {
			return Prompt{API: Chat, Model: "m", Body: []byte(fmt.Sprintf(`{"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":%q}]}`, text))}
		}
		for name, c := range map[string]struct {
			path   string
			counts []int // of the engine, of prompts that are said to have three tokens
			by     Method
			lost   bool
		}{
			"another way":       {pathTokenize, []int{4, 4, 4}, ByTokenize, true},
			"not yet":           {pathTokenize, []int{4, 4}, ByTokenize, false},
			"servers differ":    {pathTokenize, []int{4, 4, 3, 4, 4}, ByTokenize, false},
			"the render path":   {pathRenderChat, []int{4, 4, 4, 4}, ByEngine, false},
			"and it was longer": {pathTokenize, []int{2, 2, 2}, ByTokenize, true},
		} {
			cfg := Default()
			cfg.Model, cfg.Mode, cfg.AskOver = "m", Engine, 0
			s, err := New(cfg, ask(c.path), nil)
			if err != nil {
				t.Fatal(err)
			}
			for i, count := range c.counts {
				p := chat(fmt.Sprint("question ", i))
				said, ok := s.Tokens(t.Context(), p)
				if !ok || said.By != c.by {
					t.Fatalf("%s: the %dth is known %v by %q", name, i+1, ok, said.By)
				}
				s.Counted(p.API, &said, count)
			}
			said, known := s.Tokens(t.Context(), chat("the next one"))
			if known == c.lost || c.lost && said.Unknown != Wrong {
				t.Errorf("%s: the next one is known %v, because %q", name, known, said.Unknown)
			}
			s.Close()
		}
	})
}

// An attribution that differs in each request is no part of the prompt, nor of its context.
func TestClaims_AttributionsDoNotMatter(t *testing.T) {
	known := func(mark string) Tokens {
		p := Prompt{API: Messages, Body: []byte(`{"system":[{"type":"text","text":"x-anthropic-billing-header: ` + mark + `"},{"type":"text","text":"s"}],"messages":[{"role":"user","content":"a"}]}`)}
		t1, ok := p.read()
		if !ok {
			t.Fatal("not read")
		}
		defer t1.free()
		return Tokens{context: t1.context, root: t1.sum}
	}
	if a, b := known("1"), known("2"); a.context != b.context || a.root != b.root {
		t.Errorf("%+v and %+v", a, b)
	}
}

// Where another gateway found the translation wrong it is not used here either, nor what was
// learned by it, until that time is over; other contexts keep it. What was received is not
// reported again.
func TestClaims_WhatAnotherGatewayDisprovedIsNotUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := Default()
		cfg.Model, cfg.Mode, cfg.AskOver = "m", Engine, 0
		open := func() *Source {
			s, err := New(cfg, rendersChats, nil)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		known := func(s *Source, p Prompt) bool {
			_, ok := s.Tokens(t.Context(), p)
			return ok
		}
		here, there := open(), open()
		defer here.Close()
		defer there.Close()
		one, other := messageWith("a", "s", "one"), messageWith("b", "s", "one")
		if !known(here, one) || !known(here, other) {
			t.Fatal("not known before")
		}
		said, _ := there.Tokens(t.Context(), one)
		there.Counted(one.API, &said, 4)
		reported := there.Disproved(time.Now())
		if len(reported) != 1 || reported[0].Seconds != distrust.Seconds() || reported[0].Times != 1 {
			t.Fatalf("reported: %+v", reported)
		}
		time.Sleep(time.Minute) // until it is read
		here.ReceiveDisproved(reported, time.Minute, time.Now())
		if known(here, one) || known(here, messageWith("a", "s", "two")) || !known(here, other) {
			t.Errorf("known in that context: %v, in another one: %v", known(here, one), known(here, other))
		}
		if again := here.Disproved(time.Now()); len(again) != 0 {
			t.Errorf("what it received it reports as its own: %+v", again)
		}
		time.Sleep(distrust - 2*time.Minute)
		here.ReceiveDisproved(reported, distrust-time.Minute, time.Now())
		if known(here, one) {
			t.Error("used too soon")
		}
		time.Sleep(time.Minute)
		here.ReceiveDisproved(reported, distrust, time.Now())
		if !known(here, one) || len(there.Disproved(time.Now())) != 0 {
			t.Error("never used again")
		}
	})
}

// What a gateway cannot have found is not believed, and what is reported is bounded; of a
// tokenizer nothing is.
func TestClaims_ReportsAreBounded(t *testing.T) {
	cfg := Default()
	cfg.Model, cfg.Mode = "m", Engine
	s, err := New(cfg, rendersChats, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	now := time.Now()
	s.ReceiveDisproved([]Disproved{{Seconds: -1, Times: 1}, {Seconds: mostDistrust.Seconds() + 1, Times: 1}, {Seconds: 1}, {Seconds: 1, Times: 1 << 20}}, 0, now)
	if len(s.claims.lost) != 0 {
		t.Errorf("believed: %+v", s.claims.lost)
	}
	for i := range 2 * maxDisproved {
		s.claims.disprove(uint64(i), 0, ByTranslation)
		s.claims.disprove(uint64(i), 0, ByTokenizer)
	}
	if got := s.Disproved(now); len(got) != maxDisproved {
		t.Errorf("%d contexts are reported", len(got))
	}
	before := len(s.claims.lost)
	s.ReceiveDisproved(make([]Disproved, 3*maxLost), 0, now)
	for i := range 2 * maxLost {
		s.ReceiveDisproved([]Disproved{{Context: uint64(i), Seconds: 60, Times: 1}}, 0, now)
	}
	if len(s.claims.lost) > maxLost || len(s.claims.lost) < before {
		t.Errorf("%d contexts are remembered", len(s.claims.lost))
	}
}

// What did not hold is remembered of up to 4,096 contexts; only beyond them an older one is
// forgotten.
func TestClaims_AreForgottenOnlyBeyondTheirBound(t *testing.T) {
	c := newClaims()
	for context := range uint64(maxLost) {
		c.disprove(context, 0, ByTranslation)
	}
	for context := range uint64(maxLost) {
		if c.believes(context, ByTranslation) {
			t.Fatalf("context %d is forgotten, of %d", context, maxLost)
		}
	}
	c.disprove(0, 0, ByTranslation) // it is known: nothing makes way
	if len(c.lost) != maxLost {
		t.Errorf("%d are remembered, want %d", len(c.lost), maxLost)
	}
	c.disprove(maxLost, 0, ByTranslation)
	if len(c.lost) != maxLost || c.believes(maxLost, ByTranslation) {
		t.Errorf("%d are remembered, want %d; the newest is believed: %v", len(c.lost), maxLost, c.believes(maxLost, ByTranslation))
	}
}
