package order

import (
	"math"
	"slices"
	"time"
)

// Aggregated stands in Pair.Prefill where the decode server computes the prompt itself.
const Aggregated = -1

// Pair is the servers of a request, by their numbers in Servers.
type Pair struct {
	Prefill, Decode int // Prefill is Aggregated where decode computes the prompt
}

// Ticket is a request that is to be bound: sizes, and what it would cost on each
// server; no text. The slices are indexed by server; infinite is a server that the
// request must not have.
//
// Each look reads all tickets, a thousand of which do not fit in a core's cache. So what it reads of
// every one comes first, and the slices last.
type Ticket struct {
	ID      int64
	Arrived time.Duration // since any fixed origin
	Class   int           // 0 is served first
	Tokens  int           // KV that decode must have room for when it begins: the prompt
	// Latest is the moment by which its prefill must begin, else it is not worth it; 0 is
	// none. See Order.Admit.
	Latest time.Duration
	// Promised: it is not given up while it waits (Order.GiveUp).
	Promised bool

	// Eviction is what it costs, in seconds, that its KV takes the place of other KV in the cache of a decode server that is
	// Protected.
	Eviction float64

	Output    float64 // tokens that the answer is expected to have
	TTFT, ITL float64 // objectives in seconds, 0 is none; TTFT is from Arrived
	Weights   Weights

	// FirstFromPrefill lets prefill say the first token where the servers of a pair can:
	// PrefillState.SaysFirst, DecodeState.GoesOn.
	FirstFromPrefill bool
	// PairsFirst lets a decode server compute the prompt only where no pair can: it counts
	// as one more objective missed.
	PairsFirst bool
	// Follows: a beginning of its prompt that no prefill server has is being computed for another request.
	Follows bool
	// Outdated: it would cost less somewhere than when it was priced last. It does not go before it is priced
	// anew (Servers.Renew).
	Outdated bool
	// Begun: a piece of its prompt is prefilled, so that it has its pair (KeepTo), and its KV room.
	Begun bool

	late        bool // in Order: it misses its TTFT wherever it goes, and is served last
	followed    bool // in Order: it followed another request at some look
	isDeclining bool // in Order: it left a free prefill server and waited for a busy one at the last look
	streamsGoOn bool // in Order: on some decode server streams go on while it computes the prompt
	isCounted   bool // in Order: PrefillState.Awaiting of countedFor counts it
	leaves      bool // in Order: its pair is free, and another that it awaits would cost it less

	lacksKVRoom  bool // in Order: decode has no room for it at this look
	lackedKVRoom bool // in Order: decode had none at some look
	countsOnAll  bool // in Order: it was overdue for want of KV room, and counts on all that is expected to come free

	rank                float64       // in Order: lower goes first
	declined            float64       // in Order: seconds for which it left a free prefill server and waited for a busy one
	leastPrefill        float64       // of Prefill, or of Aggregated where it has no prefill server
	leastWork           float64       // of it, what it takes from a server that has others to compute with it
	kv                  int           // of Tokens, what decode has not kept room for yet
	output              float64       // Output when it was priced
	leastReference      float64       // of Reference, the least where it may go
	leastBatch          float64       // and of what that takes from a server on which others wait
	leastTTFT           float64       // seconds to its first token if all servers were free
	leastAggregatedCost float64       // the least that it can cost without a prefill server
	leastAggregated     float64       // of Aggregated, the least
	leastStreamDelay    float64       // the least that it costs a stream of a decode server, in seconds
	awaited             pairCost      // the pair, not free, that it was seen to wait for
	countedFor          int           // the prefill server that it waited for when Next began to look; Aggregated: none
	onPrefill           []prefillCost // by prefill server
	free                int           // the prefill server that onFree is of
	onFree              prefillCost   // of onPrefill, that of one server
	mostMissing         float64       // of Missing, the most
	rankedPrefill       float64       // leastPrefill when it was ranked
	behind              behindCost
	lateAt              int           // the last of Order.forecasts by which it begins too late
	lateSince           time.Duration // from which on it does by all of them
	only                int           // the only prefill server that it may have; -1: it may have several, or none

	Tenant string // within a class tenants take turns

	Prefill   []float64 // seconds of its prefill on each prefill server
	Reference []float64 // the same at the speed of an average server
	// PerStep is the seconds that a step of a prefill server takes whatever is in it: prompts that
	// are computed in one step take them once. StepWork is the seconds of prompts that make a
	// step worth while.
	PerStep, StepWork float64

	Missing []float64 // bytes that each decode server lacks
	// Aggregated is the seconds of its prefill on each decode server, and Stall the longest
	// gap that it makes there in the streams of others, which counts where ITL is set.
	Aggregated, Stall []float64
	// StreamShare is which part of that prefill each stream of a decode server is taken to lose,
	// 0..1. A shorter slice says that the rest lose all of it: their streams stand still.
	StreamShare []float64
	// LongGaps is how many gaps of each stream that prefill lengthens there: the steps that it takes. A shorter
	// slice: none.
	LongGaps []float64

	// FollowsOn is, by prefill server, whether a beginning of its prompt is being computed there: what is
	// left of that other prompt goes first, if it is computed in pieces. A shorter slice: no more are.
	FollowsOn []bool

	// HardwareMismatch is what each prefill server costs more, in seconds, since it is of
	// hardware that the plan gives to requests of other lengths. A shorter slice says that the
	// rest fit.
	HardwareMismatch []float64

	// PrefillReady and DecodeReady are the seconds until each server can take the request
	// at all: an adapter is to be loaded there, or its sleep to be ended. Shorter slices
	// say that the rest are ready.
	PrefillReady, DecodeReady []float64
}

// prefillCost is what follows from a request's costs alone on one prefill server, in seconds.
type prefillCost struct {
	ready, prefill   float64
	reference, batch float64 // its prefill at the speed of an average server, and what that takes from one on which others wait
	mismatch         float64
	leastTransfer    float64 // the fastest transfer to any decode server
}

// pairCost is what of a request's costs counts on one pair.
type pairCost struct {
	Pair
	onPrefill   prefillCost
	work        float64 // seconds of its prefill, as they count for those behind it
	missing     float64 // bytes
	decodeReady float64 // seconds
}

// TakeMemory takes the slices that Resize makes from a ticket that does not wait any more, for one that has not been priced.
func (t *Ticket) TakeMemory(from *Ticket) {
	t.Prefill, t.Reference, t.FollowsOn, t.onPrefill = from.Prefill[:0], from.Reference[:0], from.FollowsOn[:0], from.onPrefill[:0]
	t.Missing, t.Aggregated, t.Stall, t.LongGaps = from.Missing[:0], from.Aggregated[:0], from.Stall[:0], from.LongGaps[:0]
	from.Prefill, from.Reference, from.FollowsOn, from.onPrefill = nil, nil, nil, nil
	from.Missing, from.Aggregated, from.Stall, from.LongGaps = nil, nil, nil, nil
}

// Resize makes the slices as long as the fleet, whatever is in them. New ones lie in one piece of
// memory: a look at a thousand tickets takes as long as reading what it looks at.
func (t *Ticket) Resize(prefills, decodes int) {
	if cap(t.Prefill) < prefills || cap(t.Missing) < decodes {
		memory := make([]float64, 2*prefills+4*decodes)
		take := func(n int) []float64 {
			taken := memory[:n:n]
			memory = memory[n:]
			return taken
		}
		t.Prefill, t.Reference = take(prefills), take(prefills)
		t.Missing, t.Aggregated, t.Stall, t.LongGaps = take(decodes), take(decodes), take(decodes), take(decodes)
	}
	t.Prefill, t.Reference, t.FollowsOn = sized(t.Prefill, prefills), sized(t.Reference, prefills), sized(t.FollowsOn, prefills)
	t.Missing, t.Aggregated, t.Stall = sized(t.Missing, decodes), sized(t.Aggregated, decodes), sized(t.Stall, decodes)
	t.LongGaps = sized(t.LongGaps, decodes)
}

// at is the number of a server, 0 where there is none.
func at(seconds []float64, i int) float64 {
	if i >= len(seconds) {
		return 0
	}
	return seconds[i]
}

func sized[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// KeepTo leaves a request no servers but those on which its prefill has begun. Decode has KV room
// for all of it already. It follows what the request costs there.
func (t *Ticket) KeepTo(pair Pair) {
	t.Begun = true
	for p := range t.Prefill {
		if p != pair.Prefill {
			t.Prefill[p] = math.Inf(1)
		}
	}
	for d := range t.Missing {
		t.Aggregated[d] = math.Inf(1)
		if d != pair.Decode {
			t.Missing[d] = math.Inf(1)
		}
	}
}

// waitsFor is the prefill server that a request was last seen to wait for, or on which it has begun; Aggregated
// if there is none.
func (t *Ticket) waitsFor() int {
	if t.Begun {
		return t.only // -1 where that server is gone
	}
	return t.awaited.Prefill
}

// awaitsRest reports whether what is left of a prompt that a request follows is to go before it on a
// prefill server. One of a lower class than its own it does not wait for.
func (t *Ticket) awaitsRest(p int, state *PrefillState) bool {
	return state.rest > 0 && !t.Begun && p < len(t.FollowsOn) && t.FollowsOn[p] && t.Class >= state.restClass
}

// derive writes what follows from the costs alone.
func (t *Ticket) derive(links *LinkTable) {
	isOfOthers := t.awaited.Prefill >= len(t.Prefill) || t.awaited.Decode >= len(t.Missing) || len(t.onPrefill) != len(t.Prefill)
	t.followed, t.behind.price = t.followed || t.Follows, math.NaN()
	t.onPrefill = sized(t.onPrefill, len(t.Prefill))
	t.leastPrefill, t.leastTTFT = math.Inf(1), math.Inf(1)
	several := false
	t.only, t.leastReference, t.leastBatch = -1, 0, 0
	for p, seconds := range t.Prefill {
		on := t.costOn(p)
		if alike := links.First(p); alike < p {
			on.leastTransfer = t.onPrefill[alike].leastTransfer
		} else {
			on.leastTransfer = t.leastTransferFrom(links, p)
		}
		on.batch = t.Batched(on.reference)
		t.onPrefill[p] = on
		if p == t.free {
			t.onFree = on
		}
		if !math.IsInf(seconds, 1) {
			if several = several || t.only >= 0; t.only < 0 {
				t.leastReference, t.leastBatch = on.reference, on.batch
			}
			t.only, t.leastReference, t.leastBatch = p, min(t.leastReference, on.reference), min(t.leastBatch, on.batch)
		}
		t.leastPrefill = min(t.leastPrefill, seconds)
		first := seconds
		if !t.FirstFromPrefill {
			first += on.leastTransfer
		}
		t.leastTTFT = min(t.leastTTFT, first)
	}
	if several {
		t.only = -1
	}
	if isOfOthers {
		t.awaited.Pair = Pair{Aggregated, Aggregated}
	} else { // what it waited for is as good a guess as any
		t.awaited = t.costOfPair(t.awaited.Pair)
	}
	t.leastAggregatedCost, t.leastAggregated, t.leastStreamDelay = math.Inf(1), math.Inf(1), math.Inf(1)
	t.streamsGoOn = slices.ContainsFunc(t.StreamShare, func(share float64) bool { return share < 1 })
	for d, seconds := range t.Aggregated {
		t.leastAggregated, t.leastStreamDelay = min(t.leastAggregated, seconds), min(t.leastStreamDelay, t.streamDelay(d))
		t.leastAggregatedCost = min(t.leastAggregatedCost, seconds+Miss*float64(t.aggregatedMisses(d, 0)))
	}
	if math.IsInf(t.leastPrefill, 1) {
		t.leastPrefill = t.leastAggregated
	}
	t.mostMissing = 0
	for _, bytes := range t.Missing {
		t.mostMissing = max(t.mostMissing, bytes)
	}
	t.leastWork, t.kv, t.output = t.Batched(t.leastPrefill), t.Tokens, t.Output
	if t.Begun {
		t.kv = 0
	}
	t.leastTTFT = min(t.leastTTFT, t.leastAggregated)
}

// costOn is what its costs are on a prefill server, but for batch and leastTransfer.
func (t *Ticket) costOn(p int) prefillCost {
	return prefillCost{ready: at(t.PrefillReady, p), prefill: t.Prefill[p], reference: at(t.Reference, p), mismatch: at(t.HardwareMismatch, p)}
}

// pricedOn is costOn with what a price needs.
func (t *Ticket) pricedOn(p int, price float64) prefillCost {
	on := t.costOn(p)
	if price != 1 {
		on.batch = t.Batched(on.reference)
	}
	return on
}

// costOfPair is what of its costs counts on a pair, nothing where decode computes the prompt.
func (t *Ticket) costOfPair(pair Pair) pairCost {
	if pair.Prefill == Aggregated {
		return pairCost{Pair: pair}
	}
	return pairCost{
		Pair: pair, onPrefill: t.onPrefill[pair.Prefill], work: t.Batched(t.Prefill[pair.Prefill]),
		missing: t.Missing[pair.Decode], decodeReady: at(t.DecodeReady, pair.Decode),
	}
}

// behindCost is less than a pair costs a request behind the work ahead of its prefill server, at a price
// (Weights.Price), the second leg and decode's part left out: for the servers where that is least, as few
// hold much of a prompt, and for all others.
type behindCost struct {
	price   float64 // NaN: it was not asked since the costs changed
	others  float64
	seconds [4]float64 // the least one first; infinite: there are fewer
	prefill [4]float64 // of these: what each request waits longer that waits for just this server
	servers [4]int32
}

// behindAt is kept until the costs change: while many wait the price is the same at each look.
func (t *Ticket) behindAt(price float64) *behindCost {
	b := &t.behind
	if b.price == price {
		return b
	}
	*b = behindCost{price: price, others: math.Inf(1)}
	for i := range b.seconds {
		b.seconds[i] = math.Inf(1)
	}
	for p := range t.onPrefill {
		on, prefill, server := &t.onPrefill[p], t.onPrefill[p].prefill, int32(p)
		seconds := on.ready + on.prefill + on.delayToOthers(price) + on.mismatch + on.leastTransfer - rounding
		for i := range b.seconds {
			if seconds < b.seconds[i] {
				seconds, b.seconds[i] = b.seconds[i], seconds
				prefill, b.prefill[i] = b.prefill[i], prefill
				server, b.servers[i] = b.servers[i], server
			}
		}
		b.others = min(b.others, seconds)
	}
	return b
}

// streamDelay is what its prefill on a decode server costs each stream there, in seconds.
func (t *Ticket) streamDelay(d int) float64 {
	delay := t.Aggregated[d]
	if d < len(t.StreamShare) {
		delay *= t.StreamShare[d]
	}
	if t.FirstFromPrefill {
		delay *= besideFirstGaps
	}
	return delay
}

// besideFirstGaps is how much more the streams of a decode server count that computes prompts, where prefill
// says first tokens: a pair's client waits for no transfer then, and each answer has a long gap already.
// Without it the 99th percentile of gaps near saturation was 39 ms instead of 25 (loadtest/policy/EXPERIMENTS.md).
const besideFirstGaps = 1.3

// delayToDecode is what its prefill on a decode server costs those that wait for that server, and
// its streams. Of those a part is left out where it goes on in pieces.
func (t *Ticket) delayToDecode(d, running int, discount float64) float64 {
	streams := t.streamDelay(d) * float64(running)
	if d < len(t.StreamShare) && t.StreamShare[d] < 1 {
		streams *= 1 - discount
	}
	return t.Aggregated[d]*expectedArrivals + streams
}

// Batched is what a prefill of so many seconds takes from a server on which others wait: of what a
// step takes whatever is in it only its share.
func (t *Ticket) Batched(seconds float64) float64 {
	if t.StepWork <= 0 {
		return seconds
	}
	own := max(0, seconds-t.PerStep)
	return own + min(seconds, t.PerStep)*min(1, own/t.StepWork)
}

// delayToOthers is what its prefill on a server costs others at a price (Weights.Price): one who is
// yet to come the whole, and those who wait what it takes of a step that is done in any case.
func (on *prefillCost) delayToOthers(price float64) float64 {
	if price == 1 {
		return on.reference
	}
	return on.reference + (price-1)*on.batch
}

// leastTransferFrom is the seconds of its fastest transfer from a prefill server.
func (t *Ticket) leastTransferFrom(links *LinkTable, p int) float64 {
	return links.row(p, len(t.Missing)).least(t.Missing)
}

// rankOn is its rank where it goes to a prefill server.
func (t *Ticket) rankOn(p int) float64 { return t.rank + (t.on(p).prefill - t.rankedPrefill) }

// rankWith is its rank where it goes to a pair.
func (t *Ticket) rankWith(pair Pair) float64 {
	if pair.Prefill == Aggregated {
		return t.rank + (t.leastPrefill - t.rankedPrefill)
	}
	return t.rankOn(pair.Prefill)
}

// mostMissingOn is no less than the bytes that a decode server lacks.
func (t *Ticket) mostMissingOn(d int) float64 {
	if math.IsInf(t.mostMissing, 1) { // the request must not have some server
		return t.Missing[d]
	}
	return t.mostMissing
}

// on is what it costs on a prefill server.
func (t *Ticket) on(p int) *prefillCost {
	if p == t.free {
		return &t.onFree
	}
	return &t.onPrefill[p]
}

// isLate says whether a request that is to be served last when late cannot meet its
// objective any more, whatever goes before it.
func (t *Ticket) isLate(now time.Duration) bool {
	return t.Weights.LateLast && t.TTFT > 0 && (now-t.Arrived).Seconds()+t.leastTTFT > t.TTFT
}

// aggregatedMisses is how many objectives a decode server with so many streams misses by
// computing the prompt, whatever else its state is: each of the streams stands still for a
// chunk. Counted as one, prompts would go there to be just in time, at the cost of all.
func (t *Ticket) aggregatedMisses(d, running int) (n int) {
	if t.PairsFirst {
		n++
	}
	if t.ITL > 0 && t.Stall[d] > t.ITL {
		n += max(1, running)
	}
	return n
}
