package messages

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/tandem-gateway/tandem/pd/api"
)

// requestFields are those of a message that are translated or mean nothing to engines.
var requestFields = []string{
	"cache_control", "context_management", "model", "messages", "max_tokens", "metadata", "output_config", "output_format", "service_tier", "stop_sequences",
	"stream", "system", "temperature", "thinking", "tool_choice", "tools", "top_k", "top_p",
}

// ToChat returns the body of the chat request that the engine itself would make of a
// Messages request, or an *InexactError or *InvalidError. A streamed one asks for the usage in every event:
// a message's first event has the prompt's.
func ToChat(request api.Body, engine Engine) ([]byte, error) {
	if engine.Name != SGLang && engine.Name != VLLM {
		return nil, inexact("the engine's conversion is not known")
	}
	if err := hasLimit(request); err != nil {
		return nil, err
	}
	if err := onlyFields(request, "", requestFields...); err != nil {
		return nil, err
	}
	seen := new(parts)
	messages, err := chatMessages(request, engine, seen)
	if err != nil {
		return nil, err
	}
	settings, err := chatSettings(request)
	if err != nil {
		return nil, err
	}
	output, err := chatOutput(request, engine)
	if err != nil {
		return nil, err
	}
	thinking, err := chatThinking(request, engine)
	if err != nil {
		return nil, err
	}
	tools, err := chatTools(request, engine, seen)
	if err != nil {
		return nil, err
	}
	edits := []api.Edit{{Key: "model", Value: request.Get("model")}, {Key: "messages", Value: messages}}
	edits = slices.Concat(edits, settings, output.format, tools)
	if variables := append(thinking, output.effort...); len(variables) > 0 {
		edits = append(edits, api.Edit{Key: "chat_template_kwargs", Value: api.Body{}.With(variables...).Bytes()})
	}
	return api.Body{}.With(edits...).Bytes(), nil
}

// onlyFields names a field of an object that is not known, and what the object is: "" is the request. null counts as
// absent, as it does for engines. A name is the client's, and as long as that likes.
func onlyFields(object api.Body, of string, known ...string) error {
	for _, key := range object.Keys() {
		if slices.Contains(known, key) || object.Get(key).Null() {
			continue
		}
		if of != "" {
			of = " of " + of
		}
		return inexact(fmt.Sprintf("the field %.64q%s", key, of))
	}
	return nil
}

// fieldRequired is how engines say that a field is missing.
const fieldRequired = "Field required"

// hasLimit checks the bound on the answer, which a message must have.
func hasLimit(request api.Body) error {
	value := request.Get("max_tokens")
	if value.Null() {
		return &InvalidError{"max_tokens", fieldRequired}
	}
	if n, ok := value.Int(); !ok || n < 1 {
		return &InvalidError{"max_tokens", "must be a positive whole number"}
	}
	return nil
}

// chatSettings are the fields besides messages and tools. Values go as they came.
func chatSettings(request api.Body) (edits []api.Edit, err error) {
	for _, field := range []struct {
		name, chat string
		valid      func(api.Value) bool
	}{
		{"max_tokens", "max_tokens", isInt},
		{"stream", "stream", isBool},
		{"temperature", "temperature", isNumber},
		{"top_p", "top_p", isNumber},
		{"top_k", "top_k", isInt},
		{"stop_sequences", "stop", isTexts},
		{"metadata", "", isObject},
		{"cache_control", "", isObject},      // caching of Anthropic's own service, for the whole prompt
		{"context_management", "", isObject}, // what that service is to leave out of long conversations, and engines never do
		{"service_tier", "", isText},
	} {
		value := request.Get(field.name)
		if value.Null() {
			continue
		}
		if !field.valid(value) {
			return nil, inexact("the field " + field.name + " has the wrong type")
		}
		if field.chat != "" {
			edits = append(edits, api.Edit{Key: field.chat, Value: value})
		}
	}
	if stream, _ := request.Get("stream").Bool(); stream {
		edits = append(edits, api.Edit{Key: "stream_options", Value: []byte(`{"include_usage":true,"continuous_usage_stats":true}`)})
	}
	return edits, nil
}

// chatThinking are the variables of the template that switch thinking off or on. The vLLM versions that drop the salt drop
// the field too. SGLang sets one of two, whichever the model's template knows (openai/serving_chat.py,
// apply_reasoning_enabled); the other does nothing. It holds no model to a budget, and always shows what it thought.
func chatThinking(request api.Body, engine Engine) ([]api.Edit, error) {
	value := request.Get("thinking")
	if value.Null() {
		return nil, nil
	}
	thinking, _ := value.Object()
	kind, _ := thinking.Get("type").String()
	known := []string{"type", "budget_tokens", "display"}
	switch kind {
	case "enabled", "adaptive":
	case "disabled":
		known = known[:1]
	default:
		return nil, inexact(`the field "thinking"`)
	}
	if err := onlyFields(thinking, "thinking", known...); err != nil {
		return nil, err
	}
	if engine.Name == VLLM {
		return nil, nil
	}
	on := strconv.AppendBool(nil, kind != "disabled")
	return []api.Edit{{Key: "enable_thinking", Value: on}, {Key: "thinking", Value: on}}, nil
}

func isInt(v api.Value) bool { _, ok := v.Int(); return ok }

func isBool(v api.Value) bool { _, ok := v.Bool(); return ok }

func isNumber(v api.Value) bool { return v[0] == '-' || v[0] >= '0' && v[0] <= '9' }

func isText(v api.Value) bool { return len(v) > 0 && v[0] == '"' }

func isObject(v api.Value) bool { return len(v) > 0 && v[0] == '{' }

func isTexts(v api.Value) bool {
	for e := range v.Elements() {
		if !isText(e) {
			return false
		}
	}
	return v.IsArray()
}
