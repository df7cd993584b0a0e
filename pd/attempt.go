package pd

import (
	"context"
	"net/http"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/breaker"
)

// attempt runs the legs of one binding: both at once or prefill first, as the
// engines' connector wants it, or decode with what is there.
func (o *Orchestrator) attempt(ctx context.Context, j *requestState, a binding) (*Answer, *LegError) {
	if failed := o.prepare(ctx, j, a); failed != nil {
		return nil, failed
	}
	if o.Config.EnginePriority {
		j.rank(&a)
	}
	switch {
	case a.prefill == nil:
		return o.decodeWith(ctx, j, a)
	case connector.Of(a.decode.Server()).ConcurrentLegs:
		return o.together(ctx, j, a)
	case connector.Of(a.decode.Server()).DecodeDriven:
		return o.carried(ctx, j, a)
	}
	withdraw := o.Binder.predictCached(j, a.prefill.Server(), a.decode.Server())
	t := o.transfer(j, a)
	h := t.Handoff()
	if failed := o.prefill(ctx, j, a, t, h); failed != nil {
		withdraw()
		a.decode.Release()
		return nil, failed
	}
	a.handoff = h
	if h.WholeAnswer != nil {
		return o.final(ctx, j, a, h.WholeAnswer)
	}
	if failed := o.outgrown(j, a, t); failed != nil {
		withdraw()
		return nil, failed
	}
	return o.decodeWith(ctx, j, a)
}

// transfer begins the transfer of the prompt's KV between the servers of a binding.
func (o *Orchestrator) transfer(j *requestState, a binding) *connector.Transfer {
	t := connector.NewTransfer(j.req.Dialect, j.req.Body, j.req.Answers, a.prefill.Server(), a.decode.Server())
	t.Source = a.pullFrom
	t.TokenIDs = t.TokenIDs || j.prefix.teaches()
	return t
}

// decodeWith runs decode with the hand-off of the binding, if it has one, and
// says what becomes of the hand-off when that fails.
func (o *Orchestrator) decodeWith(ctx context.Context, j *requestState, a binding) (*Answer, *LegError) {
	j.handoff = nil
	if ctx.Err() != nil { // the client left during prefill
		a.decode.Release()
		o.countStranded(a.handoff)
		return nil, &LegError{Leg: DecodeLeg, Server: a.decode.Server().ID(), Kind: Gone, Err: context.Cause(ctx)}
	}
	answer, failed := o.decode(ctx, j, a)
	if failed == nil {
		return answer, nil
	}
	a.decode.Release()
	switch {
	case !a.handoff.HasKV():
	case failed.Kind == Unsent && !connector.Of(a.decode.Server()).DecodeBound:
		j.handoff = a.handoff // surely unread
	case failed.Kind == Refused || failed.Kind == Busy || failed.Kind == Unsent:
		o.countStranded(a.handoff)
	}
	return nil, failed
}

// countStranded counts a hand-off that surely nobody reads any more.
func (o *Orchestrator) countStranded(h *connector.Handoff) {
	if h.HasKV() {
		o.Metrics.stranded.WithLabelValues(h.From.ID()).Inc()
	}
}

// shouldAbandon reports whether a leg on a server that fell is taken from it. From one that is
// silent or hangs it is only if somebody else can take it, whom it was not taken from
// before: an engine at its first transfer or in the midst of compiling stands still for
// seconds and then answers. Those that step with it stand still too.
func (o *Orchestrator) shouldAbandon(model string, leg Leg, server *pools.Server, before []string, why pools.Fall) bool {
	if why == pools.Fell || leg == PrefillLeg && connector.Of(server).Aggregated && why == pools.Hangs {
		return true
	}
	role := pools.Decode
	if leg == PrefillLeg && !connector.Of(server).Aggregated { // else a decode server can do it
		role = pools.Prefill
	}
	usable, _ := pools.Candidates(o.Fleet.Servers(), model, role, o.Fleet.EjectShare(), time.Now())
	return slices.ContainsFunc(usable, func(s *pools.Server) bool {
		return s.ID() != server.ID() && (server.Group == "" || s.Group != server.Group) && !slices.Contains(before, s.ID())
	})
}

// whole sends a leg and reads its whole answer.
func (o *Orchestrator) whole(ctx context.Context, leg Leg, server *pools.Server, j *requestState, id string, part connector.LegRequest) (*http.Response, []byte, *LegError) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	before := j.triedBy(leg)
	defer server.OnFall(func(why pools.Fall) {
		if o.shouldAbandon(j.req.Model, leg, server, before, why) {
			cancel(errServerDown)
		}
	})()
	resp, err := send(ctx, o.Transport, server, j.req.Dialect.Path, id, askLoad(j.req.Header, leg, server), part)
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
func (o *Orchestrator) blame(lease *pools.Lease, j *requestState, a binding, failed *LegError) {
	if failed.Status == http.StatusNotFound && lease.Server().LostAdapter(j.req.Model) {
		failed.Kind = Unready // not the request's fault: another gateway unloaded it
	}
	switch failed.Kind {
	case Unsent:
		if isTimeout(failed.Err) {
			lease.Unreached()
		} else {
			lease.Server().MarkDown("no connection")
		}
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
		verdict = breaker.ErrNeutral // vLLM #38911: the request, not the server
	case a.failedTransfer(failed):
		// The pair's fault as likely as the server's; a probe request alone tells them apart.
		o.Binder.Links.Fault(a.source().ID(), a.decode.Server().ID(), time.Now())
		lease.Server().Suspect(lease.Leg())
		verdict = breaker.ErrNeutral
	}
	lease.Settle(verdict)
}

// source is the prefill server of the pair, nil where decode runs alone.
func (a binding) source() *pools.Server {
	switch {
	case a.handoff != nil:
		return a.handoff.From
	case a.prefill != nil:
		return a.prefill.Server()
	}
	return nil
}

// failedTransfer reports whether a failed leg is what a failed transfer looks like.
func (a binding) failedTransfer(failed *LegError) bool {
	c := connector.Of(a.decode.Server())
	switch {
	case failed.Leg == AloneLeg:
		return false
	case c.DecodeDriven && failed.Status >= http.StatusInternalServerError && failed.Kind == Broken:
		return true // prefill's answer as well as decode's
	case !failed.engineFault():
		return false
	case c.TransferFault != nil:
		return c.TransferFault(failed.said())
	}
	return failed.Leg == DecodeLeg
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
