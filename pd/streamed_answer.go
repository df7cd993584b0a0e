package pd

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pools"
)

// streamedAnswer is an answer that is relayed event by event.
type streamedAnswer struct{ o *Orchestrator }

func (a streamedAnswer) decode(ctx context.Context, st *requestState, b *binding, leg Leg, id string, part connector.LegRequest) (*Answer, *LegError) {
	o := a.o
	server := b.decode.Server()
	start := time.Now()
	legCtx, cancel := context.WithCancelCause(ctx)
	idle := time.AfterFunc(o.Config.FirstEventTimeout, func() { cancel(errSilent) })
	var open atomic.Pointer[legStream] // nil before the first content event
	before := st.bind.tried.servers(leg)
	stopWatch := server.OnDown(func(why pools.DownCause) {
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
			stopWatch()
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
		server.RecordNoTokenIDs()
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
	b.choice.Measured.FirstToken = now.Sub(st.boundAt)
	if b.choice.Measured.Prefill > 0 {
		b.choice.Measured.Transfer = now.Sub(start)
	}
	s.onEnd = func(r StreamResult) {
		stopWatch()
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
	events := bytes.NewReader(api.AsStream(st.req.Dialect, body, true))
	ctx, cancel := context.WithCancelCause(ctx)
	s := &legStream{
		dialect: st.req.Dialect, events: api.NewEventReader(events), body: io.NopCloser(events),
		ctx: ctx, cancel: cancel, idle: time.AfterFunc(o.Config.IdleTimeout, func() {}), idleLimit: o.Config.IdleTimeout,
		server: b.handoff.From, side: func() api.PromptUsage { return api.PromptUsage{} }, hideUsage: st.req.HideUsage,
		onGap: func(time.Duration) {}, transcript: st.transcript,
		onEnd: func(r StreamResult) {
			o.countAnswer(st, r.Usage, r.Usage.Cached, r.Events)
			st.measureUsage(b, r.Usage, r.Usage.Cached)
			o.recordEnd(st, b, nil)
		},
	}
	b.choice.Measured.FirstToken = time.Since(st.boundAt)
	if err := s.open(); err != nil {
		cancel(nil)
		return nil, &LegError{Leg: PrefillLeg, Server: from, Kind: Broken, Err: err}
	}
	return &Answer{Status: http.StatusOK, ContentType: "text/event-stream", leg: s, Prefill: from}, nil
}

// relay lets the stream keep its servers and its place until it ends.
func (a streamedAnswer) relay(ctx context.Context, st *requestState, b *binding) {
	o := a.o
	answer := b.answer
	if len(st.bind.tried.legs) == 0 && !st.bind.continues {
		o.Binder.ttftMargin.Observe(&b.chosen.Terms, time.Since(st.boundAt))
	}
	answer.Stream = &Stream{leg: answer.leg, leave: func() { o.Queue.leave(st.entry) }}
	if st.transcript != nil {
		answer.Stream.continueOn = func(broken *BrokenStreamError) (*Stream, []byte, error) { return o.continueStream(ctx, st, broken) }
	}
	st.streams = true
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
