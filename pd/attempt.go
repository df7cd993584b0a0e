package pd

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/tandem-gateway/tandem/pools"
)

// assignment is a chosen alternative with its servers claimed. prefill is nil
// when decode runs alone or the hand-off is there already.
type assignment struct {
	chosen    Alternative
	reason    string
	prefill   *pools.Lease
	decode    *pools.Lease
	handoff   *Handoff
	held      int    // tokens of the prompt that decode held beforehand
	refusedBy string // on error: who refused the claim
}

// claim takes a place on the servers of the alternative, on all or on none.
func (o *Orchestrator) claim(j *journey, v view, chosen Alternative) (assignment, error) {
	a := assignment{chosen: chosen, handoff: v.handoff}
	for i := range v.field.Decode {
		if d := &v.field.Decode[i]; d.ID == chosen.Decode {
			a.held = d.Cached.GPU
		}
	}
	if chosen.Prefill != "" && v.handoff == nil {
		work := pools.Work{Tokens: j.req.PromptTokens, Estimate: chosen.Terms.Prefill}
		lease, err := v.servers[chosen.Prefill].Claim(pools.Prefill, work, v.anyway || v.prefillPanic)
		if err != nil {
			return assignment{refusedBy: chosen.Prefill}, err
		}
		a.prefill = lease
		j.leases = append(j.leases, lease)
	}
	work := pools.Work{
		Tokens:   j.req.PromptTokens + j.req.OutputTokens,
		Estimate: time.Duration(j.req.OutputTokens) * chosen.Terms.Step,
	}
	lease, err := v.servers[chosen.Decode].Claim(pools.Decode, work, v.anyway || v.decodePanic)
	if err != nil {
		if a.prefill != nil {
			a.prefill.Release()
		}
		return assignment{refusedBy: chosen.Decode}, err
	}
	a.decode = lease
	j.leases = append(j.leases, lease)
	return a, nil
}

// attempt runs the legs of one assignment. Both carry one request id, minted
// here: engines match the legs by it, and an id used twice would let a decode
// take the KV of a prefill that was given up.
func (o *Orchestrator) attempt(ctx context.Context, j *journey, a assignment) (*Answer, *LegError) {
	id := "tandem-" + uuid.NewString()
	if a.handoff != nil {
		id = a.handoff.Attempt
	}
	if a.prefill != nil {
		withdraw := o.dispatched(j, a.prefill.Server(), a.decode.Server())
		h, failed := o.prefill(ctx, j, a, id)
		a.prefill.Release()
		if failed != nil {
			withdraw()
			a.decode.Release()
			return nil, failed
		}
		h.Attempt = id
		a.handoff = h
	}
	j.handoff = nil
	if ctx.Err() != nil { // the client left in between
		a.decode.Release()
		o.strand(a.handoff)
		return nil, &LegError{Leg: DecodeLeg, Server: a.decode.Server().ID(), Kind: Gone, Err: context.Cause(ctx)}
	}
	answer, failed := o.decode(ctx, j, a, id)
	if failed == nil {
		return answer, nil
	}
	a.decode.Release()
	switch {
	case a.handoff == nil || a.handoff.Params == nil:
	case failed.Kind == Unsent:
		j.handoff = a.handoff // surely unread
	case failed.Kind == Refused || failed.Kind == Busy:
		o.strand(a.handoff)
	}
	return nil, failed
}

// strand counts a hand-off that surely nobody reads any more.
func (o *Orchestrator) strand(h *Handoff) {
	if h != nil && h.Params != nil {
		o.Metrics.stranded.WithLabelValues(h.From.ID()).Inc()
	}
}

// prefill runs the prefill leg and returns its hand-off.
func (o *Orchestrator) prefill(ctx context.Context, j *journey, a assignment, id string) (h *Handoff, failed *LegError) {
	server := a.prefill.Server()
	start := time.Now()
	ctx, span := o.legSpan(ctx, "prefill", server, id)
	defer func() { endLegSpan(span, failed) }()
	ctx, cancel := context.WithTimeoutCause(ctx, o.Config.PrefillTimeout, errFirstEvent)
	defer cancel()

	a.prefill.Sent()
	resp, body, failed := o.whole(ctx, PrefillLeg, server, j, id, nixlPrefill(j.req, j.prefix.teaches()))
	if failed != nil {
		o.blame(a.prefill, j, nil, failed)
		return nil, failed
	}
	now := time.Now()
	handoff, err := nixlHandoff(j.req.Dialect, server, body, now)
	if err != nil {
		failed = &LegError{Leg: PrefillLeg, Server: server.ID(), Kind: Broken, Status: resp.StatusCode, Err: err}
		o.blame(a.prefill, j, nil, failed)
		return nil, failed
	}
	if j.prefix.teaches() {
		o.Locality.learn(j.prefix, body)
	}
	if handoff.Tokens > 0 {
		a.prefill.Prefilled(handoff.Tokens-handoff.Cached.Tokens, handoff.Cached.Tokens)
	}
	a.prefill.Settle(nil)
	if handoff.Params == nil {
		o.Metrics.missing.WithLabelValues(server.ID()).Inc()
	}
	o.Metrics.prefill.WithLabelValues(server.ID()).Observe(now.Sub(start).Seconds())
	span.SetAttributes(attribute.Bool("tandem.handoff", handoff.Params != nil), attribute.Int("tandem.prompt_tokens", handoff.Tokens))
	return &handoff, nil
}

// dispatched notes where the prompt's KV will be, and returns what takes it back.
func (o *Orchestrator) dispatched(j *journey, servers ...*pools.Server) (withdraw func()) {
	if o.Locality == nil || j.prefix == nil {
		return func() {}
	}
	return o.Locality.dispatched(j.prefix, servers...)
}

// decode runs the decode leg, up to the whole answer or the first content event
// of a stream. On success the lease ends with the answer.
func (o *Orchestrator) decode(ctx context.Context, j *journey, a assignment, id string) (*Answer, *LegError) {
	server := a.decode.Server()
	leg, body := AloneLeg, j.req.Body.Bytes()
	if a.handoff != nil {
		leg, body = DecodeLeg, nixlDecode(j.req, *a.handoff)
		o.Metrics.gap.Observe(time.Since(a.handoff.Created).Seconds())
	}
	ctx, span := o.legSpan(ctx, "decode", server, id)
	span.SetAttributes(attribute.String("tandem.leg", string(leg)))
	var answer *Answer
	var failed *LegError
	if j.req.Stream {
		answer, failed = o.decodeStream(ctx, j, a, leg, id, body)
	} else {
		answer, failed = o.decodeWhole(ctx, j, a, leg, id, body)
	}
	endLegSpan(span, failed)
	if failed != nil {
		o.blame(a.decode, j, a.handoff, failed)
		return nil, failed
	}
	answer.Decode, j.servedBy = server.ID(), server.ID()
	if a.handoff != nil {
		answer.Prefill = a.handoff.From.ID()
	}
	return answer, nil
}

func (o *Orchestrator) decodeWhole(ctx context.Context, j *journey, a assignment, leg Leg, id string, body []byte) (*Answer, *LegError) {
	server := a.decode.Server()
	ctx, cancel := context.WithTimeoutCause(ctx, o.Config.AnswerTimeout, errFirstEvent)
	defer cancel()

	a.decode.Sent()
	resp, data, failed := o.whole(ctx, leg, server, j, id, body)
	if failed != nil {
		return nil, failed
	}
	scan := scanner{raw: data}
	if len(data) == 0 || scan.document() != nil {
		return nil, &LegError{Leg: leg, Server: server.ID(), Kind: Broken, Status: resp.StatusCode, Err: errEmpty}
	}
	a.decode.Settle(nil)
	usage, _ := j.req.Dialect.readUsage(data)
	if usage.Cached.Known {
		server.NoteCachedTokens()
	}
	cached := a.cachedTokens()
	if cached.override && recomputed(usage, a.handoff.Tokens, server.TellsCachedTokens()) {
		o.Metrics.recomputes.WithLabelValues(server.ID()).Inc()
		cached = cachedTokens{}
	}
	clean, err := j.req.Dialect.cleanAnswer(data, cached)
	if err != nil {
		return nil, &LegError{Leg: leg, Server: server.ID(), Kind: Broken, Err: err}
	}
	o.countTokens(j.req, usage, a.prefillCached(usage), 0)
	a.decode.Release()
	return &Answer{Status: resp.StatusCode, ContentType: "application/json", Body: clean, Usage: usage}, nil
}

func (o *Orchestrator) decodeStream(ctx context.Context, j *journey, a assignment, leg Leg, id string, body []byte) (*Answer, *LegError) {
	server := a.decode.Server()
	start := time.Now()
	legCtx, cancel := context.WithCancelCause(ctx)
	idle := time.AfterFunc(o.Config.FirstEventTimeout, func() { cancel(errFirstEvent) })
	defer server.OnFall(func() { cancel(errFell) })() // until the first content event
	giveUp := func(e *LegError) (*Answer, *LegError) {
		idle.Stop()
		cancel(nil)
		return nil, e
	}
	if j.story != nil {
		j.story.begin()
	}
	a.decode.Sent()
	resp, err := send(legCtx, o.Transport, server, j.req.Dialect.Path, id, j.req.Header, body)
	if err != nil {
		return giveUp(failedSend(legCtx, leg, server.ID(), err))
	}
	if resp.StatusCode != http.StatusOK || !isEventStream(resp) {
		failed := o.notAStream(legCtx, leg, server, resp)
		return giveUp(failed)
	}
	pace := &pace{o: o, server: server, itl: o.Metrics.itl.WithLabelValues(server.ID())}
	s := &legStream{
		dialect: j.req.Dialect, events: newSSEReader(resp.Body), body: resp.Body,
		ctx: legCtx, cancel: cancel, idle: idle, idleLimit: o.Config.IdleTimeout,
		server: server, cached: a.cachedTokens(), hideUsage: j.req.HideUsage,
		onGap: pace.gap, story: j.story,
	}
	if a.handoff != nil && a.handoff.Params != nil {
		s.handed = a.handoff.Tokens
	}
	if err := s.open(); err != nil {
		_ = resp.Body.Close()
		return giveUp(failedSend(legCtx, leg, server.ID(), err))
	}
	a.decode.Settle(nil)
	now := time.Now()
	o.Metrics.firstEvent.WithLabelValues(server.ID()).Observe(now.Sub(start).Seconds())
	if !j.resumed {
		o.Metrics.ttft.WithLabelValues(j.req.Model).Observe(now.Sub(j.arrived).Seconds())
	}
	o.learnTransfer(a, now.Sub(start), now)
	s.onClose = func(r StreamResult) { o.streamEnded(j, a, r) }
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
func (o *Orchestrator) streamEnded(j *journey, a assignment, r StreamResult) {
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
	o.countTokens(j.req, r.Usage, a.prefillCached(r.Usage), r.Events)
	a.decode.Release()
}

// whole sends a leg and reads its whole answer.
func (o *Orchestrator) whole(ctx context.Context, leg Leg, server *pools.Server, j *journey, id string, body []byte) (*http.Response, []byte, *LegError) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer server.OnFall(func() { cancel(errFell) })()
	resp, err := send(ctx, o.Transport, server, j.req.Dialect.Path, id, j.req.Header, body)
	if err != nil {
		return nil, nil, failedSend(ctx, leg, server.ID(), err)
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := readAnswer(resp)
	if err != nil {
		return nil, nil, failedSend(ctx, leg, server.ID(), err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, nil, failedStatus(leg, server.ID(), resp, data)
	}
	return resp, data, nil
}

// defaultBusy is how long a busy server is left alone when it does not say.
const defaultBusy = time.Second

// blame tells the server's breaker and state what a failed leg says of it.
func (o *Orchestrator) blame(lease *pools.Lease, j *journey, handoff *Handoff, failed *LegError) {
	switch failed.Kind {
	case Unsent:
		lease.Server().MarkDown("no connection")
	case Busy:
		pause := defaultBusy
		if failed.RetryAfter > 0 {
			pause = min(failed.RetryAfter, 10*defaultBusy)
		}
		lease.Server().MarkBusy(pause)
	}
	verdict := failed.verdict()
	switch {
	case failed.Leg == PrefillLeg && j.req.ForcedTool && failed.Status == http.StatusInternalServerError:
		verdict = pools.ErrNeutral // vLLM #38911: the request, not the server
	case failed.maybeTransfer():
		// The pair's fault as likely as the server's; a canary alone tells them apart.
		o.Links.Fault(handoff.From.ID(), failed.Server, time.Now())
		lease.Server().Suspect(pools.Decode)
		verdict = pools.ErrNeutral
	}
	lease.Settle(verdict)
}

// cachedTokens says whose cached tokens the client sees.
func (a assignment) cachedTokens() cachedTokens {
	if a.handoff == nil || a.handoff.Params == nil {
		return cachedTokens{}
	}
	return cachedTokens{override: true, prefill: a.handoff.Cached}
}

// prefillCached is the cached part of the prompt on the server that computed it.
func (a assignment) prefillCached(decode Usage) Count {
	if a.handoff != nil && a.handoff.Params != nil {
		return a.handoff.Cached
	}
	return decode.Cached
}

func (o *Orchestrator) countTokens(req *Request, u Usage, cached Count, events int) {
	output := events
	if u.Output.Known {
		output = u.Output.Tokens
	}
	o.Metrics.promptToks.WithLabelValues(req.Model).Add(float64(u.Prompt.Tokens))
	o.Metrics.outputToks.WithLabelValues(req.Model).Add(float64(output))
	o.Metrics.cachedToks.WithLabelValues(req.Model).Add(float64(cached.Tokens))
}

func (o *Orchestrator) legSpan(ctx context.Context, name string, server *pools.Server, id string) (context.Context, trace.Span) {
	return o.Tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		attribute.String("tandem.server", server.ID()),
		attribute.String("tandem.attempt", id)))
}

func endLegSpan(span trace.Span, failed *LegError) {
	if failed != nil {
		endSpan(span, failed)
		return
	}
	endSpan(span, nil)
}
