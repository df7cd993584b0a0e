package gateway

import (
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/pd/api"
)

// Requests of one agent share a context whatever they say, and whichever attribution comes
// with them; other tools or another system prompt are another one.
func TestPromptSize_AContextIsOfToolsAndSystemPrompt(t *testing.T) {
	of := func(d *api.Dialect, body string) uint64 {
		req, err := parse(d, []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		return req.Size.Context
	}
	message := func(mark, system, tool, text string) uint64 {
		return of(api.Messages, `{"model":"m","max_tokens":1,"system":[{"type":"text","text":"x-anthropic-billing-header: `+mark+`"},{"type":"text","text":"`+system+`"}],"tools":[{"name":"`+tool+`"}],"messages":[{"role":"user","content":"`+text+`"}]}`)
	}
	first := message("1", "s", "a", "x")
	if message("2", "s", "a", "y") != first {
		t.Error("another context for another attribution and text")
	}
	if message("1", "s2", "a", "x") == first || message("1", "s", "b", "x") == first {
		t.Error("the same context for another system prompt or tool")
	}
	chat := func(system, text string) uint64 {
		return of(api.Chat, `{"model":"m","messages":[{"role":"system","content":"`+system+`"},{"role":"user","content":"`+text+`"}]}`)
	}
	if chat("s", "x") != chat("s", "y") || chat("s", "x") == chat("s2", "x") {
		t.Error("a chat's context is not that of its system prompt")
	}
}

// An image counts as little, however large it is; a text counts with all its words.
func TestPromptSize_ImagesAreNotText(t *testing.T) {
	of := func(body string) int {
		req, err := parse(api.Messages, []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		return req.Size.Rough
	}
	image := func(data string) int {
		return of(`{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"` + data + `"}}]}]}`)
	}
	if a, b := image(strings.Repeat("A", 5000)), image(strings.Repeat("A", 500_000)); a != b || a < perMedium {
		t.Errorf("%d and %d tokens", a, b)
	}
	text := strings.Repeat("of the sea ", 5000)
	if n := of(`{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"` + text + `"}]}`); n < 15000 || n > 15050 {
		t.Errorf("%d tokens of 15,000 words", n)
	}
}

// What is read is any bytes: a count ends, and is no more than there are bytes.
func FuzzRoughTokens(f *testing.F) {
	f.Add([]byte(`{"a":"K\u00f6ln\n 12.5"}`))
	f.Add([]byte(`"\`))
	f.Fuzz(func(t *testing.T, value []byte) {
		if n := roughTokens(value); n < 0 || n > len(value) {
			t.Errorf("%d tokens of %d bytes", n, len(value))
		}
	})
}
