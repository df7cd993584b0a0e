package pd

import (
	"context"
	"errors"
	"time"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/decision"
	"github.com/tandem-gateway/tandem/pd/predict"
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
// Two servers that have not met do so beside a request that computes its prompt, for one block. What fails is computed: the
// request is none the worse for it than by the time that was lost. A server that is found dead is taken out; where it is the
// prefill server the request's own leg is not sent there.

// fetch is what prefill is to fetch of a prompt before it computes the rest, or with whom it is to meet meanwhile.
type fetch struct {
	from   *pools.Server // nil: nothing
	ids    []uint32      // of the prompt's leading tokens; nil for another replica's request, which fetches there
	lacked int           // of them, tokens that prefill does not hold
	takes  time.Duration // predicted
	saves  time.Duration // of prefill's time, likewise
	upTo   int           // token to which the first piece goes where nothing comes; 0: that is the whole prompt
	meets  *pools.Server // nil: none
}

// strangers are a decode and a prefill server, by number.
type strangers struct{ decode, prefill int }

func meetingOf(from, to *pools.Server) predict.Meeting {
	return predict.Meeting{From: from.ID(), To: to.ID(), FromLife: from.Incarnation(), Life: to.Incarnation()}
}

// setFetches offers prefill servers what decode servers hold of a request's prompt, as far as they have met.
func (sn *Snapshotter) setFetches(r *bindRequest, v *snapshot, now time.Time) {
	for i := range v.candidates.Prefill {
		if c := &v.candidates.Prefill[i]; c.Remote.Fetched {
			c.Remote = cost.Remote{}
		}
	}
	v.strangers = v.strangers[:0]
	if !sn.Config.FetchKV || sn.Meetings == nil || r.begun != nil || r.continues || r.req.proxied {
		return
	}
	sn.Cost.OfferFetches(&v.candidates, r.req.PromptTokens, r.certain, sn.Links, func(decode, prefill int) bool {
		if sn.Meetings.HaveMet(meetingOf(v.decode[decode], v.prefill[prefill])) {
			return true
		}
		v.strangers = append(v.strangers, strangers{decode, prefill})
		return false
	})
}

// setFetch says what the prefill server of a binding fetches of a request's prompt.
func (ch *Chooser) setFetch(r *bindRequest, v *snapshot, b *binding, c *cost.Candidate) {
	takes, saves := ch.Cost.Fetches(c, r.req.PromptTokens)
	d := cost.IndexOf(v.candidates.Decode, c.Remote.Server)
	if takes == 0 || d < 0 {
		return
	}
	b.fetch = fetch{from: v.decode[d], lacked: c.Remote.Tokens - c.Cached.GPU, takes: takes, saves: saves}
	if !r.remote {
		b.fetch.ids = r.prefix.tokens.IDs[:c.Remote.Tokens]
	}
}

// setMeeting says with whom the prefill server of a binding is to meet, since it could fetch from there.
func (b *binding) setMeeting(r *bindRequest, v *snapshot, prefill int) {
	if r.remote {
		return
	}
	for _, s := range v.strangers {
		if s.prefill == prefill {
			b.fetch = fetch{meets: v.decode[s.decode], ids: r.prefix.tokens.IDs[:r.certain]}
			return
		}
	}
}

// fetcher sends the legs of a fetch.
type fetcher struct{ *Orchestrator }

var errNothingKept = errors.New("it keeps no KV for another engine")

const (
	// fetchPatience is how long a fetch may take beyond fetchOverrun times what is predicted of it: the prompt could be
	// computed meanwhile.
	fetchPatience, fetchOverrun = 500 * time.Millisecond, 4
	// meetingPatience is how long two servers have to meet, for which nobody waits but a gateway that ends. Engines go on
	// meeting beyond it, and have met when they are asked again.
	meetingPatience = 5 * time.Second
)

// fetch has the prefill server of a binding fetch what it is to fetch. Where that fails the rest is as if it were not to,
// unless the prefill server has died: then its leg has failed.
func (o fetcher) fetch(ctx context.Context, st *requestState, b *binding) (failed *LegError) {
	f := &b.fetch
	if f.from == nil && f.meets == nil {
		return nil
	}
	server, start := b.prefill.Server(), time.Now()
	apart := &requestState{req: st.req, bind: bindRequest{req: st.req}} // what fails here is no attempt of the request, unless prefill has died
	if f.meets != nil && o.Binder.Meetings.Begin(meetingOf(f.meets, server), start) {
		o.letMeet(ctx, apart, connector.NewPiece(st.req.Body, f.ids[:server.BlockTokens()], f.meets, server))
	}
	if f.from == nil {
		return nil
	}
	within, cancel := context.WithTimeoutCause(ctx, fetchPatience+fetchOverrun*f.takes, errSilent)
	defer cancel()
	outcome, died := o.try(within, apart, connector.NewPiece(st.req.Body, f.ids, f.from, server))
	if ctx.Err() != nil { // the client has left, and the next leg says so
		return nil
	}
	took := time.Since(start)
	b.choice.Fetch = decision.Fetch{Server: f.from.ID(), Tokens: f.lacked, Outcome: outcome, Took: took}
	b.choice.Measured.Prefill += took
	o.Metrics.fetches.WithLabelValues(string(outcome)).Inc()
	if b.choice.Fetch.Came() {
		o.Metrics.fetchedToks.Add(float64(f.lacked))
	} else {
		b.chosen.Terms.Prefill += f.saves // its leg is late only beyond that
		b.cutUnfetched()
	}
	if died == nil || died.Server != server.ID() {
		return nil
	}
	died.Leg = PrefillLeg // it is the server of that one
	return died
}

// cutUnfetched cuts a prompt of which nothing was fetched as if nothing had been to be: what was to be computed at once
// behind it is a longer piece now than others are to wait for.
func (b *binding) cutUnfetched() {
	if b.fetch.upTo == 0 {
		return
	}
	b.releaseBehindCuts()
	b.upTo, b.behindCuts = b.fetch.upTo, nil
}

// letMeet has a server that never fetched from another one fetch a block, beside the request, which does not wait for it and
// may end before. Nothing of st is changed, and t has none of the client's text.
func (o fetcher) letMeet(ctx context.Context, st *requestState, t *connector.Transfer) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), meetingPatience, errSilent)
	o.legs.Go(func() {
		defer cancel()
		defer o.survivePanic("the meeting of two servers", st.req.ID)
		outcome := "met"
		if out, _ := o.try(ctx, st, t); out == decision.NotFetched {
			outcome = "not_met"
		}
		o.Metrics.fetches.WithLabelValues(outcome).Inc()
	})
}

// try fetches, and remembers between which servers. died is the leg that failed, if its server is found dead.
func (o fetcher) try(ctx context.Context, st *requestState, t *connector.Transfer) (outcome decision.FetchOutcome, died *LegError) {
	outcome, failed := o.keepAndRead(ctx, st, t)
	if failed != nil {
		if failed.Kind == Gone {
			return outcome, nil
		}
		o.Log.Warn("prefill fetches no KV of a prompt from decode, and computes it", "request_id", st.req.ID, "server", t.To.ID(), "from", t.From.ID(), "failed", failed.Server, "error", failed.Error())
		if failed.Kind == Refused || failed.Kind == Busy { // the request, or the moment
			return outcome, nil
		}
	}
	o.Binder.Meetings.Observe(meetingOf(t.From, t.To), failed == nil, time.Now())
	if failed != nil && o.markDownIfFoundDead(ctx, t, failed) {
		died = failed
	}
	return outcome, died
}

// markDownIfFoundDead takes the server of a leg that failed out where it is dead, and reports whether it is. Of what else
// fails the other server may be the cause, so that no server is blamed.
func (o fetcher) markDownIfFoundDead(ctx context.Context, t *connector.Transfer, failed *LegError) bool {
	server := t.From
	if failed.Server == t.To.ID() {
		server = t.To
	}
	switch {
	case failed.Kind == Unsent && !isTimeout(failed.Err):
		server.MarkDown("no connection")
		return true
	case failed.lostConnection() || failed.engineDied():
		return o.markDownIfDead(ctx, server.ID(), failed.engineDied())
	}
	return errors.Is(failed.Err, errServerDown) && !server.Health().Up // its probes failed
}

// keepAndRead has the server that holds the tokens keep their KV for the other one, and that one read it.
func (o fetcher) keepAndRead(ctx context.Context, st *requestState, t *connector.Transfer) (decision.FetchOutcome, *LegError) {
	h := t.Handoff()
	answer, failed := o.keep(ctx, st, t)
	if failed != nil {
		return decision.NotFetched, failed
	}
	h.RecordPrefill(t, answer, time.Now())
	if !h.Kept {
		return decision.NotFetched, &LegError{Leg: PrefillLeg, Server: t.From.ID(), Kind: Broken, Err: errNothingKept}
	}
	if !o.areOwnHosts(t.From, h.Hosts, t.To) {
		o.Metrics.countStranded(h)
		return decision.NotFetched, &LegError{Leg: PrefillLeg, Server: t.From.ID(), Kind: Broken, Err: errForeignHost}
	}
	if failed := o.sendRead(ctx, st, t.To, h, "fetch"); failed != nil {
		return decision.NotFetched, failed
	}
	c := h.Coverage()
	if (c.Cached.Known || t.From.ReportsCachedTokens()) && c.Cached.Tokens < c.Tokens-2*t.From.BlockTokens() { // it computes the last block in any case
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
