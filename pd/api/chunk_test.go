package api

import "testing"

func TestChunk_IDsAreTakenOutWhereverTheyStand(t *testing.T) {
	for event, want := range map[string]string{
		`{"id":"x","choices":[{"index":0,"text":" a","token_ids":[7,8]}],"prompt_token_ids":[1,2]}`:                                 `{"id":"x","choices":[{"index":0,"text":" a"}]}`,
		`{"prompt_token_ids":[1,2],"choices":[{"token_ids":[7, 8],"text":" a","index":0}]}`:                                         `{"choices":[{"text":" a","index":0}]}`,
		`{"choices": [ { "prompt_token_ids": [1,2] , "token_ids" : [7,8] , "delta": {"content": " a"} } ] }`:                        `{"choices": [ { "delta": {"content": " a"} } ] }`,
		`{"choices":[{"token_ids":[7,8]}],"prompt_token_ids":[1,2]}`:                                                                `{"choices":[{}]}`,
		`{"choices":[{"index":0,"delta":{"content":" \"token_ids\":[9]"},"token_ids":[7,8],"x":1}],"prompt_token_ids":[1,2],"y":2}`: `{"choices":[{"index":0,"delta":{"content":" \"token_ids\":[9]"},"x":1}],"y":2}`,
	} {
		c := ReadChunk([]byte(event))
		if got := string(c.Without(nil, []byte(event))); got != want {
			t.Errorf("%s\nbecomes %s\nwant    %s", event, got, want)
		}
		ids, n := IDList(c.IDs)
		prompt, m := IDList(c.Prompt)
		if n != 2 || m != 2 || prompt != "1,2" || ids[:1] != "7" {
			t.Errorf("%s: %d ids %q, prompt %d %q", event, n, ids, m, prompt)
		}
	}
	for event, choices := range map[string]int{`[DONE]`: -1, `{"usage":{}}`: -1, `{"choices":[],"usage":{"prompt_tokens":3}}`: 0, `{"choices":[{},{}]}`: 2} {
		if c := ReadChunk([]byte(event)); c.Choices != choices || string(c.Without(nil, []byte(event))) != event {
			t.Errorf("%s: %d choices", event, c.Choices)
		}
	}
}
