package api

// Dialect is how one API path speaks: which fields bound its output, what its
// stream events mean, where its usage stands, how it reports an error.
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

	inspect func(data []byte) Meaning // of any shape
	// answers is the list that each whole answer has, empty where engines differ in what they answer.
	answers string
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

// The APIs that Tandem serves.
var (
	// vLLM 0.32 and SGLang take max_completion_tokens before max_tokens (chat_completion
	// /protocol.py, openai/protocol.py); TensorRT-LLM reads max_tokens alone
	// (serve/openai_protocol.py, validation_alias).
	Chat = &Dialect{
		Name: "chat", Path: "/v1/chat/completions", Split: true,
		limits: []string{"max_tokens", "max_completion_tokens"}, inspect: inspectChat, answers: "choices",
		usages: []string{"usage"}, prompt: "prompt_tokens", output: "completion_tokens",
		cached: []string{"prompt_tokens_details", "cached_tokens"}, created: []string{"prompt_tokens_details", "created_cache_tokens"},
		errorBody: openAIError, errorEvent: openAIErrorEvent,
	}
	Completions = &Dialect{
		Name: "completions", Path: "/v1/completions", Split: true,
		limits: []string{"max_tokens"}, inspect: inspectCompletions, answers: "choices",
		usages: []string{"usage"}, prompt: "prompt_tokens", output: "completion_tokens",
		cached: []string{"prompt_tokens_details", "cached_tokens"}, created: []string{"prompt_tokens_details", "created_cache_tokens"},
		errorBody: openAIError, errorEvent: openAIErrorEvent,
	}
	Responses = &Dialect{
		Name: "responses", Path: "/v1/responses", Split: true,
		limits: []string{"max_output_tokens"}, inspect: inspectResponses, answers: "output",
		usages: []string{"usage", "response.usage"}, prompt: "input_tokens", output: "output_tokens",
		cached: []string{"input_tokens_details", "cached_tokens"}, created: []string{"input_tokens_details", "cache_write_tokens"},
		errorBody: openAIError, errorEvent: responsesErrorEvent,
	}
	Messages = &Dialect{
		Name: "messages", Path: "/v1/messages", Split: true,
		limits: []string{"max_tokens"}, inspect: inspectMessages, answers: "content",
		usages: []string{"usage", "message.usage"}, prompt: "input_tokens", output: "output_tokens",
		cached: []string{"cache_read_input_tokens"}, created: []string{"cache_creation_input_tokens"}, cacheApart: true,
		Anthropic: true, errorBody: anthropicError, errorEvent: anthropicErrorEvent,
	}
	Embeddings = single("embeddings", "/v1/embeddings")
	// CohereEmbed is Cohere's API of embeddings, which vLLM has for their clients.
	CohereEmbed = &Dialect{
		Name: "embeddings", Path: "/v2/embed", inspect: inspectCompletions,
		usages: []string{"meta." + billedUnits}, prompt: "input_tokens", output: "output_tokens",
		errorBody: openAIError, errorEvent: openAIErrorEvent,
	}
	// CountTokens is asked by agents that speak the Messages API.
	CountTokens = anthropic(single("count_tokens", "/v1/messages/count_tokens"))
	Tokenize    = single("tokenize", "/tokenize")
	Detokenize  = single("detokenize", "/detokenize")
	// What pooling models answer, under each path that vLLM (entrypoints/pooling) or SGLang
	// (entrypoints/http_server.py) has for it. Those of one name are one API.
	pooling = []*Dialect{
		single("rerank", "/v1/rerank"), single("rerank", "/rerank"), single("rerank", "/v2/rerank"),
		single("score", "/v1/score"), single("score", "/score"),
		single("classify", "/v1/classify"), single("classify", "/classify"),
		single("pooling", "/pooling"),
	}
)

// Dialects lists them all.
func Dialects() []*Dialect {
	return append([]*Dialect{Chat, Completions, Responses, Messages, Generate, Embeddings, CohereEmbed, CountTokens, Tokenize, Detokenize}, pooling...)
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
