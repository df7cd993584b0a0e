package tokens

import (
	"bytes"
	"strings"

	"github.com/tandem-gateway/tandem/kvstate/jsonscan"
)

// fromMessages reads a request to /v1/messages. Fields that are not named here have no place
// in the engines' classes, which drop them.
func (f *chatForm) fromMessages(body []byte, inline bool) {
	var system, messages, tools, choice, effort []byte
	disabled := false
	for m, err := range jsonscan.Members(body) {
		if err != nil {
			f.refuse()
			return
		}
		if !present(m.Value) {
			continue
		}
		switch string(m.Key) {
		case "system":
			system = m.Value
		case "messages":
			messages = m.Value
		case "tools":
			tools = m.Value
		case "tool_choice":
			choice = m.Value
		case "output_config":
			effort = member(m.Value, "effort")
		case "thinking":
			disabled = textIn(memberOf(m.Value, "type")) == "disabled"
			if f.engine == engineSGLang { // depends on the model's template there
				f.refuse()
			}
		case "chat_template_kwargs":
			f.fields.add("chat_template_kwargs", m.Value)
		}
	}
	if disabled {
		effort = []byte(`"none"`)
	}
	f.setEffort(effort)
	f.firstSystem(system, messages, inline)
	for m := range f.elements(messages) {
		f.message(m, inline)
	}
	f.messageTools(tools, choice)
}

// firstSystem is the system prompt, with the system messages of the conversation where they
// do not stay in it.
func (f *chatForm) firstSystem(system, messages []byte, inline bool) {
	texts := f.systemTexts(system, false)
	if !inline {
		for m := range f.elements(messages) {
			if textIn(memberOf(m, "role")) == "system" {
				texts = append(texts, f.systemTexts(member(m, "content"), true)...)
			}
		}
	}
	if len(texts) > 0 {
		f.add(turnOf{role: "system", content: joined(texts, f.betweenSystem())})
	}
}

func (f *chatForm) betweenSystem() string {
	if f.engine == engineSGLang {
		return `\n`
	}
	return ""
}

// systemTexts are the texts of a system prompt that engines keep. within tells of one that
// is a message of the conversation.
func (f *chatForm) systemTexts(system []byte, within bool) (texts [][]byte) {
	keep := func(text []byte, whole bool) {
		switch {
		case len(text) <= 2:
		case f.engine == engineSGLang:
			if !whole || strings.TrimSpace(textIn(text)) != "" {
				texts = append(texts, text)
			}
		case (within || !whole) && isAttribution(text):
		default:
			texts = append(texts, text)
		}
	}
	switch {
	case system == nil:
	case isText(system):
		keep(system, true)
	default:
		for block := range f.elements(system) {
			if textIn(memberOf(block, "type")) == "text" {
				if text := member(block, "text"); isText(text) {
					keep(text, false)
				}
			}
		}
	}
	return texts
}

// message reads one turn.
func (f *chatForm) message(m []byte, inline bool) {
	role, content := textIn(memberOf(m, "role")), member(m, "content")
	switch {
	case role == "system":
		if texts := f.systemTexts(content, true); inline && len(texts) > 0 {
			f.add(turnOf{role: role, content: joined(texts, f.betweenSystem())})
		}
	case role != "user" && role != "assistant":
		f.refuse()
	case isText(content):
		f.add(turnOf{role: role, content: content})
	default:
		f.blocks(role, content)
	}
}

// blocks reads the blocks of one turn. vLLM puts the results of tools before all else that
// the user says with them; SGLang keeps the order.
func (f *chatForm) blocks(role string, content []byte) {
	t := turnOf{role: role}
	var parts, lone []byte // lone is the only part, a text
	var thoughts [][]byte
	count := 0
	addText := func(text []byte) {
		parts, lone, count = append(parts, textPart(text)...), text, count+1
	}
	flush := func() {
		switch {
		case count == 1 && lone != nil:
			t.content = lone
		case count > 0:
			t.content = array(parts)
		}
	}
	for block := range f.elements(content) {
		switch textIn(memberOf(block, "type")) {
		case "text":
			text := member(block, "text")
			if text == nil || len(text) == 2 && f.engine != engineSGLang {
				continue
			}
			addText(text)
		case "image":
			url := imageURL(memberOf(block, "source"), f.engine)
			if url == nil {
				f.refuse()
				return
			}
			parts, lone, count = append(parts, imagePart(url)...), nil, count+1
		case "thinking":
			if thought := member(block, "thinking"); isText(thought) {
				thoughts = append(thoughts, thought)
			}
		case "redacted_thinking", "tool_reference":
		case "tool_use":
			t.calls = append(t.calls, f.toolUse(block)...)
		case "tool_result":
			if role != "user" {
				text := member(block, "content")
				if text != nil && !isText(text) {
					f.refuse()
					return
				}
				if text == nil {
					text = []byte(`""`)
				}
				addText(joined([][]byte{[]byte(`"Tool result: "`), text}, ""))
				continue
			}
			if f.engine == engineSGLang && count > 0 {
				flush()
				f.add(t)
				t, parts, lone, count = turnOf{role: role}, nil, nil, 0
			}
			f.toolResult(block)
		default: // changes of the tools within the conversation, and what comes to be
			f.refuse()
			return
		}
	}
	flush()
	if len(thoughts) > 0 {
		if f.engine == engineSGLang { // its place depends on the template
			f.refuse()
		}
		t.reasoning = joined(thoughts, "")
	}
	if t.content == nil && role == "user" {
		return
	}
	if t.content == nil && t.calls == nil && f.engine == engineSGLang {
		t.content = []byte(`""`)
	}
	f.add(t)
}

// toolUse is a call. Engines write its input as text and read that again.
func (f *chatForm) toolUse(block []byte) []byte {
	id, name, input := member(block, "id"), member(block, "name"), member(block, "input")
	if !isText(id) || len(id) == 2 || !isText(name) {
		f.refuse()
		return nil
	}
	if input == nil {
		input = []byte("{}")
	}
	return callOf(id, name, quote(string(input)))
}

// toolResult adds what a tool answered: its texts as lines, and its images as a message of
// the user's after it.
func (f *chatForm) toolResult(block []byte) {
	content := member(block, "content")
	id := member(block, "tool_use_id")
	switch {
	case content == nil:
		f.addResult(id, []byte(`""`))
		return
	case isText(content):
		f.addResult(id, content)
		return
	}
	var texts [][]byte
	var images []byte
	for item := range f.elements(content) {
		switch textIn(memberOf(item, "type")) {
		case "text":
			if text := member(item, "text"); isText(text) {
				texts = append(texts, text)
			}
		case "image":
			url := imageURL(memberOf(item, "source"), f.engine)
			if url == nil || f.engine == engineSGLang {
				f.refuse()
			}
			images = append(images, imagePart(url)...)
		default:
			f.refuse()
		}
	}
	if f.engine == engineSGLang && len(texts) > 1 {
		var parts []byte
		for _, text := range texts {
			parts = append(parts, textPart(text)...)
		}
		f.addResult(id, array(parts))
		return
	}
	f.addResult(id, joined(texts, `\n`))
	if images != nil {
		f.add(turnOf{role: "user", content: array(images)})
	}
}

// imageURL is where an image is, or the image as a URL; nil where there is none.
func imageURL(source []byte, engine string) []byte {
	if textIn(memberOf(source, "type")) == "url" {
		if url := member(source, "url"); isText(url) {
			return url
		}
		return nil
	}
	kind, data := member(source, "media_type"), member(source, "data")
	if kind == nil {
		kind = []byte(`"image/jpeg"`)
		if engine == engineSGLang {
			kind = []byte(`"image/png"`)
		}
	}
	if !isText(kind) || !isText(data) {
		return nil
	}
	return joined([][]byte{[]byte(`"data:"`), kind, []byte(`";base64,"`), data}, "")
}

// messageTools are the tools, and which of them must be called.
func (f *chatForm) messageTools(tools, choice []byte) {
	var list []byte
	if tools != nil {
		for tool := range f.elements(tools) {
			schema := member(tool, "input_schema")
			if schema == nil {
				if f.engine != engineSGLang { // vLLM refuses those of the API's own
					f.refuse()
				}
				continue
			}
			if memberOf(schema, "type") == nil && f.engine != engineSGLang {
				schema = withType(schema)
			}
			if f.engine == engineSGLang && member(tool, "description") == nil {
				tool = append(bytes.TrimSuffix(bytes.TrimSpace(tool), []byte("}")), `,"description":""}`...)
			}
			list = append(list, toolOf(tool, schema)...)
		}
	}
	if list == nil {
		return
	}
	f.fields.add("tools", array(list))
	switch textIn(memberOf(choice, "type")) {
	case "none":
		f.fields.add("tool_choice", []byte(`"none"`))
	default: // which call is forced is no part of the prompt
		f.fields.add("tool_choice", []byte(`"auto"`))
	}
}

// withType is a schema that is one of an object for lack of a type.
func withType(schema []byte) []byte {
	inner := bytes.TrimSpace(schema)
	inner = bytes.TrimSpace(inner[1 : len(inner)-1])
	out := append([]byte{'{'}, inner...)
	if len(inner) > 0 {
		out = append(out, ',')
	}
	return append(out, `"type":"object"}`...)
}
