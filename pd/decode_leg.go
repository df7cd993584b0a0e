package pd

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/tandem-gateway/tandem/kvstate/jsonscan"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pools"
)

// decodeLeg sends the decode leg, up to the whole answer or the first content event
// of a stream. On success the lease ends with the answer.
func (o *Orchestrator) decodeLeg(ctx context.Context, st *requestState, b *binding) *LegError {
	server := b.decode.Server()
	st.lastHandoff = b.handoff
	leg, id, part := AggregatedLeg, "", connector.LegRequest{Body: st.req.Body}
	if b.handoff != nil {
		leg, id, part = DecodeLeg, b.handoff.Attempt, b.handoff.Leg
		if c := connector.Of(server); !c.ConcurrentLegs && !c.DecodeDriven {
			o.Metrics.gap.Observe(time.Since(b.handoff.Created).Seconds())
		}
	} else {
		id = connector.AttemptID()
		if b.pullFrom != nil {
			part = connector.PullFrom(b.pullFrom, st.req.Body)
		}
	}
	ctx, span := legSpan(ctx, o.Tracer, "decode", server, id)
	span.SetAttributes(attribute.String("tandem.leg", string(leg)))
	var answer *Answer
	var failed *LegError
	if st.req.Stream {
		answer, failed = o.decodeStream(ctx, st, b, leg, id, part)
	} else {
		answer, failed = o.decodeWhole(ctx, st, b, leg, id, part)
	}
	endLegSpan(span, failed)
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

func (o *Orchestrator) decodeWhole(ctx context.Context, st *requestState, b *binding, leg Leg, id string, part connector.LegRequest) (*Answer, *LegError) {
	server := b.decode.Server()
	ctx, cancel := context.WithTimeoutCause(ctx, o.Config.AnswerTimeout, errSilent)
	defer cancel()

	b.decode.MarkSent(b.chosen.Terms.TTFT() + time.Duration(st.req.OutputTokens)*b.chosen.Terms.Step)
	start := time.Now()
	sample := o.Binder.beginTransfer(st, b, start)
	defer sample.end()
	resp, data, failed := o.sendWhole(ctx, leg, server, st, id, part)
	if failed != nil {
		return nil, failed
	}
	if jsonscan.Check(data) != nil {
		return nil, &LegError{Leg: leg, Server: server.ID(), Kind: Broken, Status: resp.StatusCode, Err: errEmpty}
	}
	data, err := b.handoff.Complete(ctx, data)
	if err != nil {
		return nil, failedSend(ctx, leg, server.ID(), err)
	}
	b.decode.RecordResult(nil)
	usage, _ := st.req.Dialect.ReadUsage(data)
	now := time.Now()
	sample.whole(now.Sub(start), usage.Output, now)
	if usage.Cached.Known {
		server.NoteCachedTokens()
	}
	o.compareCounts(st, b, usage)
	side := b.promptSide()
	if side.Override && api.Recomputed(usage, side.Handed, server.ReportsCachedTokens()) {
		o.Metrics.recomputes.WithLabelValues(server.ID()).Inc()
		side = api.PromptUsage{}
	}
	if api.KeepsAnswerBlocks(data) {
		o.noteRetained(server)
	}
	clean, err := st.req.Dialect.CleanAnswer(data, side)
	if err != nil {
		return nil, &LegError{Leg: leg, Server: server.ID(), Kind: Broken, Err: err}
	}
	o.Metrics.countTokens(st, usage, b.prefillCached(usage), 0)
	o.Binder.learnOutput(st, usage)
	b.decode.Release()
	return &Answer{Status: resp.StatusCode, ContentType: "application/json", Body: clean, Usage: usage}, nil
}

func (o *Orchestrator) decodeStream(ctx context.Context, st *requestState, b *binding, leg Leg, id string, part connector.LegRequest) (*Answer, *LegError) {
	server := b.decode.Server()
	start := time.Now()
	legCtx, cancel := context.WithCancelCause(ctx)
	idle := time.AfterFunc(o.Config.FirstEventTimeout, func() { cancel(errSilent) })
	var open atomic.Pointer[legStream] // nil before the first content event
	before := st.bind.tried.servers(leg)
	noFall := server.OnDown(func(why pools.DownCause) {
		// One that lets no more requests in may send on; one of a group waits for the dead
		// one, whatever it still sends.
		s := open.Load()
		if silent := s == nil || server.Group != "" || s.silentFor(2*o.Fleet.ProbeInterval()); silent && o.Binder.shouldAbandon(st.req.Model, leg, server, before, why) {
			cancel(errServerDown)
		}
	})
	answering := false
	defer func() { // also after a panic
		if !answering {
			idle.Stop()
			noFall()
			cancel(nil)
		}
	}()
	if st.transcript != nil {
		part.Body = st.transcript.StartLeg(streamEngine(server), part.Body)
	}
	b.decode.MarkSent(b.chosen.Terms.TTFT())
	sample := o.Binder.beginTransfer(st, b, start)
	defer sample.end()
	resp, err := send(legCtx, o.Transport, server, st.req.Dialect.Path, id, st.req.Header, part)
	if err != nil {
		return nil, failedSend(legCtx, leg, server.ID(), err)
	}
	if resp.StatusCode != http.StatusOK || !isEventStream(resp) {
		return nil, notAStream(legCtx, leg, server, resp)
	}
	steps := &stepSampler{o: o, server: server, itl: o.Metrics.itl.WithLabelValues(server.ID())}
	s := &legStream{
		dialect: st.req.Dialect, events: api.NewEventReader(resp.Body), body: resp.Body,
		ctx: legCtx, cancel: cancel, idle: idle, idleLimit: o.Config.IdleTimeout,
		server: server, side: b.promptSide, hideUsage: st.req.HideUsage,
		onGap: steps.observeGap, transcript: st.transcript, handoff: b.handoff, answers: max(1, st.req.Answers),
	}
	if err := s.open(); err != nil {
		_ = resp.Body.Close()
		return nil, failedSend(legCtx, leg, server.ID(), err)
	}
	b.decode.RecordResult(nil)
	if st.transcript != nil && st.transcript.WithoutIDs() {
		server.NoteNoTokenIDs()
	}
	open.Store(s)
	now := time.Now()
	o.Metrics.firstEvent.WithLabelValues(server.ID()).Observe(now.Sub(start).Seconds())
	if !st.bind.continues {
		o.Metrics.ttft.WithLabelValues(st.req.Model).Observe(now.Sub(st.bind.arrived).Seconds())
	}
	if b.handoff == nil {
		held := min(b.cachedTokens, st.req.PromptTokens-1)
		b.decode.EndLocalPrefill(st.req.PromptTokens-held, held)
	}
	sample.first(now.Sub(start), now)
	s.onEnd = func(r StreamResult) {
		noFall()
		o.endLeg(st, b, r)
	}
	answering = true
	return &Answer{Status: http.StatusOK, ContentType: "text/event-stream", leg: s}, nil
}

// notAStream judges an answer that should have been an event stream.
func notAStream(ctx context.Context, leg Leg, server *pools.Server, resp *http.Response) *LegError {
	defer func() { _ = resp.Body.Close() }()
	body, err := readAnswer(resp)
	if err != nil {
		return failedSend(ctx, leg, server.ID(), err)
	}
	return failedStatus(leg, server.ID(), resp, body)
}

// noteRetained counts an answer whose blocks the engine keeps for nobody, and warns of the
// first in each life of the server.
func (o *Orchestrator) noteRetained(server *pools.Server) {
	o.Metrics.retained.WithLabelValues(server.ID()).Inc()
	if server.NoteRetains() {
		o.Log.Warn("decode answers with a hand-off: it pins the blocks of each answer for 480 s, and nobody fetches them; set bidirectional_kv_xfer to false in its kv_connector_extra_config", "server", server.ID())
	}
}

// decodeDriven runs one leg on decode, which brings prefill with it. What fails there may be
// either server's: only a probe request tells them apart.
func (o *Orchestrator) decodeDriven(ctx context.Context, st *requestState, b *binding) *LegError {
	st.bind.tried.handoff = nil
	withdraw := o.Binder.predictCached(&st.bind, b.prefill.Server(), b.decode.Server())
	defer b.prefill.Release()
	b.handoff = st.transfer(b).Handoff()
	b.prefill.MarkSent(b.chosen.Terms.TTFT())
	failed := o.decodeLeg(ctx, st, b)
	if failed == nil {
		b.prefill.RecordResult(nil)
		return nil
	}
	withdraw()
	b.decode.Release()
	if b.failedTransfer(failed) || failed.Kind == Timeout {
		st.bind.tried.exclude(PrefillLeg, b.prefill.Server().ID())
		b.prefill.Server().Suspect(pools.Prefill)
	}
	return failed
}
