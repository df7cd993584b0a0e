// Package replay says where the requests of a log would go, and when their first tokens would come, by
// the gateway's own choice. Nothing is sent: what the choice predicts is taken to come true, and is what
// the next choice finds. It is pure, with a clock of the log's.
//
// Place binds a request as it arrives; Late lets requests wait for their turn, in the gateway's own
// order. Left out are prompts that are cut into pieces, KV that prefill fetches, caches that are protected, transfers
// that slow each other down, and batches that grow while an answer is written: loadtest/policy has them.
package replay

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tandem-gateway/tandem/kvstate/cached"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pools/curve"
)

// BlockTokens is the size of the blocks that a Request names.
const BlockTokens = 512

// Fleet is the servers, and what is assumed of them and of requests.
type Fleet struct {
	Model   cost.Model
	Links   cost.LinkPrior
	Demand  cost.Demand // objectives of every request; lengths and times are the log's
	Servers []Server
}

// Server is one of them.
type Server struct {
	ID         string
	Prefills   bool
	Decodes    bool
	Aggregated bool   // it makes no pairs
	Class      uint64 // only servers of one class make a pair
	Topology   cost.Topology
	Prefill    curve.Curve // by curve.PrefillFeatures
	Step       curve.Curve // by curve.StepFeatures
	KVTokens   int         // that it has room for; 0: not known, and its cache holds everything
}

// Request is one of the log.
type Request struct {
	At     time.Duration // since the beginning of the log
	Prompt int           // tokens
	Output int           // tokens; the choice expects as many
	Blocks []uint64      // of the prompt, each chained to all before it; the last may be partial
}

// Placement is where a request goes, and what is predicted of it.
type Placement struct {
	Prefill string // "": decode runs alone
	Decode  string
	Waited  time.Duration // for its turn
	Cached  int           // leading tokens of the prompt that the server which computes it holds
	Compute time.Duration // for which it computes the prompt
	TTFT    time.Duration // since it arrived
}

// Replay is a fleet in the course of a log.
type Replay struct {
	fleet           Fleet
	candidates      cost.Candidates
	prefill, decode []*server // of the candidates
	tie             *rand.Rand
}

// server is what a server has to do, and holds.
type server struct {
	Server
	freeAt  time.Duration   // when it has computed its prompts
	prompts []time.Duration // when each of them is computed
	streams []stream
	cache   prefixCache
}

// stream is an answer that is, or will be, written.
type stream struct {
	until  time.Duration
	tokens int // of KV, at its end
}

// New is a fleet without work, whose caches are empty. Ties are broken alike in each replay.
func New(f Fleet) *Replay {
	r := &Replay{fleet: f, tie: rand.New(rand.NewPCG(1, 1))}
	for _, spec := range f.Servers {
		s := &server{Server: spec, cache: newPrefixCache(spec.KVTokens / BlockTokens)}
		c := cost.Candidate{
			ID: spec.ID, Class: spec.Class, Topology: spec.Topology, Both: spec.Prefills && spec.Decodes, NoPair: spec.Aggregated,
			Prefill: spec.Prefill, Step: spec.Step, KVKnown: spec.KVTokens > 0,
		}
		if spec.Prefills {
			r.prefill, r.candidates.Prefill = append(r.prefill, s), append(r.candidates.Prefill, c)
		}
		if spec.Decodes {
			r.decode, r.candidates.Decode = append(r.decode, s), append(r.candidates.Decode, c)
		}
	}
	r.candidates.Links = cost.NewLinks(f.Links).Table(r.candidates.Prefill, r.candidates.Decode, time.Time{})
	return r
}

// Place chooses servers for a request, which does not come before those that were placed, and gives
// them its work; false where no server can take it.
func (r *Replay) Place(req *Request) (Placement, bool) {
	r.describeLoad(req.At)
	r.describeCached(req)
	chosen, ok := r.fleet.Model.Choose(r.demand(req, req.At), &r.candidates, r.tie.IntN)
	if !ok {
		return Placement{}, false
	}
	return r.bind(req, req.At, &chosen), true
}

// demand is a request that is placed at a time.
func (r *Replay) demand(req *Request, now time.Duration) cost.Demand {
	d := r.fleet.Demand
	d.PromptTokens, d.OutputTokens, d.Exact, d.Waited = req.Prompt, req.Output, true, now-req.At
	return d
}

// bind gives the chosen servers a request's work.
func (r *Replay) bind(req *Request, now time.Duration, chosen *cost.Alternative) Placement {
	decode := r.decode[cost.IndexOf(r.candidates.Decode, chosen.Decode)]
	computes := decode
	if chosen.Prefill != "" {
		computes = r.prefill[cost.IndexOf(r.candidates.Prefill, chosen.Prefill)]
	}
	t, blocks := &chosen.Terms, req.whole()
	p := Placement{
		Prefill: chosen.Prefill, Decode: chosen.Decode, Waited: now - req.At, Cached: min(computes.cache.match(blocks)*BlockTokens, req.Prompt-1),
		Compute: t.Prefill, TTFT: now - req.At + t.TTFT(),
	}
	computes.compute(now + t.Ready + t.Queue + t.Prefill)
	decode.streams = append(decode.streams, stream{now + t.FirstStep() + time.Duration(req.Output-1)*t.Step, req.Prompt + req.Output})
	computes.cache.add(blocks)
	decode.cache.add(blocks)
	return p
}

// whole are the blocks of which the prompt has all tokens.
func (q *Request) whole() []uint64 { return q.Blocks[:min(len(q.Blocks), q.Prompt/BlockTokens)] }

// describeLoad writes what the servers have to do now.
func (r *Replay) describeLoad(now time.Duration) {
	for i, s := range r.prefill {
		s.describe(&r.candidates.Prefill[i], now)
	}
	for i, s := range r.decode {
		s.describe(&r.candidates.Decode[i], now)
	}
}

// describeCached writes what the servers hold of a request.
func (r *Replay) describeCached(req *Request) {
	blocks := req.whole()
	for i, s := range r.prefill {
		r.candidates.Prefill[i].Cached = cached.Tokens{GPU: s.cache.match(blocks) * BlockTokens}
	}
	for i, s := range r.decode {
		r.candidates.Decode[i].Cached = cached.Tokens{GPU: s.cache.match(blocks) * BlockTokens}
	}
}

// compute gives the server a prompt that is computed by then.
func (s *server) compute(done time.Duration) {
	s.freeAt = max(s.freeAt, done)
	s.prompts = append(s.prompts, done)
}

// describe writes what the choice may know of the server's work now.
func (s *server) describe(c *cost.Candidate, now time.Duration) {
	s.prompts = slices.DeleteFunc(s.prompts, func(done time.Duration) bool { return done <= now })
	s.streams = slices.DeleteFunc(s.streams, func(t stream) bool { return t.until <= now })
	c.Queue, c.Queued = max(0, s.freeAt-now), len(s.prompts)
	c.Running, c.Decodes, c.KVUsed = len(s.streams), len(s.streams), 0
	for _, t := range s.streams {
		c.KVUsed += t.tokens
	}
	c.KVFree = s.KVTokens - c.KVUsed
}
