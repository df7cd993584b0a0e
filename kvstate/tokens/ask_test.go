package tokens

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidwall/gjson"
)

// asking is an engine source with an Ask of the test's.
func asking(t *testing.T, ask Ask, change func(*Config)) *Source {
	t.Helper()
	cfg := Default()
	cfg.Model, cfg.Mode, cfg.AskOver = "m", Engine, 0
	if change != nil {
		change(&cfg)
	}
	s, err := New(cfg, ask, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func idsJSON(field string, ids []uint32) []byte {
	raw, _ := json.Marshal(map[string]any{field: ids}) // numbers always marshal
	return raw
}

// template of a question as the tests' engine has it.
func tokenizeAnswer(body []byte) ([]byte, error) {
	var in struct{ Messages []message }
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, err
	}
	return idsJSON("tokens", encode(appends(in.Messages, 0))), nil
}

var helloTalk = []message{{"system", strings.Repeat("You are a helpful assistant. ", 20)}, {"user", "Hello there!"}}

func TestAsk_WhatWasAskedIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var paths []string
		s := asking(t, func(_ context.Context, path string, body []byte) ([]byte, error) {
			paths = append(paths, path)
			if path != pathTokenize {
				return nil, fmt.Errorf("404: %w", ErrNotServed)
			}
			return tokenizeAnswer(body)
		}, nil)
		for range 3 {
			got, ok := s.Tokens(t.Context(), promptOf(t, helloTalk))
			if want := encode(appends(helloTalk, 0)); !ok || !got.Complete || !slices.Equal(got.IDs, want) || got.Certain != len(want) {
				t.Fatalf("got %+v, want %v", got, want)
			}
		}
		if want := []string{pathRenderChat, pathTokenize}; !slices.Equal(paths, want) {
			t.Fatalf("asked %v, want %v", paths, want)
		}
		if _, ok := s.Tokens(t.Context(), promptOf(t, helloTalk[1:])); !ok || len(paths) != 3 {
			t.Fatalf("asked %v: a path that is not served is left alone", paths)
		}
		time.Sleep(noRender + time.Second) // fake time
		if _, ok := s.Tokens(t.Context(), promptOf(t, helloTalk[:1])); !ok || paths[3] != pathRenderChat {
			t.Fatalf("asked %v: a new engine may serve it", paths)
		}
	})
}

func TestAsk_WaitsNoLongerThanConfiguredAndLearnsAllTheSame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := asking(t, func(ctx context.Context, path string, body []byte) ([]byte, error) {
			time.Sleep(300 * time.Millisecond)
			return tokenizeAnswer(body)
		}, nil)
		start := time.Now()
		if _, ok := s.Tokens(t.Context(), promptOf(t, helloTalk)); ok {
			t.Fatal("known before the engine answered")
		}
		if took := time.Since(start); took != 50*time.Millisecond {
			t.Fatalf("waited %v", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		start = time.Now()
		s.Tokens(ctx, promptOf(t, helloTalk))
		if took := time.Since(start); took != 10*time.Millisecond {
			t.Fatalf("waited %v for a client that left", took)
		}
		time.Sleep(400 * time.Millisecond)
		if got, ok := s.Tokens(t.Context(), promptOf(t, helloTalk)); ok && got.Complete {
			t.Fatal("render was not served as tokens: the answer has no token_ids")
		}
	})
}

// A request that goes on without an engine's answer, since it came late or since only a little of
// the prompt was unknown, can take it over afterwards; not one that the engine refused.
func TestAsk_WhatIsAnsweredLaterCanBeTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refuses := false
		s := asking(t, func(_ context.Context, path string, body []byte) ([]byte, error) {
			if path != pathTokenize {
				return nil, ErrNotServed
			}
			time.Sleep(300 * time.Millisecond)
			if refuses {
				return nil, ErrRefused
			}
			return tokenizeAnswer(body)
		}, func(cfg *Config) { cfg.AskOver = 1 << 10 })
		expect := func(what string, talk []message, refused bool) {
			t.Helper()
			refuses = refused
			p := promptOf(t, talk)
			p.Adapter, p.Salt = "a", "x"
			got, _ := s.Tokens(t.Context(), p)
			if got.Complete || got.Later == nil {
				t.Fatalf("%s: known whole %v, later %v", what, got.Complete, got.Later)
			}
			if _, ok := got.Later.Tokens(); ok {
				t.Errorf("%s: it was answered before the engine did", what)
			}
			time.Sleep(time.Second)
			later, ok := got.Later.Tokens()
			if ok == refused {
				t.Errorf("%s: answered %v", what, ok)
			}
			if ok && (!later.Complete || !slices.Equal(later.IDs, encode(appends(talk, 0))) || later.Mode != Engine || later.Adapter != "a" || later.Salt != "x" ||
				!slices.Equal(later.Text, got.Text) || later.context != got.context || later.root != got.root || later.Later != nil) {
				t.Errorf("%s: later %+v, at first %+v", what, later, got)
			}
			if whole, _ := s.Tokens(t.Context(), p); !refused && (!whole.Complete || whole.Later != nil) {
				t.Errorf("%s: what is known whole is asked for again", what)
			}
		}
		long := []message{{"system", strings.Repeat("You are a helpful assistant. ", 80)}, {"user", "Hello there!"}}
		expect("a first turn", long, false)
		other := []message{long[0], {"user", "What is new?"}}
		expect("another conversation's", other, false)
		for i := range 2 { // what rules need
			expect("a next turn", append(slices.Clone(long), message{"assistant", "Hi."}, message{"user", fmt.Sprint("And ", i)}), false)
		}
		expect("one that is refused", []message{long[0], {"user", strings.Repeat("Say it. ", 20)}}, true)
	})
}

// Of many questions on one document few are gone on with: where the document is known no engine is asked for all of
// it once more. It is for what is more than a small part, and for a conversation that goes on.
func TestAsk_QuestionsOnAKnownDocumentAreNotAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asks := 0
		s := asking(t, func(_ context.Context, path string, body []byte) ([]byte, error) {
			if path != pathTokenize {
				return nil, ErrNotServed
			}
			asks++
			return tokenizeAnswer(body)
		}, func(cfg *Config) { cfg.AskOver = Default().AskOver })
		document := message{"system", strings.Repeat("What stands in the document. ", 400)}
		ask := func(what string, want bool, talk ...message) {
			t.Helper()
			before := asks
			got, known := s.Tokens(t.Context(), promptOf(t, append([]message{document}, talk...)))
			synctest.Wait()
			if asked := asks > before; asked != want || !known || asked && got.Later == nil && !got.Complete {
				t.Errorf("%s: asked %v, %d tokens known, whole %v, later %v", what, asked, len(got.IDs), got.Complete, got.Later)
			}
			if truth := encode(appends(append([]message{document}, talk...), 0)); !got.Complete && (len(got.IDs) < 9*len(truth)/10 || shared(got.IDs, truth) < len(got.IDs)) {
				t.Errorf("%s: %d tokens are known of %d, %d of them right", what, len(got.IDs), len(truth), shared(got.IDs, truth))
			}
		}
		ask("the first question", true, message{"user", "What is it about?"})
		ask("the second, which shows where the document ends", true, message{"user", "Who wrote it?"})
		ask("the third", false, message{"user", "When was that?"})
		ask("the third once more, as evaluations do", true, message{"user", "When was that?"})
		ask("and again", false, message{"user", "When was that?"})
		ask("a long one", true, message{"user", strings.Repeat("And what of this? ", 40)})
		ask("one that goes on", true, message{"user", "Since when?"}, message{"assistant", "Then."}, message{"user", "Sure?"})
	})
}

// Of many questions on one new document that come at once two are asked for, which show what they share; the others wait
// for these, and where they fail know as little. The next one is asked for again.
func TestAsk_OfManyQuestionsOnANewDocumentTwoAreAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asks atomic.Int32
		broken := true
		s := asking(t, func(_ context.Context, path string, body []byte) ([]byte, error) {
			if path != pathTokenize {
				return nil, ErrNotServed
			}
			asks.Add(1)
			time.Sleep(20 * time.Millisecond)
			if broken {
				return nil, errors.New("connection refused")
			}
			return tokenizeAnswer(body)
		}, func(c *Config) { c.AskWait, c.AskOver = time.Second, Default().AskOver })
		document := message{"system", strings.Repeat("What stands in the document. ", 800)}
		burst := func(of string, want int32) {
			t.Helper()
			asks.Store(0)
			var all sync.WaitGroup
			for i := range 100 {
				all.Go(func() {
					talk := []message{document, {"user", fmt.Sprintf("What does %s %d say?", of, i)}}
					got, known := s.Tokens(t.Context(), promptOf(t, talk))
					if known == broken {
						t.Errorf("question %d: known %v, unknown because %q", i, known, got.Unknown)
					}
					if truth := encode(appends(talk, 0)); known && (len(got.IDs) < 9*len(truth)/10 || shared(got.IDs, truth) < len(got.IDs)) {
						t.Errorf("question %d: %d tokens are known of %d, %d of them right", i, len(got.IDs), len(truth), shared(got.IDs, truth))
					}
				})
			}
			all.Wait()
			synctest.Wait()
			if n := asks.Load(); n != want {
				t.Errorf("asked for %d, want %d", n, want)
			}
		}
		burst("line", 2)
		broken = false
		time.Sleep(2 * pause)
		burst("line", 2)
		burst("page", 0)
	})
}

func TestAsk_OneQuestionForAllWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asks atomic.Int32
		s := asking(t, func(_ context.Context, path string, body []byte) ([]byte, error) {
			if path != pathTokenize {
				return nil, ErrNotServed
			}
			asks.Add(1)
			time.Sleep(20 * time.Millisecond)
			return tokenizeAnswer(body)
		}, nil)
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				if got, ok := s.Tokens(t.Context(), promptOf(t, helloTalk)); !ok || !got.Complete {
					t.Error("not known")
				}
			})
		}
		all.Wait()
		if asks.Load() != 1 {
			t.Fatalf("asked %d times", asks.Load())
		}
	})
}

func TestAsk_EnginesThatFailAreLeftAloneForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asks atomic.Int32
		broken := true
		s := asking(t, func(_ context.Context, path string, body []byte) ([]byte, error) {
			asks.Add(1)
			if broken {
				time.Sleep(time.Second)
				return nil, errors.New("connection refused")
			}
			if path != pathTokenize {
				return nil, ErrNotServed
			}
			return tokenizeAnswer(body)
		}, nil)
		slow := 0
		for i := range 100 {
			start := time.Now()
			s.Tokens(t.Context(), promptOf(t, append(helloTalk, message{"user", fmt.Sprint(i)})))
			if time.Since(start) > 0 {
				slow++
			}
			time.Sleep(100 * time.Millisecond)
		}
		if slow > 60 || asks.Load() > 60 {
			t.Fatalf("%d of 100 requests waited, %d asks", slow, asks.Load())
		}
		broken = false
		time.Sleep(2 * time.Second)
		if _, ok := s.Tokens(t.Context(), promptOf(t, helloTalk)); !ok {
			t.Fatal("engines answer again and are not asked")
		}
	})
}

func TestAsk_APromptThatEnginesRefuseIsNoFailureOfTheirs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asks := 0
		s := asking(t, func(_ context.Context, path string, body []byte) ([]byte, error) {
			asks++
			return nil, fmt.Errorf("400: %w", ErrRefused)
		}, nil)
		for i := range 10 {
			if _, ok := s.Tokens(t.Context(), promptOf(t, append(helloTalk, message{"user", fmt.Sprint(i)}))); ok {
				t.Fatal("known")
			}
		}
		if asks != 20 { // by two paths each
			t.Fatalf("asked %d times of 20", asks)
		}
	})
}

func TestAsk_BoundsWhatIsUnderWayAndEndsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var under, most atomic.Int32
		s := asking(t, func(ctx context.Context, _ string, _ []byte) ([]byte, error) {
			most.Store(max(most.Load(), under.Add(1)))
			defer under.Add(-1)
			<-ctx.Done()
			return nil, ctx.Err()
		}, func(c *Config) { c.MaxAsks, c.AskTimeout = 4, time.Hour })
		for i := range 20 {
			s.Tokens(t.Context(), promptOf(t, append(helloTalk, message{"user", fmt.Sprint(i)})))
		}
		s.Close()
		if under.Load() != 0 || most.Load() != 4 {
			t.Fatalf("%d asks after Close, %d at most", under.Load(), most.Load())
		}
	})
}

// A conversation's next turns go on with what memory says; the engine is asked behind
// their back, for the turn after.
func TestAsk_NextTurnsDoNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := asking(t, func(_ context.Context, path string, body []byte) ([]byte, error) {
			if path != pathTokenize {
				return nil, ErrNotServed
			}
			time.Sleep(10 * time.Millisecond)
			return tokenizeAnswer(body)
		}, func(c *Config) { c.AskOver = 4096 })
		talk := helloTalk
		waited := []time.Duration{}
		for i := range 8 {
			start := time.Now()
			got, ok := s.Tokens(t.Context(), promptOf(t, talk))
			waited = append(waited, time.Since(start))
			truth := encode(appends(talk, 0))
			if !ok || shared(got.IDs, truth) < len(got.IDs) {
				t.Fatalf("turn %d: ok %v, %d known, %d right", i, ok, len(got.IDs), shared(got.IDs, truth))
			}
			time.Sleep(time.Second)
			talk = append(talk[:len(talk):len(talk)], message{"assistant", fmt.Sprintf("answer %d, of some words", i)}, message{"user", fmt.Sprintf("question %d, of some more words", i)})
		}
		if slices.Max(waited[2:]) > 0 { // the second shows how the template goes on
			t.Fatalf("waited %v", waited)
		}
	})
}

func TestQuestion_ReadsMediaOfARenderAnswer(t *testing.T) {
	q := question{render: true}
	answer := `{"token_ids":[1,2,3,4,5,6,7,8],"features":{"mm_hashes":{"image":["aa","bb"],"audio":["cc"]},"mm_placeholders":{"image":[{"offset":4,"length":2},{"offset":1,"length":1}],"audio":[{"offset":6,"length":2}]}}}`
	for _, raw := range []string{answer, "[" + answer + "]"} {
		got, ok := q.read([]byte(raw), true)
		if want := []Medium{{"bb", 1, 1}, {"aa", 4, 2}, {"cc", 6, 2}}; !ok || !slices.Equal(got.Media, want) || len(got.IDs) != 8 {
			t.Fatalf("%v %+v", ok, got)
		}
	}
	for _, bad := range []string{`{"token_ids":[1]}`, `{"token_ids":[1],"features":{"mm_placeholders":{"image":[{"offset":1,"length":1}]}}}`, `{"token_ids":[1],"features":[]}`, `[]`, `[1]`} {
		if got, ok := q.read([]byte(bad), true); ok {
			t.Errorf("%s: %+v", bad, got)
		}
	}
}

func TestQuestions_AskOnlyWhatIsExact(t *testing.T) {
	for _, c := range []struct {
		api  API
		body string
		want []string
	}{
		{Chat, plainChat, []string{pathRenderChat, pathTokenize}},
		{Chat, `{"tools":[{"x":1}],"tool_choice":"auto","response_format":{"type":"text"},` + plainChat[1:], []string{pathRenderChat, pathTokenize}},
		{Chat, `{"reasoning_effort":"high",` + plainChat[1:], []string{pathRenderChat, pathTokenize}},
		{Chat, `{"tool_choice":"none",` + plainChat[1:], []string{pathRenderChat}},
		{Chat, `{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}`, []string{pathRenderChat}},
		{Completions, `{"prompt":"a"}`, []string{pathRenderCompletions, pathTokenize}},
		{Completions, `{"prompt":"a","truncate_prompt_tokens":4}`, []string{pathRenderCompletions}},
		{Messages, `{"system":"s","messages":[{"role":"user","content":"a"}]}`, translated(pathRenderMessages)},
		{Messages, `{"tools":[{"name":"f","input_schema":{}}],"messages":[{"role":"user","content":"a"}]}`, translated(pathRenderMessages)},
		{Messages, `{"tools":[{"name":"f","type":"web_search"}],"messages":[{"role":"user","content":"a"}]}`, []string{pathRenderMessages}},
		{Messages, `{"messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"a"}}]}]}`, []string{pathRenderMessages, pathRenderChat}},
		{Messages, `{"messages":[{"role":"user","content":"a"},{"role":"system","content":"b"}]}`, append(translated(pathRenderMessages), pathRenderChat, pathTokenize)},
		{Responses, `{"instructions":"s","input":"a"}`, translated(pathRenderResponses)},
		{Responses, `{"input":[{"type":"function_call_output","call_id":"a","output":"1"}]}`, translated(pathRenderResponses)},
		{Responses, `{"input":[{"type":"item_reference","id":"a"}]}`, []string{pathRenderResponses}},
		{Responses, `{"input":"a","a_field_to_come":1}`, []string{pathRenderResponses}},
	} {
		p := Prompt{API: c.api, Body: []byte(c.body), Model: "m"}
		text, ok := p.read()
		if !ok {
			t.Fatalf("not read: %s", c.body)
		}
		var got []string
		for _, q := range p.questions(text, func(Method) bool { return true }) {
			got = append(got, q.path)
			if !json.Valid(q.body) {
				t.Errorf("no JSON: %s", q.body)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s %s: asks %v, want %v", c.api, c.body, got, c.want)
		}
		text.free()
	}
}

// translated are the paths of a request that has an exact form as a chat.
func translated(own string) []string { return []string{own, pathRenderChat, pathTokenize} }

// A request's own template variables go along to /tokenize, beside those that chat makes of
// reasoning_effort.
func TestQuestions_TokenizeGetsTheTemplatesVariables(t *testing.T) {
	for extra, want := range map[string]string{
		``:                                ``,
		`"chat_template_kwargs":{"a":1},`: `{"a":1}`,
		`"reasoning_effort":"high",`:      `{"reasoning_effort":"high","enable_thinking":true}`,
		`"chat_template_kwargs":{"a":1},"reasoning_effort":"none",`: `{"a":1,"reasoning_effort":"none","enable_thinking":false}`,
		`"chat_template_kwargs":null,"reasoning_effort":null,`:      `null`,
		`"chat_template_kwargs":{"enable_thinking":true},`:          `{"enable_thinking":true}`,
	} {
		p := Prompt{API: Chat, Body: []byte("{" + extra + plainChat[1:]), Model: "m"}
		asked := p.tokenized(p.Body, ByEngine)
		if len(asked) != 1 {
			t.Fatalf("%s: %d questions", extra, len(asked))
		}
		if got := gjson.GetBytes(asked[0].body, "chat_template_kwargs").Raw; got != want {
			t.Errorf("%s: asked with %s, want %s", extra, got, want)
		}
	}
}

// A long prompt takes an engine longer, and is worth waiting for longer: it is not prefilled in pieces without its ids.
func TestAsk_WaitsLongerForALongPrompt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := asking(t, func(ctx context.Context, _ string, _ []byte) ([]byte, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}, nil)
		for _, c := range []struct {
			bytes int
			want  time.Duration
		}{{1000, 50 * time.Millisecond}, {512 << 10, 400 * time.Millisecond}, {64 << 20, 2 * time.Second}} {
			start := time.Now()
			s.Tokens(t.Context(), promptOf(t, []message{{"user", strings.Repeat("a", c.bytes)}}))
			if took := time.Since(start); took.Round(10*time.Millisecond) != c.want {
				t.Errorf("waited %v for a prompt of %d bytes, want %v", took, c.bytes, c.want)
			}
		}
	})
}
