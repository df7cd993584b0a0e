package cost

import (
	"slices"
	"time"

	"github.com/tandem-gateway/tandem/kvstate/cached"
	"github.com/tandem-gateway/tandem/pd/order"
	"github.com/tandem-gateway/tandem/pools/curve"
	"github.com/tandem-gateway/tandem/pools/share"
)

// Candidate is what the choice knows of one server for one leg.
type Candidate struct {
	ID           string
	Class        uint64 // only servers of one class make a pair
	Topology     Topology
	Both         bool          // it may be among the prefill and among the decode servers
	Kind         int           // of hardware: one more than its column in Candidates.Shares; 0: it has none
	Group        int           // servers that step together; 0: it steps by itself
	Excluded     bool          // it may not be chosen now
	NoPair       bool          // the request must not have it in a pair
	NoAggregated bool          // it must not compute the request's prompt as a decode server
	Ready        time.Duration // until it can take the request at all: an adapter to load, a sleep to end
	Queue        time.Duration // predicted time until its outstanding prefill work is done
	Moving       time.Duration // predicted time for which its link is taken by KV under way
	Coming       time.Duration // likewise by KV that is to come, when prefills are done
	ComesIn      time.Duration // predicted time until that begins, in the mean of its bytes
	Forming      time.Duration // of it, what is done in the same step of the engine as a prompt that is sent now
	Queued       int           // requests of that work
	Rest         time.Duration // predicted time of what is left of prompts of which pieces are in that work
	Cached       cached.Tokens // leading tokens of the request that it holds, by tier
	Remote       Remote        // that holds more of it, and can be pulled from
	PieceBlock   int           // tokens of a KV block where its prefix cache is known to keep pieces of a prompt; 0: it is not
	FirstBlock   int           // tokens of a KV block where it can say the first token, or go on behind it; 0: it cannot
	FetchBlock   int           // tokens of a KV block where it can keep KV for another server of its kind, and read such; 0: it cannot
	Prefill      curve.Curve   // time of a prefill on it
	Step         curve.Curve   // time of a decode step on it
	// How much of the two curves it has shown lately, 0..1.
	PrefillKnown, StepKnown float64
	// By how much of themselves the two may be off, as what it has shown scatters: standard errors.
	PrefillError, StepError float64
	Evidence                *curve.Evidence // how well its prefills are predicted; nil: it is not asked

	Running int // sequences in its batch
	Decodes int // of them, decodes that a prefill on it would stall
	KVUsed  int // tokens of KV in use or promised
	KVFree  int // tokens that are neither; meaningful when KVKnown
	KVKnown bool
	// KVComing is the tokens of KVUsed that are reserved for prompts which prefill servers still compute, KVComesIn
	// the predicted time until they are done, in the mean of these tokens.
	KVComing  int
	KVComesIn time.Duration

	Protected bool // its cache is kept for what is likelier to come back: Protect

	KVBytesPerToken float64 // as servers of its model show it; 0: none does

	nextStep float64 // seconds of its next step, written by PriceServers
}

// Demand is what the choice knows of the request.
type Demand struct {
	PromptTokens int
	OutputTokens int           // expected
	Waited       time.Duration // since it arrived
	TTFT         time.Duration // objectives; 0 is none
	ITL          time.Duration
	// Gap is the longest gap that a prompt which decode computes in pieces may make in the streams
	// there; 0: decode computes it whole.
	Gap       time.Duration
	Objective order.Objective // what it is served for
	Home      Home            // breaks ties; no part of the cost
	// FirstFromPrefill: where both servers can, prefill says the first token that the client
	// sees. Not so where a prompt whose length is known ends with a KV block: Exact.
	FirstFromPrefill bool
	Exact            bool // PromptTokens is no estimate
	// New is the tokens of the prompt that did not come before, and are held nowhere; whole blocks. LostShare is which
	// share of the tokens of all prompts, 0..1, came before and was evicted everywhere since.
	New       int
	LostShare float64
}

// Candidates is the servers that a request may still use, by role.
type Candidates struct {
	Prefill []Candidate
	Decode  []Candidate
	Links   *order.LinkTable
	Shares  *share.Table // nil: requests of all lengths go to all hardware alike

	// Awaiting is the requests that waited for each prefill server, and AverageAwaiting for an average one, where
	// they are recorded; nil: they are not. StreamDiscount and KVPrice are as in order.Servers.
	Awaiting        []int
	AverageAwaiting float64
	StreamDiscount  float64
	KVPrice         float64

	Whole *Whole // that these are a shortlist of; nil: they are all

	// reference is the mean of the prefill servers' curves: the speed that others' waiting is
	// priced at. At each server's own, the fastest would look cheapest to all requests, and
	// all would wait for it. referenceStep is the seconds of prompts that make a step at that
	// speed worth while. PriceServers writes both.
	reference     curve.Curve
	referenceStep float64
}

// LinkEnd is a server as the end of a link.
type LinkEnd struct {
	ID       string
	Topology Topology
}

// LinkEnd is the server as the end of a link.
func (c *Candidate) LinkEnd() LinkEnd { return LinkEnd{c.ID, c.Topology} }

// Room is memory for the servers of one choice, which another one may have when that is read no more. The zero value has
// none.
type Room struct {
	servers  []Candidate
	awaiting []int
}

// Clone is a copy with servers of its own, in room that nothing is read of.
func (f *Candidates) Clone(room *Room) Candidates {
	own, n := *f, len(f.Prefill)
	room.servers = append(append(slices.Grow(room.servers[:0], n+len(f.Decode)), f.Prefill...), f.Decode...)
	own.Prefill, own.Decode = room.servers[:n:n], room.servers[n:]
	return own
}

// RecordOrder keeps what the order of service adds to the prices of servers, so that a choice can be priced again as
// it was, in room that none of that is read of.
func (f *Candidates) RecordOrder(s *order.Servers, room *Room) {
	room.awaiting = room.awaiting[:0]
	for i := range s.Prefill {
		room.awaiting = append(room.awaiting, s.Prefill[i].Awaiting)
	}
	f.Awaiting = room.awaiting
	f.AverageAwaiting, f.StreamDiscount, f.KVPrice = s.AverageAwaiting, s.StreamDiscount, s.KVPrice
}

// SetLoad takes over how loaded a server is.
func (c *Candidate) SetLoad(now Candidate) {
	c.Queue, c.Forming, c.Queued, c.Rest = now.Queue, now.Forming, now.Queued, now.Rest
	c.Running, c.Decodes = now.Running, now.Decodes
	c.KVUsed, c.KVFree, c.KVKnown = now.KVUsed, now.KVFree, now.KVKnown
}

// IndexOf is where a server stands among those of a role, -1 if it is not one.
func IndexOf(servers []Candidate, id string) int {
	for i := range servers { // slices.IndexFunc would copy each server
		if servers[i].ID == id {
			return i
		}
	}
	return -1
}

// Support is what the servers have shown of how well prefills are predicted on them.
func (f *Candidates) Support() curve.Support {
	var shown curve.Shown
	for _, servers := range [...][]Candidate{f.Prefill, f.Decode} {
		for i := range servers {
			if c := &servers[i]; c.Evidence != nil {
				shown.Add(c.Evidence, c.PrefillKnown)
			}
		}
	}
	return shown.Support()
}

// Supported is so much of a predicted time to the first token of an alternative as its servers'
// prefills support: 0 where nothing is known of any.
func (f *Candidates) Supported(first time.Duration, a *Alternative) time.Duration {
	s, servers, id := f.Support(), f.Prefill, a.Prefill
	if s.None() {
		return 0
	}
	if id == "" {
		servers, id = f.Decode, a.Decode
	}
	ahead := 1
	if i := IndexOf(servers, id); i >= 0 {
		ahead = servers[i].Queued
	}
	t := &a.Terms
	lacking := (t.Queue + t.Prefill).Seconds() - s.Of(t.Queue.Seconds(), ahead) - s.Seconds(t.Prefill.Seconds())
	return max(0, first-Duration(lacking))
}

// Only is a copy with none but a chosen pair; prefill is "" where decode runs alone.
func (f *Candidates) Only(prefill, decode string) Candidates {
	var prefills, decodes []int
	if p := IndexOf(f.Prefill, prefill); p >= 0 {
		prefills = []int{p}
	}
	if d := IndexOf(f.Decode, decode); d >= 0 {
		decodes = []int{d}
	}
	return f.part(prefills, decodes)
}

// part is a copy with some of the prefill and of the decode servers, by their numbers.
func (f *Candidates) part(prefills, decodes []int) Candidates {
	some := *f
	some.Prefill, some.Decode, some.Awaiting = picked(f.Prefill, prefills), picked(f.Decode, decodes), picked(f.Awaiting, prefills)
	some.Links = f.Links.Part(prefills, decodes, len(f.Decode))
	return some
}

// picked are some elements of a list; none of an empty one.
func picked[T any](all []T, numbers []int) []T {
	if len(all) == 0 || len(numbers) == 0 {
		return nil
	}
	some := make([]T, len(numbers))
	for i, n := range numbers {
		some[i] = all[n]
	}
	return some
}

// decodeOf is the number of a server among those that decode, -1 if it is not one. Both
// lists are in one order, so it is mostly the first that is looked at.
func (f *Candidates) decodeOf(id string, from int) int {
	for k := range f.Decode {
		if d := (from + k) % len(f.Decode); f.Decode[d].ID == id {
			return d
		}
	}
	return -1
}
