package api

import "testing"

func TestWithCached(t *testing.T) {
	for _, c := range []struct {
		name        string
		d           *Dialect
		tokens      int
		before, now string
	}{
		{"a chat", Chat, 5, `{"usage":{"prompt_tokens":90,"prompt_tokens_details":{"cached_tokens":64},"completion_tokens":1},"x":64}`,
			`{"usage":{"prompt_tokens":90,"prompt_tokens_details":{"cached_tokens":5},"completion_tokens":1},"x":64}`},
		{"messages count apart what was cached", Messages, 16, `{"usage":{"input_tokens":10,"cache_read_input_tokens":90}}`,
			`{"usage":{"input_tokens":84,"cache_read_input_tokens":16}}`},
		{"messages, the other way round", Messages, 0, `{"usage":{"cache_read_input_tokens":90,"input_tokens":10}}`,
			`{"usage":{"cache_read_input_tokens":0,"input_tokens":100}}`},
		{"responses", Responses, 0, `{"usage":{"input_tokens":100,"input_tokens_details":{"cached_tokens":90}}}`,
			`{"usage":{"input_tokens":100,"input_tokens_details":{"cached_tokens":0}}}`},
		{"not reported", Chat, 5, `{"usage":{"prompt_tokens":90}}`, `{"usage":{"prompt_tokens":90}}`},
		{"reported as nothing", Chat, 5, `{"usage":{"prompt_tokens":90,"prompt_tokens_details":null}}`, `{"usage":{"prompt_tokens":90,"prompt_tokens_details":null}}`},
		{"no usage", Chat, 5, `{"id":"x"}`, `{"id":"x"}`},
	} {
		a, err := c.d.ReadAnswer([]byte(c.before))
		if err != nil {
			t.Fatal(err)
		}
		usage, _ := a.Usage()
		a = a.WithCached(c.tokens)
		if string(a.Bytes()) != c.now {
			t.Errorf("%s:\ngot  %s\nwant %s", c.name, a.Bytes(), c.now)
		}
		if now, _ := a.Usage(); usage.Cached.Known && (now.Cached.Tokens != c.tokens || now.Prompt != usage.Prompt) {
			t.Errorf("%s: it says %+v, and said %+v", c.name, now, usage)
		}
	}
}
