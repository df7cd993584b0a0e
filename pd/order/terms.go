package order

import "math"

// Terms are the parts of a pair's cost in seconds. Those up to Step make the time until decode
// has done its first step.
type Terms struct {
	Ready            float64 // until the servers can take the request: adapters to load, sleep to end
	Ahead            float64 // work on the server that prefills
	Prefill          float64
	Transfer         float64 // KV on the link, and the second leg
	KVRoom           float64 // until the decode server has KV room, and has computed the prompts before it
	Step             float64 // one decode step there
	DecodeCost       float64 // its own decoding, and the slower decoding of others, at what they are worth
	DelayToOthers    float64 // requests that wait for prefill wait longer; on a decode server its batch stands still
	HardwareMismatch float64 // the plan gives requests of its lengths to other hardware
	Eviction         float64 // its KV takes the place of what is likelier to come back
	Misses           int     // objectives that it is predicted to miss: its own, and those of streams that stand still for it
	FirstFromPrefill bool    // the client gets prefill's token: Transfer to Step, but for Held, come behind it
	Held             float64 // the part of these for which prefill's token is held: see Ticket.held

	linkWait float64 // the part of Transfer until the links of both servers are free
}

// TTFT is the time to the client's first token.
func (t *Terms) TTFT() float64 {
	if t.FirstFromPrefill {
		return t.Ready + t.Ahead + t.Prefill + t.Held
	}
	return t.FirstStep()
}

// FirstStep is the time until decode has done its first step. Pairs are compared by it also where
// the first token is there before: the client waits for the second one.
func (t *Terms) FirstStep() float64 {
	return t.Ready + t.Ahead + t.Prefill + t.Transfer + t.KVRoom + t.Step
}

// Cost is what pairs are compared by.
func (t *Terms) Cost() float64 {
	return t.FirstStep() + t.DecodeCost + t.DelayToOthers + t.HardwareMismatch + t.Eviction + Miss*float64(t.Misses)
}

// Possible reports whether a request may have a pair, leaving room apart.
func (s *Servers) Possible(t *Ticket, pair Pair) bool {
	if s.Decode[pair.Decode].Excluded && !t.Begun {
		return false
	}
	if pair.Prefill == Aggregated {
		return !math.IsInf(t.Aggregated[pair.Decode], 1)
	}
	costs := pairCost{Pair: pair, onPrefill: t.costOn(pair.Prefill), missing: t.Missing[pair.Decode]}
	return s.mayHave(t, &costs)
}

// mayHave is Possible of a pair with a prefill server, by what the request costs there.
func (s *Servers) mayHave(t *Ticket, pair *pairCost) bool {
	if s.Decode[pair.Decode].Excluded && !t.Begun || s.Prefill[pair.Prefill].Excluded {
		return false
	}
	finite := pair.onPrefill.prefill + pair.missing + s.Links.row(pair.Prefill, len(s.Decode)).latency[pair.Decode]
	return !math.IsInf(finite, 1) && s.Prefill[pair.Prefill].Self != pair.Decode
}

// HasRoom reports whether the decode server of a pair may take a request now.
func (s *Servers) HasRoom(t *Ticket, pair Pair) bool {
	if pair.Prefill == Aggregated {
		return s.fits(t, &s.Decode[pair.Decode])
	}
	return s.fitsPair(t, &s.Decode[pair.Decode])
}

// Servable reports whether any pair is possible.
func (s *Servers) Servable(t *Ticket) bool {
	for p := Aggregated; p < len(s.Prefill); p++ {
		if p != Aggregated && math.IsInf(t.Prefill[p], 1) { // all but one of a request that has begun
			continue
		}
		for d := range s.Decode {
			if s.Possible(t, Pair{p, d}) {
				return true
			}
		}
	}
	return false
}

// Terms are what a possible pair costs, whether it may be chosen now or not. Searches add up the
// same in fewer steps.
func (s *Servers) Terms(t *Ticket, pair Pair, price float64) Terms {
	d := &s.Decode[pair.Decode]
	terms := Terms{Ready: at(t.DecodeReady, pair.Decode), Step: d.StepSeconds(t), DecodeCost: d.DecodeCost(t), Eviction: d.eviction(t)}
	if !s.Gate {
		terms.KVRoom = d.KVRoomSeconds(t)
	}
	if pair.Prefill == Aggregated {
		terms.Ahead, terms.Prefill = d.Ahead, t.Aggregated[pair.Decode]
		terms.DelayToOthers = t.delayToDecode(pair.Decode, d.Running, s.StreamDiscount) + s.kvDelay(t, pair.Decode)
		terms.Misses = t.aggregatedMisses(pair.Decode, d.Running)
	} else {
		p, on := &s.Prefill[pair.Prefill], t.pricedOn(pair.Prefill, price)
		terms.Ready = max(terms.Ready, at(t.PrefillReady, pair.Prefill))
		terms.Ahead, terms.Prefill = p.Ahead, t.Prefill[pair.Prefill]
		if t.awaitsRest(pair.Prefill, p) {
			terms.Ahead += p.rest
		}
		terms.linkWait = s.linkWait(pair, t.Missing[pair.Decode], terms.Ready+s.HandOff+terms.Ahead+terms.Prefill)
		terms.Transfer = s.Links.After(s.HandOff, pair, len(s.Decode), t.Missing[pair.Decode]) + terms.linkWait
		terms.DelayToOthers = on.delayToOthers(price) + terms.Prefill*s.delayed(p)
		terms.HardwareMismatch = at(t.HardwareMismatch, pair.Prefill)
		terms.KVRoom += d.promptWait(terms.Ready + terms.Ahead + terms.Prefill + terms.Transfer)
		if terms.FirstFromPrefill = s.saysFirst(t, pair); terms.FirstFromPrefill {
			terms.Held = t.held(terms.Transfer + terms.KVRoom + terms.Step)
		}
	}
	if t.ITL > 0 && terms.Step > t.ITL {
		terms.Misses++
	}
	if t.TTFT > 0 && terms.TTFT() > s.ttftLeft(t) {
		terms.Misses++
	}
	return terms
}

// firstStep is the time until the first decode step of a request on a possible pair, the wait for links
// left out: it is for how long a free server may be left, and links are often busy everywhere. If they
// were counted here, requests would wait the longer beside a free server the more KV is under way.
func (s *Servers) firstStep(t *Ticket, pair Pair) float64 {
	terms := s.Terms(t, pair, 0)
	return terms.FirstStep() - terms.linkWait
}

// held is the seconds for which prefill's token is held where the second one is predicted to come so many
// later, so that the gap between them meets the request's objective.
func (t *Ticket) held(gap float64) float64 {
	if t.ITL == 0 {
		return 0
	}
	return max(0, gap-t.ITL)
}

// saysFirst reports whether prefill says the first token of a request on a pair.
func (s *Servers) saysFirst(t *Ticket, pair Pair) bool {
	return t.FirstFromPrefill && s.Prefill[pair.Prefill].SaysFirst && s.Decode[pair.Decode].GoesOn
}
