package transcript

import (
	"errors"
	"strconv"

	"github.com/tandem-gateway/tandem/pd/api"
)

var (
	errNoIDs       = errors.New("the engine reports no token ids")
	errMoreThanIDs = errors.New("token ids do not determine the rest")
)

// Continuation asks another pair for the rest of an answer.
type Continuation struct {
	Dialect *api.Dialect
	Body    api.Body
	// PromptTokens are those of its prompt, which is the client's and the answer so far; 0
	// where the prompt is not known by ids.
	PromptTokens int
	Delivered    int // tokens of the answer that the client has
	Left         int // tokens that the rest may have; 0: as many as there is room for
}

// Continue returns the request for the rest, an error if the answer cannot be continued.
// It starts behind the last token whose text the client has.
func (t *Transcript) Continue() (Continuation, error) {
	left := t.req.left(t.modelLen, t.promptTokens, t.deliveredTokens)
	switch {
	case t.seamOnly != "":
		return Continuation{}, &fieldError{t.seamOnly}
	case (!t.asked || t.withoutIDs) && t.text.supported:
		return t.continueAsChat()
	case !t.asked || t.withoutIDs:
		return Continuation{}, errNoIDs
	case t.beyondIDs || t.promptTokens == 0 || t.deliveredTokens == 0 || left <= 0:
		return Continuation{}, errMoreThanIDs
	case !t.isOnlyText():
		return Continuation{}, &fieldError{"messages"}
	}
	t.answer, t.answerTokens = t.answer[:t.deliveredBytes], t.deliveredTokens
	t.tokensBefore, t.continued, t.behindFirst, t.keepsCache = t.deliveredTokens, true, false, false

	ids := append(append(t.prompt.appendTo([]byte("[")), ','), t.answer...)
	body := api.Body{}.With(
		api.Set("model", t.req.Body.Get("model")),
		api.Set("prompt", append(ids, ']')),
		api.Set("max_tokens", strconv.AppendInt(nil, int64(left), 10)),
		api.Set("stream", []byte("true")),
		api.Set("stream_options", t.usageOptions()),
	)
	if least, ok := t.req.Body.Get("min_tokens").Int(); ok && int(least) > t.deliveredTokens {
		body = body.With(api.Set("min_tokens", strconv.AppendInt(nil, least-int64(t.deliveredTokens), 10)))
	}
	for _, field := range copiedFields {
		if v := t.req.Body.Get(field); v != nil {
			body = body.With(api.Set(field, v))
		}
	}
	return Continuation{
		Dialect: api.Completions, Body: body,
		PromptTokens: t.promptTokens + t.deliveredTokens, Delivered: t.deliveredTokens, Left: left,
	}, nil
}

// BehindFirst says that the next leg goes on behind prefill's token, which is all that was said:
// nothing broke, the leg is one of the client's own API, and of its prompt is cached what
// prefill's was. characters are those of the token, where log-probabilities count them.
func (t *Transcript) BehindFirst(characters int) error {
	if t.beyondIDs || t.promptTokens == 0 || t.deliveredTokens != 1 || t.req.left(t.modelLen, t.promptTokens, 1) <= 0 {
		return errMoreThanIDs
	}
	t.tokensBefore, t.continued, t.behindFirst, t.keepsCache, t.textBefore = 1, true, true, true, characters
	return nil
}

// left is how many tokens an answer may have behind those that were said, by its own bound and the model's length, where
// that is known. An answer may ask for more than there is room for.
func (r *Request) left(modelLen, prompt, said int) int {
	switch {
	case r.MaxOutput == 0:
		return modelLen - prompt - said
	case modelLen == 0:
		return r.MaxOutput - said
	}
	return min(r.MaxOutput, modelLen-prompt) - said
}

// Limits are the fields that bound the answer, less what was said of it.
func (t *Transcript) Limits() []api.Edit { return t.req.limits(t.tokensBefore) }

// LimitsBehindFirst are Limits of a whole answer behind prefill's token, which nobody has seen; false where there may be
// nothing behind it.
func (r *Request) LimitsBehindFirst(modelLen, prompt int) (limits []api.Edit, ok bool) {
	return r.limits(1), r.left(modelLen, prompt, 1) > 0
}

func (r *Request) limits(said int) (edits []api.Edit) {
	if least, ok := r.Body.Get("min_tokens").Int(); ok {
		edits = append(edits, api.Set("min_tokens", strconv.AppendInt(nil, max(0, least-int64(said)), 10)))
	}
	if r.MaxOutput == 0 {
		return edits // the model's length does, which counts prompt and answer together
	}
	for i, field := range r.Dialect.Limits() {
		if field == r.MaxField || i == 0 && r.MaxField == "" || !r.Body.Get(field).Null() {
			edits = append(edits, api.Set(field, strconv.AppendInt(nil, int64(r.MaxOutput-said), 10)))
		}
	}
	return edits
}

// usageOptions asks for the usage at the end, and with each event where the client wants that.
func (t *Transcript) usageOptions() []byte {
	options, _ := t.req.Body.Get("stream_options").Object()
	if each, _ := options.Get("continuous_usage_stats").Bool(); each {
		return []byte(`{"include_usage":true,"continuous_usage_stats":true}`)
	}
	return []byte(`{"include_usage":true}`)
}
