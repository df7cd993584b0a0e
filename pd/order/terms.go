package order

import "math"

// Terms are the parts of a pair's cost in seconds. Those up to Step make the time to the
// first token.
type Terms struct {
	Ready    float64 // until the servers can take the request: adapters to load, sleep to end
	Ahead    float64 // work on the server that prefills
	Prefill  float64
	Transfer float64 // KV on the link, and the second leg
	Room     float64 // until the decode server has KV room, and has computed the prompts before it
	Step     float64 // one decode step there
	Pace     float64 // its own decoding, and the slower decoding of others, at what they are worth
	Burden   float64 // those who wait for prefill wait longer; on a decode server its batch stands still
	Misfit   float64 // the plan gives requests of its lengths to other hardware
	Misses   int     // objectives that it is predicted to miss: its own, and those of streams that stand still for it
}

// First is the time to the first token.
func (t *Terms) First() float64 { return t.Ready + t.Ahead + t.Prefill + t.Transfer + t.Room + t.Step }

// Cost is what pairs are compared by.
func (t *Terms) Cost() float64 {
	return t.First() + t.Pace + t.Burden + t.Misfit + Miss*float64(t.Misses)
}

// Possible reports whether a request may have a pair, leaving room apart.
func (s *Servers) Possible(t *Ticket, pair Pair) bool {
	if s.Decode[pair.Decode].Out {
		return false
	}
	if pair.Prefill == Alone {
		return !math.IsInf(t.Alone[pair.Decode], 1)
	}
	if s.Prefill[pair.Prefill].Out {
		return false
	}
	i := pair.Prefill*len(s.Decode) + pair.Decode
	finite := t.Prefill[pair.Prefill] + t.Missing[pair.Decode] + s.Links.Latency[i]
	return !math.IsInf(finite, 1) && s.Prefill[pair.Prefill].Self != pair.Decode
}

// Servable reports whether any pair is possible.
func (s *Servers) Servable(t *Ticket) bool {
	for d := range s.Decode {
		for p := Alone; p < len(s.Prefill); p++ {
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
	terms := Terms{Ready: at(t.DecodeReady, pair.Decode), Step: d.StepSeconds(t), Pace: d.PaceSeconds(t)}
	if !s.Gate {
		terms.Room = d.RoomSeconds(t)
	}
	if pair.Prefill == Alone {
		terms.Ahead, terms.Prefill = d.Ahead, t.Alone[pair.Decode]
		terms.Burden = terms.Prefill * float64(yetToCome+d.Running)
		terms.Misses = t.aloneMisses(pair.Decode, d.Running)
	} else {
		p, i := &s.Prefill[pair.Prefill], pair.Prefill*len(s.Decode)+pair.Decode
		terms.Ready = max(terms.Ready, at(t.PrefillReady, pair.Prefill))
		terms.Ahead, terms.Prefill = p.Ahead, t.Prefill[pair.Prefill]
		terms.Transfer = s.HandOff + s.Links.Latency[i] + t.Missing[pair.Decode]*s.Links.SecondsPerByte[i]
		terms.Burden = price*t.Reference[pair.Prefill] + terms.Prefill*float64(p.Stalls)
		terms.Misfit = at(t.Misfit, pair.Prefill)
		terms.Room += d.turnSeconds(terms.Ready + terms.Ahead + terms.Prefill + terms.Transfer)
	}
	if t.ITL > 0 && terms.Step > t.ITL {
		terms.Misses++
	}
	if t.TTFT > 0 && terms.First() > s.due(t) {
		terms.Misses++
	}
	return terms
}

// first is the time to the first token of a request on a possible pair.
func (s *Servers) first(t *Ticket, pair Pair) float64 {
	terms := s.Terms(t, pair, 0)
	return terms.First()
}
