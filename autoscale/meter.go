package autoscale

import (
	"cmp"
	"sync"
	"time"

	"github.com/tandem-gateway/tandem/pools/share"
)

// keptBins is how many bins of demand are remembered: fifteen minutes of them.
const keptBins = 90

// refusedFor is how long, at least, a refused request that comes again counts as a
// retry, and mostRefused how many of them are remembered in such a time.
const (
	refusedFor  = time.Minute
	mostRefused = 8192
)

// recently weighs one request in the means of those that ended.
const recently = 1.0 / 300

// Meter measures what clients ask for, by model. A request counts when it arrives,
// whether or not it is served then: what is held or refused for lack of capacity is
// demand too, and a client's retries of what was refused are not more of it. Safe for
// concurrent use.
type Meter struct {
	now func() time.Time

	// Queued returns how many requests of each model wait in this gateway's own queue. It
	// is set before the first read.
	Queued func() map[string]int
	// CacheSavings returns how many tokens of prompts the caches of servers saved lately, by
	// server, as this gateway sent them; likewise.
	CacheSavings func() map[string]float64

	mu      sync.Mutex // guards the rest
	models  map[string]*demand
	refused [2]map[uint64]bool // fingerprints: those of the running time, and of the one before
	turned  time.Time          // when the running time began
	unsent  []uint64           // fingerprints that other gateways do not know of yet
}

// demand is what is asked of one model.
type demand struct {
	bins    map[int64]bin // by number: seconds since 1970 over Bin
	waiting work          // requests that have no first token yet
	seen    means
	last    time.Time // when one came
	traffic Traffic
	faded   time.Time // when traffic was made older last
}

// bin is the demand of one bin, and what came of requests in its time.
type bin struct {
	Prompt float64  `json:"p"` // tokens to compute
	Output float64  `json:"o"` // tokens, as predicted
	TTFT   attained `json:"t,omitzero"`
	ITL    attained `json:"i,omitzero"`
}

type work struct {
	Requests int     `json:"n"`
	Prompt   float64 `json:"p"` // tokens to compute
}

// means are of requests that ended lately.
type means struct {
	Computed float64 `json:"c"` // share of the prompt that was not found in a cache
	Prompt   float64 `json:"p"` // tokens
	Output   float64 `json:"o"` // tokens
	Held     float64 `json:"h"` // tokens of KV, added up over the tokens of an answer
	Ended    int     `json:"n"`
}

// context is the mean KV of a sequence at any moment: a long answer counts for as long as
// it is there.
func (s *means) context() float64 {
	if s.Held == 0 {
		return s.Prompt + s.Output/2
	}
	return s.Held / s.Output
}

// firstOutput is predicted of the first answers, in tokens.
const firstOutput = 256

// NewMeter returns a meter that has seen nothing. now is the clock.
func NewMeter(now func() time.Time) *Meter {
	return &Meter{now: now, Queued: func() map[string]int { return nil }, CacheSavings: func() map[string]float64 { return nil }, models: make(map[string]*demand), refused: [2]map[uint64]bool{{}, {}}, turned: now()}
}

// Arrived counts a request and begins its record.
func (m *Meter) Arrived(a Arrival) *RequestRecord {
	now := m.now()
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.models[a.Model]
	if d == nil {
		d = &demand{bins: make(map[int64]bin), seen: means{Computed: 1, Output: firstOutput}}
		m.models[a.Model] = d
	}
	if d.seen.Prompt == 0 {
		d.seen.Prompt = float64(a.PromptTokens) // until one was answered
	}
	r := &RequestRecord{meter: m, demand: d, arrival: a, at: now, waits: true, prompt: a.PromptTokens, compute: float64(a.PromptTokens) * d.seen.Computed}
	if r.retry = m.retry(a.Fingerprint, now); !r.retry {
		b := d.bins[binOf(now)]
		b.Prompt, b.Output = b.Prompt+r.compute, b.Output+d.seen.Output
		d.bins[binOf(now)] = b
		r.class = share.ClassOf(a.PromptTokens, a.OutputTokens)
		d.fade(now)
		d.traffic[r.class].add(Lengths{1, float64(a.PromptTokens), r.compute, float64(a.OutputTokens)})
	}
	d.last = now
	d.waiting.Requests++
	d.waiting.Prompt += r.compute
	return r
}

// fade makes the traffic that was older, up to now.
func (d *demand) fade(now time.Time) {
	d.traffic.fade(now.Sub(d.faded))
	d.faded = now
}

// Traffic is what was asked of a model lately, by class.
func (m *Meter) Traffic(model string) Traffic {
	now := m.now()
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.models[model]
	if d == nil {
		return Traffic{}
	}
	d.fade(now)
	return d.traffic
}

func binOf(t time.Time) int64 { return t.Unix() / int64(Bin/time.Second) }

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
	if s.Held == 0 {
		s.Held = s.Output * s.context()
	}
	s.Ended++
	tokens := float64(output)
	learn(&s.Output, tokens, s.Ended)
	learn(&s.Held, tokens*(float64(prompt)+tokens/2), s.Ended)
}

// learn moves a mean towards a sample: fast while there are few.
func learn(mean *float64, sample float64, samples int) {
	*mean += max(recently, 1/float64(samples+1)) * (sample - *mean)
}

// retry reports whether a request was refused lately. What was refused is forgotten by
// halves, so that no refusal takes time for the others.
func (m *Meter) retry(fingerprint uint64, now time.Time) bool {
	if passed := now.Sub(m.turned); passed > refusedFor {
		m.refused[1] = m.refused[0]
		if passed > 2*refusedFor {
			m.refused[1] = map[uint64]bool{}
		}
		m.refused[0], m.turned = map[uint64]bool{}, now
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

// takeRefused returns those that were refused since the last call.
func (m *Meter) takeRefused() []uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	unsent := m.unsent
	m.unsent = nil
	return unsent
}

// receiveRefused remembers a request that another gateway refused.
func (m *Meter) receiveRefused(fingerprint uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.refused[0]) < mostRefused {
		m.refused[0][fingerprint] = true
	}
}

// reading is what one gateway measured, as the others receive it.
type reading struct {
	At      int64                    `json:"at"` // unix seconds
	Models  map[string]*modelReading `json:"models"`
	Savings map[string]float64       `json:"hot,omitempty"` // tokens, by server
}

type modelReading struct {
	Bins    map[int64]bin `json:"bins"` // finished ones
	Waiting work          `json:"waiting"`
	Queued  int           `json:"queued"` // of them, in the gateway's queue
	Seen    means         `json:"seen"`
	Traffic Traffic       `json:"traffic"`
}

// read returns what was measured, and forgets what is older than is kept, and models that
// nobody asked for in a long time.
func (m *Meter) read() reading {
	now := m.now()
	current := binOf(now)
	queued, savings := m.Queued(), m.CacheSavings()
	m.mu.Lock()
	defer m.mu.Unlock()
	r := reading{At: now.Unix(), Models: make(map[string]*modelReading), Savings: savings}
	for name, d := range m.models {
		d.fade(now)
		own := &modelReading{Bins: make(map[int64]bin), Waiting: d.waiting, Queued: queued[name], Seen: d.seen, Traffic: d.traffic}
		for i, b := range d.bins {
			switch {
			case i < current-keptBins, i > current+1: // of a clock that was ahead; the next may have begun
				delete(d.bins, i)
			case i < current:
				own.Bins[i] = b
			}
		}
		r.Models[name] = own
		if d.waiting.Requests == 0 && now.Sub(d.last) > forgetAfter {
			delete(m.models, name)
		}
	}
	return r
}

// sumSavings adds up the heat of servers over gateways.
func sumSavings(readings []reading) map[string]float64 {
	all := make(map[string]float64)
	for _, r := range readings {
		for server, tokens := range r.Savings {
			all[server] += tokens
		}
	}
	return all
}

// total is the demand for a model of all gateways.
type total struct {
	prompt, output Series
	waiting        work
	queued         int // of them, in the gateways' queues
	seen           means
	traffic        Traffic
	ttft, itl      attained // lately
}

// sum adds up what gateways measured of a model. since is the bin from which on
// demand was watched: bins without a request are zero from there, and unknown before.
func sum(readings []reading, model string, since, now int64) total {
	from := max(since, now-keptBins)
	t := total{prompt: make(Series, max(0, now-from)), output: make(Series, max(0, now-from))}
	weight := 0.0
	for _, r := range readings {
		own := r.Models[model]
		if own == nil {
			continue
		}
		for i, b := range own.Bins {
			if i >= from && i < now {
				t.prompt[i-from] += b.Prompt / Bin.Seconds()
				t.output[i-from] += b.Output / Bin.Seconds()
			}
			if i >= now-int64(attainedSpan/Bin) && i < now {
				t.ttft.add(b.TTFT)
				t.itl.add(b.ITL)
			}
		}
		t.queued += own.Queued
		t.traffic.add(&own.Traffic)
		t.waiting.Requests += own.Waiting.Requests
		t.waiting.Prompt += own.Waiting.Prompt
		w := float64(min(own.Seen.Ended+1, int(1/recently))) // its first guess counts as one
		weight += w
		t.seen.Prompt += w * own.Seen.Prompt
		t.seen.Output += w * own.Seen.Output
		t.seen.Held += w * cmp.Or(own.Seen.Held, own.Seen.Output*own.Seen.context())
		t.seen.Computed += w * own.Seen.Computed
		t.seen.Ended += own.Seen.Ended
	}
	if weight > 0 { // nobody asked else
		t.seen.Prompt, t.seen.Output, t.seen.Computed = t.seen.Prompt/weight, t.seen.Output/weight, t.seen.Computed/weight
		t.seen.Held /= weight
	}
	return t
}
