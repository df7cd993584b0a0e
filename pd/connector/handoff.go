package connector

import (
	"context"
	"strings"
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
	// sharesIDs: decode's tokens are those of prefill.
	SharesIDs bool
	Hosts     []string // from which decode fetches the KV, where prefill named them

	Leg    LegRequest               // decode's
	Final  []byte                   // the whole answer, when prefill gave it; nil: decode has to
	told   chan []byte              // prefill's answer, where decode's is not whole without it; nil: it is
	prompt atomic.Pointer[coverage] // nil until prefill has answered
}

// coverage is what prefill told of the prompt.
type coverage struct {
	Tokens int       // of the prompt whose KV is handed over
	Prompt int       // of the whole prompt
	Cached api.Count // of them, cached on the prefill server
	Usage  string    // prefill's usage object; empty: it told none
}

// coverage returns what prefill told so far.
func (h *Handoff) Coverage() coverage {
	if c := h.prompt.Load(); c != nil {
		return *c
	}
	return coverage{}
}

// carries reports whether KV comes with the hand-off; a nil one carries none.
func (h *Handoff) Carries() bool { return h != nil && h.Kept }

// handoff begins one, before any leg is sent. Where decode's leg does not wait for
// prefill's answer it is complete.
func (t *Transfer) Handoff() *Handoff {
	h := &Handoff{From: t.From, Created: time.Now(), Attempt: t.Id}
	c := t.Connector()
	if c.Together && t.dialect.WantsInputLogprobs(t.body) {
		h.told = make(chan []byte, 1)
	}
	if c.Together || c.Carried {
		h.Leg, h.Kept = c.decode(t, nil).leg, true
	}
	return h
}

// take completes the hand-off from prefill's answer. Where both legs run together
// decode is on its way by then, and only the coverage is news.
func (h *Handoff) Take(t *Transfer, answer []byte, now time.Time) {
	c := t.Connector()
	var told coverage
	if usage, ok := t.dialect.ReadUsage(answer); ok {
		told = coverage{
			Tokens: usage.Prompt.Tokens, Prompt: usage.Prompt.Tokens, Cached: usage.Cached,
			Usage: strings.Clone(t.dialect.FindUsage(answer).Raw),
		}
	}
	if !c.Together {
		got := c.decode(t, answer)
		h.Leg, h.Kept, h.SharesIDs, h.Hosts, h.Created = got.leg, got.kept, got.sharesIDs, got.hosts, now
		if c.final != nil {
			h.Final = c.final(t, answer)
		}
		if got.tokens > 0 {
			told.Tokens = got.tokens
		}
	}
	h.prompt.Store(&told)
	if h.told != nil {
		h.told <- answer
	}
}

// complete returns decode's answer, or an event of it, with what only prefill knows.
// The first call waits for prefill, which has answered by then or is about to; the
// context ends with the leg.
func (h *Handoff) Complete(ctx context.Context, data []byte) ([]byte, error) {
	if h == nil || h.told == nil {
		return data, nil
	}
	select {
	case answer := <-h.told:
		h.told <- answer // for the next event
		return api.WithInputLogprobs(data, answer), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
