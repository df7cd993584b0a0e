package gateway

import (
	"net/http"
	"strings"

	"github.com/gofiber/fiber/v2"

	"github.com/tandem-gateway/tandem/pd"
)

// controlFields steer engines, and no client may set them: with a hand-off of
// its own a client could make an engine connect anywhere, or read another
// tenant's blocks. They are removed wherever an engine would look for them.
// The last group names files, holds code, joins another's session or corpus, makes
// labels of metrics or other keys of the KV, or is for the engines' own routers
// (sglang/srt/entrypoints/openai/protocol.py, tensorrt_llm/serve/openai_protocol.py).
var controlFields = map[string]bool{
	"kv_transfer_params":     true,
	"ec_transfer_params":     true,
	"bootstrap_host":         true,
	"bootstrap_port":         true,
	"bootstrap_room":         true,
	"bootstrap_pair_key":     true,
	"data_parallel_rank":     true,
	"routed_dp_rank":         true,
	"disagg_prefill_dp_rank": true,
	"disaggregated_params":   true,
	"disagg_prefill_resp":    true,
	"remote_decoder":         true,
	"remote_prefiller":       true,
	"remote_kv_source":       true,
	"cache_hit_threshold":    true,
	"request_id":             true,
	"rid":                    true,
	"cache_salt":             true,
	"priority":               true,

	"lora_path":                     true,
	"lora_request":                  true,
	"custom_logit_processor":        true,
	"session_id":                    true,
	"session_params":                true,
	"conversation_params":           true,
	"custom_labels":                 true,
	"extra_key":                     true,
	"ngram_corpus_id":               true,
	"injected_chat_template_kwargs": true,
}

// promptFields are token ids that some engines read in place of the messages, which then
// are not what was counted and looked up (SGLang's input_ids, TensorRT-LLM's others). On
// SGLang's own API they are the prompt.
var promptFields = []string{"input_ids", "prompt_token_ids", "prompt_token_ids_b64"}

// withoutPrompts returns the body without what would be read in place of the messages.
func withoutPrompts(body pd.Body) pd.Body {
	for _, field := range promptFields {
		if body.Get(field) != nil {
			body = body.With(pd.Edit{Key: field})
		}
	}
	return body
}

// containers are the objects in which engines look for more parameters. Control
// fields inside messages, tools and schemas are the client's own text.
var containers = map[string]bool{
	"extra_body":      true,
	"vllm_xargs":      true,
	"sampling_params": true,
	"extra_args":      true,
}

// stripControl returns the body without control fields, as if the client had sent it
// so. Keys are compared decoded and without regard to case.
func stripControl(body pd.Body) (pd.Body, error) {
	var edits []pd.Edit
	for _, key := range body.Keys() {
		name := strings.ToLower(key)
		if controlFields[name] {
			edits = append(edits, pd.Edit{Key: key})
			continue
		}
		if !containers[name] {
			continue
		}
		clean, changed, err := stripContainer(body.Get(key))
		if err != nil {
			return pd.Body{}, err
		}
		if changed {
			edits = append(edits, pd.Edit{Key: key, Value: clean})
		}
	}
	if len(edits) == 0 {
		return body, nil
	}
	return pd.ParseBody(body.With(edits...).Bytes())
}

// stripContainer strips an object, or each of a list: SGLang takes sampling parameters as
// both. Other values hold no fields.
func stripContainer(value pd.Value) (clean pd.Value, changed bool, err error) {
	if elements, several := value.Array(); several {
		for i, e := range elements {
			stripped, touched, err := stripContainer(e)
			if err != nil {
				return nil, false, err
			}
			elements[i], changed = stripped, changed || touched
		}
		return pd.List(elements), changed, nil
	}
	if len(value) == 0 || value[0] != '{' {
		return value, false, nil
	}
	inner, err := pd.ParseBody(value)
	if err != nil {
		return nil, false, err // a key twice inside a container
	}
	stripped, err := stripControl(inner)
	if err != nil {
		return nil, false, err
	}
	return pd.Value(stripped.Bytes()), stripped.Len() != inner.Len(), nil
}

// forwarded are the client's headers that engines get. Everything else stays
// here: routing headers of other gateways are read by some engines and sidecars.
var forwarded = []string{
	"Authorization", "X-Api-Key", "Anthropic-Version", "Anthropic-Beta",
	"Openai-Organization", "Openai-Project", "Openai-Beta", "Accept-Language",
}

// engineHeader copies the forwarded headers out of the request. A key that opens this
// gateway is not for engines: credentials pass only where it has no keys of its own.
func engineHeader(c *fiber.Ctx, credentials bool) http.Header {
	h := make(http.Header, 4)
	for _, name := range forwarded {
		if !credentials && (name == "Authorization" || name == "X-Api-Key") {
			continue
		}
		if v := c.Request().Header.Peek(name); len(v) > 0 {
			h.Set(name, string(v))
		}
	}
	return h
}
