package api

import (
	"bytes"
	"encoding/json"
	"regexp"
	"slices"
	"strconv"

	"github.com/tidwall/gjson"
)

// ErrorText is what an error answer says to the client.
type ErrorText struct {
	Status  int
	Type    string // OpenAI's type, such as invalid_request_error
	Code    string // empty is null
	Param   string // empty is null
	Message string
	Request string // its id, which Anthropic's errors repeat; empty is unknown
	// Sequence is the number of an event of the Responses API, which counts them from 0.
	Sequence int
}

// ErrorBody returns the whole body of an error answer.
func (d *Dialect) ErrorBody(e ErrorText) []byte { return d.errorBody(e) }

// ErrorEvent returns the SSE event that ends a stream which broke. A clean end
// would pass for success in every SDK.
func (d *Dialect) ErrorEvent(e ErrorText) []byte { return d.errorEvent(e) }

func openAIError(e ErrorText) []byte {
	return encode(map[string]any{"error": openAIErrorObject(e)})
}

func openAIErrorObject(e ErrorText) map[string]any {
	return map[string]any{"message": e.Message, "type": e.Type, "param": orNull(e.Param), "code": orNull(e.Code)}
}

func openAIErrorEvent(e ErrorText) []byte {
	return dataEvent("", encode(map[string]any{"error": openAIErrorObject(e)}))
}

// responsesErrorEvent is the Responses API's own error event, as its schema has it (openai
// 3.54 types/responses/response_error_event.py), and with the error object that OpenAI sends
// in it: without that the SDK for Python takes the event for one of the answer and raises
// nothing (openai/_streaming.py).
func responsesErrorEvent(e ErrorText) []byte {
	return dataEvent("error", encode(map[string]any{
		"type": "error", "sequence_number": e.Sequence, "code": orNull(e.Code), "message": e.Message, "param": orNull(e.Param),
		"error": openAIErrorObject(e),
	}))
}

// NextSequence is the number of the event behind these of the Responses API, 0 where none of
// them has one.
func NextSequence(events []byte) int {
	name := []byte(`"sequence_number":`)
	at := bytes.LastIndex(events, name) // in a text its quotes would be escaped
	if at < 0 {
		return 0
	}
	return int(gjson.ParseBytes(events[at+len(name):]).Int()) + 1
}

func anthropicError(e ErrorText) []byte {
	body := map[string]any{"type": "error", "error": map[string]any{"type": anthropicType(e.Status), "message": anthropicMessage(e)}}
	if e.Request != "" {
		body["request_id"] = e.Request
	}
	return encode(body)
}

func anthropicErrorEvent(e ErrorText) []byte { return dataEvent("error", anthropicError(e)) }

// anthropicMessage is what the Messages API says. It has no code for what does not fit the context: clients know that
// by Anthropic's words (langchain_anthropic chat_models.py, _handle_anthropic_bad_request; LiteLLM says the same of Claude
// Code), and shorten the conversation, or ask for a shorter answer.
func anthropicMessage(e ErrorText) string {
	if e.Status != 400 {
		return e.Message
	}
	for _, words := range contextLengthWords {
		found := words.FindStringSubmatch(e.Message)
		if found == nil {
			continue
		}
		longest, prompt := found[words.SubexpIndex("longest")], found[words.SubexpIndex("prompt")]
		if i := words.SubexpIndex("output"); i >= 0 && isLess(prompt, longest) {
			return "input length and `max_tokens` exceed context limit: " + prompt + " + " + found[i] + " > " + longest + ", decrease input length or `max_tokens` and try again"
		}
		return "prompt is too long: " + prompt + " tokens > " + longest + " maximum"
	}
	return e.Message
}

// contextLengthWords are how engines, and pd.ContextLengthError, say that a prompt, or a prompt and its answer, do not fit
// the model: vLLM's renderers/params.py and what it said before, SGLang's managers/tokenizer_manager.py, TensorRT-LLM's
// executor.
var contextLengthWords = []*regexp.Regexp{
	regexp.MustCompile(`maximum context length is (?P<longest>\d+) tokens\. However, your (?:request|prompt) has (?P<prompt>\d+)`),
	regexp.MustCompile(`maximum context length is (?P<longest>\d+) tokens\. However, you requested (?P<output>\d+) output tokens and your prompt contains (?:at least )?(?P<prompt>\d+) input tokens`),
	regexp.MustCompile(`maximum context length is (?P<longest>\d+) tokens\. However, you requested \d+ tokens \((?P<prompt>\d+) in the (?:messages|prompt), (?P<output>\d+) in the completion\)`),
	regexp.MustCompile(`maximum context length is (?P<longest>\d+) tokens\. However, you requested (?P<prompt>\d+) tokens in the messages`),
	regexp.MustCompile(`sum of prompt length \((?P<prompt>\d+)(?:\.\d+)?\), query length \(\d+(?:\.\d+)?\) should not exceed max_num_tokens \((?P<longest>\d+)\)`),
	regexp.MustCompile(`is too large: (?P<output>\d+)\. This model's maximum context length is (?P<longest>\d+) tokens and your request has (?P<prompt>\d+) input tokens`),
	regexp.MustCompile(`The input \((?P<prompt>\d+) tokens\) is longer than the model's context length \((?P<longest>\d+) tokens\)`),
	regexp.MustCompile(`maximum context length of (?P<longest>\d+) tokens\. You requested a total of \d+ tokens: (?P<prompt>\d+) tokens from the input messages and (?P<output>\d+) tokens for the completion`),
}

// SaysTooLong reports whether these are an engine's words of a prompt, or a prompt and its answer, that do not fit the
// model.
func SaysTooLong(message string) bool {
	return slices.ContainsFunc(contextLengthWords, func(words *regexp.Regexp) bool { return words.MatchString(message) })
}

// isLess compares two numbers of tokens, in digits; one of too many digits counts as the largest there is.
func isLess(a, b string) bool {
	x, _ := strconv.Atoi(a)
	y, _ := strconv.Atoi(b)
	return x < y
}

// StatusOverloaded is Anthropic's for a service that is at capacity.
const StatusOverloaded = 529

// anthropicType is the type that the Messages API gives to a status: one of the SDK's
// (anthropic 2.12 types/shared/error_type.py), and the one that only its documentation has, of
// 413.
func anthropicType(status int) string {
	switch status {
	case 401:
		return "authentication_error"
	case 402:
		return "billing_error"
	case 403:
		return "permission_error"
	case 404:
		return "not_found_error"
	case 409:
		return "conflict_error"
	case 408, 504:
		return "timeout_error"
	case 413:
		return "request_too_large"
	case 429:
		return "rate_limit_error"
	case 503, StatusOverloaded:
		return "overloaded_error"
	}
	if status >= 400 && status < 500 {
		return "invalid_request_error"
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
