package pd

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/tandem-gateway/tandem/pd/answerkv"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pd/enginehttp"
	"github.com/tandem-gateway/tandem/pd/enginehttp/http1"
	"github.com/tandem-gateway/tandem/pd/histogram"
	"github.com/tandem-gateway/tandem/pd/transcript"
	"github.com/tandem-gateway/tandem/pools"
)

// streamedAnswer is an answer that is relayed event by event.
type streamedAnswer struct{ o *Orchestrator }

// decode asks once more where the engine refuses the wish for token ids alone, which the client did not
// have: Hugging Face's transformers serve does (422, cli/serving/utils.py, _validate_request; 5.19.0).
func (a streamedAnswer) decode(ctx context.Context, st *requestState, b *binding, leg Leg, id string, part connector.LegRequest) (*Answer, *LegError) {
	server := b.decode.Server()
	mayReport := server.ReportsTokenIDs()
	answer, failed := a.ask(ctx, st, b, leg, id, part, streamEngine(server))
	if failed == nil || !mayReport || st.transcript == nil || !failed.refusesTokenIDs() || part.Body.Get(api.TokenIDsField) != nil {
		return answer, failed
	}
	without := streamEngine(server)
	without.MayReportIDs = false
	if answer, failed = a.ask(ctx, st, b, leg, id, part, without); failed != nil && failed.refusesTokenIDs() {
		return answer, failed // it quotes the request, which has the word
	}
	server.RecordNoTokenIDs()
	a.o.Log.Info("the engine refuses "+api.TokenIDsField+", and is asked without: a broken stream of it cannot be continued by its tokens", "server", server.ID())
	return answer, failed
}

func (a streamedAnswer) ask(ctx context.Context, st *requestState, b *binding, leg Leg, id string, part connector.LegRequest, engine transcript.Engine) (*Answer, *LegError) {
	o := a.o
	server := b.decode.Server()
	start := time.Now()
	legCtx := http1.NewInterrupt(ctx)
	var open atomic.Pointer[legStream] // nil before the first content event
	idle := time.AfterFunc(o.Config.FirstEventTimeout, func() {
		if s := open.Load(); s != nil {
			s.idleOver()
			return
		}
		legCtx.End(errSilent)
	})
	model, before := st.req.Model, st.bind.tried.servers(leg)
	watch := server.OnDown(new(pools.DownWatch), pools.DownFunc(func(why pools.DownCause) { // in a prober's goroutine, for which st is not made
		// One that lets no more requests in may send on; one of a group waits for the dead
		// one, whatever it still sends.
		s := open.Load()
		if silent := s == nil || server.Group != "" || s.silentFor(2*o.Fleet.ProbeInterval()); silent && o.Binder.shouldAbandon(model, leg, server, before, why) {
			legCtx.End(errServerDown)
		}
	}))
	answering := false
	defer func() { // also after a panic
		if !answering {
			idle.Stop()
			watch.Stop()
			legCtx.End(nil)
		}
	}()
	if st.transcript != nil {
		part.Body = st.transcript.StartLeg(engine, part.Body)
	}
	hideIDs := false
	if b.legIDs = nil; (answerKV{o}).wantsIDs(st, b) {
		b.legIDs = new(answerkv.IDs)
		part.Body, hideIDs = askForIDs(part.Body)
	}
	b.decode.MarkSent(b.chosen.Terms.FirstStep(), start)
	sample := o.Binder.beginTransfer(st, b, start)
	defer sample.end()
	resp, err := send(legCtx, o.Transport, server, st.req.Dialect.Path, id, st.req.Header, part, st.memoryOf(b))
	if err != nil {
		return nil, failedSend(legCtx, leg, server.ID(), err)
	}
	if resp.StatusCode != http.StatusOK || !isEventStream(resp) {
		return nil, o.notAStream(legCtx, st, leg, server, resp)
	}
	steps, silent := o.newStepSampler(server, st.req), mayBeSilent(st.req.Body)
	s := &legStream{
		dialect: st.req.Dialect, events: api.NewEventReader(resp.Body), body: resp.Body,
		ctx: legCtx, cancel: legCtx.End, idle: idle, idleLimit: o.idleLimit(silent),
		server: server, side: b.promptSide, mostTokens: o.mostTokens(st), hideUsage: st.req.HideUsage,
		opensLate: opensWithToken(server),
		onGap:     steps.gapsOf(silent), transcript: st.transcript, ids: b.legIDs, hideIDs: hideIDs, handoff: b.handoff, choices: api.NewEndedChoices(st.req.Answers),
		room: eventRoom{held: o.Answers.Hold(st.req.Tenant)},
	}
	s.events.Room = &s.room
	defer func() { // also after a panic
		if !answering {
			s.events.Close()
			s.room.give()
		}
	}()
	if err := s.open(func(now time.Time) {
		if silent {
			idle.Reset(o.Config.AnswerTimeout)
		}
		a.learnFirst(ctx, st, b, &sample, now.Sub(start), now)
	}); err != nil {
		_ = resp.Body.Close()
		return nil, failedSend(legCtx, leg, server.ID(), err)
	}
	if st.transcript != nil && st.transcript.WithoutIDs() {
		server.RecordNoTokenIDs()
	}
	open.Store(s)
	a.recordFirst(ctx, st, b, start)
	s.onEnd = func(r StreamResult) {
		watch.Stop()
		steps.end()
		o.endLeg(st, b, r)
	}
	answering = true
	return &Answer{Status: http.StatusOK, ContentType: "text/event-stream", leg: s}, nil
}

func (a streamedAnswer) fromPrefill(ctx context.Context, st *requestState, b *binding, data []byte) (*Answer, *LegError) {
	o := a.o
	from := b.handoff.From.ID()
	body, err := api.ParseBody(data)
	if err != nil {
		return nil, &LegError{Leg: PrefillLeg, Server: from, Kind: Broken, Err: err}
	}
	events := bytes.NewReader(api.AsStream(st.req.Dialect, body, wantsEachUsage(st.req.Body)))
	ctx, cancel := context.WithCancelCause(ctx)
	s := &legStream{
		dialect: st.req.Dialect, events: api.NewEventReader(events), body: io.NopCloser(events),
		ctx: ctx, cancel: cancel, idle: time.AfterFunc(o.Config.IdleTimeout, func() {}), idleLimit: o.Config.IdleTimeout,
		server: b.handoff.From, side: func() api.PromptUsage { return api.PromptUsage{} }, mostTokens: o.mostTokens(st), hideUsage: st.req.HideUsage,
		onGap: func(time.Duration) {}, transcript: st.transcript,
		onEnd: func(r StreamResult) {
			now := time.Now()
			o.countAnswer(st, r.Usage, r.Events, now)
			st.measureUsage(b, r.Usage, now)
			st.recordEnd(o.Decisions, b, nil)
		},
	}
	if err := s.open(func(time.Time) {}); err != nil {
		cancel(nil)
		return nil, &LegError{Leg: PrefillLeg, Server: from, Kind: Broken, Err: err}
	}
	a.measureFirst(ctx, st, b, time.Now())
	return &Answer{Status: http.StatusOK, ContentType: "text/event-stream", leg: s, Prefill: from}, nil
}

// opensWithToken reports whether an engine names the role of a chat, or begins a message, when it has the first token, and
// not before: what that says may come much later, since a parser of tool calls holds back what may become one. vLLM 0.32
// (entrypoints/openai/chat_completion/serving.py, chat_completion_stream_generator, and anthropic/serving.py,
// message_stream_converter), SGLang
// (srt/entrypoints/openai/serving_chat.py, _generate_chat_stream), TensorRT-LLM (serve/postprocess_handlers.py,
// chat_stream_post_processor).
func opensWithToken(server *pools.Server) bool {
	switch server.Identity().Engine {
	case "vllm", "sglang", "trtllm":
		return true
	}
	return false
}

// learnFirst learns from when decode's leg showed that the prompt's KV is there, so long after it was sent.
func (a streamedAnswer) learnFirst(ctx context.Context, st *requestState, b *binding, sample *transferSample, took time.Duration, now time.Time) {
	a.o.endPull(b, true)
	switch {
	case b.handoff != nil:
	case b.cut.done > 0:
		b.decode.EndLocalPieces()
	default:
		held := min(b.cachedTokens, st.req.PromptTokens-1)
		b.decode.EndLocalPrefill(st.req.PromptTokens-held, held, b.batch, now)
	}
	if sample.transfer != nil && sample.teaches(now) {
		a.o.Metrics.choices.ObserveTransfer(ctx, st.req.Model, &b.chosen.Terms, sample.bytes, took)
	}
	sample.first(took, now)
}

// recordFirst records that the first content event of decode's leg, which was sent at start, is
// there.
func (a streamedAnswer) recordFirst(ctx context.Context, st *requestState, b *binding, start time.Time) {
	b.decode.RecordResult(nil)
	b.prediction.comeTrue()
	now := time.Now()
	b.span.RecordFirst(now)
	a.o.Metrics.firstEvent.Observe(ctx, st.req.Model, b.decode.Server().ID(), now.Sub(start))
	if b.choice.Measured.Prefill > 0 {
		b.choice.Measured.Transfer = now.Sub(start)
	}
	if b.continuedAt = now; !b.handoff.GoesOn() {
		a.measureFirst(ctx, st, b, now)
	}
}

// measureFirst measures when the first token of an answer was there.
func (a streamedAnswer) measureFirst(ctx context.Context, st *requestState, b *binding, now time.Time) {
	b.choice.Measured.FirstToken = now.Sub(st.boundAt)
	if !st.bind.continues {
		histogram.Observe(ctx, a.o.Metrics.ttft.WithLabelValues(st.req.Model), now.Sub(st.bind.arrived).Seconds())
		a.o.recordFirstToken(st, b, now)
		a.o.evaluateChoice(ctx, st, b)
		st.span.RecordFirst(st.firstChoice(), now.Sub(st.bind.arrived))
	}
}

// begin is a stream of prefill's token alone. The leg of decode is sent when that has been
// taken, which the relay does at once, or while it is held (Stream.behind, Stream.hold).
func (a streamedAnswer) begin(ctx context.Context, st *requestState, b *binding) *Answer {
	o := a.o
	if b.hold = a.hold(ctx, st, b); b.hold == nil {
		b.begunAt = time.Now()
		a.measureFirst(ctx, st, b, b.begunAt)
	}
	st.servedBy = b.decode.Server().ID()
	s := &legStream{
		events: api.NewEventReader(http.NoBody), body: http.NoBody, cancel: func(error) {}, idle: time.AfterFunc(time.Hour, func() {}),
		server: b.handoff.From, pending: st.begun, opened: true, ended: true, result: StreamResult{Events: 1},
	}
	s.onEnd = func(StreamResult) {
		if b.behindSent {
			return // what decode says is counted with it
		}
		b.releaseDecode()
		o.Metrics.countStranded(b.handoff)
		var prefill api.Usage
		if first := b.handoff.First; first != nil { // the text may have been let go of
			prefill, _ = first.Answer.Usage()
		}
		o.countAnswer(st, prefill, 1, time.Now())
		st.recordEnd(o.Decisions, b, nil)
	}
	return &Answer{Status: http.StatusOK, ContentType: "text/event-stream", leg: s, Prefill: b.handoff.From.ID(), Decode: st.servedBy}
}

// sendBehind sends decode's leg behind prefill's token. While the client waits for that, it runs beside
// the goroutine that relays the answer.
func (a streamedAnswer) sendBehind(ctx context.Context, st *requestState, b *binding) *LegError {
	b.behindSent = true
	defer b.releaseUnlessAnswered()
	b.answer = nil
	return a.o.decodeWith(ctx, st, b)
}

// behind is what came of decode's leg behind prefill's token. The client has that token: a leg that
// fails is a stream that broke.
func (a streamedAnswer) behind(ctx context.Context, st *requestState, b *binding, failed *LegError) (*legStream, error) {
	o := a.o
	switch {
	case failed == nil:
		if _, itl := o.Binder.Config.SLO(st.req, st.bind.base); itl > 0 {
			o.Binder.firstGap.Observe(b.continuedAt.Sub(b.begunAt), itl)
		}
		st.dropText()
		return b.answer.leg, nil
	case failed.Kind == Gone:
		return nil, context.Cause(ctx)
	}
	st.last = failed
	o.Metrics.brokenAfter.WithLabelValues(failed.Server).Inc()
	o.Log.Error("decode failed behind prefill's token", "request_id", st.req.ID, "server", failed.Server, "error", failed.Error())
	broken := &BrokenStreamError{Message: "decode failed behind the first token", Err: failed, Status: failed.Status, Event: failed.engineMessage()}
	st.recordEnd(o.Decisions, b, broken)
	if !o.continuesStreamOf(st) { // else continueStream looks
		o.recordDeathBehind(st, failed.Server, broken)
	}
	return nil, broken
}

// hold keeps prefill's token from the client where the request has an objective for gaps and the second
// one may come later than that allows, or decode has yet to pull a piece before it can be asked; nil where
// the client may have it at once.
func (a streamedAnswer) hold(ctx context.Context, st *requestState, b *binding) *hold {
	_, itl := a.o.Binder.Config.SLO(st.req, st.bind.base)
	if itl == 0 {
		return nil
	}
	longer := func() time.Duration { return a.o.Binder.holdFirst(b, itl, time.Now()) }
	if b.hasPulled() && longer() == 0 {
		return nil
	}
	return &hold{asked: make(chan struct{}), longer: longer, legs: &a.o.legs, onGiven: func(at time.Time) {
		b.begunAt = at
		a.measureFirst(ctx, st, b, at)
		a.observeMargin(st, b, at)
	}}
}

// relay lets the stream keep its servers and its place until it ends.
func (a streamedAnswer) relay(ctx context.Context, st *requestState, b *binding) {
	o := a.o
	answer := b.answer
	answer.Stream = &Stream{leg: answer.leg, leave: func() { o.Queue.Leave(st.entry) }}
	if b.handoff.GoesOn() {
		if answer.Stream.hold = b.hold; b.hold != nil {
			ctx, b.hold.cancel = context.WithCancel(ctx)
		}
		answer.Stream.behind = &restOfStream{
			send: func() *LegError { return a.sendBehind(ctx, st, b) },
			open: func(failed *LegError) (*legStream, error) { return a.behind(ctx, st, b, failed) },
		}
	}
	if answer.Stream.hold == nil {
		a.observeMargin(st, b, time.Now())
	}
	switch {
	case o.continuesStreamOf(st):
		answer.Stream.continueOn = func(broken *BrokenStreamError) (*Stream, []byte, error) { return o.continueStream(ctx, st, broken) }
	case st.notContinued != nil:
		answer.Stream.continueOn = func(*BrokenStreamError) (*Stream, []byte, error) {
			o.logNotContinued(st, st.notContinued)
			return nil, nil, st.notContinued
		}
	}
	if !b.handoff.GoesOn() { // else decode's leg is still to be sent
		st.dropText()
	}
	st.streams = true
}

// observeMargin compares when the first token came with when it was predicted to.
func (a streamedAnswer) observeMargin(st *requestState, b *binding, at time.Time) {
	if len(st.bind.tried.legs) == 0 && !st.bind.continues {
		a.o.Binder.ttftMargin.Observe(&b.chosen.Terms, at.Sub(st.boundAt))
	}
}

// notAStream judges an answer that should have been an event stream.
func (o *Orchestrator) notAStream(ctx context.Context, st *requestState, leg Leg, server *pools.Server, resp *http.Response) *LegError {
	defer func() { _ = resp.Body.Close() }()
	held := o.Answers.Hold(st.req.Tenant)
	defer held.Release()
	body, err := enginehttp.ReadAnswer(resp, &held)
	if err != nil {
		return failedSend(ctx, leg, server.ID(), err)
	}
	return failedStatus(ctx, leg, server.ID(), resp, body)
}
