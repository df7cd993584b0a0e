package pd

import (
	"time"

	"github.com/tandem-gateway/tandem/kvstate/tokens"
	"github.com/tandem-gateway/tandem/pd/api"
)

// PromptKnowledge is what was known of a prompt's tokens when its servers were chosen.
type PromptKnowledge struct {
	By      tokens.Method // how they were found
	Tokens  int           // leading ones that are known
	Whole   bool          // they are all
	Unknown tokens.Reason // why none are known; "" where some are
	Guessed bool          // none are known, and what servers hold is guessed by the prompt's text
}

// knowledge is what is known of the prompt's tokens.
func (p *prefix) knowledge() PromptKnowledge {
	if p == nil {
		return PromptKnowledge{Unknown: tokens.Off}
	}
	if p.length > 0 { // of another prompt's blocks, or of another replica's request
		return PromptKnowledge{Tokens: p.length}
	}
	return PromptKnowledge{By: p.tokens.By, Tokens: len(p.tokens.IDs), Whole: p.tokens.Complete, Unknown: p.unknown, Guessed: len(p.tokens.Chunks) > 0}
}

// Measured is what one attempt took, as the gateway saw it. A time of zero was not measured.
type Measured struct {
	// Prefill is from sending the prefill leg to its answer: the server's queue and the
	// computation. Where both legs run at once it is not seen when it is done.
	Prefill time.Duration
	// Transfer is from sending decode after prefill to its first content event: the KV on
	// the link, the wait for room, and a step. No engine tells them apart.
	Transfer time.Duration
	// FirstToken is from the choice to the first content event of a stream, Whole to the end of
	// the answer.
	FirstToken, Whole time.Duration
	// Usage is what the engines counted; Cached is that of the server that computed the prompt.
	Usage api.Usage
}

// measureUsage keeps what the engines counted, when the answer has come to its end.
func (st *requestState) measureUsage(b *binding, u api.Usage, cached api.Count) {
	u.Cached = cached
	b.choice.Measured.Usage, b.choice.Measured.Whole = u, time.Since(st.boundAt)
}

// recordEnd completes what is remembered of the last attempt when its stream has ended.
func (d *Decisions) recordEnd(st *requestState, b *binding, broken *BrokenStreamError) {
	if broken != nil {
		b.choice.Outcome = broken.Error()
	}
	d.Complete(st.client.ID, st.arrived, len(st.earlier)+len(st.bindings)-1, b.choice.Measured, b.choice.Outcome)
}
