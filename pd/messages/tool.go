package messages

import (
	"slices"

	"github.com/tandem-gateway/tandem/pd/api"
)

// chatTools are the fields tools and tool_choice of a chat, none without tools. An empty list is none, as in Anthropic's
// API, and agents without tools send it: vLLM would refuse it in a chat, and of a message hands it to its template,
// of which some then announce functions that are not there.
func chatTools(request api.Body, engine Engine, seen *parts) ([]api.Edit, error) {
	list, choice := request.Get("tools"), request.Get("tool_choice")
	if !list.Null() && !list.IsArray() {
		return nil, inexact("tools must be a list")
	}
	var tools []api.Value
	var names []string
	for raw := range list.Elements() {
		if err := seen.add(); err != nil {
			return nil, err
		}
		tool, name, err := chatTool(raw, engine)
		if err != nil {
			return nil, err
		}
		tools, names = append(tools, tool), append(names, name)
	}
	if len(tools) == 0 {
		if !choice.Null() {
			return nil, inexact("a choice of tools without tools")
		}
		return nil, nil
	}
	chosen, err := chatChoice(choice, names)
	if err != nil {
		return nil, err
	}
	return []api.Edit{{Key: "tools", Value: api.List(tools)}, {Key: "tool_choice", Value: chosen}}, nil
}

// chatTool translates one tool. A schema without a type is one of an object; a missing
// description is empty in SGLang and null in vLLM. The class of a tool of either (AnthropicTool) drops cache_control and
// eager_input_streaming.
func chatTool(raw api.Value, engine Engine) (tool api.Value, name string, err error) {
	t, ok := raw.Object()
	if !ok {
		return nil, "", inexact("a tool must be an object in which no field appears twice")
	}
	if err := onlyFields(t, "a tool", "type", "name", "description", "input_schema", "cache_control", "eager_input_streaming"); err != nil {
		return nil, "", err
	}
	if kind, _ := t.Get("type").String(); !t.Get("type").Null() && kind != "custom" {
		return nil, "", inexact("a tool that is not the client's own")
	}
	name, ok = t.Get("name").String()
	schema, also := t.Get("input_schema").Object()
	if !ok || name == "" || !also {
		return nil, "", inexact("a tool without a name or a schema")
	}
	if schema.Get("type") == nil {
		schema = schema.With(api.Edit{Key: "type", Value: []byte(`"object"`)})
	}
	function := []api.Edit{{Key: "name", Value: t.Get("name")}}
	switch description := t.Get("description"); {
	case isText(description):
		function = append(function, api.Edit{Key: "description", Value: description})
	case !description.Null():
		return nil, "", inexact("a description that is no text")
	case engine.Name == SGLang:
		function = append(function, api.Edit{Key: "description", Value: []byte(`""`)})
	}
	function = append(function, api.Edit{Key: "parameters", Value: schema.Bytes()})
	return functionOf(nil, function), name, nil
}

// chatChoice translates tool_choice; without one the model chooses.
func chatChoice(choice api.Value, names []string) ([]byte, error) {
	if choice.Null() {
		return []byte(`"auto"`), nil
	}
	c, ok := choice.Object()
	if !ok {
		return nil, inexact("tool_choice must be an object in which no field appears twice")
	}
	if err := onlyFields(c, "tool_choice", "type", "name", "disable_parallel_tool_use"); err != nil {
		return nil, err
	}
	kind, _ := c.Get("type").String()
	alone := c.Get("disable_parallel_tool_use")
	isOneAnyway := kind == "tool" && string(alone) == "true" // engines call a tool that is named once
	if !alone.Null() && string(alone) != "false" && !isOneAnyway {
		return nil, inexact("disable_parallel_tool_use, which only some versions of engines follow")
	}
	if kind != "tool" && !c.Get("name").Null() {
		return nil, inexact("a tool_choice that names a tool without choosing it")
	}
	switch kind {
	case "auto", "none":
		return quote(kind), nil
	case "any":
		return []byte(`"required"`), nil
	case "tool":
		if name, ok := c.Get("name").String(); ok && slices.Contains(names, name) {
			return functionOf(nil, []api.Edit{{Key: "name", Value: c.Get("name")}}), nil
		}
		return nil, inexact("a tool_choice that names none of the tools")
	}
	return nil, inexact("a tool_choice of unknown type")
}

// toolCall translates a call that the assistant made.
func (c *conversation) toolCall(block api.Body) (api.Value, error) {
	if err := onlyFields(block, "a tool_use", "type", "id", "name", "input", "cache_control"); err != nil {
		return nil, err
	}
	id, name, input := block.Get("id"), block.Get("name"), block.Get("input")
	if !isFilled(id) || !isFilled(name) {
		return nil, inexact("a tool_use without an id or a name")
	}
	if input.Null() {
		input = api.Value("{}")
	}
	if !isObject(input) {
		return nil, inexact("a tool_use whose input is no object")
	}
	arguments, err := pythonJSON(input, c.parts)
	if err != nil {
		return nil, err
	}
	return functionOf([]api.Edit{{Key: "id", Value: id}}, []api.Edit{{Key: "name", Value: name}, {Key: "arguments", Value: quote(arguments)}}), nil
}

// toolResult translates what a tool answered. Whether it was an error engines do not tell
// the model.
func (c *conversation) toolResult(block api.Body) error {
	if err := onlyFields(block, "a tool_result", "type", "tool_use_id", "content", "is_error", "cache_control"); err != nil {
		return err
	}
	id, content := block.Get("tool_use_id"), block.Get("content")
	if !isFilled(id) {
		return inexact("a tool_result without a tool_use_id")
	}
	if failed := block.Get("is_error"); !failed.Null() && !isBool(failed) {
		return inexact("an is_error that is neither true nor false")
	}
	switch {
	case content.Null():
		content = api.Value(`""`)
	case content.IsArray():
		texts, err := c.resultOf(content)
		if err != nil {
			return err
		}
		content = texts
	case !isText(content):
		return inexact("a tool_result that is neither a text nor a list of texts")
	}
	c.add(api.Edit{Key: "role", Value: []byte(`"tool"`)}, api.Edit{Key: "tool_call_id", Value: id}, api.Edit{Key: "content", Value: content})
	return nil
}

// resultOf is what a tool answered in a list of texts and images: SGLang leaves the list to the template.
func (c *conversation) resultOf(list api.Value) (api.Value, error) {
	if c.engine.Name == SGLang {
		return c.partsOfResult(list)
	}
	if !c.engine.JoinsResults {
		return nil, inexact("a tool_result that is a list, where vLLM before 0.24 reads one text: join its texts into one")
	}
	texts, err := c.texts(list)
	if err != nil {
		return nil, err
	}
	return joinTexts(texts, `\n`), nil
}

func (c *conversation) partsOfResult(list api.Value) (api.Value, error) {
	var parts []api.Value
	var text api.Value // the last
	for raw := range list.Elements() {
		b, kind, err := c.block(raw)
		if err != nil {
			return nil, err
		}
		var part api.Value
		switch kind {
		case "text":
			if text, err = textOf(b); err != nil {
				return nil, err
			}
			part = textPart(text)
		case "image":
			if part, err = c.imagePart(b); err != nil {
				return nil, err
			}
		default:
			return nil, inexact("a block of a tool_result that is neither text nor an image")
		}
		parts = append(parts, part)
	}
	return contentOf(parts, text), nil
}

// contentOf is the content of a message of parts: one text is a string. text is the last of them, nil if there is none.
func contentOf(parts []api.Value, text api.Value) api.Value {
	switch {
	case len(parts) == 0:
		return api.Value(`""`)
	case len(parts) == 1 && text != nil:
		return text
	}
	return api.List(parts)
}

func isFilled(v api.Value) bool { return isText(v) && string(v) != `""` }

// functionOf is how chat wraps a tool, a call and a choice.
func functionOf(before, function []api.Edit) api.Value {
	edits := append(slices.Clone(before),
		api.Edit{Key: "type", Value: []byte(`"function"`)},
		api.Edit{Key: "function", Value: api.Body{}.With(function...).Bytes()})
	return api.Body{}.With(edits...).Bytes()
}
