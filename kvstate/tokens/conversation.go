package tokens

import (
	"slices"
	"strings"

	"github.com/tandem-gateway/tandem/kvstate/jsonscan"
	"github.com/tandem-gateway/tandem/kvstate/tokens/jinja"
)

// conversation is a chat as a template gets it. What engines make of a request's messages and
// tools follows vLLM 0.32.0: vllm/renderers/chat_utils.py (_parse_chat_message_content,
// _postprocess_messages), vllm/renderers/hf.py (safe_apply_chat_template),
// vllm/entrypoints/openai/chat_completion/protocol.py (ChatCompletionToolsParam) and
// generate/base/protocol.py (FunctionDefinition). SGLang's way with tools, calls and several parts
// is another, which is not followed: such chats are refused there.
type conversation struct {
	messages      []chatMessage
	tools         jinja.Value // a list, or nil
	addGeneration bool
	variables     map[string]jinja.Value // chat_template_kwargs
	extraParts    bool                   // a part has more than its text
	plain         bool                   // only roles and texts may be read
}

// chatMessage is one message.
type chatMessage struct {
	role   string
	texts  []string // of its parts
	fields jinja.Dict
	merged bool // of several, so that its content is a text
}

// conversation reads a chat request, or one to /v1/responses or /v1/messages as the chat that
// the engine makes of it. What could be rendered otherwise is refused.
func (p *Prompt) conversation() (*conversation, bool) {
	body := p.Body
	if p.API == Messages || p.API == Responses {
		chat, ok := p.asChat(true)
		if !ok {
			return nil, false
		}
		body = chat
	}
	c := &conversation{addGeneration: true, plain: p.engine == engineSGLang}
	for m, err := range jsonscan.Members(body) {
		if err != nil || !c.readField(string(m.Key), m.Value) {
			return nil, false
		}
	}
	return c, len(c.messages) > 0
}

// readField takes in a field of the request, and is false for one that is not followed.
func (c *conversation) readField(name string, raw []byte) bool {
	switch name {
	case "messages":
		return c.readMessages(raw)
	case "tools":
		return c.readTools(raw)
	case "tool_choice":
		// With "none" a setting of the engine says whether the template gets the tools.
		return string(raw) != `"none"`
	case "add_generation_prompt":
		c.addGeneration = string(raw) == "true"
		return true
	case "chat_template_kwargs":
		return !present(raw) || c.readVariables(raw)
	case "continue_final_message", "add_special_tokens":
		return !present(raw) || string(raw) == "false"
	}
	return silent[name] || harmless[name] || !present(raw)
}

// notVariables are what a request cannot set by chat_template_kwargs without changing more than
// a variable: the arguments of transformers' apply_chat_template.
var notVariables = set("messages", "conversation", "tools", "documents", "chat_template", "add_generation_prompt", "continue_final_message",
	"tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs")

func (c *conversation) readVariables(raw []byte) bool {
	v, err := jinja.ParseJSON(raw)
	d, is := v.(*jinja.Dict)
	if err != nil || !is {
		return false
	}
	c.variables = make(map[string]jinja.Value, d.Len())
	for name, v := range d.All {
		if notVariables[name] {
			return false
		}
		c.variables[name] = v
	}
	return true
}

func (c *conversation) readMessages(raw []byte) bool {
	v, err := jinja.ParseJSON(raw)
	l, is := v.(*jinja.List)
	if err != nil || !is {
		return false
	}
	for _, v := range l.Items {
		message, is := v.(*jinja.Dict)
		if !is || !c.readMessage(message) {
			return false
		}
	}
	return true
}

// readMessage takes in one message. The order of its fields for the template is vLLM's.
func (c *conversation) readMessage(raw *jinja.Dict) bool {
	role, _ := raw.Get("role")
	m := chatMessage{}
	var isText bool
	if m.role, isText = role.(string); !isText {
		return false
	}
	content, has := raw.Get("content")
	if !c.readContent(&m, content) || c.plain && (!has || content == nil) {
		return false
	}
	if m.role == "system" && slices.ContainsFunc(m.texts, func(t string) bool { return strings.HasPrefix(t, attribution) }) {
		return false // newer engines leave a line out
	}
	for name, v := range raw.All {
		switch {
		case name == "role", name == "content", name == "cache_control", v == nil:
		case name == "type" && v == "message":
		case c.plain:
			return false
		case name == "tool_calls" && m.role == "assistant", name == "tool_call_id" && m.role == "tool", name == "name":
		case (name == "reasoning" || name == "reasoning_content") && m.role == "assistant":
		default:
			return false
		}
	}
	if !m.readCalls(raw) || !m.readTexts(raw) {
		return false
	}
	c.messages = append(c.messages, m)
	return true
}

// readContent takes in a text, or a list of parts that are texts.
func (c *conversation) readContent(m *chatMessage, content jinja.Value) bool {
	switch content := content.(type) {
	case nil:
		return true
	case string:
		m.texts = []string{content}
		return true
	case *jinja.List:
		if c.plain && len(content.Items) != 1 {
			return false
		}
		for _, v := range content.Items {
			part, is := v.(*jinja.Dict)
			if !is {
				return false
			}
			kind, _ := part.Get("type")
			text, _ := part.Get("text")
			s, isText := text.(string)
			if !isText || kind != "text" && (!c.plain || kind != "input_text" && kind != "output_text") {
				return false
			}
			for name := range part.All {
				c.extraParts = c.extraParts || name != "type" && name != "text"
				if name != "type" && name != "text" && name != "cache_control" {
					return false
				}
			}
			m.texts = append(m.texts, s)
		}
		return true
	}
	return false
}

// readCalls takes in the calls of an assistant, with their arguments as mappings. Arguments that
// are no JSON object engines replace by an empty one, or not, by their version.
func (m *chatMessage) readCalls(raw *jinja.Dict) bool {
	v, _ := raw.Get("tool_calls")
	l, is := v.(*jinja.List)
	if v == nil || is && len(l.Items) == 0 {
		return true
	}
	if !is {
		return false
	}
	calls, ok := readEach(l, readCall)
	if ok {
		m.fields.Set("tool_calls", calls)
	}
	return ok
}

// readEach reads the objects of a list, false if one of them is none or cannot be read.
func readEach(l *jinja.List, read func(*jinja.Dict) (*jinja.Dict, bool)) (*jinja.List, bool) {
	all := jinja.NewList()
	for _, v := range l.Items {
		raw, is := v.(*jinja.Dict)
		if !is {
			return nil, false
		}
		one, ok := read(raw)
		if !ok {
			return nil, false
		}
		all.Items = append(all.Items, one)
	}
	return all, true
}

// readCall is a call in the order of vLLM's validated form.
func readCall(raw *jinja.Dict) (*jinja.Dict, bool) {
	id, hasID := raw.Get("id")
	kind, _ := raw.Get("type")
	v, _ := raw.Get("function")
	function, is := v.(*jinja.Dict)
	if _, isText := id.(string); !hasID || !isText || kind != "function" || !is || raw.Len() != 3 || function.Len() != 2 {
		return nil, false
	}
	name, _ := function.Get("name")
	text, _ := function.Get("arguments")
	arguments, isText := text.(string)
	if _, named := name.(string); !named || !isText {
		return nil, false
	}
	read := new(jinja.Dict)
	if arguments != "" {
		v, err := jinja.ParseJSON([]byte(arguments))
		if read, is = v.(*jinja.Dict); err != nil || !is {
			return nil, false
		}
	}
	of, call := new(jinja.Dict), new(jinja.Dict)
	of.Set("arguments", read)
	of.Set("name", name)
	call.Set("id", id)
	call.Set("function", of)
	call.Set("type", kind)
	return call, true
}

// readTexts takes in the fields of a message that are texts.
func (m *chatMessage) readTexts(raw *jinja.Dict) bool {
	reasoning, _ := raw.Get("reasoning")
	if old, _ := raw.Get("reasoning_content"); reasoning == nil {
		reasoning = old
	}
	id, _ := raw.Get("tool_call_id")
	name, _ := raw.Get("name")
	for _, f := range []struct {
		name  string
		value jinja.Value
	}{{"reasoning", reasoning}, {"reasoning_content", reasoning}, {"tool_call_id", id}, {"name", name}} {
		if f.value == nil {
			continue
		}
		if _, is := f.value.(string); !is {
			return false
		}
		m.fields.Set(f.name, f.value)
	}
	return true
}

// readTools takes in the tools, in the order of vLLM's model of them and with null for what is
// left out; only the schema keeps the request's order.
func (c *conversation) readTools(raw []byte) bool {
	if !present(raw) {
		return true
	}
	v, err := jinja.ParseJSON(raw)
	l, is := v.(*jinja.List)
	if err != nil || !is || c.plain && len(l.Items) > 0 {
		return false
	}
	if len(l.Items) == 0 {
		return true // new versions refuse it, and older ones have no tools then
	}
	tools, ok := readEach(l, readTool)
	if ok {
		c.tools = tools
	}
	return ok
}

func readTool(raw *jinja.Dict) (*jinja.Dict, bool) {
	kind, hasKind := raw.Get("type")
	v, _ := raw.Get("function")
	function, is := v.(*jinja.Dict)
	if !is || hasKind && kind != "function" || raw.Len() > 2 || raw.Len() == 2 && !hasKind {
		return nil, false
	}
	of, tool := new(jinja.Dict), new(jinja.Dict)
	for _, field := range []string{"name", "description", "parameters", "strict"} {
		v, _ := function.Get(field)
		valid := v == nil && field != "name"
		switch v.(type) {
		case string:
			valid = field == "name" || field == "description"
		case *jinja.Dict:
			valid = field == "parameters"
		case bool:
			valid = field == "strict"
		}
		if !valid {
			return nil, false
		}
		if v != nil || field != "strict" {
			of.Set(field, v)
		}
	}
	for name, v := range function.All {
		if _, known := of.Get(name); !known && (v != nil || name != "strict") {
			return nil, false
		}
	}
	tool.Set("type", "function")
	tool.Set("function", of)
	return tool, true
}

// values are the messages for a template, which knows developers or not, with contents as texts
// or as parts.
func (c *conversation) values(developer, parts bool) []jinja.Value {
	messages := c.messages
	if !c.plain && !developer && slices.ContainsFunc(messages, func(m chatMessage) bool { return m.role == "developer" }) {
		messages = withoutDevelopers(messages)
	}
	values := make([]jinja.Value, len(messages))
	for i := range messages {
		values[i] = messages[i].value(parts)
	}
	return values
}

// withoutDevelopers makes system messages of those of developers, and one at the beginning of
// several or of one that stands elsewhere.
func withoutDevelopers(messages []chatMessage) []chatMessage {
	var system []string
	var systems []chatMessage
	var others []chatMessage
	first := true
	for i, m := range messages {
		if m.role != "system" && m.role != "developer" {
			others = append(others, m)
			continue
		}
		m.role = "system"
		first = first && i == 0
		systems = append(systems, m)
		if text := strings.Join(m.texts, "\n"); text != "" {
			system = append(system, text)
		}
	}
	if len(systems) == 1 && first {
		return append(systems, others...)
	}
	return append([]chatMessage{{role: "system", texts: []string{strings.Join(system, "\n\n")}, merged: true}}, others...)
}

// value is a message for a template.
func (m *chatMessage) value(parts bool) *jinja.Dict {
	d := new(jinja.Dict)
	d.Set("role", m.role)
	if parts && m.role != "tool" && !m.merged {
		l := jinja.NewList()
		for _, text := range m.texts {
			part := new(jinja.Dict)
			part.Set("type", "text")
			part.Set("text", text)
			l.Items = append(l.Items, part)
		}
		d.Set("content", l)
	} else {
		d.Set("content", strings.Join(m.texts, "\n"))
	}
	for name, v := range m.fields.All {
		d.Set(name, v)
	}
	if m.role == "developer" {
		d.Set("tools", nil)
	}
	return d
}
