package pd

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/tandem-gateway/tandem/kvstate"
	"github.com/tandem-gateway/tandem/kvstate/tokens"
	"github.com/tandem-gateway/tandem/pd/council"
	"github.com/tandem-gateway/tandem/pd/council/councilpb"
	"github.com/tandem-gateway/tandem/pools"
)

// follow lets the replica that decides say when it is the request's turn, and where. Its
// servers are claimed here: by then something may have changed that only this replica
// knows, and the request is bound at once to what is best now. Errors are those of Bind,
// and council.ErrAway.
func (d *Decider) follow(ctx context.Context, j *journey, base string) (assignment, error) {
	turn, taken, err := d.Elsewhere.Bind(ctx, d.o.ticket(j, base))
	if errors.Is(err, council.ErrTimeout) {
		_, late := d.patience(j)
		return assignment{}, late
	}
	if err != nil {
		return assignment{}, err
	}
	defer taken() // once the work is claimed
	now := time.Now()
	v := d.o.look(j, nil, now)
	chosen, ok := d.o.Cost.Between(d.o.demand(j, now), &v.field, turn.Prefill, turn.Decode)
	if !ok {
		return d.o.choose(j)
	}
	if j.late(chosen.Terms.TTFT(), now) {
		return assignment{}, ErrDeadline
	}
	a, err := d.o.claim(j, &v, chosen)
	if err != nil {
		return d.o.choose(j)
	}
	d.o.bound(j, &v, &a, now)
	return a, nil
}

// ticket is what the replica that decides must know of a request.
func (o *Orchestrator) ticket(j *journey, base string) *councilpb.Ticket {
	now := time.Now()
	demand := o.demand(j, now)
	t := &councilpb.Ticket{
		Model: j.req.Model, Base: base, Api: j.req.Dialect.Name, Alone: j.alone,
		PromptTokens: uint32(demand.PromptTokens), OutputTokens: uint32(demand.OutputTokens),
		Class: int32(j.req.Class), Tenant: j.req.Tenant,
		WaitedUs: uint64(demand.Waited.Microseconds()), TtftUs: uint64(demand.TTFT.Microseconds()), ItlUs: uint64(demand.ITL.Microseconds()),
	}
	if !j.req.Deadline.IsZero() {
		t.LeftUs = uint64(max(1, j.req.Deadline.Sub(now).Microseconds()))
	}
	v := o.gather(base, now)
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
	o.Locality.match(j.prefix)
	for _, c := range j.prefix.hits.Chains() {
		chain := &councilpb.Chain{BlockTokens: uint32(c.BlockTokens), Hashes: make([]uint64, len(c.Hashes))}
		for i, h := range c.Hashes {
			chain.Hashes[i] = uint64(h)
		}
		t.Chains = append(t.Chains, chain)
	}
	return t
}

// Guests lets requests of other replicas wait beside the decider's own.
func (d *Decider) Guests() council.Order { return guests{d} }

type guests struct{ d *Decider }

var errUnknownAPI = errors.New("a ticket for an API that this replica does not know")

// Bind is council.Order's.
func (g guests) Bind(ctx context.Context, t *councilpb.Ticket) (*councilpb.Turn, func(), error) {
	j := g.d.o.guest(t, time.Now())
	if j == nil {
		return nil, nil, errUnknownAPI
	}
	until, late := g.d.patience(j)
	patience, cancel := context.WithDeadlineCause(ctx, until, late)
	defer cancel()
	a, err := g.d.await(patience, j, t.Base)
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
	g.d.o.dispatched(j, servers...)
	return &councilpb.Turn{Id: t.Id, Prefill: a.chosen.Prefill, Decode: a.chosen.Decode}, a.release, nil
}

// guest is the journey of another replica's request, as far as it is gone here. It is nil
// for one of an API that is unknown.
func (o *Orchestrator) guest(t *councilpb.Ticket, now time.Time) *journey {
	var dialect *Dialect
	for _, known := range Dialects() {
		if known.Name == t.Api {
			dialect = known
		}
	}
	if dialect == nil {
		return nil
	}
	us := func(n uint64) time.Duration { return time.Duration(min(n, 1<<40)) * time.Microsecond }
	j := &journey{
		guest: true, base: t.Base, firsts: &o.firsts, alone: t.Alone, arrived: now.Add(-us(t.WaitedUs)), tried: make(map[tried]bool),
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
