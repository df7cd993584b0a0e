package pd

import (
	"time"

	"github.com/tandem-gateway/tandem/kvstate/tokens"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/decision"
)

// knowledge is what is known of the prompt's tokens.
func (p *prefix) knowledge() decision.Prompt {
	if p == nil {
		return decision.Prompt{Unknown: tokens.Off}
	}
	if p.length > 0 { // of another prompt's blocks, or of another replica's request
		return decision.Prompt{Tokens: p.length}
	}
	return decision.Prompt{By: p.tokens.By, Tokens: len(p.tokens.IDs), Whole: p.tokens.Complete, Unknown: p.unknown, Guessed: len(p.tokens.Chunks) > 0}
}

// measureUsage keeps what the engines counted, when the answer has come to its end.
func (st *requestState) measureUsage(b *binding, u api.Usage, cached api.Count) {
	u.Cached = cached
	b.choice.Measured.Usage, b.choice.Measured.Whole = u, time.Since(st.boundAt)
}

// recordEnd completes what is remembered of the last attempt when its stream has ended.
func (st *requestState) recordEnd(decisions *decision.Ring, b *binding, broken *BrokenStreamError) {
	if broken != nil {
		b.choice.Outcome = broken.Error()
	}
	decisions.Complete(st.client.ID, st.arrived, len(st.earlier)+len(st.bindings)-1, b.choice.Measured, b.choice.Outcome)
}
