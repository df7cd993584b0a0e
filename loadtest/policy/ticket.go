package policy

import (
	"math"
	"time"
)

// Alone in pair of a prefill server: the decode server computes the prompt itself.
const Alone = -1

// Ticket is a request that is to be bound: sizes, and what it would cost on each
// server; no text. The slices are indexed by server.
type Ticket struct {
	ID      int64
	Arrived time.Duration // since any fixed origin
	Tokens  int           // KV that decode must have room for when it begins: the prompt

	Prefill   []float64 // seconds of its prefill on each prefill server
	Reference []float64 // the same at the speed of an average server
	Missing   []float64 // bytes that each decode server lacks
	// Alone is the seconds of its prefill on each decode server, infinite where it
	// may not run there (the gap in the streams of the batch would break their
	// objective); nil: nowhere.
	Alone []float64

	shortest float64   // of Prefill
	rank     float64   // in Order: lower goes first
	move     []float64 // seconds, by prefill server: the fastest transfer to any decode server
}

// Servers is the state of the fleet at one moment.
type Servers struct {
	Prefill []PrefillState
	Decode  []DecodeState
	Links   *LinkTable
}

// PrefillState is one prefill server.
type PrefillState struct {
	Ahead  float64 // seconds until it has done what was sent to it
	Unfit  bool    // it may not be chosen now
	Queued int     // requests sent to it and not answered
}

// DecodeState is one decode server.
type DecodeState struct {
	Seconds  float64 // of its next step, and of whatever else a new request waits for there
	PerToken float64 // seconds that each KV token of a new request costs those in the batch
	Running  int     // sequences: each waits while a prompt is computed there
	// Room is the KV tokens that are neither in use nor promised to a request on
	// its way; a ticket with more must wait. What running answers will still need
	// is left out: they end about as fast as they grow, and a gate on their whole
	// length halves the batch.
	Room  int
	Unfit bool // it may not be chosen now
}

// fits says whether a request may be sent there now. An empty server takes
// anything: there is nothing to wait for.
func (d *DecodeState) fits(t *Ticket) bool {
	return !d.Unfit && (d.Room >= t.Tokens || d.Running == 0)
}

// own is what a request waits for and costs on a decode server by being there.
func (d *DecodeState) own(t *Ticket) float64 {
	return d.Seconds + d.PerToken*float64(t.Tokens)
}

// LinkTable is the cost of moving KV for each pair, by prefill*decodes+decode.
type LinkTable struct {
	Latency        []float64 // seconds
	SecondsPerByte []float64
}

// NewLinkTable returns a table of zeros.
func NewLinkTable(prefills, decodes int) *LinkTable {
	return &LinkTable{Latency: make([]float64, prefills*decodes), SecondsPerByte: make([]float64, prefills*decodes)}
}

// Pair is the servers of a request.
type Pair struct {
	Prefill, Decode int // Prefill is Alone where decode computes the prompt
}

// measure writes what follows from the costs alone.
func (t *Ticket) measure(links *LinkTable) {
	if len(t.move) != len(t.Prefill) {
		t.move = make([]float64, len(t.Prefill))
	}
	t.shortest = math.Inf(1)
	for p, seconds := range t.Prefill {
		t.shortest = min(t.shortest, seconds)
		row := p * len(t.Missing)
		latency, perByte := links.Latency[row:row+len(t.Missing)], links.SecondsPerByte[row:row+len(t.Missing)]
		least := math.Inf(1)
		for d, bytes := range t.Missing {
			least = min(least, latency[d]+bytes*perByte[d])
		}
		t.move[p] = least
	}
}

// Best is the pair with the least cost over all servers, free or not, and the
// cost; infinite if decode has room nowhere. It is the choice on arrival:
//
//	ahead + (prefill + price x reference) + transfer + decode
//
// price is what a second of prefill costs those who wait for prefill.
func (s *Servers) Best(t *Ticket, price float64) (Pair, float64) {
	t.measure(s.Links)
	pair, least := s.bestAlone(t)
	for p := range s.Prefill {
		state := &s.Prefill[p]
		half := state.Ahead + t.Prefill[p] + price*t.Reference[p]
		if state.Unfit || half+t.move[p] >= least {
			continue
		}
		if d, decode := s.bestDecode(t, p); half+decode < least {
			pair, least = Pair{p, d}, half+decode
		}
	}
	return pair, least
}

// bestDecode is the decode server with the least transfer from p and time there,
// of those with room: infinite if there is none.
func (s *Servers) bestDecode(t *Ticket, p int) (int, float64) {
	row := p * len(s.Decode)
	latency, perByte := s.Links.Latency[row:row+len(s.Decode)], s.Links.SecondsPerByte[row:row+len(s.Decode)]
	best, least := -1, math.Inf(1)
	for d := range s.Decode {
		state := &s.Decode[d]
		if !state.fits(t) {
			continue
		}
		if cost := latency[d] + t.Missing[d]*perByte[d] + state.own(t); cost < least {
			best, least = d, cost
		}
	}
	return best, least
}

// bestAlone is the decode server that computes the prompt at least cost, to the
// request and to the batch that waits meanwhile: infinite if there is none.
func (s *Servers) bestAlone(t *Ticket) (Pair, float64) {
	best, least := Pair{}, math.Inf(1)
	for d := range t.Alone {
		state := &s.Decode[d]
		if !state.fits(t) {
			continue
		}
		if cost := t.Alone[d]*float64(1+state.Running) + state.own(t); cost < least {
			best, least = Pair{Alone, d}, cost
		}
	}
	return best, least
}

// soonest is the least time at any decode server.
func (s *Servers) soonest() float64 {
	least := math.Inf(1)
	for d := range s.Decode {
		if !s.Decode[d].Unfit {
			least = min(least, s.Decode[d].Seconds)
		}
	}
	return least
}

// mostRoom is the most room of any decode server; an empty one has room for
// anything.
func (s *Servers) mostRoom() int {
	most := -1
	for d := range s.Decode {
		switch state := &s.Decode[d]; {
		case state.Unfit:
		case state.Running == 0:
			return math.MaxInt
		default:
			most = max(most, state.Room)
		}
	}
	return most
}
