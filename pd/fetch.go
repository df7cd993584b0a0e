package pd

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/decision"
	"github.com/tandem-gateway/tandem/pd/spans"
	"github.com/tandem-gateway/tandem/pools"
)

// A prefill server may fetch the KV of a prompt's beginning from a decode server that holds it, before it computes the
// rest (cost.Model.OfferFetches):
//
//  1. as a request is priced, each prefill server is offered what decode servers hold of its prompt, where fetching it
//     is faster than computing it (setFetches);
//  2. the decode server is asked for one token behind these tokens, and keeps their KV for another engine, as prefill
//     does;
//  3. the prefill server reads it, by a request for one token that leaves it in its prefix cache;
//  4. its leg is that of any request, and finds it there.
//
// Two servers that have not met do so beside a request that computes its prompt. What fails is computed: the request is none
// the worse for it than by the time that was lost.

// fetch is what prefill is to fetch of a prompt before it computes the rest.
type fetch struct {
	from  *pools.Server // nil: nothing
	ids   []uint32      // of the prompt's leading tokens
	takes time.Duration // predicted
}

// setFetches offers prefill servers what decode servers hold of a request's prompt.
func (sn *Snapshotter) setFetches(r *bindRequest, v *snapshot, now time.Time) {
	for i := range v.candidates.Prefill {
		if c := &v.candidates.Prefill[i]; c.Remote.Fetched {
			c.Remote = cost.Remote{}
		}
	}
	if !sn.Config.FetchKV || sn.Meetings == nil || r.begun != nil || r.continues || r.req.proxied {
		return
	}
	if !v.speedsKnown {
		v.speeds, v.speedsKnown = sn.Links.Speeds(), true
	}
	sn.Cost.OfferFetches(&v.candidates, r.req.PromptTokens, r.certain, &v.speeds, func(from, to string) bool { return sn.Meetings.Pauses(from, to, now) })
}

// setFetch says what the prefill server of a binding fetches.
func (ch *Chooser) setFetch(r *bindRequest, v *snapshot, b *binding, c *cost.Candidate) {
	takes, ok := ch.Cost.Fetches(c, r.req.PromptTokens)
	if !ok {
		return
	}
	if d := cost.IndexOf(v.candidates.Decode, c.Remote.Server); d >= 0 {
		b.fetch = fetch{from: v.decode[d], ids: r.prefix.tokens.IDs[:c.Remote.Tokens], takes: takes}
	}
}

// fetcher sends the legs of a fetch.
type fetcher struct{ *Orchestrator }

var errNothingKept = errors.New("it keeps no KV for another engine")

const (
	// fetchPatience is how long a fetch may take beyond fetchOverrun times what is predicted of it: the prompt could be
	// computed meanwhile.
	fetchPatience, fetchOverrun = 500 * time.Millisecond, 4
	// meetingPatience is how long two servers have to meet, for which nobody waits.
	meetingPatience = 15 * time.Second
)

// fetch has the prefill server of a binding fetch what it is to fetch. Where that fails the rest is as if it were not to.
func (o fetcher) fetch(ctx context.Context, st *requestState, b *binding) {
	f, server, start := &b.fetch, b.prefill.Server(), time.Now()
	if f.from == nil {
		return
	}
	outcome, apart := decision.NotMet, &requestState{req: st.req, bind: bindRequest{req: st.req}} // what fails here is no attempt of the request
	if o.Binder.Meetings.HaveMet(f.from.ID(), server.ID()) {
		within, cancel := context.WithTimeoutCause(ctx, fetchPatience+fetchOverrun*f.takes, errSilent)
		defer cancel()
		outcome = o.try(within, apart, connector.NewPiece(st.req.Body, f.ids, f.from, server))
		if ctx.Err() != nil { // the client has left, and the next leg says so
			return
		}
	} else if o.Binder.Meetings.Begin(f.from.ID(), server.ID(), start) {
		o.letMeet(ctx, apart, connector.NewPiece(st.req.Body, f.ids[:blockTokensOf(server)], f.from, server))
	}
	b.choice.Fetch = decision.Fetch{Server: f.from.ID(), Tokens: len(f.ids), Outcome: outcome, Took: time.Since(start)}
	o.Metrics.countFetch(b.choice.Fetch)
}

// letMeet has a server that never fetched from another one fetch a block, beside the request, which does not wait for it and
// may end before.
func (o fetcher) letMeet(ctx context.Context, st *requestState, t *connector.Transfer) {
	if st.req.Memory != nil { // some of the client's text may be in t
		st.req.Memory.Hold()
	}
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), meetingPatience, errSilent)
	o.legs.Go(func() {
		defer cancel()
		defer func() {
			if p := recover(); p != nil {
				o.Log.Error("panic as two servers met", "request_id", st.req.ID, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			}
			if st.req.Memory != nil {
				st.req.Memory.Release()
			}
		}()
		o.try(ctx, st, t)
	})
}

// try fetches, and remembers between which servers.
func (o fetcher) try(ctx context.Context, st *requestState, t *connector.Transfer) decision.FetchOutcome {
	from, to := t.From.ID(), t.To.ID()
	outcome, failed := o.keepAndRead(ctx, st, t)
	if failed != nil {
		if failed.Kind == Gone {
			return outcome
		}
		o.Log.Warn("prefill fetches no KV of a prompt from decode, and computes it", "request_id", st.req.ID, "server", to, "from", from, "failed", failed.Server, "error", failed.Error())
	}
	o.Binder.Meetings.Observe(from, to, failed == nil, time.Now())
	return outcome
}

// keepAndRead has the server that holds the tokens keep their KV for the other one, and that one read it.
func (o fetcher) keepAndRead(ctx context.Context, st *requestState, t *connector.Transfer) (decision.FetchOutcome, *LegError) {
	h := t.Handoff()
	answer, failed := o.keep(ctx, st, t)
	if failed != nil {
		return decision.NotFetched, failed
	}
	h.RecordPrefill(t, answer, time.Now())
	if failed := o.checkHost(st, t, h); failed != nil {
		return decision.NotFetched, failed
	}
	if failed := o.read(ctx, st, t.To, h); failed != nil {
		o.Metrics.countStranded(h)
		return decision.NotFetched, failed
	}
	if c := h.Coverage(); c.Cached.Known && c.Cached.Tokens < c.Tokens-2*blockTokensOf(t.From) { // it computes the last block in any case
		return decision.Recomputed, nil
	}
	return decision.Fetched, nil
}

// keep is the leg of the server that holds the tokens.
func (o fetcher) keep(ctx context.Context, st *requestState, t *connector.Transfer) (answer api.Answer, failed *LegError) {
	ctx, span := spans.StartLeg(ctx, o.Tracer, "prefill", t.From.ID(), t.ID)
	span.SetKind("fetch")
	defer func() { endLegSpan(span, failed) }()
	_, body, failed := o.sendWhole(ctx, o.Binder.Config.HandoffAge, PrefillLeg, t.From, st, api.Completions.Path, t.ID, t.Connector().Prefill(t))
	if failed != nil {
		return answer, failed
	}
	answer, err := api.Completions.ReadAnswer(body)
	if err != nil {
		failed = &LegError{Leg: PrefillLeg, Server: t.From.ID(), Kind: Broken, Err: errNoAnswer}
	}
	return answer, failed
}

// read is the leg of the server that reads them.
func (o fetcher) read(ctx context.Context, st *requestState, server *pools.Server, h *connector.Handoff) (failed *LegError) {
	if !h.Kept {
		return &LegError{Leg: PrefillLeg, Server: h.From.ID(), Kind: Broken, Err: errNothingKept}
	}
	ctx, span := spans.StartLeg(ctx, o.Tracer, "decode", server.ID(), h.Attempt)
	span.SetKind("fetch")
	defer func() { endLegSpan(span, failed) }()
	_, _, failed = o.sendWhole(ctx, o.Binder.Config.HandoffAge, DecodeLeg, server, st, api.Completions.Path, h.Attempt, h.Leg)
	return failed
}

// countFetch counts what became of a fetch.
func (m *Metrics) countFetch(f decision.Fetch) {
	m.fetches.WithLabelValues(string(f.Outcome)).Inc()
	if f.Came() {
		m.fetchedToks.Add(float64(f.Tokens))
	}
}
