package tokens

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/kvstate/jsonscan"
)

// Engines turn requests to /v1/messages and /v1/responses into chats before they render
// them. What follows does the same, as far as the prompt goes, after
//
//   - vLLM 0.33.0 (0.32.0 is equal): vllm/entrypoints/anthropic/serving.py
//     (to_chat_completion_request) and protocol.py; vllm/entrypoints/openai/responses
//     /utils.py (construct_input_messages, construct_tool_dicts) and protocol.py
//     (input_item_parsing, build_chat_params); vllm/tool_parsers/utils.py
//     (get_function_tools);
//   - SGLang 0.5.23: sglang/srt/entrypoints/anthropic/serving.py
//     (_convert_to_chat_completion_request).
//
// A translation is a claim about another program: what an engine counts in its answer's
// usage says whether it was true (claims.go).

// Engines whose conversions are known, by the names that they go by in pools.Identity.
const (
	engineVLLM   = "vllm"
	engineSGLang = "sglang"
)

// chatForm collects a chat request. Once it is bad the request has no exact form.
type chatForm struct {
	engine   string
	messages []byte // the elements so far, each followed by a comma
	fields   object // of the request, besides model and messages
	bad      bool
}

// asChat is the chat request that the engine makes of a request of another API. inline
// tells where system messages go that stand within a conversation: where they are, or into
// the first one, as vLLM and SGLang do for templates that want all of it at the beginning.
func (p *Prompt) asChat(inline bool) ([]byte, bool) {
	f := &chatForm{engine: p.engine}
	switch p.API {
	case Messages:
		f.fromMessages(p.Body, inline)
	case Responses:
		f.fromResponses(p.Body)
	default:
		return nil, false
	}
	if f.bad || len(f.messages) == 0 {
		return nil, false
	}
	var o object
	o.add("model", quote(p.Model))
	o.add("messages", array(f.messages))
	if f.fields.raw != nil {
		o.raw = append(append(o.raw, ','), f.fields.raw[1:]...)
	}
	return o.end(), true
}

// array closes a list of elements that are each followed by a comma.
func array(elements []byte) []byte {
	return append(append([]byte{'['}, bytes.TrimSuffix(elements, []byte{','})...), ']')
}

func (f *chatForm) refuse() { f.bad = true }

// member is the value of an object's member: the last of that name, nil if it is null or
// there is none.
func member(raw []byte, key string) []byte {
	if v := memberOf(raw, key); present(v) {
		return v
	}
	return nil
}

func isText(v []byte) bool { return len(v) > 1 && v[0] == '"' }

func isList(v []byte) bool { return len(v) > 0 && v[0] == '[' }

// textIn is the text of a JSON string.
func textIn(v []byte) string { return gjson.ParseBytes(v).Str }

// quote writes a text as JSON.
func quote(text string) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(text) // texts always encode
	return bytes.TrimRight(b.Bytes(), "\n")
}

// joined joins JSON strings as they are written.
func joined(texts [][]byte, between string) []byte {
	out := []byte{'"'}
	for i, t := range texts {
		if i > 0 {
			out = append(out, between...)
		}
		out = append(out, t[1:len(t)-1]...)
	}
	return append(out, '"')
}

// turnOf is a message of a chat under way.
type turnOf struct {
	role      string
	content   []byte // nil: none
	reasoning []byte
	calls     []byte // the elements so far, each followed by a comma
}

func (f *chatForm) add(t turnOf) {
	var o object
	o.add("role", quote(t.role))
	if t.reasoning != nil {
		o.add("reasoning", t.reasoning)
		if f.engine == engineSGLang { // its name there
			o.add("reasoning_content", t.reasoning)
		}
	}
	if t.calls != nil {
		o.add("tool_calls", array(t.calls))
	}
	if t.content != nil {
		o.add("content", t.content)
	}
	f.messages = append(append(f.messages, o.end()...), ',')
}

// addResult adds what a tool answered.
func (f *chatForm) addResult(id, content []byte) {
	if id == nil {
		id = []byte(`""`)
	}
	var o object
	o.add("role", []byte(`"tool"`))
	o.add("tool_call_id", id)
	o.add("content", content)
	f.messages = append(append(f.messages, o.end()...), ',')
}

// callOf is a call of a tool, with the arguments as a text.
func callOf(id, name, arguments []byte) []byte {
	var function, call object
	function.add("name", name)
	function.add("arguments", arguments)
	call.add("id", id)
	call.add("type", []byte(`"function"`))
	call.add("function", function.end())
	return append(call.end(), ',')
}

// toolOf is a tool, of what a flat one has.
func toolOf(tool, schema []byte) []byte {
	var function, o object
	for _, key := range []string{"name", "description"} {
		if v := member(tool, key); v != nil {
			function.add(key, v)
		}
	}
	if schema != nil {
		function.add("parameters", schema)
	}
	for _, key := range []string{"strict", "defer_loading"} {
		if v := member(tool, key); v != nil {
			function.add(key, v)
		}
	}
	o.add("type", []byte(`"function"`))
	o.add("function", function.end())
	return append(o.end(), ',')
}

// textPart and imagePart are parts of a content.
func textPart(text []byte) []byte {
	return append(append([]byte(`{"type":"text","text":`), text...), '}', ',')
}

func imagePart(url []byte) []byte {
	return append(append([]byte(`{"type":"image_url","image_url":{"url":`), url...), '}', '}', ',')
}

// elements yields the elements of a list; anything else has none and is bad.
func (f *chatForm) elements(list []byte) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		if !isList(list) {
			f.refuse()
			return
		}
		for e, err := range jsonscan.Elements(list) {
			if err != nil {
				f.refuse()
				return
			}
			if !yield(e) {
				return
			}
		}
	}
}

// setEffort is how much the model is to reason, where the request says.
func (f *chatForm) setEffort(effort []byte) {
	if isText(effort) {
		f.fields.add("reasoning_effort", effort)
	} else if effort != nil {
		f.refuse()
	}
}

// attribution begins a text of some agents that differs in each request; vLLM leaves it out
// of system prompts.
const attribution = "x-anthropic-billing-header"

func isAttribution(text []byte) bool {
	return bytes.HasPrefix(text, []byte(`"x-`)) && strings.HasPrefix(textIn(text), attribution)
}
