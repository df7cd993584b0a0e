package order

import (
	"math"
	"time"
)

// Servers is the state of the fleet at one moment.
type Servers struct {
	Now     time.Duration // since the origin of the tickets
	Prefill []PrefillState
	Decode  []DecodeState
	Links   *LinkTable
	HandOff float64 // seconds that a second leg adds whatever its size
	// Gate keeps a request from decode servers without KV room for it. Without Gate the request
	// may go there, and the wait for room is part of its cost.
	Gate bool
	// Start is where searches begin. The caller draws it at random, so that equal servers get
	// equal shares.
	Start Pair
	// AverageAwaiting is the requests that wait for an average prefill server: what a prefill takes from
	// these is in the price already.
	AverageAwaiting float64
	// StreamDiscount is which part of what a prompt in pieces costs the streams of a decode server is
	// left out, 0..1: see longGaps.
	StreamDiscount float64
	// KVPrice is what a token of decode's KV that is taken for a second costs those who wait for some, in seconds:
	// how many they are, over the tokens that all decode servers have.
	KVPrice float64
	// Renew prices a request anew that is Outdated and would go. nil: none is.
	Renew func(*Ticket)
}

// Ungate makes the servers those of a request that is bound at once: without a Gate, and without what only an Order knows.
func (s *Servers) Ungate() {
	s.Gate, s.Start = false, Pair{}
	for p := range s.Prefill {
		s.Prefill[p].rest = 0
	}
}

// PrefillState is one prefill server.
type PrefillState struct {
	Ahead float64 // seconds of work before another prompt, prompts of the same engine step included
	// Forming is the part of Ahead that the engine will do in the same step as a prompt that is
	// sent now; StepWork is how much work fills a step. Both in seconds.
	Forming, StepWork float64
	PerStep           float64 // seconds that a step takes whatever is in it

	// Rest is the seconds of what is left of prompts of which pieces are in Ahead.
	Rest float64

	Sending  LinkUse // of its link, by KV
	Queued   int     // requests that were sent to it and are not answered
	Awaiting int     // requests behind the one that is priced, in the order of service, which wait for this server
	Stalls   int     // sequences that decode there and stall while it prefills
	Self     int     // number of the decode server that is this same server, with which it makes no pair; -1: none
	Excluded bool    // it may not be chosen now
	// SaysFirst: the first token of an answer may be its own, if the decode server GoesOn.
	SaysFirst bool

	rest      float64 // in Order: Rest, and what is left of those prompts of which no piece is computed now
	restClass int     // in Order: the lowest class of these
}

// DecodeState is one decode server. Where several step together, Step is that of the slowest,
// Running counts the sequences of all, and PerToken is 0 on all but the slowest.
type DecodeState struct {
	Ahead     float64 // seconds until it has computed the prompts that it computes itself
	Step      float64 // seconds of its next step with one sequence more
	Beyond    float64 // seconds by which Step is longer than the mean of all decode servers: CompareSteps
	PerToken  float64 // seconds that each further token of KV adds to a step
	Receiving LinkUse // of its link, by KV
	Running   int     // sequences that stall while a prompt is computed there
	Queued    int     // requests whose prompts it is to compute itself
	Used      int     // KV tokens that are in use, or reserved for requests on their way
	// KVRoom is the KV tokens that are neither in use nor reserved. What running answers will
	// still need is not subtracted: sequences end about as fast as the others grow, and with the
	// whole length of each answer reserved the batch would be half as large.
	KVRoom int
	// KVComing is the tokens of Used that are reserved for requests whose prompts prefill servers still compute:
	// that room stands empty until they come, in KVComesIn seconds in their mean.
	KVComing  int
	KVComesIn float64
	Protected bool // its cache is: Ticket.Eviction
	Excluded  bool // it may not be chosen now
	GoesOn    bool // it can continue an answer behind prefill's first token

	freed kvFreed // in Order: how fast it frees KV
}

// Miss is what each objective that a choice is predicted to miss adds to its cost. It is more than
// any time, so that the choice with the fewest misses wins.
const Miss = 1e6

// expectedArrivals is how many requests beyond its batch a decode server is taken to keep
// waiting while it computes a prompt. With one more than a prefill server is charged on
// arrival, an idle fleet still disaggregates unless the transfer outlasts the prefill;
// the simulator's scenarios hardly tell numbers from 0 to 4 apart.
const expectedArrivals = 2

// StepSeconds returns the length of a decode step with the request in the batch.
func (d *DecodeState) StepSeconds(t *Ticket) float64 { return d.Step + d.PerToken*float64(t.Tokens) }

// MeanStep is the seconds of a decode step, in the mean of all decode servers.
func (s *Servers) MeanStep() (mean float64) {
	for d := range s.Decode {
		mean += s.Decode[d].Step / float64(len(s.Decode))
	}
	return mean
}

// CompareSteps writes by how much the steps of decode servers are longer than a mean.
func (s *Servers) CompareSteps(mean float64) {
	for d := range s.Decode {
		s.Decode[d].Beyond = max(0, s.Decode[d].Step-mean)
	}
}

// DecodeCost returns the cost of the request's decoding there: its own time and the time by which
// its KV slows the rest of the batch, weighted with Weights.Decode.
func (d *DecodeState) DecodeCost(t *Ticket) float64 {
	return t.Weights.Decode * t.Output * (d.Step + t.Weights.Beyond*d.Beyond + d.PerToken*float64(t.Tokens)*float64(d.Running))
}

// eviction is what it costs that the request's KV takes the place of other KV there.
func (d *DecodeState) eviction(t *Ticket) float64 {
	if !d.Protected {
		return 0
	}
	return t.Eviction
}

// leastCost is the least that the server adds to the cost of a request: a step, and the
// decoding of its answer.
func (d *DecodeState) leastCost(t *Ticket) float64 { return d.StepSeconds(t) + d.DecodeCost(t) }

// promptWait is how much longer than first, in seconds, a request waits there until the
// prompts that came before it are computed: engines take a KV that comes in its turn
// (vLLM admits both from one queue).
func (d *DecodeState) promptWait(first float64) float64 { return max(0, d.Ahead-first) }

// fromDecode is what decodeSide takes in place of the time of prefill's token where decode says
// the first one.
const fromDecode = -1

// decodeSide is what a decode server adds to the cost of a request whose KV could be there in
// first seconds. token is when prefill's token is there, in seconds, or fromDecode.
func (s *Servers) decodeSide(t *Ticket, d *DecodeState, first, token float64) float64 {
	wait := d.promptWait(first)
	return wait + s.decodeSideUnqueued(t, d, first+wait, token)
}

// decodeSideUnqueued is the same where nothing is computed there before it.
func (s *Servers) decodeSideUnqueued(t *Ticket, d *DecodeState, first, token float64) float64 {
	soon, cost := d.StepSeconds(t), d.leastCost(t)
	if t.ITL > 0 && soon > t.ITL {
		cost += Miss
	}
	cost += d.eviction(t)
	if !s.Gate {
		room := d.KVRoomSeconds(t)
		soon += room
		cost += room
	}
	if token == fromDecode {
		token = first + soon
	} else {
		token += t.held(first + soon - token)
	}
	if t.TTFT > 0 && token > s.ttftLeft(t) {
		cost += Miss
	}
	return cost
}

// ttftLeft is the time that is left for the first token.
func (s *Servers) ttftLeft(t *Ticket) float64 { return t.TTFT - (s.Now - t.Arrived).Seconds() }

// prefillSide is the time of a request on a prefill server, where it costs so much, until its
// transfer begins, and all that this server adds to its cost: also what the prefill takes from
// requests that wait for one, at price, from each that waits for just this one, and from those that
// decode there, and that it fits others better. Both are infinite where it makes no pair.
func (s *Servers) prefillSide(t *Ticket, p int, on *prefillCost, price float64) (first, half float64) {
	if math.IsInf(on.prefill, 1) { // times no stalls it would be no number, which is less than none
		return on.prefill, on.prefill
	}
	state := &s.Prefill[p]
	first = on.ready + s.HandOff + state.Ahead + on.prefill
	if t.awaitsRest(p, state) {
		first += state.rest
	}
	return first, first + on.delayToOthers(price) + on.prefill*s.delayed(state) + on.mismatch
}

// delayed is how many requests wait longer for the whole of a prefill on a server: those that decode there,
// and those that wait for it, as far as they are more than on an average server.
func (s *Servers) delayed(state *PrefillState) float64 {
	return float64(state.Stalls) + max(0, float64(state.Awaiting)-s.AverageAwaiting)
}

// pairCost is the cost of a request on a pair that it may have.
func (s *Servers) pairCost(t *Ticket, pair *pairCost, price float64) float64 {
	return s.costOnPair(t, pair.Pair, &pair.onPrefill, pair.missing, pair.decodeReady, price)
}

// costOnPair is pairCost of so much on its prefill server, and of a decode server that lacks so many bytes and is ready
// in so many seconds.
func (s *Servers) costOnPair(t *Ticket, pair Pair, on *prefillCost, missing, decodeReady, price float64) float64 {
	first, half := s.prefillSide(t, pair.Prefill, on, price)
	later := max(0, decodeReady-on.ready)
	move := s.Links.After(0, pair, len(s.Decode), missing) + later + s.linkWait(pair, missing, first+later)
	return half + move + s.decodeSide(t, &s.Decode[pair.Decode], first+move, s.tokenAt(t, pair, on, later))
}

// linkWait is how long the bytes that a decode server lacks, and prefill has in first seconds, wait for the
// links of the two servers: what is under way now moves while it is computed. Where a request is sent
// at once, and waits for its prefill there, what is under way now says little of then.
func (s *Servers) linkWait(pair Pair, bytes, first float64) float64 {
	if !s.Gate || bytes == 0 {
		return 0
	}
	return max(s.Prefill[pair.Prefill].Sending.after(first), s.Decode[pair.Decode].Receiving.after(first))
}

// LinkUse is for how long a server's link is taken, in seconds: by what is under way, and by what is to come of
// requests whose prefills have their places, which all begins at one time, that of an average byte of it.
type LinkUse struct{ Moving, Coming, ComesIn float64 }

// after is what of it is left after so many seconds.
func (u *LinkUse) after(seconds float64) float64 {
	if u.Coming == 0 || seconds < u.ComesIn {
		return max(0, u.Moving-seconds)
	}
	return max(0, max(u.Moving, u.ComesIn)+u.Coming-seconds)
}

// tokenAt is when prefill's token is there, where it is the first one and decode is ready so much
// later than prefill; else fromDecode. It adds up what Terms.TTFT does, so that rounding makes no
// objective missed in the one and met in the other.
func (s *Servers) tokenAt(t *Ticket, pair Pair, on *prefillCost, later float64) float64 {
	if !s.saysFirst(t, pair) {
		return fromDecode
	}
	return on.ready + later + s.Prefill[pair.Prefill].Ahead + on.prefill
}

// idleAhead is the seconds of work ahead with which a prefill server counts as free for a request
// that is bound on arrival.
const idleAhead = 0.1

// Best returns the pair with the least cost over all servers, free or not, and the cost; +Inf if
// there is none:
//
//	ready + ahead + prefill + transfer + KV room + step + decode cost + delay to others + hardware mismatch + eviction, and Miss
//	for each objective missed
//
// See Terms. price is what a second of prefill costs requests that wait for prefill. There is one
// exception: if that pair would begin only after the best pair with a free prefill server has done
// its first decode step, Best returns the latter, so that no request waits long for a busy server
// while another is free; also where a decode server alone would cost less, whose streams would stand
// still beside a free prefill server.
func (s *Servers) Best(t *Ticket, price float64) (Pair, float64) {
	pair, cost := s.BestAggregated(t, math.Inf(1))
	if paired, least := s.bestPair(t, price, math.Inf(1), cost); least < cost {
		pair, cost = paired, least
	}
	if math.IsInf(cost, 1) || s.workAhead(pair) <= idleAhead {
		return pair, cost
	}
	free, least := s.bestPair(t, price, idleAhead, math.Inf(1))
	if math.IsInf(least, 1) || s.firstStep(t, free) >= s.workAhead(pair) {
		return pair, cost
	}
	return free, least
}

// workAhead is the seconds of work on the server of a pair that computes the prompt.
func (s *Servers) workAhead(pair Pair) float64 {
	if pair.Prefill == Aggregated {
		return s.Decode[pair.Decode].Ahead
	}
	return s.Prefill[pair.Prefill].Ahead
}

// bestPair is the pair with the least cost below limit, of the prefill servers with at most
// so many seconds of work ahead; infinite if there is none. The search begins with the
// cheapest prefill server, and passes over what could not win even over the nearest link.
func (s *Servers) bestPair(t *Ticket, price, ahead, limit float64) (pair Pair, least float64) {
	nearest, cheapest := s.leastDecodeSide(t), -1
	lowest, secondLowest := math.Inf(1), math.Inf(1)
	for k := range s.Prefill {
		p := wrap(k+s.Start.Prefill, len(s.Prefill))
		on := t.pricedOn(p, price)
		_, half := s.prefillSide(t, p, &on, price)
		switch {
		case half >= secondLowest || s.Prefill[p].Excluded || s.Prefill[p].Ahead > ahead:
		case half < lowest:
			cheapest, lowest, secondLowest = p, half, lowest
		default:
			secondLowest = half
		}
	}
	least = math.Inf(1)
	if cheapest < 0 || lowest+nearest >= limit {
		return pair, least
	}
	on := t.pricedOn(cheapest, price)
	if d, cost := s.bestFrom(t, cheapest, &on, price, limit); cost < limit {
		pair, least, limit = Pair{cheapest, d}, cost, cost
	}
	if secondLowest+nearest >= limit {
		return pair, least
	}
	for k := range s.Prefill {
		p := wrap(k+s.Start.Prefill, len(s.Prefill))
		on := t.pricedOn(p, price)
		if _, half := s.prefillSide(t, p, &on, price); p == cheapest || s.Prefill[p].Excluded || s.Prefill[p].Ahead > ahead || half+nearest >= limit {
			continue
		}
		if d, cost := s.bestFrom(t, p, &on, price, limit); cost < limit {
			pair, least, limit = Pair{p, d}, cost, cost
		}
	}
	return pair, least
}

// wrap is k, from 0 on again where it is beyond n: mostly once, and a division takes longer.
func wrap(k, n int) int {
	for k >= n {
		k -= n
	}
	return k
}

// leastDecodeSide is the least that a pair can cost behind its prefill server.
func (s *Servers) leastDecodeSide(t *Ticket) float64 {
	return s.leastBehind(t, func(d int) float64 { return t.Missing[d] * s.Links.Fastest })
}

// leastDecoding is the least that a pair can cost behind its transfer.
func (s *Servers) leastDecoding(t *Ticket) float64 {
	return s.leastBehind(t, func(int) float64 { return 0 })
}

// leastBehind is the least that a decode server costs a pair, and that costs to get there.
func (s *Servers) leastBehind(t *Ticket, transfer func(d int) float64) float64 {
	least, token := math.Inf(1), float64(fromDecode)
	if t.FirstFromPrefill {
		token = 0
	}
	for d := range s.Decode {
		if state := &s.Decode[d]; s.fitsPair(t, state) {
			least = min(least, transfer(d)+s.decodeSideUnqueued(t, state, 0, token))
		}
	}
	return least
}

// bestFrom is the decode server with which a prefill server, on which the request costs so much,
// costs least, and the cost: infinite if there is none, or none below limit.
func (s *Servers) bestFrom(t *Ticket, p int, on *prefillCost, price, limit float64) (int, float64) {
	first, half := s.prefillSide(t, p, on, price) // on.ready is in first already; both are made ready at once
	row := s.Links.row(p, len(s.Decode))
	best, least := -1, math.Inf(1)
	for k := range s.Decode {
		d := wrap(k+s.Start.Decode, len(s.Decode))
		state := &s.Decode[d]
		later := max(0, at(t.DecodeReady, d)-on.ready)
		move := row.after(0, d, t.Missing[d]) + later
		if half+move+state.leastCost(t) >= limit || d == s.Prefill[p].Self || !s.fitsPair(t, state) {
			continue
		}
		move += s.linkWait(Pair{p, d}, t.Missing[d], first+later)
		if cost := half + move + s.decodeSide(t, state, first+move, s.tokenAt(t, Pair{p, d}, on, later)); cost < limit {
			best, least, limit = d, cost, cost
		}
	}
	return best, least
}

// BestAggregated is the decode server that computes the prompt at least cost, to the request
// and to the batch that waits meanwhile, of those with at most so many seconds of prompts
// ahead: infinite if there is none.
func (s *Servers) BestAggregated(t *Ticket, ahead float64) (Pair, float64) {
	best, least := Pair{}, math.Inf(1)
	for k := range t.Aggregated {
		d := wrap(k+s.Start.Decode, len(t.Aggregated))
		state := &s.Decode[d]
		if t.Aggregated[d] >= least || state.Ahead > ahead || !s.fits(t, state) {
			continue
		}
		ready := at(t.DecodeReady, d)
		first := ready + state.Ahead + t.Aggregated[d]
		cost := first + t.delayToDecode(d, state.Running, s.StreamDiscount) + s.kvDelay(t, d) + s.decodeSide(t, state, first, fromDecode) + Miss*float64(t.aggregatedMisses(d, state.Running))
		if cost < least {
			best, least = Pair{Aggregated, d}, cost
		}
	}
	return best, least
}

// fastestDecode is as fast as the fastest decode server in each regard: it bounds searches.
func (s *Servers) fastestDecode() DecodeState {
	best := DecodeState{Step: math.Inf(1), Beyond: math.Inf(1), PerToken: math.Inf(1), Running: math.MaxInt32}
	for d := range s.Decode {
		if state := &s.Decode[d]; !state.Excluded {
			best.Step, best.PerToken = min(best.Step, state.Step), min(best.PerToken, state.PerToken)
			best.Beyond, best.Running = min(best.Beyond, state.Beyond), min(best.Running, state.Running)
		}
	}
	return best
}
