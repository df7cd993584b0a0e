package autoscale

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

// Visit is a request from its arrival to its end: Answered, where that comes, and then
// Ended or Refused, each once.
type Visit struct {
	meter   *Meter
	demand  *demand
	arrival Arrival
	at      time.Time
	first   time.Time // when the first token was there; zero before
	class   share.Class
	compute float64 // prompt tokens that it was counted with
	prompt  int     // tokens, as far as is known
	retry   bool    // of a request that was counted, and judged, when it was refused
	waits   bool    // for its first token
}

// Answered says that the first token is there, and how much of the prompt was computed
// for it.
func (v *Visit) Answered(prompt, computed int) {
	now := v.meter.now()
	v.meter.mu.Lock()
	defer v.meter.mu.Unlock()
	v.first = now
	v.serveLocked()
	v.demand.seen.prompt(v.arrival.PromptTokens, prompt, computed)
	if prompt > 0 {
		v.learnLocked(Lengths{Prompt: float64(prompt - v.prompt), Computed: float64(computed) - v.compute})
	}
	v.prompt = cmp.Or(prompt, v.prompt)
	if v.arrival.Stream {
		v.judgeLocked(now, v.arrival.TTFT > 0, now.Sub(v.at) <= v.arrival.TTFT, ttft)
	}
}

// Ended says that it is over with so many tokens, -1 if that is not known; failed that
// the service is at fault. Of one that the client gave up only what had come is judged,
// and that nothing had in time.
func (v *Visit) Ended(output int, failed bool) {
	now := v.meter.now()
	v.meter.mu.Lock()
	defer v.meter.mu.Unlock()
	v.serveLocked()
	if output > 0 {
		v.demand.seen.ended(v.prompt, output)
		v.learnLocked(Lengths{Output: float64(output - v.arrival.OutputTokens)})
	}
	a := &v.arrival
	gaps := time.Duration(max(output-1, 0))
	switch {
	case failed:
		v.missLocked(now)
	case v.first.IsZero(): // the client left
		late := now.Sub(v.at) > a.TTFT
		v.judgeLocked(now, a.TTFT > 0 && late, false, ttft)
	case a.Stream:
		v.judgeLocked(now, a.ITL > 0 && gaps > 0, now.Sub(v.first) <= gaps*a.ITL, itl)
	case output > 0: // a whole answer keeps both or neither: its tokens have no times
		due := a.TTFT + gaps*a.ITL
		for _, of := range []objective{ttft, itl} {
			v.judgeLocked(now, a.TTFT > 0 && a.ITL > 0, now.Sub(v.at) <= due, of)
		}
	}
}

// Refused says that it was refused for lack of capacity: both objectives are missed.
func (v *Visit) Refused() {
	now := v.meter.now()
	v.meter.mu.Lock()
	defer v.meter.mu.Unlock()
	v.serveLocked()
	v.missLocked(now)
	v.meter.refuse(v.arrival.Fingerprint)
}

// learnLocked corrects what its class was counted with on arrival, as far as that still
// counts.
func (v *Visit) learnLocked(by Lengths) {
	if !v.retry {
		v.demand.traffic[v.class].add(by.times(kept(v.demand.faded.Sub(v.at))))
	}
}

// serveLocked ends its wait.
func (v *Visit) serveLocked() {
	if v.waits {
		v.waits = false
		v.demand.waiting.Requests--
		v.demand.waiting.Prompt = max(0, v.demand.waiting.Prompt-v.compute)
	}
}

// objective is what an answer is judged by.
type objective int

const (
	ttft objective = iota
	itl            // the mean gap of an answer
)

// missLocked judges what was not, by the objectives that a served one would be.
func (v *Visit) missLocked(now time.Time) {
	a := &v.arrival
	v.judgeLocked(now, a.TTFT > 0 && (a.Stream && v.first.IsZero() || !a.Stream && a.ITL > 0), false, ttft)
	v.judgeLocked(now, a.ITL > 0 && (a.Stream || a.TTFT > 0), false, itl)
}

// judgeLocked enters whether an objective was kept, where there is one. A retry is not judged:
// its request was when it was refused.
func (v *Visit) judgeLocked(now time.Time, has, kept bool, of objective) {
	if !has || v.retry {
		return
	}
	b := v.demand.bins[binOf(now)]
	sum := &b.TTFT
	if of == itl {
		sum = &b.ITL
	}
	sum.Judged++
	if kept {
		sum.Kept++
	}
	v.demand.bins[binOf(now)] = b
}

// attainedSpan is the time over which attainment is told.
const attainedSpan = 5 * time.Minute

// attained counts requests that were judged by an objective, and those that kept it.
// What was refused or failed was judged, and did not.
type attained struct {
	Judged int `json:"n"`
	Kept   int `json:"k"`
}

func (a *attained) add(o attained) {
	a.Judged += o.Judged
	a.Kept += o.Kept
}
