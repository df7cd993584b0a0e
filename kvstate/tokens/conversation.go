package tokens

import (
	"encoding/json"

	"github.com/tidwall/gjson"
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
	if !members(p.Body, func(key, value []byte) {
		switch name := string(key); {
		case name == turnField[p.API]:
			ok = ok && c.read(value)
		case name == systemField[p.API] && p.API != Chat:
			system = value
		case silent[name], harmless[name], !present(value), name == "tool_choice":
		case name == "tools" && string(value) == "[]":
		case name == "add_generation_prompt" && p.API == Chat:
			c.addGeneration = string(value) == "true"
		case name == "chat_template_kwargs" && p.API == Chat:
			ok = ok && json.Unmarshal(value, &c.variables) == nil
		case (name == "continue_final_message" || name == "add_special_tokens") && string(value) == "false":
		default:
			ok = false
		}
	}) || !ok || len(c.messages) == 0 {
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
	good := true
	return elements(turns, func(message []byte) {
		var role, content string
		hasRole, hasContent := false, false
		good = members(message, func(key, value []byte) {
			switch name := string(key); {
			case name == "role":
				hasRole = json.Unmarshal(value, &role) == nil
			case name == "content":
				content, hasContent = textOf(value)
			case name == "cache_control", !present(value):
			case name == "type" && string(value) == `"message"`:
			default:
				good = false
			}
		}) && good && hasRole && hasContent
		c.messages = append(c.messages, map[string]any{"role": role, "content": valid(content)})
	}) && good
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
