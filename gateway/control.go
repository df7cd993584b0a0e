package gateway

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/tandem-gateway/tandem/pd/api"
)

// isControl reports a field that steers engines, which no client may set: with a hand-off of
// its own a client could make an engine connect anywhere, or read another
// tenant's blocks. Such fields are removed wherever an engine would look for them.
// The last two groups name files, hold code, join another's session or corpus, make
// labels of metrics or other keys of the KV, have cached blocks reported as stored once
// more, keep streams silent for as many tokens as they say (vllm/sampling_params.py since
// #49754, sglang/srt/sampling/sampling_params.py), or are for the engines' own routers
// (sglang/srt/entrypoints/openai/protocol.py, tensorrt_llm/serve/openai_protocol.py,
// vllm/v1/request.py 0.32, FlexKV's docs/namespace/README_en.md).
func isControl(name string) bool {
	switch name {
	case "kv_transfer_params", "ec_transfer_params", "bootstrap_host", "bootstrap_port", "bootstrap_room",
		"bootstrap_pair_key", "data_parallel_rank", "routed_dp_rank", "disagg_prefill_dp_rank", "disaggregated_params",
		"disagg_prefill_resp", "remote_decoder", "remote_prefiller", "remote_kv_source", "cache_hit_threshold",
		"request_id", "rid", "cache_salt", "priority":
		return true
	case "lora_path", "lora_request", "custom_logit_processor", "session_id", "session_params", "conversation_params",
		"custom_labels", "extra_key", "ngram_corpus_id", "injected_chat_template_kwargs", "kv_cache_report_mode",
		"namespace_info", "stream_interval":
		return true
	case "image_data", "audio_data", "video_data":
		return true
	}
	return false
}

// promptFields are token ids that some engines read in place of the messages, which then
// are not what was counted and looked up (SGLang's input_ids, TensorRT-LLM's others). On
// SGLang's own API they are the prompt.
var promptFields = []string{"input_ids", "prompt_token_ids", "prompt_token_ids_b64"}

// withoutPrompts returns the body without what would be read in place of the messages.
func withoutPrompts(body api.Body) api.Body {
	for _, field := range promptFields {
		if body.Get(field) != nil {
			body = body.With(api.Edit{Key: field})
		}
	}
	return body
}

// isContainer reports the name of an object in which engines look for more parameters. Control
// fields inside messages, tools and schemas are the client's own text.
func isContainer(name string) bool {
	switch name {
	case "extra_body", "vllm_xargs", "sampling_params", "extra_args":
		return true
	}
	return false
}

// Bounds on what is looked through for control fields, each part of which is read once
// more than the rest: how deep containers and lists of them may be nested, and how many
// values lists of them may hold in all.
const (
	maxContainerDepth = 4
	maxContained      = 1024
)

// stripControl returns the body without control fields, as if the client had sent it
// so. Keys are compared decoded and without regard to case.
func stripControl(body api.Body) (api.Body, error) {
	var s stripper
	clean := s.object(body, 0)
	if s.err != nil {
		return api.Body{}, s.err
	}
	if !clean.Edited() {
		return body, nil
	}
	return api.ParseBody(clean.Bytes())
}

// stripper removes control fields from one body.
type stripper struct {
	contained int
	err       error // the first
}

// object strips an object that is inside as many containers and lists as depth says.
func (s *stripper) object(body api.Body, depth int) api.Body {
	return body.Rewrite(func(key string, value api.Value) api.Value {
		name := strings.ToLower(key)
		switch {
		case isControl(name):
			return nil
		case isContainer(name):
			return s.container(value, depth+1)
		}
		return value
	})
}

// container strips an object, or each of a list: SGLang takes sampling parameters as
// both. Other values hold no fields.
func (s *stripper) container(value api.Value, depth int) api.Value {
	if s.err != nil || len(value) == 0 || value[0] != '{' && value[0] != '[' {
		return value
	}
	if depth > maxContainerDepth {
		s.err = fmt.Errorf("fields for engines are nested deeper than %d", maxContainerDepth)
		return value
	}
	if value.IsArray() {
		return s.list(value, depth)
	}
	inner, ok := value.Object()
	if !ok {
		s.err = errors.New("a field appears twice in an object of fields for engines, or it has more than 1024")
		return value
	}
	if clean := s.object(inner, depth); clean.Edited() {
		return clean.Bytes()
	}
	return value
}

func (s *stripper) list(value api.Value, depth int) api.Value {
	var elements []api.Value
	changed := false
	for e := range value.Elements() {
		if s.contained++; s.contained > maxContained {
			s.err = fmt.Errorf("lists of fields for engines hold more than %d values", maxContained)
			return value
		}
		clean := s.container(e, depth+1)
		changed = changed || len(clean) != len(e)
		elements = append(elements, clean)
	}
	if !changed {
		return value
	}
	return api.List(elements)
}

// forwarded are the client's headers that engines get. Everything else stays
// here: routing headers of other gateways are read by some engines and sidecars.
var forwarded = []string{
	"Authorization", "X-Api-Key", "Anthropic-Version", "Anthropic-Beta",
	"Openai-Organization", "Openai-Project", "Openai-Beta", "Accept-Language",
}

// engineHeader copies the forwarded headers out of the request; nil: it has none, as most. A key that opens this
// gateway is not for engines: credentials pass only where it has no keys of its own.
func engineHeader(from header, credentials bool) (h http.Header) {
	for _, name := range forwarded {
		if !credentials && (name == "Authorization" || name == "X-Api-Key") {
			continue
		}
		if v := from.Get(name); v != "" {
			if h == nil {
				h = make(http.Header)
			}
			h.Set(name, strings.Clone(v))
		}
	}
	return h
}
