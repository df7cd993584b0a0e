package engine

import (
	"bytes"
	"encoding/json"
	"hash/fnv"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/tandem-gateway/tandem/loadtest/engine/bpe"
)

// message is one turn of a conversation, as /v1/chat/completions has it.
type message struct {
	Role       string          `json:"role"`
	Content    json.RawMessage `json:"content"`
	Reasoning  *string         `json:"reasoning,omitempty"`
	ToolCalls  json.RawMessage `json:"tool_calls"`
	ToolCallID string          `json:"tool_call_id"`
}

// contentPart is one part of a message's content.
type contentPart struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// conversation is what the chat template turns into tokens:
//
//	<|begin|> [<|tools|> tools <|end|>] (<|role|> content <|end|>)... <|assistant|>
//
// Of a tool its fields go in in one order (vLLM 0.33, ChatCompletionToolsParam and its
// model_dump), and the schema as it came, so that the order of its keys matters, as it does
// with real templates; of a call its id, its name and its arguments, which real templates
// get as a mapping (vllm/renderers/chat_utils/chat_message.py, _postprocess_messages). What
// was reasoned since the last message of the user goes in, as with Qwen 3. Special tokens'
// names in a message are plain text.
type conversation struct {
	tools         json.RawMessage
	messages      []message
	addGeneration bool // open a turn of the assistant at the end
	continueFinal bool // leave the last turn open instead
}

// render applies the template.
func (e *Engine) render(c conversation) ([]int32, error) {
	t := &templating{tok: e.language.tok}
	if e.owner() == "vllm" {
		t.named = &e.media
	}
	for range e.cfg.TemplateTokens {
		t.special(bpe.Begin)
	}
	if len(c.messages) == 0 {
		return nil, badRequest("messages", "List should have at least 1 item")
	}
	if c.addGeneration && c.continueFinal {
		return nil, badRequest("continue_final_message", "Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
	}
	t.special(bpe.Begin)
	if present(c.tools) && string(c.tools) != "[]" {
		t.special(bpe.Tools)
		if err := t.tools(c.tools); err != nil {
			return nil, err
		}
		t.special(bpe.EndOfTurn)
	}
	lastUser := 0
	for i, m := range c.messages {
		if m.Role == "user" {
			lastUser = i
		}
	}
	for i, m := range c.messages {
		if i < lastUser {
			m.Reasoning = nil
		}
		if err := t.message(m, i); err != nil {
			return nil, err
		}
		if !c.continueFinal || i < len(c.messages)-1 {
			t.special(bpe.EndOfTurn)
		}
	}
	if c.addGeneration {
		t.special(bpe.Assistant)
	}
	return t.ids, nil
}

// templating collects the tokens of a conversation.
type templating struct {
	tok   *bpe.Tokenizer
	ids   []int32
	named *sync.Map // media by their uuid; nil: the engine does not read it
}

func (t *templating) special(name string) {
	id, _ := t.tok.Special(name)
	t.ids = append(t.ids, id)
}

func (t *templating) text(s string) { t.ids = t.tok.Append(t.ids, s) }

// json adds a value without the white space between its parts.
func (t *templating) json(raw json.RawMessage) {
	var compact bytes.Buffer
	if json.Compact(&compact, raw) != nil { // it came out of a JSON decoder
		compact.Write(raw)
	}
	t.text(compact.String())
}

var roleTokens = map[string]string{
	"system": bpe.System, "developer": bpe.System, "user": bpe.User, "assistant": bpe.Assistant, "tool": bpe.Tool,
}

func (t *templating) message(m message, index int) error {
	role, known := roleTokens[m.Role]
	if !known {
		return badRequest("messages", "messages[%d].role %q is not known", index, m.Role)
	}
	t.special(role)
	if m.ToolCallID != "" {
		t.text(m.ToolCallID + "\n")
	}
	if m.Reasoning != nil && *m.Reasoning != "" && m.Role == "assistant" {
		t.text("<think>" + *m.Reasoning + "</think>")
	}
	if err := t.content(m.Content, index); err != nil {
		return err
	}
	return t.calls(m.ToolCalls, index)
}

// tools writes each tool with its fields in one order; what a description lacks is null.
func (t *templating) tools(raw json.RawMessage) error {
	var all []struct {
		Function struct {
			Name        string          `json:"name"`
			Description *string         `json:"description"`
			Parameters  json.RawMessage `json:"parameters"`
			Strict      *bool           `json:"strict,omitempty"`
		} `json:"function"`
	}
	if err := json.Unmarshal(raw, &all); err != nil {
		return badRequest("tools", "tools: %v", err)
	}
	for i := range all {
		f := &all[i].Function
		if len(f.Parameters) == 0 {
			f.Parameters = json.RawMessage("null")
		}
		t.text(`{"type":"function","function":`)
		one, err := json.Marshal(f)
		if err != nil {
			return badRequest("tools", "tools: %v", err)
		}
		t.json(one)
		t.text("}\n")
	}
	return nil
}

// calls writes the assistant's calls. Arguments that are no object are an empty one.
func (t *templating) calls(raw json.RawMessage, index int) error {
	if !present(raw) || string(raw) == "[]" {
		return nil
	}
	var all []chatCall
	if err := json.Unmarshal(raw, &all); err != nil {
		return badRequest("messages", "messages[%d].tool_calls: %v", index, err)
	}
	for _, c := range all {
		t.special(bpe.Call)
		t.text(c.ID + " " + c.Function.Name + "\n")
		var object map[string]json.RawMessage
		if json.Unmarshal([]byte(c.Function.Arguments), &object) != nil || object == nil {
			c.Function.Arguments = "{}"
		}
		t.json(json.RawMessage(jsonText.ReplaceAllStringFunc(c.Function.Arguments, unescaped)))
	}
	return nil
}

var jsonText = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)

// unescaped is a JSON string with the escapes that it needs, whichever program wrote it.
func unescaped(text string) string {
	var s string
	if json.Unmarshal([]byte(text), &s) != nil {
		return text
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if enc.Encode(s) != nil {
		return text
	}
	return strings.TrimSpace(b.String())
}

// content is a string, a list of parts, or nothing.
func (t *templating) content(raw json.RawMessage, index int) error {
	if !present(raw) {
		return nil
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		t.text(text)
		return nil
	}
	var parts []json.RawMessage
	if json.Unmarshal(raw, &parts) != nil {
		return badRequest("messages", "messages[%d].content must be a string or a list of parts", index)
	}
	for _, raw := range parts {
		var part contentPart
		if err := json.Unmarshal(raw, &part); err != nil {
			return badRequest("messages", "messages[%d].content has a part that is no object", index)
		}
		switch part.Type {
		case "text", "input_text", "output_text":
			t.text(part.Text)
		case "thinking", "redacted_thinking", "tool_reference": // templates leave out what was reasoned before
		case "":
			return badRequest("messages", "messages[%d].content has a part without a type", index)
		default:
			if err := t.media(raw, index); err != nil {
				return err
			}
		}
	}
	return nil
}

// mediaTokens stand for one image or sound, whatever its size.
const mediaTokens = 16

// media adds place-holders, and a digest so that different media differ. One that comes with a uuid is the
// first that came with it, from whomever, and need not be sent again (vLLM 0.32,
// multimodal/processing/inputs.py, get_mm_hashes).
func (t *templating) media(raw json.RawMessage, index int) error {
	for range mediaTokens {
		t.special(bpe.Media)
	}
	h := fnv.New64a()
	h.Write(raw)
	digest := strconv.FormatUint(h.Sum64(), 16)
	var members map[string]json.RawMessage
	if json.Unmarshal(raw, &members) != nil {
		return badRequest("messages", "messages[%d].content has a part that is no object", index)
	}
	if name := members["uuid"]; t.named != nil && present(name) {
		sent := slices.ContainsFunc(mediaKeys, func(key string) bool { return present(members[key]) })
		if first, known := t.named.Load(string(name)); known {
			digest = first.(string)
		} else if !sent {
			return badRequest("messages", "messages[%d].content: the medium is empty and its uuid is not in the cache", index)
		} else {
			t.named.Store(string(name), digest)
		}
	}
	t.text(digest)
	return nil
}

// present says whether a JSON field was given and is not null.
func present(raw json.RawMessage) bool { return len(raw) > 0 && string(raw) != "null" }
