package messages

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/tandem-gateway/tandem/pd/api"
)

// maxParts bounds the messages, blocks, tools and values of calls' inputs that are looked
// at: their number is the client's, and each costs a microsecond or two.
const maxParts = 1 << 14

// parts counts those of one request.
type parts int

func (p *parts) add() error {
	if *p++; *p > maxParts {
		return inexact("more than 16,384 messages, blocks, tools and values of calls' inputs")
	}
	return nil
}

// conversation collects the messages of a chat.
type conversation struct {
	engine   Engine
	messages []api.Value
	parts    *parts
}

// chatMessages returns the array of chat's messages.
func chatMessages(request api.Body, engine Engine, seen *parts) ([]byte, error) {
	c := &conversation{engine: engine, parts: seen}
	if err := c.system(request.Get("system")); err != nil {
		return nil, err
	}
	at := 0
	for message := range request.Get("messages").Elements() {
		if err := c.message(message, at); err != nil {
			return nil, err
		}
		at++
	}
	return api.List(c.messages), nil
}

func (c *conversation) add(fields ...api.Edit) {
	c.messages = append(c.messages, api.Body{}.With(fields...).Bytes())
}

// attribution starts a line of some agents that newer versions of vLLM leave out.
const attribution = "x-anthropic-billing-header"

// system is a text or a list of texts, which SGLang joins by line ends and vLLM as they are.
func (c *conversation) system(system api.Value) error {
	if system.Null() {
		return nil
	}
	texts, between := []api.Value{system}, `\n`
	if system.IsArray() {
		var err error
		if texts, err = c.texts(system); err != nil {
			return err
		}
	} else if !isText(system) {
		return inexact("system must be a text or a list of texts")
	}
	if len(texts) == 0 || len(texts) == 1 && string(texts[0]) == `""` {
		return nil
	}
	if c.engine.Name == VLLM {
		between = ""
	}
	for _, t := range texts {
		text, ok := t.String()
		if !ok || len(texts) == 1 && strings.TrimSpace(text) == "" {
			return inexact("a system prompt of white space")
		}
		if c.engine.Name == VLLM && strings.HasPrefix(text, attribution) {
			return inexact("an attribution in the system prompt, which only some versions of vLLM leave out")
		}
	}
	c.add(api.Edit{Key: "role", Value: []byte(`"system"`)}, api.Edit{Key: "content", Value: joinTexts(texts, between)})
	return nil
}

// joinTexts joins JSON strings as they are written, so that no escape changes.
func joinTexts(texts []api.Value, between string) []byte {
	inner := make([][]byte, len(texts))
	for i, t := range texts {
		inner[i] = t[1 : len(t)-1]
	}
	return append(append([]byte{'"'}, bytes.Join(inner, []byte(between))...), '"')
}

// message translates one turn, the at-th from 0.
func (c *conversation) message(message api.Value, at int) error {
	if err := c.parts.add(); err != nil {
		return err
	}
	m, ok := message.Object()
	if !ok {
		return inexact("a message must be an object in which no field appears twice")
	}
	if err := onlyFields(m, "a message", "role", "content"); err != nil {
		return err
	}
	role, content := m.Get("role"), m.Get("content")
	name, _ := role.String()
	switch {
	case name == "system":
		return inexact("a system message inside the conversation")
	case name != "user" && name != "assistant":
		return invalidIn(at, "role", `must be "user" or "assistant"`)
	case content.Null():
		return invalidIn(at, "content", fieldRequired)
	}
	if isText(content) {
		c.add(api.Edit{Key: "role", Value: role}, api.Edit{Key: "content", Value: content})
		return nil
	}
	if !content.IsArray() {
		return invalidIn(at, "content", "must be a text or a list of blocks")
	}
	return c.blocksOf(name, content)
}

func invalidIn(message int, field, what string) error {
	return &InvalidError{fmt.Sprintf("messages.%d.%s", message, field), what}
}

// blocksOf translates the blocks of one turn: results of tools become messages of their
// own, calls belong to the assistant's, and texts are its content.
func (c *conversation) blocksOf(role string, content api.Value) error {
	var parts, calls, thoughts []api.Value
	var text api.Value // the last
	results := 0
	for raw := range content.Elements() {
		b, kind, err := c.block(raw)
		if err != nil {
			return err
		}
		switch {
		case kind == "text":
			if text, err = textOf(b); err != nil {
				return err
			}
			parts = append(parts, textPart(text))
		case kind == "thinking" && role == "assistant":
			if thought := b.Get("thinking"); !isText(thought) {
				return inexact("a thinking block without its text")
			} else if string(thought) != `""` {
				thoughts = append(thoughts, thought)
			}
		case kind == "tool_use" && role == "assistant":
			call, err := c.toolCall(b)
			if err != nil {
				return err
			}
			calls = append(calls, call)
		case kind == "image" && role == "user":
			image, err := c.imagePart(b)
			if err != nil {
				return err
			}
			parts = append(parts, image)
		case kind == "tool_result" && role == "user" && len(parts) == 0:
			if err := c.toolResult(b); err != nil {
				return err
			}
			results++
		default:
			return inexact(untranslatedBlock(kind))
		}
	}
	if len(parts)+len(calls)+results+len(thoughts) == 0 {
		return inexact("a message without blocks")
	}
	if len(parts)+len(calls)+len(thoughts) == 0 {
		return nil
	}
	turn := []api.Edit{{Key: "role", Value: quote(role)}}
	if len(thoughts) > 0 {
		turn = append(turn, c.reasoning(thoughts))
	}
	if len(calls) > 0 {
		turn = append(turn, api.Edit{Key: "tool_calls", Value: api.List(calls)})
	}
	switch {
	case len(parts) > 0:
		turn = append(turn, api.Edit{Key: "content", Value: contentOf(parts, text)})
	case len(calls) == 0 && c.engine.Name == SGLang:
		turn = append(turn, api.Edit{Key: "content", Value: []byte(`""`)})
	}
	c.add(turn...)
	return nil
}

// reasoning is what the assistant thought before its turn. The model's template shows it or leaves it out, as of chats
// whose client sends it back; clients of messages all do. Here alone the prompt may be another one than the
// engine's own: vLLM makes this field of it in versions that take it at all; SGLang left it out at first, and newer
// versions write it before the turn's text in the marks of the model's parser, which only they know.
func (c *conversation) reasoning(thoughts []api.Value) api.Edit {
	if c.engine.Name == VLLM {
		return api.Edit{Key: "reasoning", Value: joinTexts(thoughts, "")}
	}
	return api.Edit{Key: "reasoning_content", Value: joinTexts(thoughts, `\n`)}
}

// untranslatedBlock names a block of a turn that is not translated.
func untranslatedBlock(kind string) string {
	switch kind {
	case "redacted_thinking":
		return "thinking that only Anthropic's service can read"
	case "document":
		return "a document"
	}
	return "a block that is not text, thinking or tool_use of the assistant, an image of the user, or a tool_result before all others of the user"
}

// block reads one block and its type.
func (c *conversation) block(raw api.Value) (api.Body, string, error) {
	if err := c.parts.add(); err != nil {
		return api.Body{}, "", err
	}
	b, ok := raw.Object()
	if !ok {
		return api.Body{}, "", inexact("a block must be an object in which no field appears twice")
	}
	kind, _ := b.Get("type").String()
	return b, kind, nil
}

// texts are the texts of a list of text blocks.
func (c *conversation) texts(list api.Value) (texts []api.Value, err error) {
	for raw := range list.Elements() {
		b, kind, err := c.block(raw)
		if err != nil {
			return nil, err
		}
		if kind != "text" {
			return nil, inexact("a block that is not text where only text is translated")
		}
		text, err := textOf(b)
		if err != nil {
			return nil, err
		}
		texts = append(texts, text)
	}
	return texts, nil
}

// textOf returns the text of a text block as it is written.
func textOf(block api.Body) (api.Value, error) {
	if err := onlyFields(block, "a text block", "type", "text", "cache_control"); err != nil {
		return nil, err
	}
	text := block.Get("text")
	if !isText(text) || string(text) == `""` {
		return nil, inexact("a text block without text")
	}
	return text, nil
}

func textPart(text api.Value) api.Value {
	return api.Body{}.With(api.Edit{Key: "type", Value: []byte(`"text"`)}, api.Edit{Key: "text", Value: text}).Bytes()
}
