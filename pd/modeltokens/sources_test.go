package modeltokens

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/kvstate/tokens"
)

// A model's token source is opened once, by the first request that asks for it, which waits for
// it only for a moment; one that is not there yet is asked for again a second later, one that failed
// is not.
func TestSources_AreOpenedOnce(t *testing.T) {
	for name, c := range map[string]struct {
		source *tokens.Source
		err    error
		takes  time.Duration
		first  bool             // the first request has it
		opened int              // times, by three requests
		why    [2]tokens.Reason // the first has none, and the later ones
	}{
		"at once":        {new(tokens.Source), nil, 0, true, 1, [2]tokens.Reason{}},
		"in a moment":    {new(tokens.Source), nil, openPatience - 1, true, 1, [2]tokens.Reason{}},
		"later":          {new(tokens.Source), nil, openPatience + 1, false, 1, [2]tokens.Reason{tokens.Loading, ""}},
		"not there yet":  {nil, tokens.NoEvents, 0, false, 2, [2]tokens.Reason{tokens.NoEvents, tokens.NoEvents}},
		"it cannot be":   {nil, errors.New("no tokenizer"), 0, false, 1, [2]tokens.Reason{tokens.Unusable, tokens.Unusable}},
		"it never opens": {nil, errors.New("no tokenizer"), time.Minute, false, 1, [2]tokens.Reason{tokens.Loading, tokens.Unusable}},
	} {
		synctest.Test(t, func(t *testing.T) {
			opened := 0
			s := New(func(model string) (*tokens.Source, error) {
				if model != "m" {
					t.Errorf("opened is %q", model)
				}
				opened++
				time.Sleep(c.takes)
				return c.source, c.err
			})
			start := time.Now()
			if got, why := s.Source("m"); (got != nil) != c.first || got != nil && got != c.source || why != c.why[0] {
				t.Errorf("%s: the first request has %v, because %q", name, got, why)
			}
			if waited := time.Since(start); waited != min(c.takes, openPatience) {
				t.Errorf("%s: the first request waited %v", name, waited)
			}
			time.Sleep(2 * time.Minute)
			for range 2 {
				if got, why := s.Source("m"); got != c.source || why != c.why[1] {
					t.Errorf("%s: a later request has %v, because %q", name, got, why)
				}
				synctest.Wait()
			}
			if opened != c.opened {
				t.Errorf("%s: it was opened %d times", name, opened)
			}
		})
	}
}

// Close waits for what is being opened, and afterwards nothing is.
func TestSources_CloseWaitsForWhatIsBeingOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opened := 0
		s := New(func(string) (*tokens.Source, error) {
			time.Sleep(time.Second)
			opened++
			return nil, tokens.Off
		})
		go s.Source("m")
		synctest.Wait()
		start := time.Now()
		s.Close()
		if opened != 1 || time.Since(start) != time.Second {
			t.Errorf("closed after %v, %d were opened", time.Since(start), opened)
		}
		if got, _ := s.Source("n"); got != nil || opened != 1 {
			t.Errorf("closed, it has %v; %d were opened", got, opened)
		}
	})
}

// Reading one model's tokenizer delays no request of another, and its own ones little.
func TestSources_OneThatIsSlowToOpenDelaysNoOther(t *testing.T) {
	release := make(chan struct{})
	sources := New(func(model string) (*tokens.Source, error) {
		if model == "slow" {
			<-release
		}
		cfg := tokens.Default()
		cfg.Model, cfg.Mode = model, tokens.Approximate
		return tokens.New(cfg, nil, nil)
	})
	defer sources.Close()
	if s, _ := sources.Source("slow"); s != nil {
		t.Error("it is there before it was opened")
	}
	quick := make(chan *tokens.Source)
	go func() {
		s, _ := sources.Source("quick")
		quick <- s
	}()
	select {
	case s := <-quick:
		if s == nil {
			t.Error("another model's source is not there")
		}
	case <-time.After(30 * time.Second):
		t.Error("another model's request waits for it")
	}
	close(release)
	for deadline := time.Now().Add(30 * time.Second); ; {
		if s, _ := sources.Source("slow"); s != nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("it is never there")
		}
	}
}

// engineSources are sources that ask an engine, which renders chats alone.
func engineSources(ask tokens.Ask) *Sources {
	return New(func(model string) (*tokens.Source, error) {
		if model == "none" {
			return nil, errors.New("no engine")
		}
		cfg := tokens.Default()
		cfg.Model, cfg.Mode, cfg.AskOver = model, tokens.Engine, 0
		return tokens.New(cfg, ask, nil)
	})
}

// rendersChats is an engine that knows the tokens of chats, so that those of messages are found by
// a translation.
func rendersChats(_ context.Context, path string, _ []byte) ([]byte, error) {
	if path == "/v1/chat/completions/render" {
		return []byte(`{"token_ids":[1,2,3]}`), nil
	}
	return nil, fmt.Errorf("%s: %w", path, tokens.ErrNotServed)
}

// Close ends what sources ask for, and waits until it has ended.
func TestSources_CloseEndsWhatIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, ended := 0, 0
		s := engineSources(func(ctx context.Context, _ string, _ []byte) ([]byte, error) {
			asked++
			<-ctx.Done()
			ended++
			return nil, ctx.Err()
		})
		source, why := s.Source("m")
		if source == nil {
			t.Fatal(why)
		}
		go source.Tokens(t.Context(), tokens.Prompt{API: tokens.Chat, Model: "m", Body: []byte(`{"model":"m","messages":[{"role":"user","content":"hi"}]}`)})
		synctest.Wait()
		start := time.Now()
		if s.Close(); asked != 1 || ended != 1 || time.Since(start) != 0 {
			t.Errorf("%d were asked, %d ended after %v", asked, ended, time.Since(start))
		}
	})
}

// A gateway says where it found the translation of prompts wrong, by model, and another one leaves
// it alone there; models whose source is not there say and take nothing.
func TestSources_TellWhatWasDisproved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := engineSources(rendersChats), engineSources(rendersChats)
		defer here.Close()
		defer there.Close()
		prompt := tokens.Prompt{API: tokens.Messages, Model: "m", Body: []byte(`{"system":"s","messages":[{"role":"user","content":"hi"}]}`)}
		open := func(s *Sources) *tokens.Source {
			for _, model := range []string{"none", "n"} {
				s.Source(model)
			}
			source, why := s.Source("m")
			if source == nil {
				t.Fatal(why)
			}
			return source
		}
		one, other := open(there), open(here)
		if said := there.Disproved(time.Now()); len(said) != 0 {
			t.Errorf("nothing was wrong, and it says %v", said)
		}
		found, ok := one.Tokens(t.Context(), prompt)
		if _, too := other.Tokens(t.Context(), prompt); !ok || !too || one.Counted(prompt.API, &found, 4) {
			t.Fatalf("3 tokens that are 4: %+v", found)
		}
		said := there.Disproved(time.Now())
		if len(said) != 1 || len(said["m"]) != 1 {
			t.Fatalf("it says %v", said)
		}
		here.ReceiveDisproved(nil, 0, time.Now())
		if _, ok := other.Tokens(t.Context(), prompt); !ok {
			t.Error("nothing is said, and the translation is left alone")
		}
		here.ReceiveDisproved(said, time.Minute, time.Now())
		if _, ok := other.Tokens(t.Context(), prompt); ok {
			t.Error("the translation is used where another gateway found it wrong")
		}
		if again := here.Disproved(time.Now()); len(again) != 0 {
			t.Errorf("what another said it says as its own: %v", again)
		}
	})
}

// Models come while what is known is told.
func TestSources_OpenWhileTheyTell(t *testing.T) {
	s := engineSources(rendersChats)
	defer s.Close()
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for k := range 10 {
				s.Source(fmt.Sprint("m", i, "-", k))
				s.Disproved(time.Now())
			}
		})
	}
	all.Wait()
	if open := s.openSources(); len(open) != 40 {
		t.Errorf("%d are open", len(open))
	}
}
