package transcript

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"github.com/tandem-gateway/tandem/pd/api"
)

// textTranscript is what a chat has said so far as text. The answer is continued by it where
// the engine reports no token ids and the operator allows it: as the last message, which the
// engine continues (continue_final_message). That is not exact: the text may be tokenised
// another way, templates may trim its white space, and its tokens are counted as the events
// that brought them.
type textTranscript struct {
	allowed   bool // for this request
	supported bool // by the engine that is asked too
	used      bool // the leg under way continues it
	text      strings.Builder
	events    int // that brought it
}

var errMoreThanText = errors.New("what was said does not determine the rest")

// record keeps a piece of the answer, false where it is longer than is kept.
func (t *textTranscript) record(text string) (kept bool) {
	t.events++
	if t.text.Len()+len(text) > mostText {
		t.text, t.supported = strings.Builder{}, false
		return false
	}
	t.text.WriteString(text)
	return true
}

// mayContinueAsChat reports whether the request's answer may be continued by its text: of a
// chat whose answer is a turn of its own, and that does not show token ids.
func (t *Transcript) mayContinueAsChat() bool {
	turn, given := t.req.Body.Get("add_generation_prompt").Bool()
	return t.req.Dialect == api.Chat && !t.showIDs && (turn || !given)
}

// continueAsChat returns the chat that asks for the rest.
func (t *Transcript) continueAsChat() (Continuation, error) {
	messages, ok := bytes.CutSuffix(bytes.TrimSpace(t.req.Body.Get("messages")), []byte("]"))
	delivered := t.text.events
	if !ok || t.beyondText || t.finished || delivered == 0 || t.req.MaxOutput > 0 && delivered >= t.req.MaxOutput {
		return Continuation{}, errMoreThanText
	}
	text, err := json.Marshal(t.text.text.String())
	if err != nil {
		return Continuation{}, err
	}
	turn := append(append([]byte(`,{"role":"assistant","content":`), text...), "}]"...)
	body := t.req.Body.With(
		api.Set("messages", append(bytes.Clone(messages), turn...)),
		api.Set("add_generation_prompt", []byte("false")),
		api.Set("continue_final_message", []byte("true")),
	)
	left := 0
	if t.req.MaxOutput > 0 {
		left = t.req.MaxOutput - delivered
		for _, limit := range t.req.Dialect.Limits() { // engines differ in which they read
			if limit == t.req.MaxField || !body.Get(limit).Null() {
				body = body.With(api.Set(limit, strconv.AppendInt(nil, int64(left), 10)))
			}
		}
	}
	if least, ok := body.Get("min_tokens").Int(); ok {
		body = body.With(api.Set("min_tokens", strconv.AppendInt(nil, max(0, least-int64(delivered)), 10)))
	}
	t.tokensBefore, t.continued, t.text.used = delivered, true, true
	return Continuation{Dialect: t.req.Dialect, Body: body, Delivered: delivered, Left: left}, nil
}
