package engine

import (
	"encoding/json"
	"math"
)

// requestFields are the fields that /v1/chat/completions and /v1/completions share.
// Fields that change nothing in a simulation are only checked, or not read at all.
type requestFields struct {
	Model            string          `json:"model"`
	Stream           bool            `json:"stream"`
	StreamOptions    *streamOptions  `json:"stream_options"`
	MaxTokens        *int            `json:"max_tokens"`
	MinTokens        int             `json:"min_tokens"`
	TruncatePrompt   *int            `json:"truncate_prompt_tokens"` // null: not at all
	N                *int            `json:"n"`
	Temperature      *float64        `json:"temperature"`
	TopP             *float64        `json:"top_p"`
	Stop             stopStrings     `json:"stop"`
	StopTokenIDs     []int32         `json:"stop_token_ids"`
	AllowedTokenIDs  []int32         `json:"allowed_token_ids"`
	IncludeStop      bool            `json:"include_stop_str_in_output"`
	IgnoreEOS        bool            `json:"ignore_eos"`
	Seed             *int64          `json:"seed"`
	Priority         *float64        `json:"priority"`
	CacheSalt        *string         `json:"cache_salt"`
	ReturnTokenIDs   bool            `json:"return_token_ids"`
	StreamInterval   int             `json:"stream_interval"` // tokens that a stream brings at once
	RequestID        string          `json:"request_id"`      // of a response
	KVTransferParams json.RawMessage `json:"kv_transfer_params"`
	ExtraArgs        extraArgs       `json:"vllm_xargs"`
	Disaggregated    json.RawMessage `json:"disaggregated_params"`
	sglangFields
	ResponseFormat    *responseFormat `json:"response_format"`
	StructuredOutputs *structured     `json:"structured_outputs"`
	GuidedJSON        json.RawMessage `json:"guided_json"`
}

// extraArgs are vLLM's vllm_xargs, as far as its scheduler reads them (0.32, v1/request.py).
type extraArgs struct {
	ReportMode any `json:"kv_cache_report_mode"` // "full": blocks that are found cached are reported as stored once more
}

type streamOptions struct {
	IncludeUsage    bool `json:"include_usage"`
	ContinuousUsage bool `json:"continuous_usage_stats"`
}

// responseFormat is text, json_object or json_schema.
type responseFormat struct {
	Type       string `json:"type"`
	JSONSchema *struct {
		Schema json.RawMessage `json:"schema"`
	} `json:"json_schema"`
}

// structured is vLLM's own way to ask for JSON.
type structured struct {
	JSON       json.RawMessage `json:"json"`
	JSONObject bool            `json:"json_object"`
}

// stopStrings is one string or a list.
type stopStrings []string

func (s *stopStrings) UnmarshalJSON(raw []byte) error {
	var one string
	if json.Unmarshal(raw, &one) == nil {
		*s = nil
		if one != "" {
			*s = stopStrings{one}
		}
		return nil
	}
	var list []string
	if err := json.Unmarshal(raw, &list); err != nil {
		return badRequest("stop", "stop must be a string or a list of strings")
	}
	*s = list
	return nil
}

// check refuses what vLLM refuses of any request.
func (f *requestFields) check() error {
	switch {
	case f.StreamOptions != nil && !f.Stream:
		return badRequest("stream_options", "Stream options can only be defined when `stream=True`.")
	case f.MinTokens < 0:
		return badRequest("min_tokens", "min_tokens must be greater than or equal to 0, got %d.", f.MinTokens)
	case f.N != nil && *f.N < 1:
		return badRequest("n", "n must be at least 1, got %d.", *f.N)
	case f.N != nil && *f.N > maxAnswers:
		return badRequest("n", "n must be at most %d, got %d.", maxAnswers, *f.N)
	case f.Temperature != nil && (*f.Temperature < 0 || math.IsNaN(*f.Temperature)):
		return badRequest("temperature", "temperature must be non-negative, got %v.", *f.Temperature)
	case f.TopP != nil && (*f.TopP <= 0 || *f.TopP > 1):
		return badRequest("top_p", "top_p must be in (0, 1], got %v.", *f.TopP)
	case f.CacheSalt != nil && *f.CacheSalt == "":
		return badRequest("cache_salt", "Parameter 'cache_salt' must be a non-empty string if provided.")
	}
	for _, stop := range f.Stop {
		if stop == "" {
			return badRequest("stop", "stop cannot contain an empty string.")
		}
	}
	return nil
}

// maxAnswers bounds n, and with it the work of one request.
const maxAnswers = 128

// format is the JSON the answer must be, or nil for free text.
func (f *requestFields) format() (*jsonFormat, error) {
	switch {
	case f.StructuredOutputs != nil && len(f.StructuredOutputs.JSON) > 0:
		return newJSONFormat(f.StructuredOutputs.JSON)
	case f.StructuredOutputs != nil && f.StructuredOutputs.JSONObject:
		return anyObject, nil
	case len(f.GuidedJSON) > 0 && string(f.GuidedJSON) != "null":
		return newJSONFormat(f.GuidedJSON)
	case f.ResponseFormat == nil || f.ResponseFormat.Type == "text":
		return nil, nil
	case f.ResponseFormat.Type == "json_object":
		return anyObject, nil
	case f.ResponseFormat.Type != "json_schema":
		return nil, badRequest("response_format", "response_format type %q is not known", f.ResponseFormat.Type)
	case f.ResponseFormat.JSONSchema == nil || len(f.ResponseFormat.JSONSchema.Schema) == 0:
		return nil, badRequest("response_format", "response_format json_schema lacks a schema")
	}
	return newJSONFormat(f.ResponseFormat.JSONSchema.Schema)
}

// newGeneration makes a request into work for a rank: all of it but the prompts and
// their scripts.
func (e *Engine) newGeneration(f *requestFields) (*generation, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	if f.ReturnTokenIDs && e.cfg.Connector == ConnectorTRTLLM { // TensorRT-LLM #9709
		return nil, badRequest("return_token_ids", "Extra inputs are not permitted")
	}
	f.ReturnTokenIDs = f.ReturnTokenIDs && !e.cfg.NoTokenIDs
	adapter, err := e.adapterOf(f.Model)
	if err != nil {
		return nil, err
	}
	priority, err := e.priorityOf(f.Priority)
	if err != nil {
		return nil, err
	}
	g := &generation{
		n: 1, adapter: adapter, priority: priority, reportsHits: e.isVLLM(32) && f.ExtraArgs.ReportMode == "full",
		sampling: sampling{
			maxTokens: -1, minTokens: f.MinTokens, stop: f.Stop, stopTokens: f.StopTokenIDs, allowed: f.AllowedTokenIDs,
			ignoreEOS: f.IgnoreEOS, includeStop: f.IncludeStop, topLogprobs: -1, interval: f.StreamInterval,
		},
	}
	if f.N != nil {
		g.n = *f.N
	}
	if f.CacheSalt != nil {
		g.salt = *f.CacheSalt
	}
	if f.MaxTokens != nil {
		g.sampling.maxTokens = *f.MaxTokens
		if *f.MaxTokens < 1 {
			return nil, badRequest("max_tokens", "max_tokens must be at least 1, got %d.", *f.MaxTokens)
		}
		if f.MinTokens > *f.MaxTokens {
			return nil, badRequest("min_tokens", "min_tokens must be less than or equal to max_tokens=%d, got %d.", *f.MaxTokens, f.MinTokens)
		}
	}
	return g, nil
}

// priorityOf is the place in the order of service that a request asks for, lowest first: the number itself in vLLM,
// whose higher ones SGLang serves first. TensorRT-LLM does so too, and takes none but those from 0 to 1
// (tensorrt_llm/serve/openai_protocol.py, main of 2026).
func (e *Engine) priorityOf(field *float64) (float64, error) {
	switch {
	case e.cfg.Connector == ConnectorTRTLLM && field == nil:
		return -0.5, nil
	case e.cfg.Connector == ConnectorTRTLLM && (*field < 0 || *field > 1):
		return 0, badRequest("priority", "Input should be from 0 to 1, got %v.", *field)
	case field == nil:
		return 0, nil
	case e.cfg.Connector == ConnectorTRTLLM:
		return -float64(float32(*field)), nil // its executor has 32 bits
	case *field != math.Trunc(*field):
		return 0, badRequest("priority", "Input should be a valid integer, got %v.", *field)
	case e.cfg.Connector == ConnectorSGLang:
		return -*field, nil
	}
	return *field, nil
}

// adapterOf is the adapter that a model name stands for: "" for the model itself,
// which is also what no name means.
func (e *Engine) adapterOf(model string) (string, error) {
	if model == "" || model == e.cfg.Model {
		return "", nil
	}
	if e.adapters.has(model) {
		return model, nil
	}
	return "", notFound("model", "The model `%s` does not exist.", model)
}

// parsePrompts reads the prompts of /v1/completions: a string, a list of strings, token ids, or
// a list of lists of token ids.
func (e *Engine) parsePrompts(raw json.RawMessage, addSpecial bool) ([][]int32, error) {
	encode := func(text string) []int32 {
		ids := e.language.tok.EncodeMarked(text)
		if addSpecial && (len(ids) == 0 || ids[0] != e.language.begin) {
			ids = append([]int32{e.language.begin}, ids...)
		}
		return ids
	}
	var text string
	var texts []string
	var ids []int32
	var lists [][]int32
	switch {
	case len(raw) == 0 || string(raw) == "null":
		return nil, badRequest("prompt", "Either prompt or prompt_embeds must be provided and non-empty.")
	case json.Unmarshal(raw, &text) == nil:
		return [][]int32{encode(text)}, nil
	case string(raw) == "[]":
		return nil, badRequest("prompt", "Prompt must not be empty.")
	case json.Unmarshal(raw, &ids) == nil:
		lists = [][]int32{ids}
	case json.Unmarshal(raw, &texts) == nil:
		for _, text := range texts {
			lists = append(lists, encode(text))
		}
	case json.Unmarshal(raw, &lists) != nil:
		return nil, badRequest("prompt", "prompt must be a string, a list of strings, a list of token ids, or a list of lists of token ids")
	}
	for _, ids := range lists {
		if err := e.checkTokens(ids); err != nil {
			return nil, err
		}
	}
	return lists, nil
}

func (e *Engine) checkTokens(ids []int32) error {
	for _, id := range ids {
		if id < 0 || int(id) >= e.language.tok.Size() {
			return badRequest("prompt", "Token id %d is out of vocabulary", id)
		}
	}
	return nil
}

// checkLength refuses what does not fit the context, in the words that clients look
// for, and bounds an answer of unlimited length.
func (e *Engine) checkLength(prompt int, sampling *sampling) error {
	limit := e.cfg.MaxModelLen
	switch {
	case prompt == 0:
		return badRequest("prompt", "The decoder prompt cannot be empty")
	case prompt >= limit:
		return badRequest("input_tokens", "This model's maximum context length is %d tokens. However, your request has %d input tokens. Please reduce the length of the input messages.", limit, prompt)
	case sampling.maxTokens < 0:
		sampling.maxTokens = limit - prompt
	case e.isVLLM(32) && sampling.maxTokens > limit: // renderers/params.py, TokenizeParams
		return badRequest("max_tokens", "max_tokens=%d cannot be greater than max_model_len=%d. Please request fewer output tokens.", sampling.maxTokens, limit)
	case e.isVLLM(32): // as long as there is room for (entrypoints/serve/utils/api_utils.py, get_max_tokens)
		sampling.maxTokens = min(sampling.maxTokens, limit-prompt)
	case prompt+sampling.maxTokens > limit:
		return badRequest("max_tokens", "This model's maximum context length is %d tokens. However, you requested %d tokens (%d in the messages, %d in the completion). Please reduce the length of the messages or completion.",
			limit, prompt+sampling.maxTokens, prompt, sampling.maxTokens)
	}
	if sampling.minTokens > sampling.maxTokens {
		return badRequest("min_tokens", "min_tokens must be less than or equal to max_tokens=%d, got %d.", sampling.maxTokens, sampling.minTokens)
	}
	return nil
}

const maxLogprobs = 20

// checkLogprobs bounds how many alternatives are reported.
func checkLogprobs(param string, n int) error {
	if n < 0 || n > maxLogprobs {
		return badRequest(param, "Requested sample logprobs of %d, which is greater than max allowed: %d", n, maxLogprobs)
	}
	return nil
}
