package pd

import (
	"context"
	"time"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pd/enginehttp"
	"github.com/tandem-gateway/tandem/pd/spans"
	"github.com/tandem-gateway/tandem/pd/transcript"
	"github.com/tandem-gateway/tandem/pools"
)

// leastHandoff is how many tokens a prompt has whose KV is at least one block, in tokens:
// of a shorter one nothing may be handed over.
const leastHandoff = 256

// prefillLeg sends the prefill leg, completes the hand-off from its answer, and gives its
// place in the queue back.
func (o *Orchestrator) prefillLeg(ctx context.Context, st *requestState, b *binding, t *connector.Transfer, h *connector.Handoff) (failed *LegError) {
	server, start := t.From, time.Now()
	ctx, span := spans.StartLeg(ctx, o.Tracer, "prefill", server.ID(), t.ID)
	defer func() { endLegSpan(span, failed) }()
	defer b.prefill.Release()
	var said firstSaid
	if t.First.Wanted && st.req.Stream {
		said = firstSaid{new(transcript.Prompt), new(enginehttp.AnswerMemory)}
	}
	answer, failed := o.sendPrefill(ctx, st, b, t, st.req.Dialect, said)
	if failed != nil {
		return failed
	}
	answer, found := b.withoutPieces(answer)
	h.RecordPrefill(t, answer, time.Now())
	answerKV{o}.recordRead(b, t, h.Coverage().Cached)
	firstTokens{o}.use(st, b, t, h, said)
	coverage := h.Coverage()
	if st.bind.prefix.teaches() {
		o.Binder.Locality.learn(st.bind.prefix, answer)
	}
	if coverage.Tokens > 0 {
		var beside time.Duration
		if t.Connector().RespondsAfterTransfer {
			beside = b.chosen.Terms.Transfer
		}
		cached := coverage.Cached.Tokens
		if b.cut.done > 0 {
			cached = found.Tokens
		}
		b.prefill.ReleasePrefilled(coverage.Tokens-cached, cached, beside)
	}
	b.prefill.RecordResult(nil)
	b.prediction.comeTrue()
	if b.cut.done > 0 {
		pieceLegs{o}.judgePiece(b, server, found)
	}
	if failed = o.checkHost(st, t, h); failed != nil {
		return failed
	}
	switch {
	case h.Kept:
		server.RecordHandoff()
	case h.WholeAnswer == nil && !t.First.All:
		o.Metrics.missing.WithLabelValues(server.ID()).Inc()
		if coverage.Tokens >= leastHandoff {
			o.recordNoHandoff(server)
		}
	}
	took := time.Since(start)
	o.Metrics.prefill.Observe(ctx, st.req.Model, server.ID(), took)
	if !t.Connector().ConcurrentLegs { // else it runs beside the goroutine that the binding belongs to
		b.choice.Measured.Prefill += took
	}
	span.RecordPrefilled(h.Kept, coverage.Tokens, coverage.Cached, b.chosen.Terms.Queue+b.chosen.Terms.Prefill)
	return nil
}

// sendPrefill sends a prefill leg in an API, and returns its answer. What fails is reported.
func (o *Orchestrator) sendPrefill(ctx context.Context, st *requestState, b *binding, t *connector.Transfer, d *api.Dialect, said firstSaid) (answer api.Answer, failed *LegError) {
	server := t.From
	b.prefill.MarkSent(b.chosen.Terms.Queue+b.chosen.Terms.Prefill, time.Now())
	if answer, failed = (answerKV{o}).sendPrefill(ctx, st, b, t, d); answer.IsOfPrefill() || failed != nil {
		return answer, failed
	}
	held := o.Answers.Hold(st.req.Tenant)
	defer held.Release()
	held.Memory = said.memory
	resp, body, failed := o.sendHeld(ctx, o.Config.PrefillTimeout, PrefillLeg, server, st, d.Path, t.ID, t.Connector().Prefill(t), &held)
	if failed == nil {
		var err error
		if answer, err = d.ReadAnswerAndPrompt(body, said.prompt); err != nil || !answer.IsOfPrefill() {
			failed = &LegError{Leg: PrefillLeg, Server: server.ID(), Kind: Broken, Status: resp.StatusCode, Err: errNoAnswer}
		} else {
			failed = failedInAnswer(ctx, PrefillLeg, server.ID(), resp, &answer)
		}
	}
	if verify := t.Connector().Verify; failed == nil && verify != nil {
		if err := verify(answer); err != nil {
			failed = &LegError{Leg: PrefillLeg, Server: server.ID(), Kind: Broken, Err: err}
		}
	}
	if failed != nil {
		o.reportFailure(b.prefill, st, b, failed)
	}
	return answer, failed
}

// recordNoHandoff notes a prefill whose work is of no use to decode.
func (o *Orchestrator) recordNoHandoff(server *pools.Server) {
	if server.RecordMissingHandoff(time.Now()) {
		o.Log.Error("prefill hands nothing over, its servers' work is left out for a while: is its KV connector set up?", "server", server.ID())
	}
}
