package api

import (
	"bytes"

	"github.com/tidwall/gjson"
)

// Generate is SGLang's native API. It is served only where a server says that it speaks
// it (pools.Spec.Native).
var Generate = &Dialect{
	Name: "generate", Path: "/generate", Split: true, Native: true,
	inspect: inspectGenerate,
	usages:  []string{"meta_info"}, prompt: "prompt_tokens", output: "completion_tokens",
	cached:    []string{"cached_tokens"},
	errorBody: openAIError, errorEvent: openAIErrorEvent,
}

func inspectGenerate(data []byte) Meaning {
	if string(data) == "[DONE]" {
		return Meaning{End: true}
	}
	if failure := engineError(data); failure != "" {
		return Meaning{Failure: failure}
	}
	finish := gjson.GetBytes(data, "meta_info.finish_reason")
	if finish.Get("type").String() == "abort" {
		return Meaning{Failure: orDefault(finish.Get("message").String())}
	}
	return Meaning{Content: gjson.GetBytes(data, "text").Exists() || gjson.GetBytes(data, "output_ids").Exists()}
}

// inputLogprobs are the places of what only the server that prefills knows of the
// prompt's tokens.
var inputLogprobs = []string{"input_token_logprobs", "input_top_logprobs", "input_token_ids_logprobs"}

// WantsInputLogprobs reports whether decode's answer is not whole without prefill's.
func (d *Dialect) WantsInputLogprobs(request Body) bool {
	wanted, _ := request.Get("return_logprob").Bool()
	return d.Native && wanted
}

// WithInputLogprobs puts prefill's before decode's, in a body, in one event, or in each
// element of a batch (sglang sgl-model-gateway, pd_router merge_logprobs).
func WithInputLogprobs(decode, prefill []byte) []byte {
	if elements, ok := Value(decode).Array(); ok {
		first, _ := Value(prefill).Array()
		for i := range elements {
			if i < len(first) {
				elements[i] = WithInputLogprobs(elements[i], first[i])
			}
		}
		return List(elements)
	}
	body, err := ParseBody(decode)
	if err != nil {
		return decode // no object, such as [DONE]
	}
	if several, ok := Value(prefill).Array(); ok { // an event of a batch says of which it is
		at, _ := body.Get("index").Int()
		if at < 0 || int(at) >= len(several) {
			return decode
		}
		prefill = several[at]
	}
	return editAt(body, "meta_info", func(meta Body) Body {
		for _, name := range inputLogprobs {
			before := gjson.GetBytes(prefill, "meta_info."+name)
			if !before.IsArray() {
				continue
			}
			own, _ := meta.Get(name).Array()
			var all []Value
			for _, e := range before.Array() {
				all = append(all, Value(bytes.Clone([]byte(e.Raw))))
			}
			meta = meta.With(Set(name, List(append(all, own...))))
		}
		return meta
	}).Bytes()
}
