package engine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf16"
)

// messageContent is one block of a message, a system prompt or a tool's result.
type messageContent struct {
	Type      string          `json:"type"`
	Text      string          `json:"text"`
	Thinking  string          `json:"thinking"`
	Source    json.RawMessage `json:"source"`
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Input     json.RawMessage `json:"input"`
	ToolUseID string          `json:"tool_use_id"`
	Content   json.RawMessage `json:"content"`
}

// attribution begins a text of some agents, other in each request, which vLLM leaves out of
// system prompts.
const attribution = "x-anthropic-billing-header"

// systemOf joins the texts of a system prompt: SGLang by line ends, vLLM as they are.
func (e *Engine) systemOf(raw json.RawMessage, inline bool) (string, error) {
	var text string
	if !present(raw) || json.Unmarshal(raw, &text) == nil {
		if inline && e.cfg.Connector != ConnectorSGLang && strings.HasPrefix(text, attribution) {
			return "", nil
		}
		return text, nil
	}
	var blocks []messageContent
	if err := json.Unmarshal(raw, &blocks); err != nil {
		return "", badRequest("system", "system: %v", err)
	}
	var texts []string
	for _, b := range blocks {
		if b.Type != "text" || b.Text == "" || e.cfg.Connector != ConnectorSGLang && strings.HasPrefix(b.Text, attribution) {
			continue
		}
		texts = append(texts, b.Text)
	}
	if e.cfg.Connector == ConnectorSGLang {
		return strings.Join(texts, "\n"), nil
	}
	return strings.Join(texts, ""), nil
}

// turns converts one message as vLLM 0.33 does (vllm/entrypoints/anthropic/serving.py): a
// tool's results become messages of their own, before it, its calls those of the
// assistant's, what it thought its reasoning, and other blocks stay its content.
func (e *Engine) turns(m message) ([]message, error) {
	if m.Role == "system" {
		text, err := e.systemOf(m.Content, true)
		if text == "" {
			return nil, err
		}
		return []message{textMessage("system", text)}, err
	}
	var raw []json.RawMessage
	if isList := json.Unmarshal(m.Content, &raw) == nil; !isList {
		return []message{m}, nil // a text
	}
	c := messageTurn{e: e, role: m.Role}
	for i := range raw {
		var b messageContent
		if err := json.Unmarshal(raw[i], &b); err != nil {
			return nil, badRequest("messages", "content: %v", err)
		}
		if err := c.add(b, raw[i]); err != nil {
			return nil, err
		}
	}
	return c.end()
}

// messageTurn collects what one message becomes.
type messageTurn struct {
	e        *Engine
	role     string
	before   []message // results of tools
	parts    []json.RawMessage
	calls    []chatCall
	thoughts *string
}

func (c *messageTurn) add(b messageContent, raw json.RawMessage) error {
	switch b.Type {
	case "redacted_thinking", "tool_reference":
	case "thinking":
		if c.thoughts == nil {
			c.thoughts = new(string)
		}
		*c.thoughts += b.Thinking
	case "tool_use":
		c.calls = append(c.calls, chatCall{ID: b.ID, Type: "function", Function: calledByName{b.Name, pythonArguments(b.Input)}})
	case "tool_result":
		return c.result(b)
	case "text":
		if b.Text != "" {
			c.parts = append(c.parts, raw)
		}
	case "image":
		c.parts = append(c.parts, c.e.imageOf(b, raw))
	default:
		c.parts = append(c.parts, raw)
	}
	return nil
}

// imageOf is an image as the part of a chat that SGLang makes of it (srt/entrypoints/anthropic/serving.py, 0.5.23).
func (e *Engine) imageOf(b messageContent, raw json.RawMessage) json.RawMessage {
	var source struct {
		MediaType string `json:"media_type"`
		Data, URL string
	}
	if e.cfg.Connector != ConnectorSGLang || json.Unmarshal(b.Source, &source) != nil {
		return raw
	}
	if source.Data != "" {
		source.URL = "data:" + source.MediaType + ";base64," + source.Data
	}
	url, err := json.Marshal(source.URL)
	if err != nil {
		return raw
	}
	return json.RawMessage(`{"type":"image_url","image_url":{"url":` + string(url) + `}}`)
}

// result adds what a tool answered, and the images in it as a message of the user's.
func (c *messageTurn) result(b messageContent) error {
	text, images, err := c.e.resultOf(b.Content)
	if err != nil {
		return err
	}
	if c.e.cfg.Connector == ConnectorSGLang && len(images) > 0 { // it leaves the list to the template
		c.before = append(c.before, message{Role: "tool", Content: c.e.withImages(b.Content), ToolCallID: b.ToolUseID})
		return nil
	}
	if c.role != "user" {
		raw, err := json.Marshal(contentPart{Type: "text", Text: "Tool result: " + text})
		c.parts = append(c.parts, raw)
		return err
	}
	result := textMessage("tool", text)
	result.ToolCallID = b.ToolUseID
	c.before = append(c.before, result)
	if len(images) > 0 {
		all, err := json.Marshal(images)
		if err != nil {
			return badRequest("messages", "tool_result: %v", err)
		}
		c.before = append(c.before, message{Role: "user", Content: all})
	}
	return nil
}

// withImages is a list of blocks with its images as parts of a chat.
func (e *Engine) withImages(list json.RawMessage) json.RawMessage {
	var blocks []json.RawMessage
	_ = json.Unmarshal(list, &blocks) // it was read before
	for i, raw := range blocks {
		var b messageContent
		if json.Unmarshal(raw, &b) == nil && b.Type == "image" {
			blocks[i] = e.imageOf(b, raw)
		}
	}
	all, _ := json.Marshal(blocks) // raw JSON always marshals
	return all
}

func (c *messageTurn) end() ([]message, error) {
	if len(c.parts) == 0 && c.role == "user" {
		return c.before, nil
	}
	turn := message{Role: c.role, Reasoning: c.thoughts}
	var err error
	if len(c.parts) > 0 {
		if turn.Content, err = json.Marshal(c.parts); err != nil {
			return nil, badRequest("messages", "content: %v", err)
		}
	}
	if len(c.calls) > 0 {
		if turn.ToolCalls, err = json.Marshal(c.calls); err != nil {
			return nil, badRequest("messages", "tool_use: %v", err)
		}
	}
	return append(c.before, turn), nil
}

// resultOf is what a tool answered: its texts, and its images. SGLang gives a list to the
// template, which puts its texts together; vLLM joins them by line ends.
func (e *Engine) resultOf(raw json.RawMessage) (text string, images []json.RawMessage, err error) {
	if !present(raw) || json.Unmarshal(raw, &text) == nil {
		return text, nil, nil
	}
	var blocks []json.RawMessage
	if err := json.Unmarshal(raw, &blocks); err != nil {
		return "", nil, badRequest("messages", "tool_result: %v", err)
	}
	between := "\n"
	if e.cfg.Connector == ConnectorSGLang {
		between = ""
	}
	var texts []string
	for _, raw := range blocks {
		var b messageContent
		if err := json.Unmarshal(raw, &b); err != nil {
			return "", nil, badRequest("messages", "tool_result: %v", err)
		}
		switch b.Type {
		case "text":
			texts = append(texts, b.Text)
		case "image":
			images = append(images, raw)
		}
	}
	return strings.Join(texts, between), images, nil
}

// pythonArguments is the input of a call as Python's json.dumps writes it.
func pythonArguments(input json.RawMessage) string {
	if !present(input) {
		return "{}"
	}
	var compact bytes.Buffer
	if json.Compact(&compact, input) != nil { // it came out of a JSON decoder
		return string(input)
	}
	var out strings.Builder
	inText, escaped := false, false
	for _, r := range compact.String() {
		if r > '~' {
			for _, unit := range utf16.Encode([]rune{r}) {
				fmt.Fprintf(&out, `\u%04x`, unit)
			}
			continue
		}
		out.WriteRune(r)
		if !inText && (r == ',' || r == ':') {
			out.WriteByte(' ')
		}
		if r == '"' && !escaped {
			inText = !inText
		}
		escaped = r == '\\' && !escaped
	}
	return out.String()
}
