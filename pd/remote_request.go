package pd

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/tandem-gateway/tandem/kvstate"
	"github.com/tandem-gateway/tandem/kvstate/tokens"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/leader"
	"github.com/tandem-gateway/tandem/pd/leader/leaderpb"
	"github.com/tandem-gateway/tandem/pd/queue"
	"github.com/tandem-gateway/tandem/pools"
)

// remoteRequest is what the leader must know of a request.
func (ch *Chooser) remoteRequest(own *bindRequest) *leaderpb.RemoteRequest {
	now := time.Now()
	ch.takeLater(own)
	demand := ch.demand(own, now)
	r := &leaderpb.RemoteRequest{
		Model: own.req.Model, Base: own.base, Api: own.req.Dialect.Name, Alone: own.tried.mustAggregate,
		PromptTokens: uint32(demand.PromptTokens), OutputTokens: uint32(demand.OutputTokens),
		Class: int32(own.req.Class), Tenant: own.req.Tenant,
		WaitedUs: uint64(demand.Waited.Microseconds()), TtftUs: uint64(demand.TTFT.Microseconds()), ItlUs: uint64(demand.ITL.Microseconds()),
		FirstFromPrefill: demand.FirstFromPrefill, Exact: demand.Exact, Proxied: own.req.proxied,
	}
	if own.pieces > 0 {
		r.CertainTokens = uint32(own.certain)
	}
	if begun := own.begun; begun != nil {
		r.Begun = &leaderpb.Begun{Prefill: begun.prefill, Decode: begun.decode, Tokens: uint32(begun.tokens)}
	}
	if !own.req.Deadline.IsZero() {
		r.LeftUs = uint64(max(1, own.req.Deadline.Sub(now).Microseconds()))
	}
	if home := ch.home(own, now); home != (cost.Home{}) {
		r.Home = &leaderpb.Home{Prefill: home.Prefill, Decode: home.Decode}
	}
	v := ch.takeSnapshot(own.base, own.base, now)
	exclude := func(role pools.Role, servers []*pools.Server, candidates []cost.Candidate) {
		for i, s := range servers {
			by := connector.Of(s)
			unfit := own.req.Samples > 1 && by.OneSample && !by.Aggregated // of which the leader is not told
			if (candidates[i].Excluded || unfit || !own.req.subsetAllows(s, role)) && !slices.Contains(r.Excluded, s.ID()) {
				r.Excluded = append(r.Excluded, s.ID())
			}
		}
	}
	exclude(pools.Prefill, v.prefill, v.candidates.Prefill)
	exclude(pools.Decode, v.decode, v.candidates.Decode)
	if own.prefix == nil || !own.prefix.known {
		return r
	}
	r.Salt = own.prefix.tokens.Salt
	for _, c := range own.prefix.tokens.Chunks {
		r.Chunks = append(r.Chunks, uint64(c))
	}
	ch.Locality.match(own.prefix)
	for _, c := range own.prefix.hits.Chains() {
		chain := &leaderpb.Chain{BlockTokens: uint32(c.BlockTokens), Lookahead: uint32(c.Lookahead), Hashes: make([]uint64, len(c.Hashes))}
		for i, h := range c.Hashes {
			chain.Hashes[i] = uint64(h)
		}
		r.Chains = append(r.Chains, chain)
	}
	return r
}

// RemoteRequests lets requests of other replicas wait beside the decider's own.
func (d *Decider) RemoteRequests() leader.Order { return remoteRequests{d} }

type remoteRequests struct{ d *Decider }

var errUnknownAPI = errors.New("a request for an API that this replica does not know")

// Bind is leader.Order's.
func (o remoteRequests) Bind(ctx context.Context, r *leaderpb.RemoteRequest) (*leader.Bound, error) {
	own := newRemoteRequest(r, time.Now())
	if own == nil {
		return nil, errUnknownAPI
	}
	if own.certain > 0 {
		own.pieces = o.d.ch.Config.Pieces
	}
	b, err := o.d.await(ctx, o.d.arrive(own))
	if errors.Is(err, queue.ErrTimeout) || errors.Is(err, queue.ErrDeadline) {
		return nil, &leader.Timeout{Return: queue.ReturnIn(err)}
	}
	if err != nil {
		return nil, err
	}
	return &leader.Bound{
		Turn:      &leaderpb.Turn{Id: r.Id, Prefill: b.chosen.Prefill, Decode: b.chosen.Decode},
		FirstStep: b.chosen.Terms.FirstStep(), Release: b.release,
	}, nil
}

// newRemoteRequest is another replica's request, as far as it is gone here. It is
// nil for one of an API that is unknown.
func newRemoteRequest(r *leaderpb.RemoteRequest, now time.Time) *bindRequest {
	var dialect *api.Dialect
	for _, known := range api.Dialects() {
		if known.Name == r.Api {
			dialect = known
		}
	}
	if dialect == nil {
		return nil
	}
	us := func(n uint64) time.Duration { return time.Duration(min(n, 1<<40)) * time.Microsecond }
	own := &bindRequest{
		remote: true, firstFromPrefill: r.FirstFromPrefill, base: r.Base, tried: priorAttempts{mustAggregate: r.Alone}, arrived: now.Add(-us(r.WaitedUs)),
		req: &Request{
			Dialect: dialect, Model: r.Model, Class: int(r.Class), Tenant: r.Tenant, TTFT: us(r.TtftUs), ITL: us(r.ItlUs),
			PromptTokens: int(r.PromptTokens), OutputTokens: int(r.OutputTokens), Aggregated: r.Alone, proxied: r.Proxied,
		},
		prefix: &prefix{model: r.Base, known: len(r.Chains)+len(r.Chunks) > 0, length: int(r.PromptTokens)},
	}
	own.certain = int(r.CertainTokens)
	if r.Begun != nil {
		own.begun = &begunPrefill{prefill: r.Begun.Prefill, decode: r.Begun.Decode, tokens: int(r.Begun.Tokens)}
	}
	if r.Home != nil {
		own.home = cost.Home{Prefill: r.Home.Prefill, Decode: r.Home.Decode}
	}
	if r.LeftUs > 0 {
		own.req.Deadline = now.Add(us(r.LeftUs))
	}
	for _, id := range r.Excluded {
		for _, leg := range []Leg{PrefillLeg, DecodeLeg, AggregatedLeg} {
			own.tried.exclude(leg, id)
		}
	}
	own.prefix.tokens.Salt, own.prefix.tokens.Complete = r.Salt, r.Exact
	for _, c := range r.Chunks {
		own.prefix.tokens.Chunks = append(own.prefix.tokens.Chunks, tokens.Chunk(c))
	}
	for _, c := range r.Chains {
		chain := kvstate.Chain{BlockTokens: int(c.BlockTokens), Lookahead: int(c.Lookahead), Hashes: make([]kvstate.Hash, len(c.Hashes))}
		for i, h := range c.Hashes {
			chain.Hashes[i] = kvstate.Hash(h)
		}
		own.prefix.chains = append(own.prefix.chains, chain)
	}
	return own
}
