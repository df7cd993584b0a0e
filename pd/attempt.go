package pd

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pd/enginehttp"
	"github.com/tandem-gateway/tandem/pd/enginehttp/http1"
	"github.com/tandem-gateway/tandem/pd/spans"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/breaker"
	"github.com/tandem-gateway/tandem/pools/deadline"
)

// prefill makes the servers ready and runs the prefill leg of a pair. Then the binding has its
// hand-off; or the whole answer where one token was all; or the beginning of a stream, behind
// which decode goes on. Where decode runs alone, it computes all pieces of the prompt but the last.
// Nothing is run here where it has its hand-off already, or runs both legs.
func (o *Orchestrator) prefill(ctx context.Context, st *requestState, b *binding) *LegError {
	if failed := o.prepare(ctx, st, b); failed != nil {
		return failed
	}
	if o.Config.EnginePriority {
		st.setPriority(b)
	}
	if b.prefill == nil {
		return pieceLegs{o}.decodePieces(ctx, st, b)
	}
	if movesWithPrefill(b.decode.Server()) {
		return nil
	}
	if failed := (fetcher{o}).fetch(ctx, st, b); failed != nil {
		o.reportFailure(b.prefill, st, b, failed)
		b.release()
		return failed
	}
	if failed := (pieceLegs{o}).prefillPieces(ctx, st, b); failed != nil {
		b.releaseDecode()
		return failed
	}
	t := st.transfer(b)
	if o.HandoffKey != nil {
		t.HandoffKey = o.HandoffKey()
	}
	t.First = firstTokens{o}.plan(st, b)
	answerKV{o}.take(st, b, t)
	h := t.Handoff()
	if failed := o.prefillLeg(ctx, st, b, t, h); failed != nil {
		b.releaseDecode()
		return failed
	}
	b.handoff = h
	switch {
	case h.WholeAnswer != nil: // decode's place is given back unused
		b.releaseDecode()
		answer, failed := st.form.fromPrefill(ctx, st, b, h.WholeAnswer)
		b.answer = answer
		return failed
	case h.GoesOn():
		b.answer = st.form.begin(ctx, st, b)
		return nil
	}
	if failed := o.checkLength(st, b, t); failed != nil {
		return failed
	}
	return nil
}

// decode runs what is left of an attempt: decode with the hand-off or alone, or both legs as
// the engines' connector wants them. Then the binding has the answer.
func (o *Orchestrator) decode(ctx context.Context, st *requestState, b *binding) *LegError {
	by := connector.Of(b.decode.Server())
	switch {
	case b.answer != nil: // prefill gave it, or began it
		return nil
	case b.prefill != nil && by.ConcurrentLegs:
		return bothLegs{o}.run(ctx, st, b)
	case b.prefill != nil && by.DecodeDriven:
		return o.decodeDriven(ctx, st, b)
	}
	return o.decodeWith(ctx, st, b)
}

// transfer begins the transfer of the prompt's KV between the servers of a binding.
func (st *requestState) transfer(b *binding) *connector.Transfer {
	t := connector.NewTransfer(st.req.forTransfer(), b.prefill.Server(), b.decode.Server())
	t.Source = b.pullFrom
	t.TokenIDs = t.TokenIDs || st.bind.prefix.teaches()
	return t
}

// decodeWith runs decode with the hand-off of the binding, if it has one, and
// says what becomes of the hand-off when that fails.
func (o *Orchestrator) decodeWith(ctx context.Context, st *requestState, b *binding) *LegError {
	st.bind.tried.handoff = nil
	b.awaitPulled(ctx)
	o.awaitShared(ctx, st, b)
	defer o.endPull(b, false)
	if b.hold != nil {
		b.hold.ask()
	}
	if ctx.Err() != nil { // the client left during prefill
		b.releaseDecode()
		o.Metrics.countStranded(b.handoff)
		return &LegError{Leg: DecodeLeg, Server: b.decode.Server().ID(), Kind: Gone, Err: context.Cause(ctx)}
	}
	failed := o.decodeLeg(ctx, st, b)
	if failed == nil {
		return nil
	}
	b.releaseDecode()
	switch {
	case !b.handoff.HasKV():
	case failed.Kind == Unsent && !connector.Of(b.decode.Server()).DecodeBound && !b.handoff.GoesOn():
		st.bind.tried.handoff = b.handoff // surely unread
	case failed.Kind == Refused || failed.Kind == Busy || failed.Kind == Unsent:
		o.Metrics.countStranded(b.handoff)
	}
	return failed
}

// shouldAbandon reports whether a leg on a server that fell is taken from it. From one that is
// silent or hangs it is only if another server can take it, one that it was not taken from
// before: an engine at its first transfer or in the midst of compiling stands still for
// seconds and then answers. Those that step with it stand still too.
func (sn *Snapshotter) shouldAbandon(model string, leg Leg, server *pools.Server, before []string, why pools.DownCause) bool {
	if why == pools.ProbesFailed || leg == PrefillLeg && connector.Of(server).Aggregated && why == pools.Hangs {
		return true
	}
	role := pools.Decode
	if leg == PrefillLeg && !connector.Of(server).Aggregated { // else a decode server can do it
		role = pools.Prefill
	}
	usable, _ := pools.Candidates(nil, sn.Fleet.Servers(), model, role, sn.Fleet.EjectShare(), time.Now())
	return slices.ContainsFunc(usable, func(s *pools.Server) bool {
		return s.ID() != server.ID() && (server.Group == "" || s.Group != server.Group) && !slices.Contains(before, s.ID())
	})
}

// defaultBusy is how long a busy server is left alone when it does not say.
const defaultBusy = time.Second

// reportFailure reports to the server's breaker and state what a failed leg says of it.
func (o *Orchestrator) reportFailure(lease *pools.Lease, st *requestState, b *binding, failed *LegError) {
	if failed.Status == http.StatusNotFound && lease.Server().ForgetAdapter(st.req.Model) {
		failed.Kind = Unready // not the request's fault: another gateway unloaded it
	}
	switch failed.Kind {
	case Unsent:
		if isTimeout(failed.Err) {
			lease.RecordUnreachable()
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
	verdict := failed.breakerResult()
	switch {
	case failed.Leg == PrefillLeg && st.req.ForcedTool && failed.Status == http.StatusInternalServerError:
		verdict = breaker.ErrNeutral // vLLM #38911: the request, not the server
	case b.failedTransfer(failed):
		// The pair's fault as likely as the server's; a probe request alone tells them apart.
		o.Binder.Links.Blame(b.source().ID(), b.decode.Server().ID(), time.Now())
		lease.Server().Suspect(lease.Leg())
		verdict = breaker.ErrNeutral
	case failed.engineFault() && st.failedElsewhere(failed.Server):
		// The request's fault rather than that of each server in turn; a probe request alone tells them apart.
		lease.Server().Suspect(lease.Leg())
		verdict = breaker.ErrNeutral
	}
	lease.RecordResult(verdict)
}

// failedElsewhere reports whether the engine of another server has just failed at the request.
func (st *requestState) failedElsewhere(server string) bool {
	return st.last != nil && st.last.Server != server && st.last.engineFault()
}

// endLegSpan ends the span of a leg, which a retry is linked to if it failed.
func endLegSpan(span spans.Leg, failed *LegError) {
	if failed == nil {
		span.End()
		return
	}
	failed.span = span.Fail(string(failed.Kind), failed.Status, failed)
}

// sendWhole sends a leg and reads its whole answer, for which it waits for so long: errSilent. Where that is long, it is
// counted until it is returned.
func (o *Orchestrator) sendWhole(ctx context.Context, patience time.Duration, leg Leg, server *pools.Server, st *requestState, path, id string, part connector.LegRequest) (*http.Response, []byte, *LegError) {
	held := o.Answers.Hold(st.req.Tenant)
	defer held.Release()
	return o.sendHeld(ctx, patience, leg, server, st, path, id, part, &held)
}

// wholeLeg is the context of a leg whose answer comes whole: it ends without one where that does not come in time, or
// its server is down.
type wholeLeg struct {
	http1.Interrupt
	snapshotter *Snapshotter
	model       string
	leg         Leg
	server      *pools.Server
	before      []string // servers that it was taken from
	answer      deadline.Deadline[wholeLeg]
	down        pools.DownWatch
}

func (w *wholeLeg) fallSilent() { w.End(errSilent) }

// ServerDown ends it where its server will not answer.
func (w *wholeLeg) ServerDown(why pools.DownCause) {
	if w.snapshotter.shouldAbandon(w.model, w.leg, w.server, w.before, why) {
		w.End(errServerDown)
	}
}

// sendHeld is sendWhole of an answer that stays counted.
func (o *Orchestrator) sendHeld(ctx context.Context, patience time.Duration, leg Leg, server *pools.Server, st *requestState, path, id string, part connector.LegRequest, held *enginehttp.HeldAnswer) (*http.Response, []byte, *LegError) {
	w := &wholeLeg{snapshotter: &o.Binder.Snapshotter, model: st.req.Model, leg: leg, server: server, before: st.bind.tried.servers(leg)}
	w.Begin(ctx)
	defer w.End(nil)
	ctx = &w.Interrupt
	now := time.Now()
	o.wholeLegs.Add(&w.answer, w, now.Add(patience), now, (*wholeLeg).fallSilent)
	defer o.wholeLegs.Meet(&w.answer)
	defer server.OnDown(&w.down, w).Stop()
	resp, err := send(ctx, o.Transport, server, path, id, st.req.Header, askLoad(part, leg, server), st.req.Memory)
	if err != nil {
		return nil, nil, failedSend(ctx, leg, server.ID(), err)
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := enginehttp.ReadAnswer(resp, held)
	if err != nil {
		return nil, nil, failedSend(ctx, leg, server.ID(), err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, nil, failedStatus(ctx, leg, server.ID(), resp, data)
	}
	return resp, data, nil
}
