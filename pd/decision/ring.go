package decision

import (
	"slices"
	"sync"
	"time"
)

// Ring remembers the last decisions. Of the older ones it keeps what the
// chosen servers were like, and of all others no more than maxCandidates.
type Ring struct {
	mu         sync.Mutex // guards the rest
	ring       []Record
	next       int
	candidates int // in all of them
	cut        int // of the oldest decisions, of which only the chosen servers are kept
}

// maxCandidates bounds the servers that are remembered with decisions, to some 20 MB.
const maxCandidates = 1 << 16

// NewRing remembers n decisions.
func NewRing(n int) *Ring { return &Ring{ring: make([]Record, 0, n)} }

// Add remembers a decision and forgets the oldest.
func (d *Ring) Add(decision Record) {
	decision.Choices = slices.Clone(decision.Choices) // the request may go on with its own
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.ring) < cap(d.ring) {
		d.ring = append(d.ring, decision)
	} else {
		d.candidates -= d.ring[d.next].candidates()
		d.ring[d.next] = decision
		d.next = (d.next + 1) % len(d.ring)
		d.cut = max(0, d.cut-1)
	}
	d.candidates += decision.candidates()
	for ; d.candidates > maxCandidates && d.cut < len(d.ring)-1; d.cut++ {
		oldest := &d.ring[(d.next+d.cut)%len(d.ring)]
		d.candidates -= oldest.candidates()
		keepOnlyChosen(oldest.Choices)
		d.candidates += oldest.candidates()
	}
}

// Complete writes down what an attempt, counted from 0, of a request that arrived then took, and
// how it ended. It does nothing where the request is forgotten.
func (d *Ring) Complete(requestID string, arrived time.Time, attempt int, m Measured, outcome string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	found := d.find(requestID)
	if found == nil || !found.At.Equal(arrived) || attempt >= len(found.Choices) {
		return
	}
	found.Choices[attempt].Measured, found.Choices[attempt].Outcome = m, outcome
}

// candidates is how many servers it remembers.
func (d *Record) candidates() (n int) {
	for i := range d.Choices {
		n += len(d.Choices[i].Candidates.Prefill) + len(d.Choices[i].Candidates.Decode)
	}
	return n
}

// keepOnlyChosen forgets the servers that were not chosen.
func keepOnlyChosen(choices []Choice) {
	for i := range choices {
		c := &choices[i]
		c.Candidates = c.Candidates.Only(c.Chosen.Prefill, c.Chosen.Decode)
	}
}

// Find returns the newest decision on a request as it is now, false if it is not remembered.
func (d *Ring) Find(requestID string) (Record, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if found := d.find(requestID); found != nil {
		now := *found
		now.Choices = slices.Clone(now.Choices) // the request may end meanwhile
		return now, true
	}
	return Record{}, false
}

// find is the newest decision on a request, nil if it is not remembered. The mutex is held.
func (d *Ring) find(requestID string) *Record {
	for i := range d.ring {
		at := (d.next - 1 - i + 2*len(d.ring)) % len(d.ring)
		if d.ring[at].RequestID == requestID {
			return &d.ring[at]
		}
	}
	return nil
}
