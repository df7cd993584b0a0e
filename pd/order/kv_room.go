package order

import "math"

// Room for KV on decode: who has it, who waits for it, and what that wait costs.

// fits says whether a request may be sent there now, to be computed there. An empty server takes anything:
// there is nothing to wait for.
func (s *Servers) fits(t *Ticket, d *DecodeState) bool {
	if t.Begun {
		return true
	}
	return !d.Excluded && (!s.Gate || d.KVRoom >= t.Tokens || d.Running == 0)
}

// fitsPair is fits of a pair.
func (s *Servers) fitsPair(t *Ticket, d *DecodeState) bool {
	return s.fits(t, d) || t.goesAhead && !d.Excluded && t.roomComes(d.KVRoom, d.kvFreed())
}

// exceeds reports whether a request needs more KV room on decode than there is.
func (t *Ticket) exceeds(kvRoom int) bool { return !t.Begun && t.Tokens > kvRoom }

// exceeds is that of a request, where decode frees some.
func (o *Order) exceeds(t *Ticket, kvRoom int) bool {
	return t.exceeds(kvRoom) && !(t.goesAhead && t.roomComes(kvRoom, o.mostFreed))
}

// roomComes reports whether what a request lacks comes free while its prompt is computed: it needs the room then.
// But if every request counted on that, smaller ones would find nothing left beside a large one whose room stands empty
// until it comes. So only one does that has waited too long (goesAhead): the room that it would keep empty until all
// of it is there is more.
func (t *Ticket) roomComes(kvRoom int, freed kvFreed) bool {
	return float64(t.Tokens)-float64(kvRoom) <= t.leastPrefill*freed.in(t.Output)
}

// kvFreed is how fast a decode server frees KV, for answers of any length.
type kvFreed struct{ turnover, growth float64 } // tokens of a batch, and half of its answers, over the seconds of a step

// kvFreed is how fast the server frees KV.
func (d *DecodeState) kvFreed() kvFreed {
	return kvFreed{float64(d.Used) / d.Step, float64(d.Running) / d.Step / 2}
}

// in is the tokens that come free in a second where answers have so many: in the time of one each that runs has
// ended once, and the prompts of all are free. Where they have ended their answers, others have grown by as much.
func (f kvFreed) in(output float64) float64 { return max(0, f.turnover/max(1, output)-f.growth) }

// mostKVFreed is more than any decode server frees.
func (s *Servers) mostKVFreed() kvFreed {
	most := kvFreed{0, math.Inf(1)}
	for d := range s.Decode {
		if state := &s.Decode[d]; !state.Excluded && state.Step > 0 {
			freed := state.kvFreed()
			most = kvFreed{max(most.turnover, freed.turnover), min(most.growth, freed.growth)}
		}
	}
	return most
}

// kvTokens is the tokens of KV that decode servers have room for in all, of those that say so.
func (s *Servers) kvTokens() (tokens float64) {
	for d := range s.Decode {
		if state := &s.Decode[d]; !state.Excluded && state.KVRoom != math.MaxInt {
			tokens += float64(state.Used + max(0, state.KVRoom))
		}
	}
	return tokens
}

// KVRoomSeconds returns the predicted time until the server has KV room for the request, in
// seconds. Each sequence of the batch ends within the steps of one answer, so about all KV that is
// in use is freed once in that time.
func (d *DecodeState) KVRoomSeconds(t *Ticket) float64 {
	if d.KVRoom >= t.Tokens || d.Running == 0 {
		return 0
	}
	return float64(t.Tokens-d.KVRoom) / float64(max(d.Used, t.Tokens)) * d.Step * t.Output
}

// lacksKVRoom reports whether no decode server has room for a request, and notes that it waits for some.
func (o *Order) lacksKVRoom(t *Ticket) bool {
	if !o.exceeds(t, o.mostKVRoom) {
		return false
	}
	o.lackingKVRoom = t
	return true
}

// kvDelay is by how much longer, in seconds, all who wait for KV room wait since a decode server computes a prompt:
// the KV of its streams is taken for longer by that, and that of the prompt before its answer has begun.
func (s *Servers) kvDelay(t *Ticket, d int) float64 {
	if s.KVPrice == 0 {
		return 0
	}
	state := &s.Decode[d]
	return s.KVPrice * (float64(state.Used+t.Tokens)*t.Aggregated[d] + float64(t.Tokens)*state.Ahead)
}

// reserveKVRoom closes the decode server with the most room to all but a request that decode has no room
// for, the oldest overdue one or one of a higher class: smaller ones would take it as it comes, for ever.
func (o *Order) reserveKVRoom(lacksKVRoom *Ticket, s *Servers) {
	if lacksKVRoom == nil {
		return
	}
	s.reserveMostKVRoom()
	o.mostKVRoom = s.mostKVRoom()
}

// reserveMostKVRoom closes the decode server with the most room.
func (s *Servers) reserveMostKVRoom() {
	most := s.mostKVRoom()
	for d := range s.Decode {
		if !s.Decode[d].Excluded && s.Decode[d].KVRoom == most {
			s.Decode[d].Excluded = true
			return
		}
	}
}

// mostKVRoom is the most room of any decode server.
func (s *Servers) mostKVRoom() int {
	most, _ := s.kvRoom()
	return most
}

// kvRoom is the most room of any decode server, math.MinInt where there is none, and that of all together. An empty
// one has room for anything, and so has each where there is no gate, and one that does not say.
func (s *Servers) kvRoom() (most, all int) {
	most = math.MinInt
	for d := range s.Decode {
		switch state := &s.Decode[d]; {
		case state.Excluded:
		case state.Running == 0 || !s.Gate || state.KVRoom == math.MaxInt: // the last one does not say
			return math.MaxInt, math.MaxInt
		default:
			most, all = max(most, state.KVRoom), all+max(0, state.KVRoom)
		}
	}
	return most, all
}
