package demand

import (
	"cmp"
	"sync"
	"time"

	"github.com/tandem-gateway/tandem/autoscale/sizing"
	"github.com/tandem-gateway/tandem/pools/share"
)

// KeptBins is how many bins of demand are remembered: fifteen minutes of them.
const KeptBins = 90

// refusedFor is how long, at least, a refused request that comes again counts as a
// retry, and mostRefused how many of them are remembered in such a time.
const (
	refusedFor  = time.Minute
	mostRefused = 8192
)

// modelRetention is how long a model is remembered that no request asks for.
const modelRetention = 24 * time.Hour

// recently weighs one request in the means of those that ended.
const recently = 1.0 / 300

// Meter measures what clients ask for, by model. A request counts when it arrives,
// whether or not it is served then: what is held or refused for lack of capacity is
// demand too, and a client's retries of what was refused are not more of it. Safe for
// concurrent use.
type Meter struct {
	Now func() time.Time

	// Queued returns how many requests of each model wait in this gateway's own queue. It
	// is set before the first read.
	Queued func() map[string]int
	// CacheSavings returns how many tokens of prompts the caches of servers saved lately, by
	// server, as this gateway sent them; likewise.
	CacheSavings func() map[string]float64

	mu        sync.Mutex // guards the rest
	Models    map[string]*demand
	refused   [2]map[uint64]bool // fingerprints: those of the running time, and of the one before
	rotatedAt time.Time          // when the running time began
	unsent    []uint64           // fingerprints that other gateways do not know of yet
}

// demand is what is asked of one model.
type demand struct {
	Bins      map[int64]bin // by number: seconds since 1970 over Bin
	waiting   Work          // requests that have no first token yet
	Seen      means
	last      time.Time // when one came
	traffic   Traffic
	decayedAt time.Time // when traffic was made older last
}

// bin is the demand of one bin, and what came of requests in its time.
type bin struct {
	Prompt float64  `json:"p"` // tokens to compute
	Output float64  `json:"o"` // tokens, as predicted
	TTFT   Attained `json:"t,omitzero"`
	ITL    Attained `json:"i,omitzero"`
}

type Work struct {
	Requests int     `json:"n"`
	Prompt   float64 `json:"p"` // tokens to compute
}

// means are of requests that ended lately.
type means struct {
	Computed   float64 `json:"c"` // share of the prompt that was not found in a cache
	Prompt     float64 `json:"p"` // tokens
	Output     float64 `json:"o"` // tokens
	TokenSteps float64 `json:"h"` // tokens of KV, added up over the tokens of an answer
	Ended      int     `json:"n"`
}

// Context is the mean KV of a sequence at any moment: a long answer counts for as long as
// it is there.
func (s *means) Context() float64 {
	if s.TokenSteps == 0 {
		return s.Prompt + s.Output/2
	}
	return s.TokenSteps / s.Output
}

// firstOutput is predicted of the first answers, in tokens.
const firstOutput = 256

// NewMeter returns a meter that has seen nothing. now is the clock.
func NewMeter(now func() time.Time) *Meter {
	return &Meter{Now: now, Queued: func() map[string]int { return nil }, CacheSavings: func() map[string]float64 { return nil }, Models: make(map[string]*demand), refused: [2]map[uint64]bool{{}, {}}, rotatedAt: now()}
}

// RecordArrival counts a request and begins its record.
func (m *Meter) RecordArrival(a Arrival) *RequestRecord {
	now := m.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.Models[a.Model]
	if d == nil {
		d = &demand{Bins: make(map[int64]bin), Seen: means{Computed: 1, Output: firstOutput}}
		m.Models[a.Model] = d
	}
	if d.Seen.Prompt == 0 {
		d.Seen.Prompt = float64(a.PromptTokens) // until one was answered
	}
	r := &RequestRecord{meter: m, demand: d, arrival: a, at: now, waits: true, prompt: a.PromptTokens, compute: float64(a.PromptTokens) * d.Seen.Computed}
	if r.Retry = m.retry(a.Fingerprint, now); !r.Retry {
		b := d.Bins[BinOf(now)]
		b.Prompt, b.Output = b.Prompt+r.compute, b.Output+d.Seen.Output
		d.Bins[BinOf(now)] = b
		r.class = share.ClassOf(a.PromptTokens, a.OutputTokens)
		d.decay(now)
		d.traffic[r.class].add(Lengths{1, float64(a.PromptTokens), r.compute, float64(a.OutputTokens)})
	}
	d.last = now
	d.waiting.Requests++
	d.waiting.Prompt += r.compute
	return r
}

// decay makes the traffic that was older, up to now.
func (d *demand) decay(now time.Time) {
	d.traffic.decay(now.Sub(d.decayedAt))
	d.decayedAt = now
}

// Traffic is what was asked of a model lately, by class.
func (m *Meter) Traffic(model string) Traffic {
	now := m.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.Models[model]
	if d == nil {
		return Traffic{}
	}
	d.decay(now)
	return d.traffic
}

func BinOf(t time.Time) int64 { return t.Unix() / int64(sizing.Bin/time.Second) }

// prompt learns from a request whose first token has come. What was predicted on
// arrival is in the share: it corrects the next prediction.
func (s *means) prompt(predicted, prompt, computed int) {
	if prompt <= 0 || predicted <= 0 {
		return
	}
	learn(&s.Computed, float64(computed)/float64(predicted), s.Ended+1)
	learn(&s.Prompt, float64(prompt), s.Ended+1)
}

// ended learns from a request that has ended.
func (s *means) ended(prompt, output int) {
	if s.TokenSteps == 0 {
		s.TokenSteps = s.Output * s.Context()
	}
	s.Ended++
	tokens := float64(output)
	learn(&s.Output, tokens, s.Ended)
	learn(&s.TokenSteps, tokens*(float64(prompt)+tokens/2), s.Ended)
}

// learn moves a mean towards a sample: fast while there are few.
func learn(mean *float64, sample float64, samples int) {
	*mean += max(recently, 1/float64(samples+1)) * (sample - *mean)
}

// retry reports whether a request was refused lately. What was refused is forgotten by
// halves, so that no refusal takes time for the others.
func (m *Meter) retry(fingerprint uint64, now time.Time) bool {
	if passed := now.Sub(m.rotatedAt); passed > refusedFor {
		m.refused[1] = m.refused[0]
		if passed > 2*refusedFor {
			m.refused[1] = map[uint64]bool{}
		}
		m.refused[0], m.rotatedAt = map[uint64]bool{}, now
	}
	return m.refused[0][fingerprint] || m.refused[1][fingerprint]
}

// refuse remembers a refused request.
func (m *Meter) refuse(fingerprint uint64) {
	if len(m.refused[0]) < mostRefused {
		m.refused[0][fingerprint] = true
	}
	if len(m.unsent) < mostRefused {
		m.unsent = append(m.unsent, fingerprint)
	}
}

// TakeRefused returns the requests that were refused since the last call.
func (m *Meter) TakeRefused() []uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	unsent := m.unsent
	m.unsent = nil
	return unsent
}

// ReceiveRefused remembers a request that another gateway refused.
func (m *Meter) ReceiveRefused(fingerprint uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.refused[0]) < mostRefused {
		m.refused[0][fingerprint] = true
	}
}

// Reading is what one gateway measured, as the others receive it.
type Reading struct {
	At      int64                    `json:"at"` // unix seconds
	Models  map[string]*ModelReading `json:"models"`
	Savings map[string]float64       `json:"hot,omitempty"` // tokens, by server
}

type ModelReading struct {
	Bins    map[int64]bin `json:"bins"` // finished ones
	Waiting Work          `json:"waiting"`
	Queued  int           `json:"queued"` // of them, in the gateway's queue
	Seen    means         `json:"seen"`
	Traffic Traffic       `json:"traffic"`
}

// Read returns what was measured, and forgets what is older than is kept, and models that
// no request asked for in a long time.
func (m *Meter) Read() Reading {
	now := m.Now()
	current := BinOf(now)
	queued, savings := m.Queued(), m.CacheSavings()
	m.mu.Lock()
	defer m.mu.Unlock()
	r := Reading{At: now.Unix(), Models: make(map[string]*ModelReading), Savings: savings}
	for name, d := range m.Models {
		d.decay(now)
		own := &ModelReading{Bins: make(map[int64]bin), Waiting: d.waiting, Queued: queued[name], Seen: d.Seen, Traffic: d.traffic}
		for i, b := range d.Bins {
			switch {
			case i < current-KeptBins, i > current+1: // of a clock that was ahead; the next may have begun
				delete(d.Bins, i)
			case i < current:
				own.Bins[i] = b
			}
		}
		r.Models[name] = own
		if d.waiting.Requests == 0 && now.Sub(d.last) > modelRetention {
			delete(m.Models, name)
		}
	}
	return r
}

// SumSavings adds up over gateways what the caches of servers save, in tokens.
func SumSavings(readings []Reading) map[string]float64 {
	all := make(map[string]float64)
	for _, r := range readings {
		for server, tokens := range r.Savings {
			all[server] += tokens
		}
	}
	return all
}

// Total is the demand for a model of all gateways.
type Total struct {
	Prompt, Output sizing.Series
	Waiting        Work
	Queued         int // of them, in the gateways' queues
	Seen           means
	Traffic        Traffic
	TTFT, ITL      Attained // lately
}

// Sum adds up what gateways measured of a model. since is the bin from which on
// demand was watched: bins without a request are zero from there, and unknown before.
func Sum(readings []Reading, model string, since, now int64) Total {
	from := max(since, now-KeptBins)
	t := Total{Prompt: make(sizing.Series, max(0, now-from)), Output: make(sizing.Series, max(0, now-from))}
	weight := 0.0
	for _, r := range readings {
		own := r.Models[model]
		if own == nil {
			continue
		}
		for i, b := range own.Bins {
			if i >= from && i < now {
				t.Prompt[i-from] += b.Prompt / sizing.Bin.Seconds()
				t.Output[i-from] += b.Output / sizing.Bin.Seconds()
			}
			if i >= now-int64(attainedSpan/sizing.Bin) && i < now {
				t.TTFT.add(b.TTFT)
				t.ITL.add(b.ITL)
			}
		}
		t.Queued += own.Queued
		t.Traffic.add(&own.Traffic)
		t.Waiting.Requests += own.Waiting.Requests
		t.Waiting.Prompt += own.Waiting.Prompt
		w := float64(min(own.Seen.Ended+1, int(1/recently))) // its first guess counts as one
		weight += w
		t.Seen.Prompt += w * own.Seen.Prompt
		t.Seen.Output += w * own.Seen.Output
		t.Seen.TokenSteps += w * cmp.Or(own.Seen.TokenSteps, own.Seen.Output*own.Seen.Context())
		t.Seen.Computed += w * own.Seen.Computed
		t.Seen.Ended += own.Seen.Ended
	}
	if weight > 0 { // no request asked otherwise
		t.Seen.Prompt, t.Seen.Output, t.Seen.Computed = t.Seen.Prompt/weight, t.Seen.Output/weight, t.Seen.Computed/weight
		t.Seen.TokenSteps /= weight
	}
	return t
}

// Asked reports whether a request asked for the model lately.
func (t *Total) Asked() bool { return t.Waiting.Requests > 0 || t.Output.Mean() > 0 }

// Silent keeps of a replica that is gone what counts on: what was asked of it, but no request
// waits there any more.
func (r *Reading) Silent() {
	for _, m := range r.Models {
		m.Waiting, m.Queued = Work{}, 0
	}
}

// Decay makes the traffic that a replica reported older, up to a time in unix seconds.
func (r *Reading) Decay(to int64) {
	for _, m := range r.Models {
		m.Traffic.decay(time.Duration(to-r.At) * time.Second)
	}
}
