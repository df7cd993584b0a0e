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

// fitsPair is fits of a pair: what comes free while the prompt is computed counts.
func (s *Servers) fitsPair(t *Ticket, d *DecodeState) bool {
	return s.fits(t, d) || !d.Excluded && d.willHaveRoom(t)
}

// exceeds reports whether a request needs more KV room on decode than there is.
func (t *Ticket) exceeds(kvRoom int) bool { return !t.Begun && t.Tokens > kvRoom }

// exceedsAll reports whether no decode server has room for a request, or will when its prompt is computed.
func (o *Order) exceedsAll(t *Ticket, s *Servers) bool {
	return t.exceeds(o.mostKV.room) && !(o.mostKV.mayHaveRoom(t) && s.willHaveRoom(t))
}

// willHaveRoom is that of any decode server.
func (s *Servers) willHaveRoom(t *Ticket) bool {
	for d := range s.Decode {
		if state := &s.Decode[d]; !state.Excluded && state.willHaveRoom(t) {
			return true
		}
	}
	return false
}

// countedFreed is which share a request counts on of what is expected to come free while its prompt is computed. With more
// large requests went sooner and small ones later, and who finds less than it counted on waits in the engine's queue, with
// all behind it; with none KV stands empty (loadtest/policy/EXPERIMENTS.md, Little KV). A request that has waited too long
// counts on all of it, since a server is kept for it meanwhile.
const countedFreed = 0.3

// willHaveRoom reports whether a decode server will have room for a request when a prefill server has computed its
// prompt, and still when the others come whose prompts are computed now: their room stands empty until then.
func (d *DecodeState) willHaveRoom(t *Ticket) bool {
	freed, share := d.freed.in(t.Output), countedFreed
	if t.countsOnAll {
		share = 1
	}
	room := float64(d.KVRoom) + share*freed*t.leastPrefill
	if t.leastPrefill < d.KVComesIn {
		room = min(room+float64(d.KVComing), float64(d.KVRoom)+freed*d.KVComesIn)
	}
	return room >= float64(t.Tokens)
}

// kvFreed is how fast a decode server frees KV, for answers of any length.
type kvFreed struct{ turnover, growth float64 } // tokens of a batch, and half of its answers, over the seconds of a step

// setFreed writes how fast each decode server frees KV.
func (s *Servers) setFreed() {
	for i := range s.Decode {
		d := &s.Decode[i]
		if d.freed = (kvFreed{}); d.Step > 0 {
			d.freed = kvFreed{float64(d.Used-d.KVComing) / d.Step, float64(d.Running) / d.Step / 2}
		}
	}
}

// in is the tokens that come free in a second where answers have so many: in the time of one each that runs has
// ended once, and the prompts of all are free. Where they have ended their answers, others have grown by as much.
func (f kvFreed) in(output float64) float64 { return max(0, f.turnover/max(1, output)-f.growth) }

// kvMost is the most that any decode server has, and will have.
type kvMost struct {
	room  int     // now, as kvRoom
	all   int     // that of all together, likewise
	empty int     // on one, with what is kept for requests that are still to come
	freed kvFreed // with the most turnover and the least growth
}

// kvMost is that of those that are not excluded.
func (s *Servers) kvMost() kvMost {
	room, all := s.kvRoom()
	most := kvMost{room, all, room, kvFreed{0, math.Inf(1)}}
	for d := range s.Decode {
		state := &s.Decode[d]
		if state.Excluded {
			continue
		}
		most.empty = max(most.empty, state.KVRoom+state.KVComing)
		most.freed = kvFreed{max(most.freed.turnover, state.freed.turnover), min(most.freed.growth, state.freed.growth)}
	}
	return most
}

// mayHaveRoom is not false where willHaveRoom is true on some server: most requests that wait are told by it.
func (k *kvMost) mayHaveRoom(t *Ticket) bool {
	return float64(k.empty)+k.freed.in(t.Output)*t.leastPrefill >= float64(t.Tokens)
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
func (o *Order) lacksKVRoom(t *Ticket, s *Servers) bool {
	if o.keepsKVRoom {
		t.lacksKVRoom = o.exceedsAll(t, s)
	}
	if !t.lacksKVRoom {
		return false
	}
	o.lackingKVRoom = t
	return true
}

// delayedByKV is how many requests wait longer where all of decode's KV is taken for longer, for each that waits for
// some: others come while they do. 3 to 10 did alike in the simulator, 1 worse where prompts are computed in pieces.
const delayedByKV = 3

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
	o.mostKV, o.keepsKVRoom = s.kvMost(), true
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
