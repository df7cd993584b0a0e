package tokens

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/kvstate/tokens/jinja"
)

var templates = flag.String("templates", "testdata/chats", "directory of chat templates and of the golden.json that testdata/chats/render.py made of them")

// chatRequest is one of testdata/chats/requests.json.
type chatRequest struct{ Name, Body string }

func readChats(t testing.TB) (requests []chatRequest) {
	t.Helper()
	raw, err := os.ReadFile("testdata/chats/requests.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &requests); err != nil {
		t.Fatal(err)
	}
	return requests
}

// notFollowed are requests that vLLM 0.32.0 takes and the gateway does not claim to know: other
// versions, or settings, render them otherwise.
var notFollowed = []string{
	"tool with more fields", "arguments no object", "arguments no JSON", "arguments NaN", "choice none", "effort",
}

// The gateway's own rendering of a chat is vLLM's, byte for byte, or there is none; and there is
// one of every chat but of the named forms.
func TestChats_AreVLLMs(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(*templates, "golden.json"))
	if err != nil {
		t.Fatal(err)
	}
	var golden map[string]map[string]*string
	if err := json.Unmarshal(raw, &golden); err != nil {
		t.Fatal(err)
	}
	equal, none := 0, 0
	for name, texts := range golden {
		source, err := os.ReadFile(filepath.Join(*templates, name))
		if err != nil {
			t.Fatal(err)
		}
		template, err := newTemplate(string(source), map[string]jinja.Value{"bos_token": "<s>", "eos_token": "</s>"})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, request := range readChats(t) {
			want := texts[request.Name]
			got, known := "", false
			c, ok := (&Prompt{API: Chat, Body: []byte(request.Body)}).conversation()
			if ok {
				got, err = template.render(c)
				known = err == nil
			}
			switch {
			case request.Name == "no tools": // refused by new versions
			case known && want == nil:
				t.Errorf("%s, %s: rendered, and vLLM refuses it: %q", name, request.Name, got)
			case known && got != *want:
				t.Errorf("%s, %s:\n got  %q\n want %q", name, request.Name, got, *want)
			case known:
				equal++
			case want != nil && !slices.Contains(notFollowed, request.Name) && !template.template.LoopsOverContent():
				t.Errorf("%s, %s: not known (%v); vLLM makes %q", name, request.Name, err, *want)
			default:
				none++
			}
		}
	}
	t.Logf("%d chats with %d templates are equal, %d are not known", equal, len(golden), none)
	if equal < 25*len(golden) {
		t.Errorf("only %d chats are known", equal)
	}
}

// SGLang prepares tools, calls and several parts in another way, so there they are not claimed;
// texts are.
func TestChats_OfSGLangAreTexts(t *testing.T) {
	known := []string{"plain", "system", "turns", "reasoning by its old name", "one part", "no tools", "thinking in content"}
	for _, request := range readChats(t) {
		_, ok := (&Prompt{API: Chat, Body: []byte(request.Body), engine: engineSGLang}).conversation()
		if request.Name == "reasoning by its old name" {
			if ok {
				t.Error("reasoning is read for SGLang")
			}
			continue
		}
		if slices.Contains(known, request.Name) && !ok {
			t.Errorf("%s is not read for SGLang", request.Name)
		}
		for _, mark := range []string{`"function"`, `tool_calls":[{`, `"two"`} {
			if ok && strings.Contains(request.Body, mark) {
				t.Errorf("%s is read for SGLang", request.Name)
			}
		}
	}
}

// Messages and responses with tools are rendered as the chats that vLLM makes of them: the schema
// keeps its order, and arguments are mappings.
func TestChats_OfOtherAPIsAreRenderedAsChats(t *testing.T) {
	template, err := newTemplate("{% for t in tools %}{{ t | tojson }}{% endfor %}{% for m in messages %}|{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}", nil)
	if err != nil {
		t.Fatal(err)
	}
	const schema = `{"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "number", "default": 1.0}}}`
	const tool = `{"type": "function", "function": {"name": "f", "description": "d<>", "parameters": ` + schema + `}}`
	for _, p := range []Prompt{
		{API: Messages, Model: "m", Body: []byte(`{"model":"m","max_tokens":5,"system":"s","tools":[{"name":"f","description":"d<>","input_schema":` + schema + `}],"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"tool_use","id":"c","name":"f","input":{"b":"x","a":2.50}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":"r"}]}]}`)},
		{API: Responses, Model: "m", Body: []byte(`{"model":"m","instructions":"s","tools":[{"type":"function","name":"f","description":"d<>","parameters":` + schema + `}],"input":[{"role":"user","content":"hi"},{"type":"function_call","call_id":"c","name":"f","arguments":"{\"b\":\"x\",\"a\":2.50}"},{"type":"function_call_output","call_id":"c","output":"r"}]}`)},
	} {
		c, ok := p.conversation()
		if !ok {
			t.Errorf("%s is not read", p.API)
			continue
		}
		const want = tool + `|system:s|user:hi|assistant:{"b": "x", "a": 2.5}|tool:r`
		if got, err := template.render(c); err != nil || got != want {
			t.Errorf("%s: %v\n got  %s\n want %s", p.API, err, got, want)
		}
	}
}
