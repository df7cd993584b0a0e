package pd

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pools"
)

// Pick is the servers of a request that a proxy sends itself: it asked which to take, and reports
// what it sees of the answer. MarkSent comes first, RecordContent with each content event of a
// stream, then one of Settle, Refuse, Break and Leave; Release in every case. What begins
// before the first of them, and a report behind the last, does no harm. One goroutine uses it.
type Pick struct {
	o      *Orchestrator
	st     *requestState
	b      *binding
	leg    connector.LegRequest
	span   trace.SpanContext // of the choice, whose trace is that of the request
	sent   time.Time         // zero before MarkSent
	sample transferSample    // from MarkSent on
	steps  *stepSampler
	events int
	lastAt time.Time
	ended  bool // one of the four last reports was made
	once   sync.Once
}

// Pick chooses the servers of a request and claims them, by the same steps as Run, and sends
// nothing. A pair is chosen only where its decode server calls prefill itself. The context is
// that of the choice. Errors: Run's.
func (o *Orchestrator) Pick(ctx context.Context, req *Request) (*Pick, error) {
	req.proxied = true
	st, err := o.wait(ctx, req)
	if err != nil {
		return nil, err
	}
	defer o.end(st)
	o.locate(ctx, st)
	for {
		b, err := o.assign(ctx, st)
		if err != nil {
			return nil, err
		}
		failed := o.prepare(ctx, st, b)
		if failed == nil {
			return o.newPick(ctx, st, b), nil
		}
		b.prediction.takeBack()
		if err := o.tryAgain(ctx, st, failed); err != nil {
			o.recordDecision(st, err)
			return nil, err
		}
	}
}

// newPick describes the leg that the proxy is to send, and leaves the servers to the pick.
func (o *Orchestrator) newPick(ctx context.Context, st *requestState, b *binding) *Pick {
	if o.Config.EnginePriority {
		st.setPriority(b)
	}
	p := &Pick{o: o, st: st, b: b, span: trace.SpanContextFromContext(ctx), leg: connector.LegRequest{Body: st.req.Body}}
	switch {
	case b.prefill != nil:
		b.handoff = st.transfer(b).Handoff()
		p.leg = b.handoff.Leg
	case b.pullFrom != nil:
		p.leg = connector.PullFrom(b.pullFrom, st.req.Body)
	}
	server := b.decode.Server()
	p.steps = o.newStepSampler(server, st.req)
	st.lastHandoff, st.servedBy = b.handoff, server.ID()
	o.Binder.deadlineProbes.Observe(st.bind.base, time.Now())
	o.recordDecision(st, nil)
	st.streams = true // it keeps its servers and its place beyond end
	return p
}

// Prefill is the server that prefills, nil where decode works alone.
func (p *Pick) Prefill() *pools.Server { return p.b.source() }

// Decode is the server that the request goes to.
func (p *Pick) Decode() *pools.Server { return p.b.decode.Server() }

// Body is what it is sent.
func (p *Pick) Body() api.Body { return p.leg.Body }

// Header is what it is sent besides the client's own: the prefill server that it calls, and the
// rank that decodes (send has the same).
func (p *Pick) Header() http.Header {
	header := p.leg.Header.Clone()
	if rank := p.Decode().Rank; rank != nil {
		if header == nil {
			header = make(http.Header, 1)
		}
		header.Set("X-Data-Parallel-Rank", strconv.Itoa(*rank))
	}
	return header
}

// Fallbacks are at most so many other decode servers that could take the request as it is, the
// cheapest first. They hold no place for it: see MoveTo.
func (p *Pick) Fallbacks(most int) []*pools.Server {
	if most == 0 {
		return nil
	}
	c, all := &p.b.choice, p.o.Fleet.Servers()
	var servers []*pools.Server
	for _, other := range p.o.Binder.Cost.DecodeAlternatives(c.Demand, &c.Candidates, c.Chosen.Prefill) {
		i := slices.IndexFunc(all, func(s *pools.Server) bool { return s.ID() == other.Decode })
		if i < 0 || other.Decode == p.Decode().ID() || all[i].Rank != nil || p.Decode().Rank != nil {
			continue // the headers name one rank
		}
		if servers = append(servers, all[i]); len(servers) == most {
			break
		}
	}
	return servers
}

// PredictedCache is how many of the prompt's tokens the server that prefills holds, and how many
// it computes, as predicted.
func (p *Pick) PredictedCache() (held, computed int) { return p.st.predictedCache() }

// MarkSent records that the proxy sends the request now. Its text is let go, Body's too: an answer may take
// minutes, and nothing of the request is sent again.
func (p *Pick) MarkSent() {
	st, b := p.st, p.b
	p.sent = time.Now()
	if b.prefill != nil {
		b.prefill.MarkSent(b.chosen.Terms.FirstStep(), p.sent)
	}
	expected := b.chosen.Terms.FirstStep()
	if !st.req.Stream {
		expected += time.Duration(st.req.OutputTokens) * b.chosen.Terms.Step
	}
	b.decode.MarkSent(expected, p.sent)
	switch {
	case st.req.Stream:
	case b.prefill != nil:
		b.prefill.EndsUnseen()
	default:
		b.endsUnseen(st.req)
	}
	p.sample = p.o.Binder.beginTransfer(st, b, p.sent)
	st.dropText()
	p.o.dropCandidates(st)
	p.leg = connector.LegRequest{}
}

// MoveTo records that the proxy has sent the request to another server than Decode, one of the
// fallbacks: the first did not take it.
func (p *Pick) MoveTo(address string) {
	from := p.b.decode
	if from.Server().Address() == address {
		return
	}
	for _, s := range p.o.Fleet.Servers() {
		if s.Address() != address {
			continue
		}
		now := time.Now()
		to, err := s.Claim(pools.Decode, contextWork(p.st.req), true, now)
		if err != nil {
			return
		}
		from.Server().Suspect(pools.Decode)
		from.Release()
		to.MarkSent(p.b.chosen.Terms.FirstStep(), now)
		p.b.decode, p.steps.server = to, s
		p.steps.itl, p.st.servedBy = p.o.Metrics.itl.Of(p.st.req.Model, s.ID()), s.ID()
		return
	}
}

// RecordContent records a content event of a stream, when it has come, which may only close the answer
// (api.Meaning).
func (p *Pick) RecordContent(closes bool, now time.Time) {
	if p.sent.IsZero() || p.ended {
		return
	}
	p.Decode().RecordProgress(now)
	if p.events++; p.events == 1 {
		ctx := trace.ContextWithSpanContext(context.Background(), p.span)
		streamedAnswer{p.o}.learnFirst(ctx, p.st, p.b, &p.sample, now.Sub(p.sent), now)
		streamedAnswer{p.o}.recordFirst(ctx, p.st, p.b, p.sent)
		p.endPrefill()
	} else if !closes {
		p.steps.observeGap(now.Sub(p.lastAt))
	}
	p.lastAt = now
}

// MostTokens is what the usage of the answer can count of its prompt or of its output.
func (p *Pick) MostTokens() int { return p.o.mostTokens(p.st) }

// Settle records an answer that came to its end, with what the engine counted.
func (p *Pick) Settle(u api.Usage) {
	if !p.end() {
		return
	}
	now := time.Now()
	if p.events == 0 {
		p.b.decode.RecordResult(nil)
		p.sample.whole(now.Sub(p.sent), u.Output, now)
		p.b.endWhole(p.st.req, u.Output, now)
		p.endPrefill()
	}
	if u.Cached.Known {
		p.Decode().RecordCachedTokens()
	}
	p.o.endLeg(p.st, p.b, StreamResult{Usage: u, Events: p.events})
}

// Refuse records an answer that is no success.
func (p *Pick) Refuse(status int, header http.Header, body []byte) {
	p.fail(failedStatus(context.Background(), p.legName(), p.Decode().ID(), &http.Response{StatusCode: status, Header: header}, body))
}

// Unsent records that the proxy could not reach the server.
func (p *Pick) Unsent() {
	p.fail(&LegError{Leg: p.legName(), Server: p.Decode().ID(), Kind: Broken, Err: errUnreachable})
}

var errUnreachable = errors.New("the proxy lost the connection to the server, or had none")

// Break records an answer that ended before it was complete, by an engine's error event or
// without a word.
func (p *Pick) Break(failure string, event []byte, u api.Usage) {
	broken := &BrokenStreamError{Message: "the connection to the engine was lost", Err: errTruncated}
	if failure != "" {
		broken = failedByEngine(failure, event)
	}
	if p.events == 0 {
		p.fail(failedSend(context.Background(), p.legName(), p.Decode().ID(), broken))
		return
	}
	if p.end() {
		p.o.endLeg(p.st, p.b, StreamResult{Err: broken, Usage: u, Events: p.events})
	}
}

// Leave records that the proxy reports no more: its client has left, or it lost the server, which
// it does not say. So the server is asked whether it still takes connections.
func (p *Pick) Leave(u api.Usage) {
	if !p.end() {
		return
	}
	id := p.Decode().ID()
	p.o.legs.Go(func() { p.o.markDownIfDead(context.Background(), id, false) })
	if p.events > 0 {
		p.o.endLeg(p.st, p.b, StreamResult{Err: context.Canceled, Usage: u, Events: p.events})
	}
}

// Release gives back what the pick holds. Twice is as good as once.
func (p *Pick) Release() {
	p.once.Do(func() {
		if p.sent.IsZero() {
			p.b.prediction.takeBack()
		}
		if !p.sent.IsZero() {
			p.sample.end()
		}
		p.ended = true
		p.st.release()
		p.o.Queue.Leave(p.st.entry)
	})
}

// end reports whether one of the last reports may be made now.
func (p *Pick) end() bool {
	if p.ended || p.sent.IsZero() {
		return false
	}
	p.steps.end()
	p.ended = true
	return true
}

// endPrefill records that prefill has done its part: the answer has begun.
func (p *Pick) endPrefill() {
	p.sample.end()
	if p.b.prefill != nil {
		p.st.releaseUnseenPrefill(p.b)
	}
}

func (p *Pick) legName() Leg {
	if p.b.handoff != nil {
		return DecodeLeg
	}
	return AggregatedLeg
}

// fail records a leg that failed before its first content. It is not tried again here: the proxy
// has the request.
func (p *Pick) fail(failed *LegError) {
	if !p.end() {
		return
	}
	p.o.reportFailure(p.b.decode, p.st, p.b, failed)
	if p.b.prefill != nil && p.b.failedTransfer(failed) {
		p.b.prefill.Server().Suspect(pools.Prefill)
	}
	p.o.legs.Go(func() { p.o.quarantineIfServerDied(context.Background(), p.st, failed) })
	p.st.recordFailure(failed)
	p.o.recordFailure(p.st)
	p.o.Decisions.Complete(p.st.decision, len(p.st.bindings)-1, p.b.choice.Measured, failed.Error())
}

// subsetAllows reports whether the request may use the server in a role: it goes to decode, and
// prefill is called from there.
func (r *Request) subsetAllows(s *pools.Server, role pools.Role) bool {
	if role == pools.Prefill {
		return r.Subset.HasHost(s)
	}
	return r.Subset.Has(s)
}
