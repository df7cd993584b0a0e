package tokens

import (
	"encoding/json"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/kvstate/jsonscan"
)

// conversation is a chat of nothing but text, as a template gets it.
type conversation struct {
	messages      []map[string]any // role and content
	addGeneration bool
	variables     map[string]any // chat_template_kwargs
}

// conversation reads a chat request, or one to /v1/responses or /v1/messages that means
// the same. What engines translate in ways of their own is refused.
func (p *Prompt) conversation() (c conversation, ok bool) {
	c.addGeneration, ok = true, true
	var system []byte
	for m, err := range jsonscan.Members(p.Body) {
		switch name := string(m.Key); {
		case err != nil:
			return conversation{}, false
		case name == turnField[p.API]:
			ok = ok && c.read(m.Value)
		case name == systemField[p.API] && p.API != Chat:
			system = m.Value
		case silent[name], harmless[name], !present(m.Value), name == "tool_choice":
		case name == "tools" && string(m.Value) == "[]":
		case name == "add_generation_prompt" && p.API == Chat:
			c.addGeneration = string(m.Value) == "true"
		case name == "chat_template_kwargs" && p.API == Chat:
			ok = ok && json.Unmarshal(m.Value, &c.variables) == nil
		case (name == "continue_final_message" || name == "add_special_tokens") && string(m.Value) == "false":
		default:
			ok = false
		}
	}
	if !ok || len(c.messages) == 0 {
		return conversation{}, false
	}
	if present(system) {
		text, isText := textOf(system)
		if !isText {
			return conversation{}, false
		}
		c.messages = append([]map[string]any{{"role": "system", "content": text}}, c.messages...)
	}
	return c, true
}

// read takes in a list of messages, or the one user message that a string is.
func (c *conversation) read(turns []byte) bool {
	if len(turns) > 0 && turns[0] == '"' {
		text, ok := textOf(turns)
		c.messages = append(c.messages, map[string]any{"role": "user", "content": text})
		return ok
	}
	for message, err := range jsonscan.Elements(turns) {
		if err != nil || !c.readMessage(message) {
			return false
		}
	}
	return true
}

// readMessage takes in one message of nothing but a role and a text.
func (c *conversation) readMessage(message []byte) bool {
	var role, content string
	hasRole, hasContent := false, false
	for m, err := range jsonscan.Members(message) {
		switch name := string(m.Key); {
		case err != nil:
			return false
		case name == "role":
			hasRole = json.Unmarshal(m.Value, &role) == nil
		case name == "content":
			content, hasContent = textOf(m.Value)
		case name == "cache_control", !present(m.Value):
		case name == "type" && string(m.Value) == `"message"`:
		default:
			return false
		}
	}
	c.messages = append(c.messages, map[string]any{"role": role, "content": valid(content)})
	return hasRole && hasContent
}

// textOf reads a string, or a list of one part that is text. Engines join several parts
// in different ways.
func textOf(raw []byte) (text string, ok bool) {
	if len(raw) > 0 && raw[0] == '"' {
		return gjson.ParseBytes(raw).Str, true // the body is known to be JSON
	}
	var parts []struct {
		Type string  `json:"type"`
		Text *string `json:"text"`
	}
	if json.Unmarshal(raw, &parts) != nil || len(parts) != 1 || parts[0].Text == nil {
		return "", false
	}
	switch parts[0].Type {
	case "text", "input_text", "output_text":
		return *parts[0].Text, true
	}
	return "", false
}
