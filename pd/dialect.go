package pd

import (
	"bytes"
	"encoding/json"

	"github.com/tidwall/gjson"
)

// Dialect is how one API path speaks: which fields bound its output, what its
// stream events mean, where its usage stands, how it says an error.
type Dialect struct {
	Name string // label in metrics
	Path string

	// Split requests run as a prefill and a decode; others go to one server.
	Split bool
	// Native is an engine's own API, which only some servers speak.
	Native bool
	// Anthropic is an API of theirs, whose errors name the request.
	Anthropic bool
	// limits are the fields that bound the output, as its engines read them: of several
	// the last that is set counts. The first is the dialect's own: it is always set on
	// the prefill leg, the others only where the client sent them.
	limits []string

	inspect func(data []byte) glance
	// usages are the places of a usage object in a body or an event.
	usages []string
	// prompt, output, cached and created are paths inside a usage object, in tokens: of the
	// prompt, of it what was in a cache, and what was written to one.
	prompt, output  string
	cached, created []string
	// cacheApart: the prompt's number leaves out what was cached and created.
	cacheApart bool

	errorBody  func(ErrorText) []byte
	errorEvent func(ErrorText) []byte
}

func anthropic(d *Dialect) *Dialect {
	d.Anthropic, d.errorBody, d.errorEvent = true, anthropicError, anthropicErrorEvent
	return d
}

// ErrorText is what a client is told of a failure.
type ErrorText struct {
	Status  int
	Type    string // OpenAI's type, such as invalid_request_error
	Code    string // empty is null
	Param   string // empty is null
	Message string
	Request string // its id, which Anthropic's errors repeat; empty is unknown
}

// glance is what one stream event means.
type glance struct {
	content  bool   // generated content: the engine has answered
	end      bool   // the stream is complete
	failure  string // the engine reports a failure
	finished []int  // choices that end with it
}

// The APIs that Tandem serves.
var (
	// vLLM 0.32 and SGLang take max_completion_tokens before max_tokens (chat_completion
	// /protocol.py, openai/protocol.py); TensorRT-LLM reads max_tokens alone
	// (serve/openai_protocol.py, validation_alias).
	Chat = &Dialect{
		Name: "chat", Path: "/v1/chat/completions", Split: true,
		limits: []string{"max_tokens", "max_completion_tokens"}, inspect: inspectChat,
		usages: []string{"usage"}, prompt: "prompt_tokens", output: "completion_tokens",
		cached: []string{"prompt_tokens_details", "cached_tokens"}, created: []string{"prompt_tokens_details", "created_cache_tokens"},
		errorBody: openAIError, errorEvent: openAIErrorEvent,
	}
	Completions = &Dialect{
		Name: "completions", Path: "/v1/completions", Split: true,
		limits: []string{"max_tokens"}, inspect: inspectCompletions,
		usages: []string{"usage"}, prompt: "prompt_tokens", output: "completion_tokens",
		cached: []string{"prompt_tokens_details", "cached_tokens"}, created: []string{"prompt_tokens_details", "created_cache_tokens"},
		errorBody: openAIError, errorEvent: openAIErrorEvent,
	}
	Responses = &Dialect{
		Name: "responses", Path: "/v1/responses", Split: true,
		limits: []string{"max_output_tokens"}, inspect: inspectResponses,
		usages: []string{"usage", "response.usage"}, prompt: "input_tokens", output: "output_tokens",
		cached: []string{"input_tokens_details", "cached_tokens"}, created: []string{"input_tokens_details", "cache_write_tokens"},
		errorBody: openAIError, errorEvent: responsesErrorEvent,
	}
	Messages = &Dialect{
		Name: "messages", Path: "/v1/messages", Split: true,
		limits: []string{"max_tokens"}, inspect: inspectMessages,
		usages: []string{"usage", "message.usage"}, prompt: "input_tokens", output: "output_tokens",
		cached: []string{"cache_read_input_tokens"}, created: []string{"cache_creation_input_tokens"}, cacheApart: true,
		Anthropic: true, errorBody: anthropicError, errorEvent: anthropicErrorEvent,
	}
	Embeddings = single("embeddings", "/v1/embeddings")
	// CountTokens is asked by agents that speak the Messages API.
	CountTokens = anthropic(single("count_tokens", "/v1/messages/count_tokens"))
	Tokenize    = single("tokenize", "/tokenize")
	Detokenize  = single("detokenize", "/detokenize")
)

// Dialects lists them all.
func Dialects() []*Dialect {
	return []*Dialect{Chat, Completions, Responses, Messages, Generate, Embeddings, CountTokens, Tokenize, Detokenize}
}

func single(name, path string) *Dialect {
	return &Dialect{
		Name: name, Path: path, inspect: inspectCompletions,
		usages: []string{"usage"}, prompt: "prompt_tokens", output: "completion_tokens",
		errorBody: openAIError, errorEvent: openAIErrorEvent,
	}
}

// Limits are the fields by which a client bounds an answer, the dialect's own first. Of
// several that are set the last counts.
func (d *Dialect) Limits() []string { return d.limits }

// ErrorBody returns the whole body of an error answer.
func (d *Dialect) ErrorBody(e ErrorText) []byte { return d.errorBody(e) }

// ErrorEvent returns the SSE event that ends a stream which broke. A clean end
// would pass for success in every SDK.
func (d *Dialect) ErrorEvent(e ErrorText) []byte { return d.errorEvent(e) }

func inspectChat(data []byte) glance {
	g, choices := inspectChunk(data)
	for _, c := range choices {
		// The engine opens with a chunk that only names the role.
		delta := c.Get("delta")
		bare := delta.Get("role").Exists() && delta.Get("content").String() == "" &&
			!delta.Get("tool_calls").Exists() && delta.Get("reasoning_content").String() == "" &&
			delta.Get("reasoning").String() == ""
		g.content = g.content || !bare || c.Get("finish_reason").String() != ""
	}
	return g
}

func inspectCompletions(data []byte) glance {
	g, choices := inspectChunk(data)
	g.content = g.content || len(choices) > 0
	return g
}

// inspectChunk reads what chat and completions have in common.
func inspectChunk(data []byte) (glance, []gjson.Result) {
	if string(data) == "[DONE]" {
		return glance{end: true}, nil
	}
	if failure := engineError(data); failure != "" {
		return glance{failure: failure}, nil
	}
	choices := gjson.GetBytes(data, "choices").Array()
	var g glance
	for _, c := range choices {
		switch c.Get("finish_reason").String() {
		case "":
		case "error", "abort": // the engine gave it up
			return glance{failure: "the engine ended the answer with an error"}, nil
		default:
			g.finished = append(g.finished, int(c.Get("index").Int()))
		}
	}
	return g, choices
}

// engineError returns the message of an error object, nested as newer engines
// send it or flat as older ones did, and "" if there is none.
func engineError(data []byte) string {
	scan := scanner{raw: data}
	if scan.document() != nil {
		return "the engine sent an event that is not JSON"
	}
	found := gjson.GetManyBytes(data, "error", "object", "message")
	switch {
	case found[0].IsObject():
		return orDefault(found[0].Get("message").String())
	case found[0].Type == gjson.String:
		return orDefault(found[0].String())
	case found[1].String() == "error":
		return orDefault(found[2].String())
	}
	return ""
}

func orDefault(message string) string {
	if message == "" {
		return "the engine reported an error"
	}
	return message
}

func inspectResponses(data []byte) glance {
	if string(data) == "[DONE]" {
		return glance{end: true}
	}
	switch kind := gjson.GetBytes(data, "type").String(); kind {
	case "response.created", "response.in_progress", "response.queued",
		"response.output_item.added", "response.content_part.added", "response.reasoning_part.added":
		return glance{}
	case "response.completed", "response.incomplete":
		return glance{content: true, end: true}
	case "response.failed":
		return glance{failure: orDefault(gjson.GetBytes(data, "response.error.message").String())}
	case "error":
		return glance{failure: orDefault(gjson.GetBytes(data, "message").String())}
	case "":
		return glance{failure: orDefault(engineError(data))}
	}
	return glance{content: true}
}

func inspectMessages(data []byte) glance {
	switch gjson.GetBytes(data, "type").String() {
	case "message_start", "content_block_start", "ping":
		return glance{}
	case "message_stop":
		return glance{content: true, end: true}
	case "error", "":
		return glance{failure: orDefault(engineError(data))}
	}
	return glance{content: true}
}

func openAIError(e ErrorText) []byte {
	return encode(map[string]any{"error": openAIErrorObject(e)})
}

func openAIErrorObject(e ErrorText) map[string]any {
	return map[string]any{"message": e.Message, "type": e.Type, "param": orNull(e.Param), "code": orNull(e.Code)}
}

func openAIErrorEvent(e ErrorText) []byte {
	return dataEvent("", encode(map[string]any{"error": openAIErrorObject(e)}))
}

// responsesErrorEvent is the Responses API's own error event.
func responsesErrorEvent(e ErrorText) []byte {
	return dataEvent("error", encode(map[string]any{
		"type": "error", "code": orNull(e.Code), "message": e.Message, "param": orNull(e.Param),
	}))
}

func anthropicError(e ErrorText) []byte {
	body := map[string]any{"type": "error", "error": map[string]any{"type": anthropicType(e.Status), "message": e.Message}}
	if e.Request != "" {
		body["request_id"] = e.Request
	}
	return encode(body)
}

func anthropicErrorEvent(e ErrorText) []byte { return dataEvent("error", anthropicError(e)) }

// anthropicType is the type that the Messages API gives to a status.
func anthropicType(status int) string {
	switch status {
	case 400, 405, 415, 422:
		return "invalid_request_error"
	case 401:
		return "authentication_error"
	case 403:
		return "permission_error"
	case 404:
		return "not_found_error"
	case 413:
		return "request_too_large"
	case 429:
		return "rate_limit_error"
	case 503, 529:
		return "overloaded_error"
	}
	return "api_error"
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func encode(v any) []byte {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // maps of strings always encode
	return bytes.TrimSpace(buf.Bytes())
}

func dataEvent(name string, data []byte) []byte {
	var out []byte
	if name != "" {
		out = append(out, "event: "+name+"\n"...)
	}
	out = append(out, "data: "...)
	out = append(out, data...)
	return append(out, "\n\n"...)
}
