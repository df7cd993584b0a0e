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
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Input     json.RawMessage `json:"input"`
	ToolUseID string          `json:"tool_use_id"`
	Content   json.RawMessage `json:"content"`
}

// systemOf joins the texts of a system prompt: SGLang by line ends, vLLM as they are.
func (e *Engine) systemOf(raw json.RawMessage) (string, error) {
	var text string
	if !present(raw) || json.Unmarshal(raw, &text) == nil {
		return text, nil
	}
	var blocks []messageContent
	if err := json.Unmarshal(raw, &blocks); err != nil {
		return "", badRequest("system", "system: %v", err)
	}
	var texts []string
	for _, b := range blocks {
		texts = append(texts, b.Text)
	}
	if e.cfg.Connector == ConnectorSGLang {
		return strings.Join(texts, "\n"), nil
	}
	return strings.Join(texts, ""), nil
}

// turns converts one message: a tool's results become messages of their own, its calls
// those of the assistant's, and other blocks stay its content.
func (e *Engine) turns(m message) ([]message, error) {
	var raw []json.RawMessage
	if isList := json.Unmarshal(m.Content, &raw) == nil; !isList {
		return []message{m}, nil // a text
	}
	var out []message
	var parts []json.RawMessage
	var calls []chatCall
	for i := range raw {
		var b messageContent
		if err := json.Unmarshal(raw[i], &b); err != nil {
			return nil, badRequest("messages", "content: %v", err)
		}
		switch b.Type {
		case "tool_use":
			calls = append(calls, chatCall{ID: b.ID, Type: "function", Function: calledByName{b.Name, pythonArguments(b.Input)}})
		case "tool_result":
			text, err := e.resultOf(b.Content)
			if err != nil {
				return nil, err
			}
			result := textMessage("tool", text)
			result.ToolCallID = b.ToolUseID
			out = append(out, result)
		default:
			parts = append(parts, raw[i])
		}
	}
	if len(parts)+len(calls) == 0 && len(out) > 0 {
		return out, nil
	}
	turn := message{Role: m.Role}
	var err error
	if len(parts) > 0 {
		if turn.Content, err = json.Marshal(parts); err != nil {
			return nil, badRequest("messages", "content: %v", err)
		}
	}
	if len(calls) > 0 {
		if turn.ToolCalls, err = json.Marshal(calls); err != nil {
			return nil, badRequest("messages", "tool_use: %v", err)
		}
	}
	return append(out, turn), nil
}

// resultOf is what a tool answered. SGLang gives a list to the template, which puts its
// texts together; vLLM joins them by line ends.
func (e *Engine) resultOf(raw json.RawMessage) (string, error) {
	var text string
	if !present(raw) || json.Unmarshal(raw, &text) == nil {
		return text, nil
	}
	var blocks []messageContent
	if err := json.Unmarshal(raw, &blocks); err != nil {
		return "", badRequest("messages", "tool_result: %v", err)
	}
	between := "\n"
	if e.cfg.Connector == ConnectorSGLang {
		between = ""
	}
	var texts []string
	for _, b := range blocks {
		texts = append(texts, b.Text)
	}
	return strings.Join(texts, between), nil
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
