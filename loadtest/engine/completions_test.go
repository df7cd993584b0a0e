package engine

import (
	"slices"
	"strings"
	"testing"
)

func TestCompletions_PromptForms(t *testing.T) {
	e := start(t, nil)
	const text = "the history of the river"
	ids := ask[tokenizeAnswer](t, e, "/tokenize", fields{"prompt": text, "return_token_strs": true})
	if ids.Count != len(ids.Tokens) || ids.TokenStrs[0] != "<|begin|>" || ids.MaxModelLen != 4096 {
		t.Fatalf("%+v", ids)
	}
	want := ask[chatAnswer](t, e, "/v1/completions", fields{"prompt": text, "ignore_eos": true}).Choices[0].Text
	for _, prompt := range []any{ids.Tokens, []string{text, "other"}, [][]int32{ids.Tokens, {5, 6}}} {
		got := ask[chatAnswer](t, e, "/v1/completions", fields{"prompt": prompt, "ignore_eos": true})
		if got.Choices[0].Text != want {
			t.Errorf("prompt %v: %q, want %q", prompt, got.Choices[0].Text, want)
		}
	}
	two := ask[chatAnswer](t, e, "/v1/completions", fields{"prompt": []string{text, "other"}, "n": 2, "echo": true, "max_tokens": 4, "logprobs": 2})
	if len(two.Choices) != 4 || !strings.HasPrefix(two.Choices[3].Text, "other") || two.Choices[3].Index != 3 {
		t.Errorf("%+v", two.Choices)
	}
	back := ask[map[string]string](t, e, "/detokenize", fields{"tokens": ids.Tokens})
	if back["prompt"] != "<|begin|>"+text {
		t.Errorf("detokenized %q", back["prompt"])
	}
}

func TestRender_GivesWhatCompletionsTakes(t *testing.T) {
	e := start(t, nil)
	body := chatBody(30, 20)
	rendered := ask[generateRequest](t, e, "/v1/chat/completions/render", body)
	chat := ask[chatAnswer](t, e, "/v1/chat/completions", body).content()
	if got := ask[chatAnswer](t, e, "/v1/completions", fields{"prompt": rendered.TokenIDs, "max_tokens": 20, "ignore_eos": true}); got.Choices[0].Text != chat {
		t.Errorf("got %q, want %q", got.Choices[0].Text, chat)
	}
	tokens := ask[tokenizeAnswer](t, e, "/tokenize", fields{"messages": body["messages"]}).Tokens
	if !slices.Equal(tokens, rendered.TokenIDs) {
		t.Error("tokenize and render differ")
	}
	if list := ask[[]generateRequest](t, e, "/v1/completions/render", fields{"prompt": []string{"a", "b"}}); len(list) != 2 {
		t.Errorf("%d rendered", len(list))
	}
}
