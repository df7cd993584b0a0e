// Package messages translates between Anthropic's Messages API and OpenAI's chat
// completions: a request to chat, and chat's answer and stream back. It serves engines
// that keep tenants apart by cache_salt in chat and drop the salt from messages, and pairs
// of engines that drop from messages where they are to meet.
//
// Engines convert a message to a chat themselves, so that the prompt has the same tokens
// where this package does exactly what they do. It was written after
//
//   - SGLang, main of September 2026: sglang/srt/entrypoints/anthropic/
//     request_conversion.py, response_conversion.py and serving.py, and the serving.py
//     of before, which had all of it. Images, and output_config: serving.py of 0.5.10 to 0.5.23.
//   - vLLM 0.32.0: vllm/entrypoints/anthropic/serving.py, and its versions since 0.11.1.
//     A tool_result that is a list was written as Python writes one at first (0.11.1, and #34053 of
//     February 2026 still complains); its texts are joined by line ends since before #40190 of
//     April 2026, and so in 0.24, which is later.
//
// What their versions do differently is refused with an *InexactError: text before a
// tool_result, empty text, system messages inside the conversation, and for vLLM before
// 0.24 a tool_result that is a list. The thinking of earlier answers is not: agents send it back with each
// turn, and it goes where chats have it. So is refused what has no place in chat or needs the engine's
// template: documents, server tools, images and schemas of the answer for vLLM, and every field and block that is
// not named here. cache_control, context_management, metadata and
// service_tier mean nothing to the engines and are dropped.
//
// What every version refuses is an *InvalidError.
//
// All of it is pure: bytes in, bytes out.
package messages

// Engine is the engine whose conversion is followed.
type Engine struct {
	Name         string // SGLang or VLLM: the conversion of no other is known
	JoinsResults bool   // of vLLM: it is known to join the texts of a tool_result, as it does since 0.24
}

// The names are those that pools.Identity has.
const (
	SGLang = "sglang"
	VLLM   = "vllm"
)

// InexactError says what of a request cannot be translated exactly, in words that repeat
// nothing of it but the beginning of a field's name.
type InexactError struct {
	What string
}

func (e *InexactError) Error() string { return "not translatable exactly: " + e.What }

// InvalidError names a field that no engine takes as it is, and says why.
type InvalidError struct {
	Field string
	What  string
}

func (e *InvalidError) Error() string { return e.Field + ": " + e.What }

func inexact(what string) error { return &InexactError{What: what} }
