package pd

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/tandem-gateway/tandem/kvstate/jsonscan"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pools"
)

// decode runs the decode leg, up to the whole answer or the first content event
// of a stream. On success the lease ends with the answer.
func (o *Orchestrator) decode(ctx context.Context, j *requestState, a binding) (*Answer, *LegError) {
	server := a.decode.Server()
	j.given = a.handoff
	leg, id, part := AloneLeg, "", connector.LegRequest{Body: j.req.Body}
	if a.handoff != nil {
		leg, id, part = DecodeLeg, a.handoff.Attempt, a.handoff.Leg
		if c := connector.Of(server); !c.ConcurrentLegs && !c.DecodeDriven {
			o.Metrics.gap.Observe(time.Since(a.handoff.Created).Seconds())
		}
	} else {
		id = connector.AttemptID()
		if a.pullFrom != nil {
			part = connector.PullFrom(a.pullFrom, j.req.Body)
		}
	}
	ctx, span := o.legSpan(ctx, "decode", server, id)
	span.SetAttributes(attribute.String("tandem.leg", string(leg)))
	var answer *Answer
	var failed *LegError
	if j.req.Stream {
		answer, failed = o.decodeStream(ctx, j, a, leg, id, part)
	} else {
		answer, failed = o.decodeWhole(ctx, j, a, leg, id, part)
	}
	endLegSpan(span, failed)
	if failed != nil {
		o.blame(a.decode, j, a, failed)
		return nil, failed
	}
	answer.Decode, j.servedBy = server.ID(), server.ID()
	if a.handoff != nil {
		answer.Prefill = a.handoff.From.ID()
	}
	return answer, nil
}

func (o *Orchestrator) decodeWhole(ctx context.Context, j *requestState, a binding, leg Leg, id string, part connector.LegRequest) (*Answer, *LegError) {
	server := a.decode.Server()
	ctx, cancel := context.WithTimeoutCause(ctx, o.Config.AnswerTimeout, errSilent)
	defer cancel()

	a.decode.Sent(a.chosen.Terms.TTFT() + time.Duration(j.req.OutputTokens)*a.chosen.Terms.Step)
	start := time.Now()
	crossing := o.beginTransfer(j, a, start)
	defer crossing.end()
	resp, data, failed := o.whole(ctx, leg, server, j, id, part)
	if failed != nil {
		return nil, failed
	}
	if jsonscan.Check(data) != nil {
		return nil, &LegError{Leg: leg, Server: server.ID(), Kind: Broken, Status: resp.StatusCode, Err: errEmpty}
	}
	data, err := a.handoff.Complete(ctx, data)
	if err != nil {
		return nil, failedSend(ctx, leg, server.ID(), err)
	}
	a.decode.Settle(nil)
	usage, _ := j.req.Dialect.ReadUsage(data)
	now := time.Now()
	crossing.whole(now.Sub(start), usage.Output, now)
	if usage.Cached.Known {
		server.NoteCachedTokens()
	}
	o.compareCounts(j, a, usage)
	side := a.promptSide()
	if side.Override && api.Recomputed(usage, side.Handed, server.TellsCachedTokens()) {
		o.Metrics.recomputes.WithLabelValues(server.ID()).Inc()
		side = api.PromptUsage{}
	}
	if api.KeepsAnswerBlocks(data) {
		o.noteRetained(server)
	}
	clean, err := j.req.Dialect.CleanAnswer(data, side)
	if err != nil {
		return nil, &LegError{Leg: leg, Server: server.ID(), Kind: Broken, Err: err}
	}
	o.countTokens(j, usage, a.prefillCached(usage), 0)
	o.learnOutput(j, usage)
	a.decode.Release()
	return &Answer{Status: resp.StatusCode, ContentType: "application/json", Body: clean, Usage: usage}, nil
}

func (o *Orchestrator) decodeStream(ctx context.Context, j *requestState, a binding, leg Leg, id string, part connector.LegRequest) (*Answer, *LegError) {
	server := a.decode.Server()
	start := time.Now()
	legCtx, cancel := context.WithCancelCause(ctx)
	idle := time.AfterFunc(o.Config.FirstEventTimeout, func() { cancel(errSilent) })
	var open atomic.Pointer[legStream] // nil before the first content event
	before := j.triedBy(leg)
	noFall := server.OnFall(func(why pools.Fall) {
		// One that lets no more requests in may send on; one of a group waits for the dead
		// one, whatever it still sends.
		s := open.Load()
		if silent := s == nil || server.Group != "" || s.silentFor(2*o.Fleet.ProbeInterval()); silent && o.shouldAbandon(j.req.Model, leg, server, before, why) {
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
	if j.transcript != nil {
		part.Body = j.transcript.StartLeg(streamEngine(server), part.Body)
	}
	a.decode.Sent(a.chosen.Terms.TTFT())
	crossing := o.beginTransfer(j, a, start)
	defer crossing.end()
	resp, err := send(legCtx, o.Transport, server, j.req.Dialect.Path, id, j.req.Header, part)
	if err != nil {
		return nil, failedSend(legCtx, leg, server.ID(), err)
	}
	if resp.StatusCode != http.StatusOK || !isEventStream(resp) {
		return nil, o.notAStream(legCtx, leg, server, resp)
	}
	pace := &pace{o: o, server: server, itl: o.Metrics.itl.WithLabelValues(server.ID())}
	s := &legStream{
		dialect: j.req.Dialect, events: api.NewEventReader(resp.Body), body: resp.Body,
		ctx: legCtx, cancel: cancel, idle: idle, idleLimit: o.Config.IdleTimeout,
		server: server, side: a.promptSide, hideUsage: j.req.HideUsage,
		onGap: pace.gap, transcript: j.transcript, handoff: a.handoff, answers: max(1, j.req.Answers),
	}
	if err := s.open(); err != nil {
		_ = resp.Body.Close()
		return nil, failedSend(legCtx, leg, server.ID(), err)
	}
	a.decode.Settle(nil)
	if j.transcript != nil && j.transcript.WithoutIDs() {
		server.NoteNoTokenIDs()
	}
	open.Store(s)
	now := time.Now()
	o.Metrics.firstEvent.WithLabelValues(server.ID()).Observe(now.Sub(start).Seconds())
	if !j.continues {
		o.Metrics.ttft.WithLabelValues(j.req.Model).Observe(now.Sub(j.arrived).Seconds())
	}
	if a.handoff == nil {
		held := min(a.cachedTokens, j.req.PromptTokens-1)
		a.decode.Computed(j.req.PromptTokens-held, held)
	}
	crossing.first(now.Sub(start), now)
	s.onClose = func(r StreamResult) {
		noFall()
		o.streamEnded(j, a, r)
	}
	answering = true
	return &Answer{Status: http.StatusOK, ContentType: "text/event-stream", leg: s}, nil
}

// notAStream judges an answer that should have been an event stream.
func (o *Orchestrator) notAStream(ctx context.Context, leg Leg, server *pools.Server, resp *http.Response) *LegError {
	defer func() { _ = resp.Body.Close() }()
	body, err := readAnswer(resp)
	if err != nil {
		return failedSend(ctx, leg, server.ID(), err)
	}
	return failedStatus(leg, server.ID(), resp, body)
}

// streamEnded settles what a stream leaves behind.
func (o *Orchestrator) streamEnded(j *requestState, a binding, r StreamResult) {
	defer a.decode.Release() // also after a panic
	server := a.decode.Server()
	var broken *BrokenStreamError
	if errors.As(r.Err, &broken) {
		a.decode.Broke(broken)
		o.Metrics.brokenAfter.WithLabelValues(server.ID()).Inc()
		o.Log.Error("stream broke", "request_id", j.req.ID, "server", server.ID(), "error", broken.Err.Error())
	}
	if r.Recomputed {
		o.Metrics.recomputes.WithLabelValues(server.ID()).Inc()
	}
	if r.Retained {
		o.noteRetained(server)
	}
	o.countTokens(j, r.Usage, a.prefillCached(r.Usage), r.Events)
	if r.Err == nil {
		o.compareCounts(j, a, r.Usage)
		o.learnOutput(j, r.Usage)
	}
}

// noteRetained counts an answer whose blocks the engine keeps for nobody, and warns of the
// first in each life of the server.
func (o *Orchestrator) noteRetained(server *pools.Server) {
	o.Metrics.retained.WithLabelValues(server.ID()).Inc()
	if server.NoteRetains() {
		o.Log.Warn("decode answers with a hand-off: it pins the blocks of each answer for 480 s, and nobody fetches them; set bidirectional_kv_xfer to false in its kv_connector_extra_config", "server", server.ID())
	}
}

// promptSide says whose prompt and cached tokens the client sees.
func (a binding) promptSide() api.PromptUsage {
	if !a.handoff.HasKV() || connector.Of(a.decode.Server()).ReportsCachedTokens {
		return api.PromptUsage{}
	}
	told := a.handoff.Coverage()
	return api.PromptUsage{Override: true, Prefill: told.Usage, Handed: told.Tokens}
}

// prefillCached is the cached part of the prompt on the server that computed it.
func (a binding) prefillCached(decode api.Usage) api.Count {
	if a.promptSide().Override {
		return a.handoff.Coverage().Cached
	}
	return decode.Cached
}

func (o *Orchestrator) countTokens(j *requestState, u api.Usage, cached api.Count, events int) {
	req := j.req
	o.countHits(j, u.Prompt)
	output := events
	if u.Output.Known {
		output = u.Output.Tokens
	}
	o.Metrics.promptToks.WithLabelValues(req.Model).Add(float64(u.Prompt.Tokens))
	o.Metrics.outputToks.WithLabelValues(req.Model).Add(float64(output))
	o.Metrics.cachedToks.WithLabelValues(req.Model).Add(float64(cached.Tokens))
}
