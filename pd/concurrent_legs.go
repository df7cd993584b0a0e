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
	"github.com/tandem-gateway/tandem/pd/enginehttp/http1"
	"github.com/tandem-gateway/tandem/pools"
)

// afterDecode is how long prefill's leg may go on after decode has answered.
const afterDecode = 10 * time.Second

// errPeer ends a leg because the other one failed, without which it would wait for ever.
var errPeer = errors.New("the other leg failed")

// bothLegs are prefill and decode of engines that want both at once.
type bothLegs struct{ *Orchestrator }

// run runs both legs at once. The engines meet by what both bodies name, so a leg
// whose peer fails would hold its place until the engine's own timeout, minutes later:
// it is cancelled at once. Decode's first event says that the KV has arrived; from then
// on prefill has only its answer left to send, and does so in its own time.
func (o bothLegs) run(ctx context.Context, st *requestState, b *binding) *LegError {
	st.bind.tried.handoff = nil
	t := st.transfer(b)
	if err := o.engines.Choose(ctx, o.Transport, t, o.Fleet); err != nil {
		return o.engineNotFound(ctx, st, b, err)
	}
	b.handoff = t.Handoff()

	ofPrefill, ofDecode := http1.NewInterrupt(ctx), http1.NewInterrupt(ctx)
	beside := &legBeside{ended: make(chan struct{})}
	own, release := st.beside()
	o.legs.Go(func() {
		defer func() {
			release()
			close(beside.ended)
			if last := beside.limit.Load(); last != nil {
				last.Stop()
			}
		}()
		beside.failed = o.prefillAside(ofPrefill, own, b, t)
		if beside.failed != nil && beside.settled.CompareAndSwap(false, true) {
			ofDecode.End(causeForPeer(beside.failed))
		}
		ofPrefill.End(nil)
	})

	failed := o.decodeLeg(ofDecode, st, b)
	if failed == nil && (beside.settled.CompareAndSwap(false, true) || b.answer.isComplete()) {
		ofPrefill.Detach()
		select {
		case <-beside.ended: // it has its answer as well
			return nil
		default:
		}
		last := time.AfterFunc(afterDecode, func() { ofPrefill.End(errSilent) })
		beside.limit.Store(last)
		select {
		case <-beside.ended: // and may not have seen the limit
			last.Stop()
		default:
		}
		return nil
	}
	if failed == nil { // prefill failed while the first event was read
		b.answer.leg.Close()
		b.answer = nil
	}
	ofPrefill.End(causeForPeer(failed))
	ofDecode.End(errPeer)
	b.releaseDecode()
	o.engines.Forget(t.From.ID())
	<-beside.ended
	return o.primaryFailure(st, b, beside.failed, failed)
}

// legBeside is prefill's leg, in a goroutine beside decode's.
type legBeside struct {
	settled atomic.Bool                // decode has answered, or prefill has failed before
	limit   atomic.Pointer[time.Timer] // of prefill, once decode has answered
	failed  *LegError                  // of prefill, to be read once it has ended
	ended   chan struct{}              // closed then
}

// prefillAside is prefill in a goroutine of its own, where a panic would end the process: it
// ends the leg instead.
func (o bothLegs) prefillAside(ctx context.Context, st *requestState, b *binding, t *connector.Transfer) (failed *LegError) {
	defer func() {
		if p := recover(); p != nil {
			o.Log.Error("panic in a prefill leg", "request_id", st.req.ID, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			b.prefill.Release()
			failed = &LegError{Leg: PrefillLeg, Server: b.prefill.Server().ID(), Kind: Ours, Err: fmt.Errorf("panic: %v", p)}
		}
	}()
	return o.prefillLeg(ctx, st, b, t, b.handoff)
}

// engineNotFound gives the places back when prefill's side could not be asked.
func (o bothLegs) engineNotFound(ctx context.Context, st *requestState, b *binding, err error) *LegError {
	failed := failedSend(ctx, PrefillLeg, b.prefill.Server().ID(), err)
	if failed.Kind == Unsent {
		failed.Kind = Broken // another port than the one that a probe would find open
	}
	o.reportFailure(b.prefill, st, b, failed)
	b.prefill.Release()
	b.releaseDecode()
	return failed
}

// causeForPeer is why a leg ends when its peer has failed. When one was silent for too long
// and the other one still is, it is unknown which of them waits for the other: both
// have failed. The healthy one will do better with others.
func causeForPeer(failed *LegError) error {
	if failed != nil && failed.Kind == Timeout {
		return errSilent
	}
	return errPeer
}

// primaryFailure returns the failure of the leg that failed by itself, and keeps the other
// one in mind if that did too. Where one leg only says that the transfer broke, the
// other knows why. Where both say so it was the link: a pair with another server of either
// role has another one, so only one of the two is left out.
func (o bothLegs) primaryFailure(st *requestState, b *binding, prefill, decode *LegError) *LegError {
	byItself := func(e *LegError) bool { return e != nil && !errors.Is(e.Err, errPeer) }
	switch {
	case !byItself(decode):
		return prefill
	case !byItself(prefill):
		return decode
	case b.failedTransfer(decode) && b.failedTransfer(prefill):
		if o.Binder.hasUntriedPrefill(&st.bind, b.prefill.Server()) {
			return prefill
		}
		return decode
	case b.failedTransfer(decode):
		st.recordFailure(decode)
		return prefill
	}
	st.recordFailure(prefill)
	return decode
}

// hasUntriedPrefill reports whether another prefill server than that one is left to the request.
func (sn *Snapshotter) hasUntriedPrefill(r *bindRequest, than *pools.Server) bool {
	now := time.Now()
	return slices.ContainsFunc(sn.Fleet.Servers(), func(s *pools.Server) bool {
		return s.ID() != than.ID() && s.Role.Serves(pools.Prefill) && s.State() == pools.Alive && !r.tried.has(PrefillLeg, s) && s.Serves(r.req.Model, now)
	})
}
