package transcript

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/tandem-gateway/tandem/pd/api"
)

// Which requests can be continued by token ids. A field that is not listed here is not
// understood, and what is not understood is not continued.

// copiedFields are the fields that a continuation takes over: how each next token is drawn,
// and how it is written.
var copiedFields = []string{
	"temperature", "top_p", "top_k", "min_p", "logit_bias", "allowed_token_ids", "ignore_eos", "stop_token_ids", "include_stop_str_in_output",
	"skip_special_tokens", "spaces_between_special_tokens", "cache_salt", "priority", "return_token_ids",
}

// spentFields are the fields that have done their work when the first token is there, or that
// a continuation has anew.
var spentFields = []string{
	"model", "messages", "prompt", "stream", "stream_options", "max_tokens", "max_completion_tokens", "min_tokens", "n", "best_of",
	"add_generation_prompt", "add_special_tokens", "chat_template", "chat_template_kwargs", "documents", "truncate_prompt_tokens", "reasoning_effort",
	"parallel_tool_calls", "user", "metadata", "store", "safety_identifier", "prompt_cache_key", "service_tier",
}

// neutralValues are values that say no more than the field's absence.
var neutralValues = map[string][]string{
	"presence_penalty": {"0", "0.0"}, "frequency_penalty": {"0", "0.0"}, "repetition_penalty": {"1", "1.0"}, "length_penalty": {"1", "1.0"},
	"top_logprobs": {"0"}, "tool_choice": {`"none"`, `"auto"`}, "response_format": {`{"type":"text"}`, `{"type": "text"}`},
}

// nothing are values that say no more than the absence of any field.
var nothing = []string{"false", "[]", "{}", `""`}

// hidingFields hide the reasoning before an answer where they are false, or tell it when it is over, or as text of the
// answer. vLLM hides the ids and likelihoods of all tokens with it (0.32, parser/abstract_parser.py, parse_delta, and
// entrypoints/openai/chat_completion/serving.py, hide_stream_metadata); the others are SGLang's
// (srt/entrypoints/openai/protocol.py).
var hidingFields = []string{"include_reasoning", "stream_reasoning", "separate_reasoning"}

// hides reports whether a field hides reasoning.
func hides(key string, v api.Value) bool {
	return string(v) == "false" && slices.Contains(hidingFields, key)
}

// HidesReasoning reports whether a stream says nothing while its engine reasons.
func HidesReasoning(body api.Body) bool {
	return hides("include_reasoning", body.Get("include_reasoning")) || hides("stream_reasoning", body.Get("stream_reasoning"))
}

// mayHideIDs reports whether the ids of tokens may be missing for what the request says. Without effort vLLM hid the
// reasoning too (chat_completion/protocol.py of early 2026, set_include_reasoning_for_none_effort).
func mayHideIDs(body api.Body) bool {
	return HidesReasoning(body) || string(body.Get("reasoning_effort")) == `"none"`
}

// isOneOf reports whether a value is one of some. It copies nothing: a prompt is a value too.
func isOneOf(v api.Value, values []string) bool {
	return slices.ContainsFunc(values, func(value string) bool { return string(v) == value })
}

// provedFields are those with which an answer that prefill begins was seen to
// be equal on vLLM 0.32 to one that it does not (loadtest/e2e/vllm, first_token_test.go).
var provedFields = []string{
	"temperature", "top_p", "top_k", "min_p", "logit_bias", "allowed_token_ids", "ignore_eos", "stop_token_ids", "cache_salt", "priority", "return_token_ids",
	"stop", "include_stop_str_in_output", "logprobs", "top_logprobs", "repetition_penalty",
}

// NotFromPrefill returns the field for which decode has to say the first token of an answer
// too, "" where there is none: one that is not known to work across the seam behind that
// token, or that says something else of it. text says that its messages are known to be only text.
func NotFromPrefill(body api.Body, text bool) string {
	for key, v := range body.Fields() {
		switch {
		case v.Null() || isOneOf(v, neutralValues[key]) || slices.Contains(provedFields, key):
		case key == "stream_options":
			if !onlyUsage(v) {
				return key
			}
		case key == "min_tokens":
			// Engines look for stop strings behind the least number of tokens alone, and where
			// that lies in a text that goes on behind a token was not tried.
			if n, ok := v.Int(); !ok || n > 0 && len(body.Get("stop")) > 0 && !body.Get("stop").Null() {
				return key
			}
		case key == "n" || key == "best_of" || key == "truncate_prompt_tokens" || string(v) == "false" && slices.Contains(copiedFields, key):
			if n, ok := v.Int(); !ok || n > 1 || key == "truncate_prompt_tokens" {
				return key
			}
		case hides(key, v):
			return key
		case isOneOf(v, nothing):
		case key == "tools" && string(body.Get("tool_choice")) == `"none"`: // they shape the prompt alone
		case key == "skip_special_tokens" || key == "spaces_between_special_tokens": // which are true by default
		case !slices.Contains(spentFields, key):
			return key
		}
	}
	if !text && !onlyText(body) {
		return "messages"
	}
	return ""
}

// onlyUsage reports whether a stream is asked for nothing else than usage.
func onlyUsage(options api.Value) bool {
	object, ok := options.Object()
	return ok && !slices.ContainsFunc(object.Keys(), func(key string) bool { return key != "include_usage" && key != "continuous_usage_stats" })
}

// notContinuable returns the field for which the tokens so far are not all that the rest of
// the answer depends on, "" where there is none. Such are what keeps a state outside of
// them (guided decoding, tool calls, seeds, penalties), what looks back across the seam
// (stop strings, bad words), and what would show it (logprobs).
func notContinuable(body api.Body) string {
	for key, v := range body.Fields() {
		says := !v.Null() && (!isOneOf(v, nothing) || hides(key, v)) && !isOneOf(v, neutralValues[key])
		if says && !slices.Contains(copiedFields, key) && !slices.Contains(spentFields, key) {
			return key
		}
	}
	return ""
}

// fieldError is that an answer is not continued for a field of the request. It names the field, and not what it says.
type fieldError struct{ Field string }

// maxField is how much of a field's name is told, in bytes: a client may have made it up.
const maxField = 64

func (e *fieldError) Error() string {
	return fmt.Sprintf("%v: the request has the field %s", errMoreThanIDs, e.Field[:min(len(e.Field), maxField)])
}

func (e *fieldError) Unwrap() error { return errMoreThanIDs }

// onlyText reports whether a chat's messages are text: an image is no token, and ids
// alone would leave it out.
func onlyText(body api.Body) bool {
	if all := body.Get("messages"); len(all) > 0 && bytes.IndexByte(all[1:], '[') < 0 {
		return true // what is no text is in an array: long prompts are not walked for it
	}
	messages, _ := body.Get("messages").Array()
	for _, m := range messages {
		message, ok := m.Object()
		if !ok {
			return false
		}
		parts, _ := message.Get("content").Array()
		for _, p := range parts {
			if !p.IsTextPart() {
				return false
			}
		}
	}
	return true
}
