package gateway

import (
	"bytes"
	"fmt"
	"math"
	"slices"

	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/predict"
)

// badRequest is a request that is refused before any engine sees it.
type badRequest struct {
	status  int
	code    string
	param   string
	message string
}

func (e *badRequest) Error() string { return e.message }

func invalid(param, format string, args ...any) *badRequest {
	return &badRequest{status: 400, param: param, message: fmt.Sprintf(format, args...)}
}

// errUnknownModel is the same for a model that does not exist and for one that is for others.
var errUnknownModel = &badRequest{status: 404, code: "model_not_found", param: "model", message: "The model does not exist or is not served here."}

// errNoModel refuses what must name a model, and does not.
var errNoModel = invalid("model", "The field model must be a string that names a model.")

// byteOrderMark may begin a text, and says nothing of it (RFC 8259, 8.1).
var byteOrderMark = []byte("\ufeff")

// parse reads a body into a request. What engines are certain to refuse is
// refused here, before a prefill is spent on it.
func parse(d *api.Dialect, raw []byte) (*pd.Request, error) {
	body, err := api.ParseBody(bytes.TrimPrefix(raw, byteOrderMark))
	if err != nil {
		return nil, invalid("", "%s", err)
	}
	if body, err = stripControl(body); err != nil {
		return nil, invalid("", "%s", err)
	}
	req := &pd.Request{Dialect: d, Body: body, OutputTokens: predict.UnknownOutput}
	model := body.Get("model")
	var ok bool
	req.Model, ok = model.String()
	if d.Native {
		return req, readNative(req)
	}
	req.Body = withoutPrompts(req.Body)
	if !ok && !model.Null() || req.Model == "" && d.Anthropic {
		return nil, errNoModel
	}
	if !d.Split {
		req.Aggregated = true
		req.PromptTokens = approximateTokens(len(raw))
		req.OutputTokens = 0
		return req, nil
	}
	for _, read := range []func(*pd.Request) error{readNumbers, readStored, readPrompt, readLimits, readStream, readSamples, readTools, readOdd} {
		if err := read(req); err != nil {
			return nil, err
		}
	}
	return req, nil
}

// readNumbers writes in digits alone the whole numbers that are read of a request. Clients whose language has one kind
// of number send 5.0, which vLLM, SGLang and TensorRT-LLM take for 5 (pydantic's lax mode), and vLLM's Rust frontend
// does not.
func readNumbers(req *pd.Request) error {
	req.Body = req.Body.Rewrite(func(key string, v api.Value) api.Value {
		switch key {
		case "max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens", "min_completion_tokens", "n", "best_of", "logprobs", "top_logprobs", "top_k":
			return v.InDigits()
		}
		return v
	})
	return nil
}

// promptField is the field that has the prompt.
func promptField(d *api.Dialect) string {
	switch d {
	case api.Completions:
		return "prompt"
	case api.Responses:
		return "input"
	}
	return "messages"
}

// readPrompt checks that there is one and estimates its length.
func readPrompt(req *pd.Request) error {
	field := promptField(req.Dialect)
	value := req.Body.Get(field)
	if value.Null() {
		return invalid(field, "The field %s is missing.", field)
	}
	if field == "messages" && !value.IsArray() {
		return invalid(field, "The field messages must be an array.")
	}
	if value.IsEmptyArray() {
		return invalid(field, "The field %s must not be empty.", field)
	}
	if !value.IsArray() && value[0] != '"' {
		return invalid(field, "The field %s must be a string or an array.", field)
	}
	req.PromptTokens = approximateTokens(len(value))
	if req.Dialect == api.Completions && value.IsArray() {
		elements, ids := countElements(value)
		if ids {
			req.PromptTokens, req.PromptIsIDs = elements, true
		} else {
			req.Aggregated, req.Answers = elements > 1, elements // a list of prompts
		}
	}
	if more, _ := countElements(req.Body.Get("prompt_embeds")); more > 0 { // vLLM answers those too
		req.Aggregated, req.Answers = true, req.Answers+more
	}
	if req.PromptIsIDs {
		return nil
	}
	for _, more := range []string{"tools", "system", "instructions"} {
		req.PromptTokens += approximateTokens(len(req.Body.Get(more)))
	}
	req.Size, req.OnlyText = sizeOf(req, value)
	return nil
}

// countElements returns how many elements an array has, and whether they are token ids: as
// engines do it, by the first.
func countElements(v api.Value) (n int, ids bool) {
	for e := range v.Elements() {
		if n++; n == 1 {
			_, ids = e.Int()
		}
	}
	return n, ids
}

// approximateTokens is a guess from bytes: English and code run near four bytes
// a token.
func approximateTokens(bytes int) int { return (bytes + 3) / 4 }

// readLimits checks the bounds of the answer: those that the API's engines read. Fields
// of other APIs bound nothing. Zero is no bound: engines refuse it, or take it for none.
func readLimits(req *pd.Request) error {
	const most = 1 << 31
	for _, field := range req.Dialect.Limits() {
		value := req.Body.Get(field)
		if value.Null() {
			continue
		}
		n, ok := value.Int()
		if !ok || n < 0 || n > most {
			return invalid(field, "The field %s must be a whole number from 0 to %d.", field, most)
		}
		if n > 0 {
			req.MaxOutput, req.MaxField = int(n), field
		}
	}
	if req.MaxOutput == 0 {
		return nil
	}
	if least, ok := req.Body.Get("min_tokens").Int(); ok && least > int64(req.MaxOutput) {
		return invalid("min_tokens", "The field min_tokens must not exceed the bound on the answer.")
	}
	req.OutputTokens = min(req.MaxOutput, predict.UnknownOutput)
	return nil
}

// readStream reads whether the answer is streamed, and asks for the usage of
// every stream: it is what tokens are counted by, and what shows a decode that
// computed a prompt which was handed to it.
func readStream(req *pd.Request) error {
	value := req.Body.Get("stream")
	stream, ok := value.Bool()
	if !value.Null() && !ok {
		return invalid("stream", "The field stream must be true or false.")
	}
	req.Stream = stream
	options := req.Body.Get("stream_options")
	if req.Dialect != api.Chat && req.Dialect != api.Completions {
		return nil
	}
	if !stream {
		if options.Null() {
			return nil
		}
		if object, is := options.Object(); !is || len(object.Keys()) > 0 { // {} asks for nothing, and vLLM takes it
			return invalid("stream_options", "The field stream_options is only allowed when stream is true.")
		}
		return nil
	}
	if options.Null() {
		req.HideUsage = true
		req.Body = req.Body.With(api.Edit{Key: "stream_options", Value: []byte(`{"include_usage":true}`)})
		return nil
	}
	inner, ok := options.Object()
	if !ok {
		return invalid("stream_options", "The field stream_options must be an object in which no field appears twice.")
	}
	include, _ := inner.Get("include_usage").Bool()
	continuous, _ := inner.Get("continuous_usage_stats").Bool()
	if include || continuous {
		return nil // as the client has it; continuous statistics cannot be recognised
	}
	req.HideUsage = true
	asked := inner.With(api.Edit{Key: "include_usage", Value: []byte("true")})
	req.Body = req.Body.With(api.Edit{Key: "stream_options", Value: asked.Bytes()})
	return nil
}

// readSamples counts the answers and finds what cannot share a hand-off: it is read once
// and then gone. Logprobs of the prompt exist only where the prompt is computed.
func readSamples(req *pd.Request) error {
	each := 1
	for _, field := range []string{"n", "best_of"} {
		value := req.Body.Get(field)
		if value.Null() {
			continue
		}
		n, ok := samplesOf(value)
		if !ok {
			return invalid(field, "The field %s must be a whole number of at least 1.", field)
		}
		each = max(each, n)
		if field == "n" {
			req.Samples = n
		}
	}
	req.Aggregated = req.Aggregated || each > 1
	req.Answers = max(1, req.Answers) * each
	if !req.Body.Get("prompt_logprobs").Null() {
		req.Aggregated = true
	}
	if echo, _ := req.Body.Get("echo").Bool(); echo && !req.Body.Get("logprobs").Null() {
		req.Aggregated = true
	}
	if beam, _ := req.Body.Get("use_beam_search").Bool(); beam {
		req.Aggregated = true
	}
	return nil
}

// manySamples is more than any key allows of one prompt, and few enough to be multiplied
// by the prompts that a body has room for.
const manySamples = 1 << 20

// samplesOf reads how many answers to a prompt are asked for, false if that is no number
// that an engine takes.
func samplesOf(v api.Value) (int, bool) {
	n, ok := v.Int()
	return int(min(n, manySamples)), ok && n >= 1
}

// readTools notes a tool call that is demanded.
func readTools(req *pd.Request) error {
	choice := req.Body.Get("tool_choice")
	kind, _ := choice.String()
	if object, ok := choice.Object(); ok {
		kind, _ = object.Get("type").String()
	}
	switch kind {
	case "", "none", "auto":
	default: // required, any, or a tool by name
		req.ForcedTool = true
	}
	return nil
}

// readOdd sends to one decode server what looks wrong in the fields that are cut off
// the prefill leg: prefill would accept it, and decode refuse it when the work is done.
// Its refusal is the best answer there is.
func readOdd(req *pd.Request) error {
	limits := req.Dialect.Limits()
	for key, v := range req.Body.Fields() {
		if !v.Null() && (isOdd(key, v) || slices.Contains(limits, key) && !isBetween(v, 1, math.MaxInt64)) {
			req.Aggregated = true
		}
	}
	if req.Dialect == api.Messages && req.Body.Get("max_tokens").Null() {
		req.Aggregated = true // required there
	}
	return nil
}

// isOdd reports whether engines refuse a value of a field that bounds no answer.
func isOdd(key string, v api.Value) bool {
	switch key {
	case "min_tokens", "min_completion_tokens":
		return !isBetween(v, 0, math.MaxInt64)
	case "stop":
		return !isText(v) && !isListOf(v, isText)
	case "stop_sequences":
		return !isListOf(v, isText)
	case "stop_token_ids":
		return !isListOf(v, func(e api.Value) bool { return isBetween(e, 0, math.MaxInt64) })
	case "logprobs":
		return !isBool(v) && !isBetween(v, 0, 20)
	case "top_logprobs":
		return !isBetween(v, 0, 20)
	case "ignore_eos":
		return !isBool(v)
	}
	return false
}

func isBetween(v api.Value, least, most int64) bool {
	n, ok := v.Int()
	return ok && n >= least && n <= most
}

func isBool(v api.Value) bool {
	_, ok := v.Bool()
	return ok
}

func isText(v api.Value) bool { return v[0] == '"' }

func isListOf(v api.Value, good func(api.Value) bool) bool {
	n := 0
	for e := range v.Elements() {
		if n++; n > manyStops || !good(e) {
			return false
		}
	}
	return v.IsArray()
}

// manyStops are more than engines take, and looked at no further.
const manyStops = 1024

// readStored refuses what lives in one engine's memory, since the next request would reach
// another engine, and what only OpenAI keeps. It is read first: what is kept may stand for the input.
func readStored(req *pd.Request) error {
	if req.Dialect != api.Responses {
		return nil
	}
	if !req.Body.Get("previous_response_id").Null() {
		return invalid("previous_response_id", "The field previous_response_id is not supported: responses are not kept. Send the whole conversation in input.")
	}
	if !req.Body.Get("conversation").Null() {
		return invalid("conversation", "The field conversation is not supported: conversations are not kept. Send the whole conversation in input.")
	}
	if !req.Body.Get("prompt").Null() {
		return invalid("prompt", "The field prompt is not supported: prompt templates are not kept. Send the text of the template in instructions and input.")
	}
	if background := req.Body.Get("background"); !background.Null() && string(background) != "false" {
		return invalid("background", "Background responses are not supported: responses are not kept.")
	}
	return nil
}
