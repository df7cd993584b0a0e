package tokens

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/engine/bpe"
)

const imageChat = `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:x"}}]}]}`

// Where nothing is known of a prompt, the reason is the one that a person could mend.
func TestTokens_SayWhyTheyAreNotKnown(t *testing.T) {
	answers := func(err error) Ask {
		return func(context.Context, string, []byte) ([]byte, error) { return []byte(`{}`), err }
	}
	slow := func(ctx context.Context, _ string, _ []byte) ([]byte, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	const chat, message = `{"messages":[{"role":"user","content":"when?"}]}`, `{"max_tokens":1,"messages":[{"role":"user","content":"when?"}]}`
	for _, c := range []struct {
		what string
		mode Mode
		ask  Ask
		api  API
		body string
		want Reason
	}{
		{"an engine without a path", Engine, answers(ErrNotServed), Chat, chat, NoPath},
		{"an engine that refuses", Engine, answers(ErrRefused), Chat, chat, Refused},
		{"an engine that fails", Engine, answers(errors.New("502")), Chat, chat, Failed},
		{"an answer without tokens", Engine, answers(nil), Chat, chat, Failed},
		{"an engine that is slow", Engine, slow, Chat, chat, Late},
		{"an image, and no path", Engine, answers(ErrNotServed), Chat, imageChat, Media},
		{"a body that cannot be read", Engine, answers(nil), Chat, `{"messages":[1]}`, BadForm},
		{"nothing was learned", Learned, nil, Chat, chat, NotLearned},
		{"an image first", Learned, nil, Chat, imageChat, Media},
		{"an API whose answers have no ids", Learned, nil, Messages, message, NotReported},
		{"several prompts", Learned, nil, Completions, `{"prompt":["a","b"]}`, BadForm},
		{"hardly a text", Approximate, nil, Chat, chat, TooShort},
	} {
		synctest.Test(t, func(t *testing.T) {
			cfg := Default()
			cfg.Model, cfg.Mode = "m", c.mode
			s, err := New(cfg, c.ask, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			got, ok := s.Tokens(t.Context(), Prompt{API: c.api, Body: []byte(c.body), Model: "m"})
			if ok || got.Unknown != c.want {
				t.Errorf("%s: %v, because %q; want %q", c.what, ok, got.Unknown, c.want)
			}
		})
	}
}

// Requests that come while engines do not answer are told so, and those of a context in which
// a translation was wrong as well.
func TestTokens_SayWhyNobodyIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := asking(t, func(context.Context, string, []byte) ([]byte, error) { return nil, errors.New("gone") }, nil)
		ask := func() Reason {
			got, _ := s.Tokens(t.Context(), promptOf(t, helloTalk))
			return got.Unknown
		}
		for range failuresToPause {
			if why := ask(); why != Failed {
				t.Fatalf("because %q", why)
			}
		}
		if why := ask(); why != Busy {
			t.Errorf("after %d failures: because %q", failuresToPause, why)
		}
		time.Sleep(pause + 1)
		if why := ask(); why != Failed {
			t.Errorf("after the pause: because %q", why)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := asking(t, rendersChats, nil)
		p := messageWith("a tool", "be brief", "when?")
		said, ok := s.Tokens(t.Context(), p)
		if !ok || said.Unknown != "" {
			t.Fatalf("%v, because %q", ok, said.Unknown)
		}
		s.Counted(p.API, &said, len(said.IDs)+1)
		if got, ok := s.Tokens(t.Context(), p); ok || got.Unknown != Wrong {
			t.Errorf("after it was wrong: %v, because %q", ok, got.Unknown)
		}
	})
}

// A tokenizer of the gateway's own says what it could not do.
func TestTokenizer_SaysWhyNothingIsKnown(t *testing.T) {
	tokenizer, template := simTokenizer(t)
	for _, c := range []struct {
		template, body string
		want           Reason
	}{
		{template, `{"messages":[{"role":"user","content":"when?"}]}`, ""},
		{template, imageChat, NotRendered},
		{template, `{"messages":[{"role":"user","content":"when?"}],"unheard_of":1}`, NotRendered},
		{"", `{"messages":[{"role":"user","content":"when?"}]}`, NoTemplate},
		{"{{ raise_exception('no') }}" + bpe.Begin, `{"messages":[{"role":"user","content":"when?"}]}`, BadTemplate},
	} {
		cfg := Default()
		cfg.Model, cfg.Mode, cfg.TokenizerFile = "m", Tokenizer, tokenizer
		s, err := New(cfg, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		switch c.template {
		case "":
		case template:
			s.encoder.template, err = loadTemplate(template)
		default:
			s.encoder.template, err = newTemplate(c.template, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		got, ok := s.Tokens(t.Context(), Prompt{API: Chat, Body: []byte(c.body), Model: "m"})
		if ok != (c.want == "") || got.Unknown != c.want {
			t.Errorf("%s: %v, because %q; want %q", c.body, ok, got.Unknown, c.want)
		}
	}
}

// Each reason has words, which are its own.
func TestReasons_HaveWords(t *testing.T) {
	said := make(map[string]Reason)
	for _, r := range Reasons() {
		if r.Text() == "" || said[r.Text()] != "" {
			t.Errorf("%q says %q, as %q does", string(r), r.Text(), string(said[r.Text()]))
		}
		said[r.Text()] = r
	}
	if len(said) != len(reasonTexts) {
		t.Errorf("%d reasons, %d texts", len(said), len(reasonTexts))
	}
}
