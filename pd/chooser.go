package pd

import (
	"math/rand/v2"
	"sort"
	"time"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/decision"
	"github.com/tandem-gateway/tandem/pd/predict"
	"github.com/tandem-gateway/tandem/pd/queue"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/curve"
)

// Chooser prices a request on the servers of a snapshot, and claims those that are chosen. It
// knows nothing of waiting. Its fields are set once, before the first request.
type Chooser struct {
	Snapshotter
	Outputs *predict.Outputs // nil: nothing is learned of how long answers are
	Prompts *predict.Prompts // nil: nothing is learned of how long prompts are
	Metrics *Metrics

	ttftMargin     predict.TTFTMargin
	firstGap       predict.FirstGap
	deadlineProbes predict.DeadlineProbes
	cacheSavings   predict.CacheSavings
	sessions       predict.Sessions
	turns          predict.Sessions // of conversations, by their text
	pieceLosses    predict.PieceLosses
}

// bindNow picks the cheapest alternative that is left and claims its servers. A
// server that refuses the claim is left out and the choice made again.
func (ch *Chooser) bindNow(r *bindRequest) (*binding, error) {
	refused := make(map[string]bool)
	amongOwn, ignoreBreakers := false, false
	for {
		now := time.Now()
		view := ch.snapshotFor(r, refused, now)
		if amongOwn {
			ch.judgeAmongOwn(&view, refused, now)
		}
		view.ignoreBreakers = ignoreBreakers
		demand := ch.demand(r, now)
		atHome := demand
		atHome.Home = ch.home(r, now)
		chosen, ok := ch.Cost.Choose(atHome, &view.candidates, rand.IntN)
		if !ok && len(r.tried.broke) > 0 && !r.tried.mayReturn {
			r.tried.mayReturn = true // no other can take it, and the server it broke on may have recovered
			continue
		}
		if !ok && !amongOwn {
			amongOwn = true
			continue
		}
		if !ok && len(refused) > 0 && !ignoreBreakers {
			// Only servers under proof are left: one of them is better than none.
			ignoreBreakers = true
			clear(refused)
			continue
		}
		if !ok {
			return nil, view.missing()
		}
		if ch.late(r, &view.candidates, &chosen, ch.ttftMargin.Bound(&chosen.Terms), now) {
			return nil, queue.ErrDeadline
		}
		b, refusedBy := ch.claimFor(r, &view, chosen, demand, now)
		if b == nil {
			refused[refusedBy] = true
			continue
		}
		ch.enterSeen(r)
		b.prediction.enter()
		return b, nil
	}
}

// claimFor claims the servers of an alternative and records why they were chosen, or says
// which refused.
func (ch *Chooser) claimFor(r *bindRequest, v *snapshot, chosen cost.Alternative, demand cost.Demand, now time.Time) (b *binding, refusedBy string) {
	if b, refusedBy = ch.claim(r, v, chosen, &demand, now); b == nil {
		return nil, refusedBy
	}
	recorded := false
	defer func() { // a panic holds no servers
		if !recorded {
			b.undo()
		}
	}()
	ch.recordBinding(r, v, b, demand, ch.Cost.Review(demand, &v.candidates, &b.chosen), now)
	recorded = true
	return b, ""
}

// claimPair claims the servers of a pair that was chosen before, as far as the request has none:
// errBindNow where one of them is not there any more or takes nothing, queue.ErrDeadline where the
// first token is predicted to come too late.
func (ch *Chooser) claimPair(r *bindRequest, prefill, decode string) (*binding, error) {
	now := time.Now()
	v := ch.snapshotFor(r, nil, now)
	demand := ch.demand(r, now)
	chosen, ok := ch.Cost.PricePair(demand, &v.candidates, prefill, decode)
	if !ok {
		return nil, errBindNow
	}
	if ch.late(r, &v.candidates, &chosen, chosen.Terms.TTFT(), now) {
		return nil, queue.ErrDeadline
	}
	var b *binding
	if r.begun != nil {
		b, _ = ch.claimRest(r, &v, chosen, now)
	} else {
		b, _ = ch.claimFor(r, &v, chosen, demand, now)
	}
	if b == nil {
		return nil, errBindNow
	}
	b.prediction.enter()
	return b, nil
}

// claim takes a place on the servers of the alternative, on all or on none: then it says which
// refused.
func (ch *Chooser) claim(r *bindRequest, v *snapshot, chosen cost.Alternative, demand *cost.Demand, now time.Time) (b *binding, refusedBy string) {
	b = r.newBinding()
	b.chosen, b.handoff = chosen, v.handoff
	if chosen.Prefill != "" {
		ch.setPulls(r, v, b)
	} else {
		b.pullFrom = ch.pullSource(v.candidates.Decode, chosen.Decode, r.req.PromptTokens)
	}
	number := cost.IndexOf(v.candidates.Decode, chosen.Decode)
	b.cachedTokens, b.tokenBytes = v.candidates.Decode[number].Cached.Confirmed(), ch.Cost.TokenBytes(&v.candidates.Decode[number])
	if chosen.Prefill != "" && v.handoff == nil {
		prefill := cost.IndexOf(v.candidates.Prefill, chosen.Prefill)
		if !ch.claimPrefill(r, v, b, prefill, number, now) {
			return nil, chosen.Prefill
		}
	}
	work := contextWork(r.req)
	work.Estimate = time.Duration(r.req.OutputTokens) * chosen.Terms.Step
	lease, err := v.decode[number].Claim(pools.Decode, work, v.ignoreBreakers || v.decodePanic, now)
	if err != nil {
		b.release()
		return nil, chosen.Decode
	}
	b.decode = lease
	if b.prefill != nil {
		b.expected = ch.expectTransfer(r, b, now)
	}
	if chosen.Prefill == "" && r.req.Dialect.Split {
		c := &v.candidates.Decode[number]
		lease.BeginLocalPrefill(prefillWork(r, c, chosen.Terms.Prefill), now)
		b.batch = ch.Cost.BatchBeside(c, r.req.PromptTokens-c.Cached.GPU)
		if b.pullFrom == nil { // else the last leg is to bring the beginning along
			b.decodePieces, b.cut.tokens = ch.Cost.DecodePieces(demand, c), c.Cached.GPU
		}
	}
	b.prediction = ch.predictCached(r, b, v.decode[number])
	return b, ""
}

// contextWork is what a request is to the server that decodes it, but for the time that it takes.
func contextWork(req *Request) curve.Work {
	return curve.Work{
		Tokens: req.PromptTokens + max(1, req.Answers)*req.OutputTokens/2, // on the average of its stay
		Prompt: req.PromptTokens, Answers: req.Answers,
	}
}

// prefillWork is what the prompt of a request is to the server that computes it.
func prefillWork(r *bindRequest, c *cost.Candidate, estimate time.Duration) curve.Work {
	return curve.Work{
		Tokens: r.req.PromptTokens, Computed: max(1, r.req.PromptTokens-c.Cached.GPU),
		Estimate: estimate, Shared: cost.Duration(c.Prefill.Fixed()),
	}
}

// home is where the turn before was served, else the request's session last, nowhere if neither is
// known: another replica's request comes with what its replica knows.
func (ch *Chooser) home(r *bindRequest, now time.Time) cost.Home {
	if r.remote {
		return r.home
	}
	_, before := r.turns()
	if home := ch.turns.Home(before, now); home != (cost.Home{}) {
		return home
	}
	return ch.sessions.Home(r.session(), now)
}

// homeAfter is where the next turn of a request's session belongs. A turn that decode computes alone
// leaves its prefill server where it was: that one still holds what came before, as others may, and
// between them chance would choose.
func (ch *Chooser) homeAfter(r *bindRequest, chosen *cost.Alternative, now time.Time) cost.Home {
	home := cost.Home{Prefill: chosen.Prefill, Decode: chosen.Decode}
	if home.Prefill == "" {
		home.Prefill = ch.home(r, now).Prefill
	}
	return home
}

// recordBinding notes why a request's servers were chosen, and counts it. It keeps the candidates of the review.
func (ch *Chooser) recordBinding(r *bindRequest, v *snapshot, b *binding, demand cost.Demand, review cost.Review, now time.Time) {
	ch.deadlineProbes.Observe(r.base, now)
	ch.recordHits(b, v)
	own, _ := r.turns()
	home := ch.homeAfter(r, &b.chosen, now)
	ch.sessions.Observe(r.session(), home, now)
	ch.turns.Observe(own, home, now)
	b.reason = r.aloneReason(v, b.chosen)
	if b.chosen.Prefill == "" {
		ch.Metrics.aggregated.WithLabelValues(b.reason).Inc()
	} else if review.MayBeAlone {
		b.aggregated = review.Alone.Terms
	}
	mismatch := ""
	if b.reason == decision.NoPair {
		mismatch = v.pairMismatch(r.base)
	}
	b.choice = decision.Choice{
		Demand: demand, Prompt: r.prefix.knowledge(), Candidates: review.Few, Chosen: b.chosen, Reason: b.reason, Mismatch: mismatch,
		Panic: v.ignoreBreakers || v.prefillPanic || v.decodePanic,
	}
}

// demand is what the choice knows of a request.
func (ch *Chooser) demand(r *bindRequest, now time.Time) cost.Demand {
	d := cost.Demand{PromptTokens: r.req.PromptTokens, OutputTokens: r.req.OutputTokens, Waited: now.Sub(r.arrived)}
	d.FirstFromPrefill, d.Exact = r.firstFromPrefill, r.prefix != nil && r.prefix.tokens.Complete
	d.TTFT, d.ITL = ch.Config.SLO(r.req, r.base)
	d.Gap = ch.gap(r, d.ITL)
	d.Objective = ch.Config.Objective.of(r.req, r.base)
	if r.returns.new > 0 && ch.protects() {
		d.New, d.LostShare = r.returns.new, r.returns.memory.LostShare()
	}
	return d
}

// late reports whether a first token that is predicted in so long misses the request's deadline, and
// misses it also by what the servers have shown of such predictions, which few requests need to ask.
// What was tried already is not given up: its work would be lost.
func (ch *Chooser) late(r *bindRequest, servers *cost.Candidates, chosen *cost.Alternative, first time.Duration, now time.Time) bool {
	if r.req.Deadline.IsZero() || len(r.tried.legs) > 0 || r.continues || r.begun != nil {
		return false
	}
	missed := func(in time.Duration) bool { return now.Add(in).After(r.req.Deadline) }
	return missed(first) && missed(servers.Supported(first, chosen)) && !ch.takeProbe(r, now)
}

// takeProbe reports whether the request is served though it is predicted to be late.
func (ch *Chooser) takeProbe(r *bindRequest, now time.Time) bool {
	r.probe = r.probe || ch.deadlineProbes.Take(r.base, now)
	return r.probe
}

// predictCached predicts which server will hold the prompt, since it computes it, so that those with the same beginning
// go there too rather than compute it elsewhere: they stand behind it in that server's queue, and
// behind what is left of it where it is sent in pieces, so it is there when their turn comes. On
// decode nothing makes them wait for the transfer.
func (ch *Chooser) predictCached(r *bindRequest, b *binding, decode *pools.Server) *prediction {
	if ch.Locality == nil || r.prefix == nil || b.handoff != nil {
		return nil
	}
	computes := decode
	if b.prefill != nil {
		computes = b.prefill.Server()
	}
	return ch.Locality.predict(r.prefix, b.chosen.Terms.FirstStep(), computes, decode)
}

// recordHits keeps what the server that was chosen for the prompt holds of it. A hand-off that
// goes to another decode server was computed before, and keeps what was noted then.
func (ch *Chooser) recordHits(b *binding, v *snapshot) {
	list, id := v.candidates.Prefill, b.chosen.Prefill
	switch {
	case v.handoff != nil:
		return
	case id == "":
		list, id = v.candidates.Decode, b.chosen.Decode
	}
	b.hits = hits{server: id, held: list[cost.IndexOf(list, id)].Cached}
	if held := b.hits.held.Disk; held > 0 {
		ch.cacheSavings.Observe(id, held, time.Now())
	}
}

// longestPrompt is the most tokens that PairPaysFrom looks at.
const longestPrompt = 1 << 17

// PairPaysFrom returns from how many prompt tokens on a chat with so many output tokens goes
// to a pair while the servers are idle and hold nothing of the prompt. Below that the second
// leg costs more than decode would lose by computing the prompt itself.
// false: no prompt of up to 131,072 tokens does, or nothing serves the model.
func (ch *Chooser) PairPaysFrom(model string, outputTokens int) (tokens int, ok bool) {
	now := time.Now()
	first := func(int) int { return 0 }
	goes := func(tokens int) bool {
		r := &bindRequest{base: model, arrived: now, req: &Request{
			Dialect: api.Chat, Model: model, Stream: true, PromptTokens: tokens, OutputTokens: outputTokens,
		}}
		view := ch.snapshotFor(r, nil, now)
		idle(view.candidates.Prefill)
		idle(view.candidates.Decode)
		chosen, found := ch.Cost.Choose(ch.demand(r, now), &view.candidates, first)
		return found && chosen.Prefill != ""
	}
	tokens = 1 + sort.Search(longestPrompt, func(n int) bool { return goes(n + 1) })
	return tokens, tokens <= longestPrompt
}

// idle takes all load off servers.
func idle(servers []cost.Candidate) {
	for i := range servers {
		servers[i].SetLoad(cost.Candidate{})
	}
}

// CacheSavings is how many tokens of prompts each server's cache has saved lately, those of ten
// minutes ago counted by half, as far as this gateway sent them.
func (ch *Chooser) CacheSavings() map[string]float64 { return ch.cacheSavings.Read(time.Now()) }
