package pd

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pools"
)

// afterDecode is how long prefill's leg may go on after decode has answered.
const afterDecode = 10 * time.Second

// errPeer ends a leg because the other one failed, without which it would wait for ever.
var errPeer = errors.New("the other leg failed")

// together runs both legs at once. The engines meet by what both bodies name, so a leg
// whose peer fails would hold its place until the engine's own timeout, minutes later:
// it is cancelled at once. Decode's first event says that the KV has arrived; from then
// on prefill has only its answer left to send, and does so in its own time.
func (o *Orchestrator) together(ctx context.Context, j *requestState, a binding) (*Answer, *LegError) {
	j.handoff = nil
	withdraw := o.Binder.predictCached(j, a.prefill.Server(), a.decode.Server())
	t := o.transfer(j, a)
	if err := o.findEngine(ctx, t); err != nil {
		withdraw()
		return nil, o.notFound(ctx, j, a, err)
	}
	a.handoff = t.Handoff()

	prefillCtx, endPrefill := context.WithCancelCause(context.WithoutCancel(ctx))
	clientLeaves := context.AfterFunc(ctx, func() { endPrefill(context.Cause(ctx)) })
	decodeCtx, endDecode := context.WithCancelCause(ctx)
	var settled atomic.Bool // decode has answered, or prefill has failed before
	prefilled := make(chan *LegError, 1)
	o.legs.Go(func() {
		failed := o.prefillAside(prefillCtx, j, a, t)
		if failed != nil && settled.CompareAndSwap(false, true) {
			endDecode(whyPeer(failed))
		}
		endPrefill(nil)
		prefilled <- failed
	})

	answer, failed := o.decode(decodeCtx, j, a)
	if failed == nil && (settled.CompareAndSwap(false, true) || answer.leg == nil) {
		clientLeaves()
		time.AfterFunc(afterDecode, func() { endPrefill(errSilent) })
		return answer, nil
	}
	if failed == nil { // prefill failed while the first event was read
		answer.leg.Close()
	}
	endPrefill(whyPeer(failed))
	endDecode(errPeer)
	withdraw()
	a.decode.Release()
	o.engines.forget(t.From.ID())
	return nil, o.atFault(j, a, <-prefilled, failed)
}

// prefillAside is prefill in a goroutine of its own, where a panic would end the process: it
// ends the leg instead.
func (o *Orchestrator) prefillAside(ctx context.Context, j *requestState, a binding, t *connector.Transfer) (failed *LegError) {
	defer func() {
		if p := recover(); p != nil {
			o.Log.Error("panic in a prefill leg", "request_id", j.req.ID, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			a.prefill.Release()
			failed = &LegError{Leg: PrefillLeg, Server: a.prefill.Server().ID(), Kind: Ours, Err: fmt.Errorf("panic: %v", p)}
		}
	}()
	return o.prefill(ctx, j, a, t, a.handoff)
}

// notFound gives the places back when prefill's side could not be asked.
func (o *Orchestrator) notFound(ctx context.Context, j *requestState, a binding, err error) *LegError {
	failed := failedSend(ctx, PrefillLeg, a.prefill.Server().ID(), err)
	if failed.Kind == Unsent {
		failed.Kind = Broken // another port than the one that a probe would find open
	}
	o.blame(a.prefill, j, a, failed)
	a.prefill.Release()
	a.decode.Release()
	return failed
}

// whyPeer is why a leg ends when its peer has failed. When one was silent for too long
// and the other one still is, nobody can tell which of them the other waits for: both
// have failed. The healthy one will do better with others.
func whyPeer(failed *LegError) error {
	if failed != nil && failed.Kind == Timeout {
		return errSilent
	}
	return errPeer
}

// atFault returns the failure of the leg that failed by itself, and keeps the other
// one in mind if that did too. Where one leg only says that the transfer broke, the
// other knows why. Where both say so it was the link: a pair with another server of either
// role has another one, so only one of the two is left out.
func (o *Orchestrator) atFault(j *requestState, a binding, prefill, decode *LegError) *LegError {
	byItself := func(e *LegError) bool { return e != nil && !errors.Is(e.Err, errPeer) }
	switch {
	case !byItself(decode):
		return prefill
	case !byItself(prefill):
		return decode
	case a.failedTransfer(decode) && a.failedTransfer(prefill):
		if o.untried(j, a.prefill.Server()) {
			return prefill
		}
		return decode
	case a.failedTransfer(decode):
		j.failed(decode)
		return prefill
	}
	j.failed(prefill)
	return decode
}

// untried reports whether another prefill server than that one is left to the request.
func (o *Orchestrator) untried(j *requestState, than *pools.Server) bool {
	now := time.Now()
	return slices.ContainsFunc(o.Fleet.Servers(), func(s *pools.Server) bool {
		return s.ID() != than.ID() && s.Role.Serves(pools.Prefill) && s.State() == pools.Alive && !j.hasTried(PrefillLeg, s) && s.Serves(j.req.Model, now)
	})
}
