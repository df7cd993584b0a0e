package connector

import (
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pools"
)

// KeepsSalt reports whether an engine keeps the KV of an API's prompts apart by their
// cache_salt. The Anthropic request classes had no such field, and what they do not know
// they drop:
//
//   - vLLM 0.32.0 has it (vllm/entrypoints/anthropic/protocol.py, #49498); earlier
//     versions and those that are not known count as dropping it.
//   - SGLang drops it (sglang/srt/entrypoints/anthropic/protocol.py and
//     request_conversion.py, main of September 2026); its other classes have it.
//   - TensorRT-LLM has it in chat alone (tensorrt_llm/serve/openai_protocol.py and
//     anthropic_protocol.py, 2026): it is dropped from Responses and messages, and
//     refused in completions.
//
// What messages are sent as instead: package messages.
func KeepsSalt(d *api.Dialect, engine pools.Identity) bool {
	switch engine.Engine {
	case "vllm":
		return d != api.Messages || engine.IsSince(0, 32)
	case "trtllm":
		return d == api.Chat
	}
	return d != api.Messages
}
