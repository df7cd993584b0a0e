package tokens

import (
	"github.com/tandem-gateway/tandem/kvstate/jsonscan"
)

// responseFields are fields of /v1/responses that change no prompt, besides those that
// change none anywhere.
var responseFields = set("text", "parallel_tool_calls", "max_tool_calls", "include_reasoning", "prompt_cache_options",
	"session_id", "watermarking", "enable_response_messages", "structured_outputs", "conversation", "moderation")

// fromResponses reads a request to /v1/responses.
func (f *chatForm) fromResponses(body []byte) {
	var instructions, input, tools, choice []byte
	for m, err := range jsonscan.Members(body) {
		if err != nil {
			f.refuse()
			return
		}
		switch name := string(m.Key); {
		case !present(m.Value), silent[name], responseFields[name]:
		case name == "input":
			input = m.Value
		case name == "instructions":
			instructions = m.Value
		case name == "tools":
			tools = m.Value
		case name == "tool_choice":
			choice = m.Value
		case name == "reasoning":
			f.setEffort(member(m.Value, "effort"))
		case name == "chat_template_kwargs", name == "mm_processor_kwargs", name == "media_io_kwargs":
			f.fields.add(name, m.Value)
		case name == "truncation" && string(m.Value) == `"disabled"`:
		default:
			f.refuse()
		}
	}
	if len(instructions) > 2 {
		f.add(turnOf{role: "system", content: instructions})
	}
	if isText(input) {
		f.add(turnOf{role: "user", content: input})
	} else {
		f.items(input)
	}
	f.responseTools(tools, choice)
}

// items reads the input. Reasoning, text and calls that follow each other are one message of
// the assistant's, each where there is room for it.
func (f *chatForm) items(input []byte) {
	var open *turnOf // the assistant's message, which may become longer
	var last []byte
	end := func() {
		if open != nil {
			f.add(*open)
		}
		open = nil
	}
	begin := func(full bool) *turnOf {
		if open == nil || full {
			end()
			open = &turnOf{role: "assistant"}
		}
		return open
	}
	for item := range f.elements(input) {
		last = item
		kind, role := textIn(memberOf(item, "type")), textIn(memberOf(item, "role"))
		switch {
		case kind == "function_call":
			t := begin(false)
			t.calls = append(t.calls, f.functionCall(item)...)
		case kind == "reasoning":
			t := begin(open != nil && open.reasoning != nil)
			t.reasoning = f.reasoned(item)
		case kind == "function_call_output":
			end()
			f.addResult(member(item, "call_id"), f.parts(member(item, "output")))
		case role == "assistant" && (kind == "" || kind == "message"):
			t := begin(open != nil && open.content != nil)
			t.content = f.firstText(member(item, "content"))
		case (role == "user" || role == "system" || role == "developer") && (kind == "" || kind == "message"):
			end()
			f.add(turnOf{role: role, content: f.parts(member(item, "content"))})
		default:
			f.refuse()
			return
		}
	}
	end()
	switch textIn(memberOf(last, "type")) {
	case "", "message", "reasoning":
		if status := textIn(memberOf(last, "status")); status == "in_progress" || status == "incomplete" {
			f.fields.add("add_generation_prompt", []byte("false"))
			f.fields.add("continue_final_message", []byte("true"))
		}
	}
}

func (f *chatForm) functionCall(item []byte) []byte {
	id, name, arguments := member(item, "call_id"), member(item, "name"), member(item, "arguments")
	if !isText(id) || !isText(name) || !isText(arguments) || member(item, "namespace") != nil {
		f.refuse()
		return nil
	}
	return callOf(id, name, arguments)
}

// reasoned is the text of a reasoning item: the first of its content, else of its summary.
func (f *chatForm) reasoned(item []byte) []byte {
	if sealed := member(item, "encrypted_content"); len(sealed) > 2 {
		f.refuse()
	}
	for _, key := range []string{"content", "summary"} {
		if list := member(item, key); isList(list) {
			if text := member(firstOf(list), "text"); isText(text) {
				return text
			}
		}
	}
	return []byte(`""`)
}

// firstText is what the assistant said: a text, or the first part of a list.
func (f *chatForm) firstText(content []byte) []byte {
	if isList(content) {
		content = member(firstOf(content), "text")
	}
	if !isText(content) {
		f.refuse()
	}
	return content
}

// parts is a content as chat has it: a text, or a list of texts and images.
func (f *chatForm) parts(content []byte) []byte {
	if isText(content) {
		return content
	}
	var out []byte
	for part := range f.elements(content) {
		switch textIn(memberOf(part, "type")) {
		case "text", "input_text", "output_text":
			text := member(part, "text")
			if !isText(text) {
				f.refuse()
				return nil
			}
			out = append(out, textPart(text)...)
		case "input_image":
			url := member(part, "image_url")
			if !isText(url) {
				f.refuse()
				return nil
			}
			out = append(out, imagePart(url)...)
		default:
			f.refuse()
			return nil
		}
	}
	return array(out)
}

// responseTools are the functions among the tools: engines show the model no others.
func (f *chatForm) responseTools(tools, choice []byte) {
	var list []byte
	if tools != nil {
		for tool := range f.elements(tools) {
			switch textIn(memberOf(tool, "type")) {
			case "function":
				list = append(list, toolOf(tool, member(tool, "parameters"))...)
			case "custom", "namespace": // shown in a form that differs by version
				f.refuse()
				return
			}
		}
	}
	if list == nil {
		return
	}
	f.fields.add("tools", array(list))
	if textIn(choice) == "none" {
		f.fields.add("tool_choice", choice)
	}
}
