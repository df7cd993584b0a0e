package pd

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/tandem-gateway/tandem/kvstate"
	"github.com/tandem-gateway/tandem/kvstate/tokens"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/council"
	"github.com/tandem-gateway/tandem/pd/council/councilpb"
	"github.com/tandem-gateway/tandem/pools"
)

// ticket is what the replica that decides must know of a request.
func (ch *Chooser) ticket(j *requestState) *councilpb.Ticket {
	now := time.Now()
	demand := ch.demand(j, now)
	t := &councilpb.Ticket{
		Model: j.req.Model, Base: j.base, Api: j.req.Dialect.Name, Alone: j.alone,
		PromptTokens: uint32(demand.PromptTokens), OutputTokens: uint32(demand.OutputTokens),
		Class: int32(j.req.Class), Tenant: j.req.Tenant,
		WaitedUs: uint64(demand.Waited.Microseconds()), TtftUs: uint64(demand.TTFT.Microseconds()), ItlUs: uint64(demand.ITL.Microseconds()),
	}
	if !j.req.Deadline.IsZero() {
		t.LeftUs = uint64(max(1, j.req.Deadline.Sub(now).Microseconds()))
	}
	v := ch.takeSnapshot(j.base, j.base, now)
	for _, servers := range [][]Candidate{v.field.Prefill, v.field.Decode} {
		for i := range servers {
			if c := &servers[i]; c.Out && !slices.Contains(t.Excluded, c.ID) {
				t.Excluded = append(t.Excluded, c.ID)
			}
		}
	}
	if j.prefix == nil || !j.prefix.known {
		return t
	}
	t.Salt = j.prefix.tokens.Salt
	for _, c := range j.prefix.tokens.Chunks {
		t.Chunks = append(t.Chunks, uint64(c))
	}
	ch.Locality.match(j.prefix)
	for _, c := range j.prefix.hits.Chains() {
		chain := &councilpb.Chain{BlockTokens: uint32(c.BlockTokens), Hashes: make([]uint64, len(c.Hashes))}
		for i, h := range c.Hashes {
			chain.Hashes[i] = uint64(h)
		}
		t.Chains = append(t.Chains, chain)
	}
	return t
}

// RemoteRequests lets requests of other replicas wait beside the decider's own.
func (d *Decider) RemoteRequests() council.Order { return remoteRequests{d} }

type remoteRequests struct{ d *Decider }

var errUnknownAPI = errors.New("a ticket for an API that this replica does not know")

// Bind is council.Order's.
func (g remoteRequests) Bind(ctx context.Context, t *councilpb.Ticket) (*councilpb.Turn, func(), error) {
	j := newRemoteRequest(t, time.Now())
	if j == nil {
		return nil, nil, errUnknownAPI
	}
	patience, cancel := g.d.limit(j).context(ctx)
	defer cancel()
	a, err := g.d.await(patience, j)
	if errors.Is(err, ErrQueueTimeout) || errors.Is(err, ErrDeadline) {
		return nil, nil, council.ErrTimeout
	}
	if err != nil {
		return nil, nil, err
	}
	servers := []*pools.Server{a.decode.Server()}
	if a.prefill != nil {
		servers = append(servers, a.prefill.Server())
	}
	g.d.ch.predictCached(j, servers...)
	return &councilpb.Turn{Id: t.Id, Prefill: a.chosen.Prefill, Decode: a.chosen.Decode}, a.release, nil
}

// newRemoteRequest is the state of another replica's request, as far as it is gone here. It is nil
// for one of an API that is unknown.
func newRemoteRequest(t *councilpb.Ticket, now time.Time) *requestState {
	var dialect *api.Dialect
	for _, known := range api.Dialects() {
		if known.Name == t.Api {
			dialect = known
		}
	}
	if dialect == nil {
		return nil
	}
	us := func(n uint64) time.Duration { return time.Duration(min(n, 1<<40)) * time.Microsecond }
	j := &requestState{
		remote: true, base: t.Base, alone: t.Alone, arrived: now.Add(-us(t.WaitedUs)), tried: make(map[tried]bool),
		req: &Request{
			Dialect: dialect, Model: t.Model, Class: int(t.Class), Tenant: t.Tenant, TTFT: us(t.TtftUs), ITL: us(t.ItlUs),
			PromptTokens: int(t.PromptTokens), OutputTokens: int(t.OutputTokens), Aggregated: t.Alone,
		},
		prefix: &prefix{model: t.Base, known: len(t.Chains)+len(t.Chunks) > 0, length: int(t.PromptTokens)},
	}
	if t.LeftUs > 0 {
		j.req.Deadline = now.Add(us(t.LeftUs))
	}
	for _, id := range t.Excluded {
		for _, leg := range []Leg{PrefillLeg, DecodeLeg, AloneLeg} {
			j.tried[tried{leg, id}] = true
		}
	}
	j.prefix.tokens.Salt = t.Salt
	for _, c := range t.Chunks {
		j.prefix.tokens.Chunks = append(j.prefix.tokens.Chunks, tokens.Chunk(c))
	}
	for _, c := range t.Chains {
		chain := kvstate.Chain{BlockTokens: int(c.BlockTokens), Hashes: make([]kvstate.Hash, len(c.Hashes))}
		for i, h := range c.Hashes {
			chain.Hashes[i] = kvstate.Hash(h)
		}
		j.prefix.chains = append(j.prefix.chains, chain)
	}
	return j
}
