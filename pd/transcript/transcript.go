package transcript

import (
	"errors"

	"github.com/tandem-gateway/tandem/pd/api"
)

// Transcript is what a stream has said so far, in token ids, so that another pair can
// say the rest: the prompt's ids and those of the answer, as the engine reported
// them (return_token_ids). Text would not do: it may be tokenised another way.
type Transcript struct {
	req      Request
	showIDs  bool // the client asked for ids itself
	modelLen int  // tokens; 0 is unknown

	prompt       packedIDs
	promptTokens int
	promptRead   packedIDs // of the event under way, which is not recorded
	answer       []byte
	answerTokens int
	// delivered is the part of answer whose text the client has: an engine holds back
	// text that is half a character.
	deliveredBytes, deliveredTokens int

	asked        bool           // the engine was asked for ids
	text         textTranscript // the answer as text, where that may be continued
	template     []byte         // a chunk of the first leg, for what must stay the same
	continued    bool           // the chunks are those of a continuation
	behindFirst  bool           // of a leg that goes on behind prefill's token, of the client's own API
	heads        heads          // of such a leg, once an event has shown them
	textBefore   int            // characters before it, where log-probabilities count them
	seamOnly     string         // prefill's token may be gone on behind; the answer is not continued otherwise, for this field
	tokensBefore int            // of the answer, from earlier legs
	keepsCache   bool           // the usage of the leg under way says what was cached of the prompt
	withoutIDs   bool           // the engine was asked for ids and reported none
	beyondIDs    bool           // something was said that ids do not continue
	beyondText   bool           // nor does text
	finished     bool           // the answer is whole; usage and end marker may follow
	usageSeen    bool
	textDropped  bool
	notOnlyText  bool // the messages that were dropped had more than text
}

// Request is what a transcript needs of the request whose stream it follows.
type Request struct {
	Dialect   *api.Dialect
	Body      api.Body // as the client sent it
	MaxOutput int      // bound on the answer in tokens, 0 without one
	MaxField  string   // the field that it stands in
	HideUsage bool     // the client did not ask for the usage chunk
	OnlyText  bool     // its messages are known to be only text
}

// New returns the transcript of a stream with one answer, nil where it cannot be
// continued. modelLen is how many tokens prompt and answer may have together, 0 if unknown.
// With byText a chat may be continued by its text where the engine reports no ids. The error is why there is none: a
// fieldError, or what it is of the request or the model.
func New(req Request, modelLen int, byText bool) (*Transcript, error) {
	if err := req.notFollowed(modelLen); err != nil {
		return nil, err
	}
	if field := notContinuable(req.Body); field != "" {
		return nil, &fieldError{field}
	}
	return newTranscript(req, modelLen, byText), nil
}

var (
	errOtherAPI = errors.New("answers of its API are not followed")
	errNoBound  = errors.New("it bounds no answer, and the engines tell no max_model_len")
)

// notFollowed is why an answer to the request is not followed, nil where it is: those of its API are not, or its end is
// not known.
func (r *Request) notFollowed(modelLen int) error {
	switch {
	case r.Dialect != api.Chat && r.Dialect != api.Completions:
		return errOtherAPI
	case modelLen == 0 && r.MaxOutput == 0:
		return errNoBound
	}
	return nil
}

func newTranscript(req Request, modelLen int, byText bool) *Transcript {
	t := &Transcript{req: req, modelLen: modelLen, showIDs: api.AsksForIDs(req.Body)}
	t.text.allowed = byText && t.mayContinueAsChat()
	return t
}

// ForFirst is New for an answer that prefill's token may begin: also of one that could not be
// continued if it broke later on.
func ForFirst(req Request, modelLen int, byText bool) *Transcript {
	if req.notFollowed(modelLen) != nil {
		return nil
	}
	field := notContinuable(req.Body)
	t := newTranscript(req, modelLen, byText && field == "")
	t.seamOnly = field
	return t
}

// StartLeg forgets what a leg said that failed before its first content event, of which
// the client has seen nothing. It returns the body of the next leg with the wish for token
// ids, where the engine is known to understand that.
func (t *Transcript) StartLeg(e Engine, body api.Body) api.Body {
	if !t.continued {
		*t = Transcript{req: t.req, showIDs: t.showIDs, modelLen: t.modelLen, seamOnly: t.seamOnly, text: textTranscript{allowed: t.text.allowed}}
	}
	t.text.supported = t.text.allowed && e.continuesText()
	if t.text.used {
		t.asked, t.withoutIDs = false, false // whatever the engine before was asked, and reported
		return body
	}
	if t.asked = t.showIDs || e.reportsTokenIDs(t.req.Dialect); t.asked && !t.showIDs {
		body = api.AskForIDs(body)
	}
	return body
}

// ReadPrompt packs the ids of the prompt, of an event that Record is given next: see api.PromptReader. Those of a
// prompt that is known already are what the leg was given, and nobody keeps them: only where they end matters. If a
// string among them had a bracket in it, what is behind that would be no event.
func (t *Transcript) ReadPrompt(ids []byte) (ok bool) {
	if !t.asked || t.promptTokens > 0 {
		return t.asked
	}
	t.promptRead, ok = packIDs(ids)
	return ok
}

// Record notes what an event says, which c is, and returns it as the client may see it, nil if it may not: perhaps in
// room, which may grow for it.
func (t *Transcript) Record(room *[]byte, c *api.Chunk, data []byte) []byte {
	if !t.asked && !t.continued {
		t.beyondIDs = true
		if !t.text.supported {
			return data
		}
	}
	switch {
	case c.Choices < 0:
		return data // the end marker
	case c.Choices == 0:
		return t.recordUsage(data, c.Usage)
	}
	t.recordChunk(c)
	switch {
	case t.text.used && c.Silent(), t.behindFirst && c.Role:
		return nil // the role, which the client has
	case t.behindFirst:
		return t.behind(room, c, data)
	case t.continued:
		return t.reshape(c, data)
	case t.template == nil:
		t.template = c.Without(nil, data)
	}
	if t.showIDs {
		return data
	}
	*room = c.Without((*room)[:0], data)
	return *room
}

// recordChunk keeps what a chunk says of prompt and answer.
func (t *Transcript) recordChunk(c *api.Chunk) {
	if t.promptTokens == 0 && c.Prompt != nil {
		t.recordPrompt(c)
	}
	t.promptRead = packedIDs{}
	if ids, n := api.IDList(c.IDs); n > 0 {
		t.recordIDs(ids, n)
	}
	text, finish := c.Text.SaysSomething(), c.Finish.SaysSomething()
	if text && c.IDs == nil {
		t.withoutIDs, t.beyondIDs = t.asked, true
	}
	if text || finish {
		t.deliveredBytes, t.deliveredTokens = len(t.answer), t.answerTokens
	}
	t.finished = t.finished || finish && c.Choices == 1
	t.beyondText = t.beyondText || c.NotText || c.Choices > 1
	t.beyondIDs = t.beyondIDs || t.beyondText
	if text && t.text.supported {
		said, _ := c.Text.String()
		t.beyondText = !t.text.record(said) || t.beyondText
	}
}

// mostText bounds what is kept of an answer, in bytes: of ids, and of text.
const mostText = api.MaxEvent

// recordIDs keeps so many ids of the answer. Where an engine reports more than that may have, nothing is kept: the client
// does not see them, and they would take memory for as long as the engine sends.
func (t *Transcript) recordIDs(ids []byte, n int) {
	t.answerTokens += n
	tooMany := t.req.left(t.modelLen, t.promptTokens, t.answerTokens) < 0 || len(t.answer)+len(ids) > mostText
	if t.beyondIDs = t.beyondIDs || tooMany; t.beyondIDs {
		t.answer = nil
		return
	}
	if len(t.answer) > 0 {
		t.answer = append(t.answer, ',')
	}
	t.answer = append(t.answer, ids...)
}

// recordPrompt keeps the ids of the prompt, which ReadPrompt may have read before.
func (t *Transcript) recordPrompt(c *api.Chunk) {
	if c.PromptRead {
		t.prompt, t.promptTokens = t.promptRead, t.promptRead.count
		return
	}
	t.RecordPrompt(c.Prompt, nil)
}

// RecordPrompt keeps the ids of the prompt, a JSON list, which the events that are recorded next may be without. They
// may have been read before.
func (t *Transcript) RecordPrompt(list api.Value, read *Prompt) {
	if read.isOf(list) {
		t.prompt, t.promptTokens = read.packed, read.packed.count
		return
	}
	ids, n := api.IDList(list)
	if n == 0 {
		return
	}
	packed, ok := packIDs(ids)
	t.prompt, t.promptTokens, t.beyondIDs = packed, n, t.beyondIDs || !ok
}

// NeedsText reports whether the answer may be continued by its text, which goes back to the engine behind what
// the client said.
func (t *Transcript) NeedsText() bool { return t.text.allowed }

// DropText lets go of what the client said: rest is the client's body without it. Only where it is not needed.
func (t *Transcript) DropText(rest api.Body) {
	if !t.textDropped {
		t.notOnlyText, t.textDropped = !t.isOnlyText(), true
		t.req.Body = rest
	}
}

// isOnlyText reports whether the client's messages are text.
func (t *Transcript) isOnlyText() bool {
	if t.textDropped {
		return !t.notOnlyText
	}
	return t.req.OnlyText || onlyText(t.req.Body)
}

// WithoutIDs reports whether the engine was asked for token ids and reported none, without a reason in the request.
func (t *Transcript) WithoutIDs() bool { return t.withoutIDs && !mayHideIDs(t.req.Body) }

// IsByText reports whether the leg under way continues the answer by its text.
func (t *Transcript) IsByText() bool { return t.text.used }

// TokensBefore is how many tokens of the answer the legs before the one under way brought.
func (t *Transcript) TokensBefore() int { return t.tokensBefore }
