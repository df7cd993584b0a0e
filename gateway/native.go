package gateway

import (
	"slices"

	"github.com/gofiber/fiber/v2"

	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/predict"
	"github.com/tandem-gateway/tandem/pools"
)

// nativeFields are what clients may send to SGLang's own API. Others name files, hold
// code, or steer the engine.
var nativeFields = []string{
	"model", "text", "input_ids", "sampling_params", "stream", "return_logprob",
	"logprob_start_len", "top_logprobs_num", "token_ids_logprob", "return_text_in_logprobs",
}

// native answers SGLang's own API where some server says that it speaks it, or may do so still.
func (s *Server) native(c *fiber.Ctx, d *api.Dialect) error {
	if s.nativeIsClosed() {
		return fiber.ErrNotFound
	}
	return s.handle(c, d)
}

// nativeIsClosed reports whether it is known that no server speaks SGLang's own API: not before there is one, nor
// before all sources have reported theirs.
func (s *Server) nativeIsClosed() bool {
	servers := s.fleet.Servers()
	speaks := func(server *pools.Server) bool { return server.Native }
	return len(servers) > 0 && !s.fleet.ExpectsServers() && !slices.ContainsFunc(servers, speaks)
}

// unlessClosed is an API, nil where there is none or it is one that no server speaks.
func (s *Server) unlessClosed(d *api.Dialect) *api.Dialect {
	if d != nil && d.Native && s.nativeIsClosed() {
		return nil
	}
	return d
}

// readNative reads a request to SGLang's own API. The model stays empty where the
// client names none.
func readNative(req *pd.Request) error {
	req.Body = req.Body.Rewrite(func(key string, value api.Value) api.Value {
		if !slices.Contains(nativeFields, key) || key == "model" {
			return nil
		}
		return value
	})
	prompts := 1
	field := "text"
	if req.Body.Get(field).Null() {
		field = "input_ids"
	}
	value := req.Body.Get(field)
	if field == "text" && !req.Body.Get("input_ids").Null() { // engines read the ids, whatever the text
		return invalid("input_ids", "The fields text and input_ids exclude each other.")
	}
	elements, ids := countElements(value)
	isText := len(value) > 0 && value[0] == '"'
	if !isText && elements == 0 {
		return invalid(field, "The field text must be a string or an array, or input_ids an array.")
	}
	req.PromptTokens = approximateTokens(len(value))
	switch {
	case ids:
		req.PromptTokens = elements
	case !isText:
		prompts = elements
	}
	each, err := readSampling(req, prompts)
	if err != nil {
		return err
	}
	req.Answers, req.Samples = prompts*each, each
	if req.Stream, isText = req.Body.Get("stream").Bool(); !req.Body.Get("stream").Null() && !isText {
		return invalid("stream", "The field stream must be true or false.")
	}
	return nil
}

// readSampling reads the sampling parameters, one object for all prompts or a list of one
// for each, and returns how many answers to a prompt are asked for.
func readSampling(req *pd.Request, prompts int) (each int, err error) {
	params, err := samplingParams(req.Body)
	if err != nil {
		return 0, err
	}
	if req.Body.Get(samplingField).IsArray() && len(params) != prompts {
		return 0, invalid(samplingField, "The field %s must be an object, or an array of as many as there are prompts.", samplingField)
	}
	each = 1
	for _, p := range params {
		if v := p.Get("n"); !v.Null() {
			n, ok := samplesOf(v)
			if !ok {
				return 0, invalid(samplingField, "The field n must be a whole number of at least 1.")
			}
			each = max(each, n)
		}
		if n, ok := p.Get("max_new_tokens").Int(); ok {
			req.OutputTokens = int(min(max(n, 0), predict.UnknownOutput))
		}
	}
	return each, nil
}

const samplingField = "sampling_params"

// samplingParams returns each of the objects in the field, none if it is absent.
func samplingParams(body api.Body) ([]api.Body, error) {
	value := body.Get(samplingField)
	if value.Null() {
		return nil, nil
	}
	values := []api.Value{value}
	if value.IsArray() {
		values, _ = value.Array() // stripControl has bounded it
	}
	params := make([]api.Body, len(values))
	for i, v := range values {
		var ok bool
		if params[i], ok = v.Object(); !ok {
			return nil, invalid(samplingField, "The field %s must be an object, or an array of them, in which no field appears twice.", samplingField)
		}
	}
	return params, nil
}
