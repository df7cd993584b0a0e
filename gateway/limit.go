package gateway

import (
	"strconv"
	"time"

	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pools"
)

// limit refuses what one request asks too much of, and bounds answers that the client
// left open where its key has a bound.
func (x *exchange) limit(req *pd.Request) error {
	if req.Answers > x.key.MaxSamples {
		return invalid(samplesField(req), "The request asks for too many answers: prompts times n, or best_of, must not exceed %d.", x.key.MaxSamples)
	}
	if req.Dialect.Native {
		return x.limitNative(req)
	}
	if bias := req.Body.Get("logit_bias"); !bias.Null() {
		if _, ok := bias.Object(); !ok {
			return invalid("logit_bias", "The field logit_bias must be an object of at most 1024 fields, none twice.")
		}
	}
	return x.limitOutput(req)
}

// checkSamples refuses several answers to a prompt where all servers of the model give one.
func (s *Server) checkSamples(req *pd.Request) error {
	if req.Samples <= 1 {
		return nil
	}
	now, refused := time.Now(), false
	for _, server := range s.fleet.Servers() {
		if !server.Role.Serves(pools.Decode) || !server.Serves(req.Model, now) {
			continue
		}
		if !connector.Of(server).OneSample {
			return nil
		}
		refused = true
	}
	if !refused {
		return nil
	}
	field := "n"
	if req.Dialect.Native {
		field = samplingField
	}
	return invalid(field, "The servers of this model give one answer to a prompt (n): SGLang's prefill and decode servers cannot give several. Send the request once for each answer.")
}

// samplesField is the field by which a request asks for most answers.
func samplesField(req *pd.Request) string {
	n, _ := req.Body.Get("n").Int()
	if best, _ := req.Body.Get("best_of").Int(); best > max(1, n) {
		return "best_of"
	}
	return "n"
}

// limitOutput holds every field that bounds the answer to the key's bound. The dialect's
// own is always set: some engines read no other, and some take a null for no bound, or a
// zero where there are several (SGLang before it knew max_completion_tokens as the first).
func (x *exchange) limitOutput(req *pd.Request) error {
	most := x.key.MaxOutput
	if most == 0 {
		return nil
	}
	limits := req.Dialect.Limits()
	var edits []api.Edit
	for _, field := range limits {
		value := req.Body.Get(field)
		if n, ok := value.Int(); ok && n > int64(most) {
			return invalid(field, "The field %s must not exceed %d with this API key.", field, most)
		}
		if value != nil && value.Null() {
			edits = append(edits, api.Edit{Key: field})
		}
	}
	if req.MaxField == "" {
		req.MaxField, req.MaxOutput = limits[0], most
		req.OutputTokens = min(req.OutputTokens, most)
	}
	own := req.Body.Get(limits[0])
	if n, ok := own.Int(); own.Null() || ok && n == 0 && len(limits) > 1 {
		edits = append(edits, api.Edit{Key: limits[0], Value: strconv.AppendInt(nil, int64(req.MaxOutput), 10)})
	}
	if len(edits) > 0 {
		req.Body = req.Body.With(edits...)
	}
	return nil
}

// limitNative is the same for SGLang's own API, whose bounds stand one level deeper.
func (x *exchange) limitNative(req *pd.Request) error {
	most := int64(x.key.MaxOutput)
	if most == 0 {
		return nil
	}
	params, err := samplingParams(req.Body)
	if err != nil {
		return err
	}
	for _, p := range params {
		if n, ok := p.Get("max_new_tokens").Int(); !ok || n > most {
			params = nil
			break
		}
	}
	if len(params) == 0 {
		return invalid(samplingField, "With this API key the field max_new_tokens must be set, and not exceed %d.", most)
	}
	return nil
}
