package demand

import (
	"cmp"
	"time"

	"github.com/tandem-gateway/tandem/pools/share"
)

// Arrival is a request that a gateway has admitted.
type Arrival struct {
	Model        string
	Fingerprint  uint64 // the same of a retry
	PromptTokens int
	OutputTokens int // that the answer is expected to have
	Stream       bool
	TTFT, ITL    time.Duration // its objectives, 0 is none
}

// RequestRecord is what is measured of a request from its arrival to its end: RecordFirstToken,
// where that comes, and then RecordEnd or RecordRefusal, each once.
type RequestRecord struct {
	meter   *Meter
	demand  *demand
	arrival Arrival
	at      time.Time
	first   time.Time // when the first token was there; zero before
	class   share.Class
	compute float64 // prompt tokens that it was counted with
	prompt  int     // tokens, as far as is known
	Retry   bool    // of a request that was counted, and judged, when it was refused
	waits   bool    // for its first token
}

// RecordFirstToken records that the first token is there, and how much of the prompt was computed
// for it.
func (r *RequestRecord) RecordFirstToken(prompt, computed int) {
	now := r.meter.Now()
	r.meter.mu.Lock()
	defer r.meter.mu.Unlock()
	r.first = now
	r.serveLocked()
	r.demand.Seen.prompt(r.arrival.PromptTokens, prompt, computed)
	if prompt > 0 {
		r.learnLocked(Lengths{Prompt: float64(prompt - r.prompt), Computed: float64(computed) - r.compute})
	}
	r.prompt = cmp.Or(prompt, r.prompt)
	if r.arrival.Stream {
		r.judgeLocked(now, r.arrival.TTFT > 0, now.Sub(r.at) <= r.arrival.TTFT, ttft)
	}
}

// RecordEnd records that it is over with so many tokens, -1 if that is not known; failed that
// the service is at fault. Of one that the client gave up only what had come is judged,
// and that nothing had in time.
func (r *RequestRecord) RecordEnd(output int, failed bool) {
	now := r.meter.Now()
	r.meter.mu.Lock()
	defer r.meter.mu.Unlock()
	r.serveLocked()
	if output > 0 {
		r.demand.Seen.ended(r.prompt, output)
		r.learnLocked(Lengths{Output: float64(output - r.arrival.OutputTokens)})
	}
	a := &r.arrival
	gaps := time.Duration(max(output-1, 0))
	switch {
	case failed:
		r.missLocked(now)
	case r.first.IsZero(): // the client left
		late := now.Sub(r.at) > a.TTFT
		r.judgeLocked(now, a.TTFT > 0 && late, false, ttft)
	case a.Stream:
		r.judgeLocked(now, a.ITL > 0 && gaps > 0, now.Sub(r.first) <= gaps*a.ITL, itl)
	case output > 0: // a whole answer keeps both or neither: its tokens have no times
		due := a.TTFT + gaps*a.ITL
		for _, of := range []objective{ttft, itl} {
			r.judgeLocked(now, a.TTFT > 0 && a.ITL > 0, now.Sub(r.at) <= due, of)
		}
	}
}

// RecordRefusal records that it was refused for lack of capacity: both objectives are missed.
func (r *RequestRecord) RecordRefusal() {
	now := r.meter.Now()
	r.meter.mu.Lock()
	defer r.meter.mu.Unlock()
	r.serveLocked()
	r.missLocked(now)
	r.meter.refuse(r.arrival.Fingerprint)
}

// learnLocked corrects what its class was counted with on arrival, as far as that still
// counts.
func (r *RequestRecord) learnLocked(by Lengths) {
	if !r.Retry {
		r.demand.traffic[r.class].add(by.times(remaining(r.demand.decayedAt.Sub(r.at))))
	}
}

// serveLocked ends its wait.
func (r *RequestRecord) serveLocked() {
	if r.waits {
		r.waits = false
		r.demand.waiting.Requests--
		r.demand.waiting.Prompt = max(0, r.demand.waiting.Prompt-r.compute)
	}
}

// objective is what an answer is judged by.
type objective int

const (
	ttft objective = iota
	itl            // the mean gap of an answer
)

// missLocked judges what was not, by the objectives that a served one would be.
func (r *RequestRecord) missLocked(now time.Time) {
	a := &r.arrival
	r.judgeLocked(now, a.TTFT > 0 && (a.Stream && r.first.IsZero() || !a.Stream && a.ITL > 0), false, ttft)
	r.judgeLocked(now, a.ITL > 0 && (a.Stream || a.TTFT > 0), false, itl)
}

// judgeLocked enters whether an objective was kept, where there is one. A retry is not judged:
// its request was when it was refused.
func (r *RequestRecord) judgeLocked(now time.Time, has, kept bool, of objective) {
	if !has || r.Retry {
		return
	}
	b := r.demand.Bins[BinOf(now)]
	sum := &b.TTFT
	if of == itl {
		sum = &b.ITL
	}
	sum.Judged++
	if kept {
		sum.Met++
	}
	r.demand.Bins[BinOf(now)] = b
}

// attainedSpan is the time over which attainment is published.
const attainedSpan = 5 * time.Minute

// attained counts requests that were judged by an objective, and those that kept it.
// What was refused or failed was judged, and did not.
type Attained struct {
	Judged int `json:"n"`
	Met    int `json:"k"`
}

func (a *Attained) add(o Attained) {
	a.Judged += o.Judged
	a.Met += o.Met
}
