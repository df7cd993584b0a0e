package engine

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/tandem-gateway/tandem/loadtest/engine/bpe"
)

// tool is one entry of a request's tools.
type tool struct {
	Type     string `json:"type"`
	Function struct {
		Name       string          `json:"name"`
		Parameters json.RawMessage `json:"parameters"`
	} `json:"function"`
}

// toolCall is the call that an answer is.
type toolCall struct {
	name   string
	choice string // "auto", "required", or "named"
	format *jsonFormat
}

// callOf reads tools and tool_choice. With "required" the first tool is called; left to
// itself (auto) the simulated model calls the one that the user's last words ask for.
func (e *Engine) callOf(rawTools, rawChoice json.RawMessage, messages []message) (*toolCall, error) {
	var tools []tool
	if present(rawTools) {
		if err := json.Unmarshal(rawTools, &tools); err != nil {
			return nil, badRequest("tools", "tools: %v", err)
		}
	}
	if !present(rawChoice) {
		return requestedCall(tools, messages), nil
	}
	var word string
	if json.Unmarshal(rawChoice, &word) == nil {
		switch {
		case word == "auto":
			return requestedCall(tools, messages), nil
		case word == "none":
			return nil, nil
		case word != "required":
			return nil, badRequest("tool_choice", "Invalid value for `tool_choice`: %q", word)
		case len(tools) == 0:
			return nil, badRequest("tool_choice", "When using `tool_choice`, `tools` must be set.")
		}
		return newToolCall(tools[0], "required")
	}
	var named tool
	if err := json.Unmarshal(rawChoice, &named); err != nil || named.Function.Name == "" {
		return nil, badRequest("tool_choice", "Invalid value for `tool_choice`: a named function needs `function.name`.")
	}
	if len(tools) == 0 {
		return nil, badRequest("tool_choice", "When using `tool_choice`, `tools` must be set.")
	}
	for _, t := range tools {
		if t.Function.Name == named.Function.Name {
			return newToolCall(t, "named")
		}
	}
	return nil, badRequest("tool_choice", "The tool specified in `tool_choice` does not match any of the specified `tools`")
}

func newToolCall(t tool, choice string) (*toolCall, error) {
	parameters := t.Function.Parameters
	if !present(parameters) {
		parameters = json.RawMessage(`{"type":"object"}`)
	}
	format, err := newJSONFormat(parameters)
	if err != nil {
		return nil, err
	}
	return &toolCall{name: t.Function.Name, choice: choice, format: format}, nil
}

// requestedCall is the call that the last message asks for, if it is of the user's: its text
// has the name of a tool and, in parentheses, its arguments as a JSON object, as in
// read_file({"path": "a.txt"}). Of several it is the last. nil: it asks for none.
func requestedCall(tools []tool, messages []message) *toolCall {
	if len(tools) == 0 || len(messages) == 0 || messages[len(messages)-1].Role != "user" {
		return nil
	}
	text := textOf(messages[len(messages)-1].Content)
	var call *toolCall
	last := -1
	for _, t := range tools {
		at := strings.LastIndex(text, t.Function.Name+"({")
		if t.Function.Name == "" || at <= last {
			continue
		}
		var arguments json.RawMessage
		after := json.NewDecoder(strings.NewReader(text[at+len(t.Function.Name)+1:]))
		if after.Decode(&arguments) == nil {
			last, call = at, &toolCall{name: t.Function.Name, choice: "auto", format: &jsonFormat{&schema{Const: arguments}}}
		}
	}
	return call
}

// textOf is the text of a message's content, a string or a list of parts.
func textOf(content json.RawMessage) string {
	var text string
	if json.Unmarshal(content, &text) == nil {
		return text
	}
	var parts []contentPart
	_ = json.Unmarshal(content, &parts) // what is no list has no text
	for _, part := range parts {
		text += part.Text + "\n"
	}
	return text
}

// finish is the finish_reason of an answer that is this call: as vLLM, a named
// function leaves "stop".
func (c *toolCall) finish(reason string) string {
	if reason == finishStop && c.choice != "named" {
		return "tool_calls"
	}
	return reason
}

// chatCall is a tool call in a chat answer.
type chatCall struct {
	ID       string       `json:"id"`
	Type     string       `json:"type"`
	Function calledByName `json:"function"`
}

type calledByName struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

func (c *toolCall) chat(id, arguments string) chatCall {
	return chatCall{ID: id, Type: "function", Function: calledByName{c.name, arguments}}
}

// chatCallDelta is part of a tool call in a stream: first the head, then arguments.
type chatCallDelta struct {
	Index    int       `json:"index"`
	ID       string    `json:"id,omitempty"`
	Type     string    `json:"type,omitempty"`
	Function callDelta `json:"function"`
}

type callDelta struct {
	Name      string  `json:"name,omitempty"`
	Arguments *string `json:"arguments,omitempty"`
}

// callID is the same for the same request and answer.
func callID(x *exchange, at int) string { return fmt.Sprintf("chatcmpl-tool-%s-%d", x.id, at) }

// script makes the answers to a request follow a format, if there is one.
func (e *Engine) script(g *generation, format *jsonFormat) {
	if format == nil {
		return
	}
	words := bpe.Words()
	for _, prompt := range g.prompts {
		p := e.language.start(g.adapter)
		for _, token := range prompt {
			p = p.after(token)
		}
		g.scripts = append(g.scripts, e.language.tok.Encode(format.write(p, words)))
	}
}
