package pd

import (
	"cmp"
	"context"
	"time"

	"github.com/tandem-gateway/tandem/pd/answerkv"
	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pd/histogram"
	"github.com/tandem-gateway/tandem/pd/spans"
	"github.com/tandem-gateway/tandem/pools"
)

// decodeLeg sends the decode leg, up to the whole answer or the first content event
// of a stream. On success the lease ends with the answer.
func (o *Orchestrator) decodeLeg(ctx context.Context, st *requestState, b *binding) *LegError {
	server := b.decode.Server()
	st.lastHandoff = b.handoff
	leg, id, part := AggregatedLeg, "", connector.LegRequest{Body: st.req.Body}
	handoff := spans.Handoff{BytesPerToken: b.tokenBytes, Gap: -1}
	if b.handoff != nil {
		leg, id, part = DecodeLeg, b.handoff.Attempt, b.handoff.Leg
		if b.handoff.HasKV() {
			handoff.Tokens = cmp.Or(b.handoff.Coverage().Tokens, st.req.PromptTokens)
		}
		if c := connector.Of(server); !c.ConcurrentLegs && !c.DecodeDriven {
			handoff.Gap = time.Since(b.handoff.Created)
			histogram.Observe(ctx, o.Metrics.gap.WithLabelValues(), handoff.Gap.Seconds())
		}
	} else {
		id = connector.AttemptID()
		if b.pullFrom != nil {
			part = connector.PullFrom(b.pullFrom, st.req.Body)
		}
	}
	ctx, b.span = spans.StartLeg(ctx, o.Tracer, "decode", server.ID(), id)
	b.span.SetKind(string(leg))
	b.span.RecordHandoff(handoff)
	answer, failed := st.form.decode(ctx, st, b, leg, id, part)
	if failed != nil || answer.isComplete() { // else it ends with the stream: see endLeg
		endLegSpan(b.span, failed)
	}
	if failed != nil {
		o.reportFailure(b.decode, st, b, failed)
		return failed
	}
	answer.Decode, st.servedBy = server.ID(), server.ID()
	if b.handoff != nil {
		answer.Prefill = b.handoff.From.ID()
	}
	b.answer = answer
	return nil
}

// countAnswerKV counts what became of the KV of an answer.
func (m *Metrics) countAnswerKV(outcome answerkv.Outcome) {
	m.answerKV.WithLabelValues(string(outcome)).Inc()
}

// recordRetained counts an answer whose blocks the engine keeps although no server fetches
// them, and warns of the first in each life of the server.
func (o *Orchestrator) recordRetained(server *pools.Server) {
	o.Metrics.retained.WithLabelValues(server.ID()).Inc()
	if server.RecordRetains() {
		o.Log.Warn("decode answers with a hand-off: it pins the blocks of each answer for 480 s, and no server fetches them; set bidirectional_kv_xfer to false in its kv_connector_extra_config, or answer-kv to all", "server", server.ID())
	}
}

// decodeDriven runs one leg on decode, which brings prefill with it. What fails there may be
// either server's: only a probe request tells them apart.
func (o *Orchestrator) decodeDriven(ctx context.Context, st *requestState, b *binding) *LegError {
	st.bind.tried.handoff = nil
	defer b.prefill.Release()
	b.handoff = st.transfer(b).Handoff()
	b.prefill.MarkSent(b.chosen.Terms.FirstStep(), time.Now())
	if !st.req.Stream {
		b.prefill.EndsUnseen()
	}
	failed := o.decodeLeg(ctx, st, b)
	if failed == nil {
		st.releaseUnseenPrefill(b)
		return nil
	}
	b.releaseDecode()
	if b.failedTransfer(failed) || failed.Kind == Timeout {
		st.bind.tried.exclude(PrefillLeg, b.prefill.Server().ID())
		b.prefill.Server().Suspect(pools.Prefill)
	}
	return failed
}

// releaseUnseenPrefill gives back the place of a prefill that decode asked for itself, now that decode has shown that it
// is done.
func (st *requestState) releaseUnseenPrefill(b *binding) {
	held, computed := st.predictedCache()
	b.prefill.ReleasePrefilledBy(computed, held)
}
