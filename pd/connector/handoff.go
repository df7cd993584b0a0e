package connector

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pools"
)

// Handoff is what lets decode fetch the KV. It is used once, never past its age: the
// prefill server holds the blocks on a lease, and after a read they are gone.
type Handoff struct {
	From    *pools.Server // that prefilled
	Kept    bool          // prefill holds the KV for decode
	Created time.Time
	Attempt string // the request id that prefill saw, and decode must too
	// SharesIDs: decode's tokens are those of prefill.
	SharesIDs bool
	Hosts     []string // from which decode fetches the KV, where prefill named them

	Leg           LegRequest                                           // decode's, made by GoOnBehind or SayFirst where prefill's token is wanted
	WholeAnswer   []byte                                               // when prefill gave it; nil: decode has to
	Blocks        HandedBlocks                                         // that decode fetches
	First         *api.FirstToken                                      // that prefill said, where it is wanted
	goesOn        bool                                                 // Leg is the rest of the answer behind prefill's token
	with          func(prompt [][]byte, fields ...api.Edit) LegRequest // see decodeLeg
	prompt        [][]byte                                             // likewise
	prefillAnswer chan []byte                                          // prefill's, where decode's is not whole without it; nil: it is
	coverage      atomic.Pointer[Coverage]                             // nil until prefill has answered
}

// Coverage is what prefill reported of the prompt.
type Coverage struct {
	Tokens int       // of the prompt whose KV is handed over
	Prompt int       // of the whole prompt
	Cached api.Count // of them, cached on the prefill server
	Usage  api.Value // prefill's usage object; nil: it reported none
}

// Coverage returns what prefill reported so far.
func (h *Handoff) Coverage() Coverage {
	if c := h.coverage.Load(); c != nil {
		return *c
	}
	return Coverage{}
}

// DropLeg lets go of decode's request, which was sent and will not be again.
func (h *Handoff) DropLeg() {
	if h != nil {
		h.Leg, h.First, h.with, h.prompt = LegRequest{}, nil, nil, nil
	}
}

// HasKV reports whether KV comes with the hand-off; with a nil one comes none.
func (h *Handoff) HasKV() bool { return h != nil && h.Kept }

// Handoff begins one, before any leg is sent. Where decode's leg does not wait for
// prefill's answer it is complete.
func (t *Transfer) Handoff() *Handoff {
	h := &Handoff{From: t.From, Created: time.Now(), Attempt: t.ID}
	c := t.Connector()
	if c.ConcurrentLegs && t.dialect.WantsInputLogprobs(t.body) {
		h.prefillAnswer = make(chan []byte, 1)
	}
	if c.ConcurrentLegs || c.DecodeDriven {
		h.Leg, h.Kept = c.decode(t, api.Answer{}).request, true
	}
	return h
}

// RecordPrefill completes the hand-off from prefill's answer. Where both legs run at once
// decode is on its way by then, and only the coverage is news.
func (h *Handoff) RecordPrefill(t *Transfer, answer api.Answer, now time.Time) {
	c := t.Connector()
	var covers Coverage
	if usage, ok := answer.Usage(); ok {
		covers = Coverage{
			Tokens: usage.Prompt.Tokens, Prompt: usage.Prompt.Tokens, Cached: usage.Cached,
			Usage: answer.RawUsage(),
		}
	}
	if !c.ConcurrentLegs {
		h.Attempt = t.ID // which is another one where the first was given up
		leg := c.decode(t, answer)
		h.Leg, h.Kept, h.SharesIDs, h.Hosts, h.Created = leg.request, leg.hasKV, leg.prompt != nil, leg.hosts, now
		h.Blocks, h.with, h.prompt = leg.blocks, leg.with, leg.prompt
		if c.wholeAnswer != nil {
			h.WholeAnswer = c.wholeAnswer(t, answer)
		}
		if leg.tokens > 0 {
			covers.Tokens = leg.tokens
		}
	}
	if t.First.Wanted {
		said := api.ReadFirstToken(answer)
		h.First = &said
	}
	h.coverage.Store(&covers)
	if h.prefillAnswer != nil {
		h.prefillAnswer <- answer.Bytes()
	}
}

// Waits reports whether Complete may wait.
func (h *Handoff) Waits() bool { return h != nil && h.prefillAnswer != nil }

// Complete returns decode's answer, or an event of it, with what only prefill knows.
// The first call waits for prefill, which has answered by then or is about to; the
// context ends with the leg.
func (h *Handoff) Complete(ctx context.Context, data []byte) ([]byte, error) {
	if !h.Waits() {
		return data, nil
	}
	select {
	case answer := <-h.prefillAnswer:
		h.prefillAnswer <- answer // for the next event
		return api.WithInputLogprobs(data, answer), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
