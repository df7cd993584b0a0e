package api

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/kvstate/jsonscan"
)

func TestPrefill_AnAnswerIsAnObject(t *testing.T) {
	isAnswer := func(d *Dialect, answer string) bool {
		a, err := d.ReadAnswer([]byte(answer))
		return err == nil && a.IsOfPrefill()
	}
	for _, answer := range []string{``, `<html>`, `"text"`, `[]`, `{"id":`, `{"a":` + strings.Repeat("[", 100_000)} {
		if isAnswer(Chat, answer) {
			t.Errorf("%.20q passed for an answer", answer)
		}
	}
	if !isAnswer(Chat, ` {"id":"x"}`) || !isAnswer(Chat, `{}`) {
		t.Error("an object did not pass")
	}
	if !isAnswer(Generate, ` [{"text":"x"}]`) {
		t.Error("SGLang's answer to a batch did not pass")
	}
	if new(Answer).IsOfPrefill() {
		t.Error("no answer passed")
	}
}

// An answer that names a member twice, or is of no characters, may hold a hand-off that nobody sees.
func TestReadAnswer_WhatCannotBeReadDoesNotPass(t *testing.T) {
	for _, data := range []string{`{"kv_transfer_params":null,"kv_transfer_params":{}}`, "{\"a\":\"\xff\"}", `{"a":1} {}`} {
		if _, err := Chat.ReadAnswer([]byte(data)); err == nil {
			t.Errorf("%s passed", data)
		}
	}
}

func TestAnswer_AListPassesAsItIs(t *testing.T) {
	const list = `[{"text":"a","meta_info":{"prompt_tokens":3}}, 1]`
	a, err := Generate.ReadAnswer([]byte(list))
	if err != nil {
		t.Fatal(err)
	}
	if usage, found := a.Usage(); found || a.Handoff() != nil || string(a.As(a.Clean(PromptUsage{Override: true}))) != list {
		t.Errorf("%+v, %s", usage, a.As(a.Clean(PromptUsage{Override: true})))
	}
}

// What an answer says by one walk is what its bytes say when each thing is looked for by itself.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte(`{"id":"x","choices":[{"message":{"content":"\"usage\""}}],"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}},"kv_transfer_params":null}`))
	f.Add([]byte(`{"usage":{"input_tokens":2,"cache_read_input_tokens":4},"response":{"usage":{"input_tokens":1},"kv_transfer_params":{"do_remote_decode":true}},"a":1}`))
	f.Add([]byte(`{"meta_info":{"prompt_tokens":7,"cached_tokens":3},"kv_transfer_params":{"do_remote_decode":1}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if bytes.ContainsRune(data, '\\') { // keys with escapes are found here alone
			return
		}
		prompt := PromptUsage{Override: true, Prefill: Value(`{"prompt_tokens":9,"input_tokens":9,"cached_tokens":1}`)}
		for _, d := range Dialects() {
			a, err := d.ReadAnswer(data)
			if err != nil {
				continue
			}
			usage, found := a.Usage()
			if was, is := d.ReadUsage(data); usage != was || found != is {
				t.Fatalf("%s: %+v %v, by itself %+v %v", d.Name, usage, found, was, is)
			}
			if was := AnswerHandoff(data); !bytes.Equal(a.Handoff(), was) {
				t.Fatalf("%s: %s, by itself %s", d.Name, a.Handoff(), was)
			}
			if was, err := d.CleanAnswer(data, prompt); err != nil || !bytes.Equal(a.As(a.Clean(prompt)), was) {
				t.Fatalf("%s: %s, by itself %s, %v", d.Name, a.As(a.Clean(prompt)), was, err)
			}
		}
	})
}

func TestAnswer_PromptIDsOfEachShape(t *testing.T) {
	many := "[" + strings.Repeat("128009,", 5000) + "1]"
	for answer, want := range map[string]string{
		`{"id":"x","prompt_token_ids":[1,2, 3],"choices":[]}`:                                                              "[1,2, 3]",
		`{"choices":[{"index":0,"prompt_token_ids":[7]},{"prompt_token_ids":[8]}]}`:                                        "[7]",
		`{"prompt_token_ids":null,"choices":[{"text":"a","prompt_token_ids":[128009]}]}`:                                   "[128009]",
		`{"choices":[{"text":"a","prompt_token_ids":` + many + `}]}`:                                                       many,
		`{"object":"response","input_messages":[{"message":"Hi","tokens":[4,5],"type":"raw_message_tokens"}],"output":[]}`: "[4,5]",
		`{"object":"response","input_messages":[{"role":"user","content":"Hi"}],"output":[]}`:                              "",
		`{"prompt_token_ids":[]}`: "", `{"prompt_token_ids":"1"}`: "", `{"choices":[]}`: "", `{"choices":{}}`: "", `{"choices":[1]}`: "", `{}`: "", `[]`: "",
	} {
		a, err := Chat.ReadAnswer([]byte(answer))
		if err != nil {
			t.Fatal(err)
		}
		if got := string(a.PromptIDs()); got != want {
			t.Errorf("%s: %s, want %s", answer, got, want)
		}
	}
}

// readPrompts are the ids that a reader was given, which takes those that are numbers, if it is willing.
type readPrompts struct {
	willing bool
	given   []string
}

func (r *readPrompts) ReadPrompt(ids []byte) bool {
	r.given = append(r.given, string(ids))
	return r.willing && jsonscan.NumbersLength(ids) == len(ids)
}

// countedByReader is what a reader says that no other count comes to.
const countedByReader = 1 << 30

func (*readPrompts) Count() int { return countedByReader }

// The long ids of a prompt are read once, by who keeps them; whatever an answer is, it is taken for what it is without
// a reader.
func TestReadAnswerAndPrompt_IsReadAnswer(t *testing.T) {
	ids := strings.TrimSuffix(strings.Repeat("12345,", longBody/6+1), ",")
	const name = `"prompt_token_ids":`
	for what, c := range map[string]struct {
		answer string
		given  bool // to the reader
		counts bool // by it, where it is willing
	}{
		"a chat":              {`{"choices":[],` + name + `[` + ids + `],"kv_transfer_params":{"a":[1]}}`, true, true},
		"a completion":        {`{"choices":[{"text":"a",` + name + `[` + ids + `]}]}`, true, true},
		"short":               {`{` + name + `[1,2]}`, false, false},
		"none":                {`{` + name + `null,"x":"` + ids + `"}`, false, false},
		"an empty list":       {`{` + name + `[],"x":"` + ids + `"}`, true, false},
		"of a string":         {`{"x":"\"prompt_token_ids\":[` + ids + `]","y":1}`, false, false},
		"behind a string":     {`{"x":["",` + name + `[` + ids + `]]}`, true, false},
		"no numbers":          {`{` + name + `["]",` + ids + `]}`, true, false},
		"lists":               {`{` + name + `[[1],` + ids + `]}`, true, false},
		"a number is none":    {`{` + name + `[01,` + ids + `]}`, true, false},
		"no end":              {`{` + name + `[` + ids, false, false},
		"nothing behind":      {`{` + name + `[` + ids + `]`, true, false},
		"twice":               {`{` + name + `[` + ids + `],` + name + `[1]}`, true, false},
		"the second one":      {`{"choices":[{` + name + `[` + ids + `]}],` + name + `[7,` + ids + `]}`, true, false},
		"two hand-offs":       {`{` + name + `[` + ids + `],"kv_transfer_params":{},"kv_transfer_params":{}}`, true, false},
		"a hand-off in a row": {`{` + name + `[1],"kv_transfer_params":{},"x":[` + ids + `]}`, true, true},
	} {
		want, wrong := Chat.ReadAnswer([]byte(c.answer))
		for _, willing := range []bool{false, true} {
			r := &readPrompts{willing: willing}
			got, err := Chat.ReadAnswerAndPrompt([]byte(c.answer), r)
			if (err == nil) != (wrong == nil) || string(got.PromptIDs()) != string(want.PromptIDs()) || string(got.Body().Bytes()) != string(want.Body().Bytes()) {
				t.Errorf("%s: %v, without a reader %v", what, err, wrong)
			}
			if (len(r.given) > 0) != c.given || len(r.given) > 1 {
				t.Errorf("%s: the reader was given %d lists", what, len(r.given))
			}
			tokens := ReadFirstToken(want).Prompt
			if willing && c.counts {
				tokens = countedByReader
			}
			if n := ReadFirstToken(got).Prompt; n != tokens {
				t.Errorf("%s: %d ids, want %d", what, n, tokens)
			}
		}
	}
}

// An engine may say in an answer with status 200 that it failed, and an answer may lack what each one has. What a
// model writes is neither.
func TestAnswer_FailureAndWhatIsNone(t *testing.T) {
	for _, c := range []struct {
		dialect *Dialect
		answer  string
		failure int
		is      bool
	}{
		{Chat, `{"choices":[{"index":0,"message":{"content":"\"error\": \"abort\""},"finish_reason":"stop"}],"error":null}`, 0, true},
		{Chat, `{"choices":[{"index":0,"finish_reason":null}],"error":"","object":"chat.completion"}`, 0, true},
		{Chat, `{"choices":[{"index":0,"finish_reason":"stop"},{"index":1,"finish_reason":"abort"}]}`, 500, true},
		{Chat, `{"choices":[{"index":0,"finish_reason":"cancelled"}]}`, 500, true},
		{Completions, `{"choices":[{"index":0,"finish_reason":"timeout"}]}`, 500, true},
		{Completions, `{"choices":[{"index":0,"text":"a","finish_reason":"error"}]}`, 500, true},
		{Chat, `{"object":"error","message":"EngineCore encountered an issue","code":500}`, 500, false},
		{Chat, `{"object":"error","message":"too long","code":400}`, 400, false},
		{Chat, `{"object":"error","message":"no code"}`, 500, false},
		{Chat, `{"error":{"message":"busy","code":503}}`, 503, false},
		{Chat, `{"error":{"message":"odd","code":"oops"},"code":7}`, 500, false},
		{Chat, `{"error":"said in one string"}`, 500, false},
		{Chat, `{}`, 0, false},
		{Chat, `[]`, 0, false},
		{Chat, `[{"choices":[]}]`, 0, false},
		{Chat, `{"choices":[ ]}`, 0, false},
		{Completions, `{"choices":{}}`, 0, false},
		{Responses, `{"status":"completed","error":null,"output":[]}`, 0, true},
		{Responses, `{"status":"failed","error":{"code":"server_error","message":"m"},"output":[]}`, 500, true},
		{Responses, `{"status":"completed"}`, 0, false},
		{Messages, `{"type":"message","content":[],"stop_reason":"end_turn"}`, 0, true},
		{Messages, `{"type":"error","error":{"type":"api_error","message":"m"}}`, 500, false},
		{Messages, `{"type":"message"}`, 0, false},
		{Generate, `[{"text":"a","meta_info":{}}]`, 0, true},
		{Generate, `{"text":"a","meta_info":{"finish_reason":{"type":"abort"}}}`, 0, true},
		{Generate, `{"error":{"message":"m","code":502}}`, 502, true},
		{Embeddings, `{"object":"error","message":"m","code":500}`, 500, true},
		{Embeddings, `[[0.5]]`, 0, true},
	} {
		a, err := c.dialect.ReadAnswer([]byte(c.answer))
		if err != nil {
			t.Fatal(c.answer, err)
		}
		failure, said := a.Failure()
		if said != nil != (failure != 0 && !strings.Contains(c.answer, `"finish_reason"`)) {
			t.Errorf("%s: the engine says %s", c.answer, said)
		}
		if is := a.IsAnswer(); failure != c.failure || is != c.is {
			t.Errorf("%s, %s: failure %d, an answer %v; want %d, %v", c.dialect.Name, c.answer, failure, is, c.failure, c.is)
		}
	}
}

// The long list of blocks in a hand-off is walked once, when the answer is read.
func TestAnswerObject_KnowsTheLongValuesOfTheAnswer(t *testing.T) {
	blocks := "[" + strings.TrimSuffix(strings.Repeat("12345,", longBody/6+1), ",") + "]"
	answer, err := Chat.ReadAnswer([]byte(`{"choices":[],"kv_transfer_params":{"remote_block_ids":[` + blocks + `],"remote_port":1}}`))
	if err != nil {
		t.Fatal(err)
	}
	handoff, ok := answer.Object(HandoffField)
	if !ok || !slices.Equal(handoff.Keys(), []string{"remote_block_ids", "remote_port"}) {
		t.Fatalf("%v, %v", handoff.Keys(), ok)
	}
	for _, long := range []Long{handoff.Long(), nil} {
		groups := slices.Collect(handoff.Get("remote_block_ids").ElementsOf(long))
		if len(groups) != 1 || string(groups[0]) != blocks {
			t.Errorf("%d groups", len(groups))
		}
	}
	if known := handoff.Long(); len(known) != 1 || &known[0][0] != &handoff.Get("remote_block_ids")[1] {
		t.Errorf("%d long values are known", len(known))
	}
}

// Where decode says of the prompt what prefill does, the client gets decode's answer as it came.
func TestClean_OfAUsageThatIsPrefillsToo(t *testing.T) {
	const prefill = `{"prompt_tokens":7,"total_tokens":8,"completion_tokens":1,"prompt_tokens_details":null}`
	for usage, same := range map[string]bool{
		`{"prompt_tokens":7,"total_tokens":9,"completion_tokens":2,"prompt_tokens_details":null}`:                true,
		`{"prompt_tokens":8,"total_tokens":10,"completion_tokens":2,"prompt_tokens_details":null}`:               false,
		`{"prompt_tokens":7,"total_tokens":10,"completion_tokens":2,"prompt_tokens_details":null}`:               false,
		`{"prompt_tokens":7,"total_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":6}}`: false,
	} {
		answer, err := Chat.ReadAnswer([]byte(`{"choices":[],"usage":` + usage + `}`))
		if err != nil {
			t.Fatal(err)
		}
		clean := answer.Clean(PromptUsage{Override: true, Prefill: Value(prefill)})
		got := answer.As(clean)
		const want = `{"choices":[],"usage":{"prompt_tokens":7,"total_tokens":9,"completion_tokens":2,"prompt_tokens_details":null}}`
		if string(got) != want || clean.Edited() == same {
			t.Errorf("%s: edited %v, %s", usage, clean.Edited(), got)
		}
	}
}
