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
	long := strings.Repeat("a", knownBy)
	if chat(long+"b", "x") != chat(long+"c", "x") || chat(long+"b", "x") == chat(long+"bb", "x") || chat(long+"b", "x") == chat("b"+long, "x") || chat(long[4:]+"bb", "x") == chat(long[4:]+"cb", "x") {
		t.Error("a long system prompt is not known by its beginning and its length")
	}
	if chat("s", "x") != chat("s", "y") || chat("s", "x") == chat("s2", "x") {
		t.Error("a chat's context is not that of its system prompt")
	}
}

// Of a message the system's content is found wherever its role stands, and nothing of others.
func TestSystemContent(t *testing.T) {
	for message, want := range map[string]string{
		`{"role":"system","content":"s"}`: `"s"`, `{"content":["s"],"role":"system"}`: `["s"]`, `{"role":"system"}`: "",
		`{"role":"user","content":"s"}`: "", `{"content":"s","role":"user"}`: "", `{"content":"s"}`: "", `{"role":1,"content":"s"}`: "",
	} {
		c := api.Value(message).CursorOf(nil)
		_, got, isSystem := messageTokens(&c, 1)
		if !isSystem {
			got = nil
		}
		if string(got) != want {
			t.Errorf("%s: %s, want %s", message, got, want)
		}
	}
}

// A chat whose messages each say a string, or nothing, is known to be only text when its length was looked at; of any
// other the messages are to be looked at.
func TestParse_OnlyText(t *testing.T) {
	for body, want := range map[string]bool{
		`"messages":[{"role":"system","content":"[s]"},{"role":"user","content":"a"}]`:                             true,
		`"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"x"}]},{"role":"user","content":"a"}]`: true,
		`"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}]`:                                      false,
		`"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}],"content":"a"}]`:      false,
		`"messages":[{"role":"user","content":"a","content":[{"type":"image_url","image_url":{"url":"x"}}]}]`:      false,
		`"messages":["a"]`: false,
	} {
		req, err := parse(api.Chat, []byte(`{"model":"m",`+body+`}`))
		if err != nil || req.OnlyText != want {
			t.Errorf("%s: %+v, %v", body, req, err)
		}
	}
	if req, err := parse(api.Responses, []byte(`{"model":"m","input":[{"type":"input_image","image_url":"x"}]}`)); err != nil || req.OnlyText {
		t.Errorf("%+v, %v", req, err)
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

// Messages count with their texts and what templates write around them; images, sounds and files
// count alike, and what is nested too deep as the text that it is.
func TestTurnTokens(t *testing.T) {
	nested := func(depth int) string {
		return strings.Repeat(`{"content":`, depth) + `"ab"` + strings.Repeat("}", depth)
	}
	for value, want := range map[string]int{
		`"ab"`: 1, `""`: 0, `{}`: perTurn, `[]`: 0, `{"role":"user","content":"ab"}`: perTurn + 1, `[{"content":"ab"},{"text":"ab"}]`: 2 * (perTurn + 1),
		`{"thinking":"ab","reasoning":"ab","summary":"ab","output":"ab"}`: perTurn + 4, `{"tool_calls":[{"function":{"name":"ab"}}]}`: 3*perTurn + 3,
		`{"arguments":"ab","input":{}}`: perTurn + 3 + 1, `{"source":{},"file":{}}`: perTurn + 2*perMedium,
		`{"image_url":1,"input_audio":1,"audio_url":1,"video_url":1}`: perTurn + 4*perMedium,
		`{"c\u006fntent":"ab"}`: perTurn + 1, `{"content":"ab","content":"cd"}`: perTurn + 2,
		nested(deepestTurn): deepestTurn*perTurn + 1, nested(deepestTurn + 1): (deepestTurn+1)*perTurn + 3, nested(deepestTurn + 2): (deepestTurn+1)*perTurn + 7,
	} {
		c := api.Value(value).CursorOf(nil)
		if got := turnTokens(&c, 0); got != want {
			t.Errorf("%s: %d tokens, want %d", value, got, want)
		}
	}
}

// The size of a prompt is that of its messages with the tools and the system prompt.
func TestPromptSize_CountsToolsAndSystemPrompt(t *testing.T) {
	for body, want := range map[string]int{
		`{"model":"m","messages":[{"role":"user","content":"ab"}]}`:                    perTurn + 1,
		`{"model":"m","messages":[{"role":"user","content":"ab"}],"tools":["ab"]}`:     perTurn + 1 + 3,
		`{"model":"m","messages":[{"role":"user","content":"ab"}],"tools":null}`:       perTurn + 1,
		`{"model":"m","messages":[{"role":"user","content":"ab"}],"system":"ab"}`:      perTurn + 1 + 1,
		`{"model":"m","messages":[{"role":"user","content":"ab"}],"instructions":"a"}`: perTurn + 1 + 1,
	} {
		req, err := parse(api.Chat, []byte(body))
		if err != nil || req.Size.Rough != want || req.Size.Model != "m" || req.Size.API != api.Chat.Name {
			t.Errorf("%s: %+v, %v, want %d", body, req.Size, err, want)
		}
	}
}
