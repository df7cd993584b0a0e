package pd

import (
	"cmp"
	"context"
	"time"

	"github.com/tandem-gateway/tandem/kvstate/tokens"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/decision"
	"github.com/tandem-gateway/tandem/pd/history"
)

// knowledge is what is known of the prompt's tokens.
func (p *prefix) knowledge() decision.Prompt {
	if p == nil {
		return decision.Prompt{Unknown: tokens.Off}
	}
	if p.length > 0 { // of another prompt's blocks, or of another replica's request
		return decision.Prompt{Tokens: p.length}
	}
	return decision.Prompt{By: p.tokens.By, Tokens: p.tokens.Count(), Whole: p.tokens.Complete, Unknown: p.unknown, Guessed: len(p.tokens.Chunks) > 0}
}

// measureUsage keeps what the engines counted, when the answer has come to its end.
func (st *requestState) measureUsage(b *binding, u api.Usage, now time.Time) {
	b.choice.Measured.Usage, b.choice.Measured.Whole = u, now.Sub(st.boundAt)
	if !st.bind.continues { // else it is a part
		st.span.RecordUsage(&b.choice)
	}
}

// recordFirstToken keeps what the time to a first token went to.
func (o *Orchestrator) recordFirstToken(st *requestState, b *binding, now time.Time) {
	waited, m := st.bind.waited, &b.choice.Measured
	parts := history.Parts{Wait: waited, Retry: max(0, b.choice.Demand.Waited-waited), Prefill: m.Prefill, Transfer: m.Transfer}
	if b.handoff.GoesOn() {
		parts.Transfer = 0 // the token came while that went on
	}
	rest := max(0, now.Sub(st.bind.arrived)-parts.Total())
	switch {
	case b.prefill == nil:
		parts.Aggregated = rest
	case b.handoff.GoesOn(): // prefill's token was held for the transfer
		parts.Transfer = rest
	case m.Prefill == 0:
		parts.Together = rest
	default:
		parts.Retry += rest
	}
	o.History.Model(st.req.Model, now).RecordFirst(parts, now)
}

// evaluateChoice compares what was predicted of a request with its first token, where that was seen,
// and its pair with decode alone. One that was tried before says nothing of its last choice.
func (o *Orchestrator) evaluateChoice(ctx context.Context, st *requestState, b *binding) {
	if st.bind.hadTurn() {
		return
	}
	first := b.choice.Measured.FirstToken
	if first > 0 {
		o.Metrics.choices.ObserveTTFT(ctx, st.req.Model, b.chosen.Terms.TTFT(), first)
	}
	if b.aggregated != (cost.Terms{}) {
		o.Metrics.choices.ObservePair(st.req.Model, &b.chosen.Terms, &b.aggregated, cmp.Or(first, b.chosen.Terms.TTFT()))
	}
}

// recordFailure keeps that a request failed, if its model is one: others are what clients made up.
func (o *Orchestrator) recordFailure(st *requestState) {
	if _, known := o.Fleet.Model(st.client.Model); known {
		now := time.Now()
		o.History.Model(st.client.Model, now).RecordFailure(now)
	}
}

// recordAnswer keeps how much of an answer's prompt was cached, beside what was believed.
func (o *Orchestrator) recordAnswer(st *requestState, u api.Usage, outputTokens int, now time.Time) {
	if st.bind.continues {
		return // its prompt was counted with the stream that it continues
	}
	held, _ := st.predictedCache()
	p := history.Prompt{Tokens: u.Prompt.Tokens, Predicted: min(held, u.Prompt.Tokens), Cached: u.Cached.Tokens, Reported: u.Cached.Known}
	if n := len(st.bindings); n > 0 && u.Prompt.Known {
		// vLLM leaves out cached tokens where there are none.
		p.Reported = p.Reported || st.bindings[n-1].decode.Server().ReportsCachedTokens()
	}
	o.History.Model(st.req.Model, now).RecordAnswer(p, outputTokens, now)
}

// recordEnd completes what is remembered of the last attempt when its stream has ended.
func (st *requestState) recordEnd(decisions *decision.Records, b *binding, broken *BrokenStreamError) {
	if broken != nil {
		b.choice.Outcome = broken.Error()
	}
	decisions.Complete(st.decision, len(st.earlier)+len(st.bindings)-1, b.choice.Measured, b.choice.Outcome)
}
