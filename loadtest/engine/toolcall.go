package engine

import (
	"encoding/json"
	"fmt"

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

// toolCall is the call that a request forces. Left to itself (tool_choice auto) the
// simulated model calls nothing.
type toolCall struct {
	name     string
	required bool // tool_choice "required", else a named function
	format   *jsonFormat
}

// forcedCall reads tools and tool_choice. With "required" the first tool is called.
func (e *Engine) forcedCall(rawTools, rawChoice json.RawMessage) (*toolCall, error) {
	var tools []tool
	if present(rawTools) {
		if err := json.Unmarshal(rawTools, &tools); err != nil {
			return nil, badRequest("tools", "tools: %v", err)
		}
	}
	if !present(rawChoice) {
		return nil, nil
	}
	var word string
	if json.Unmarshal(rawChoice, &word) == nil {
		switch {
		case word == "none" || word == "auto":
			return nil, nil
		case word != "required":
			return nil, badRequest("tool_choice", "Invalid value for `tool_choice`: %q", word)
		case len(tools) == 0:
			return nil, badRequest("tool_choice", "When using `tool_choice`, `tools` must be set.")
		}
		return newToolCall(tools[0], true)
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
			return newToolCall(t, false)
		}
	}
	return nil, badRequest("tool_choice", "The tool specified in `tool_choice` does not match any of the specified `tools`")
}

func newToolCall(t tool, required bool) (*toolCall, error) {
	parameters := t.Function.Parameters
	if !present(parameters) {
		parameters = json.RawMessage(`{"type":"object"}`)
	}
	format, err := newJSONFormat(parameters)
	if err != nil {
		return nil, err
	}
	return &toolCall{name: t.Function.Name, required: required, format: format}, nil
}

// finish is the finish_reason of an answer that is this call: as vLLM, a named
// function leaves "stop".
func (c *toolCall) finish(reason string) string {
	if reason == finishStop && c.required {
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
