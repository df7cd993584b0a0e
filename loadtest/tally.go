package loadtest

import (
	"maps"
	"math"
	"sync"
	"time"
)

// samplesPerKind bounds the failures of one kind that the report tells in full.
const samplesPerKind = 3

// A tally counts the requests of one run as they arrive and end.
type tally struct {
	slo SLO
	max int // in flight

	mu      sync.Mutex // guards what follows
	counts  Counts
	errors  map[Kind]int
	samples []ErrorSample
	tokens  TokenCounts
	sloMet  int
	lag     series // of sending after the planned arrival
	ttft    series
	itl     series
	tpot    series
	e2e     series
	lastDue time.Duration // newest arrival, since the start
}

// Counts are the requests of a run so far. Arrived = OK + Failed + Interrupted +
// InFlight.
type Counts struct {
	Arrived      int `json:"arrived"`
	OK           int `json:"ok"`
	Failed       int `json:"failed"`
	Interrupted  int `json:"interrupted"`
	InFlight     int `json:"-"`
	InFlightPeak int `json:"in_flight_peak"`
}

// TokenCounts are sums over the whole answers.
type TokenCounts struct {
	Prompt int `json:"prompt"`
	Cached int `json:"cached"` // of the prompt tokens
	// Repeated are those prompt tokens with which an earlier, answered prompt began: what
	// caches without limit and perfect knowledge of them would have had.
	Repeated int `json:"repeated"`
	Output   int `json:"output"`
	// Uncounted answers came without usage: each of their content events is taken
	// for one output token, and their prompt tokens are missing.
	Uncounted int `json:"uncounted_answers"`
}

func newTally(cfg Config) *tally {
	return &tally{slo: cfg.SLO, max: cfg.MaxInFlight, errors: map[Kind]int{}}
}

// arrive opens a place for the arrival planned at due. False means that as many
// requests as allowed are in flight: the arrival has failed with ClientBound.
func (t *tally) arrive(due time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts.Arrived++
	t.lastDue = due
	if t.counts.InFlight >= t.max {
		t.failLocked(&outcome{kind: ClientBound, detail: "as many requests in flight as allowed", due: due})
		return false
	}
	t.counts.InFlight++
	t.counts.InFlightPeak = max(t.counts.InFlightPeak, t.counts.InFlight)
	return true
}

// end closes the place of one arrival with its outcome. Latencies are of whole
// answers only: how fast a failure came says nothing of the service.
func (t *tally) end(o *outcome, lag time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts.InFlight--
	t.lag.add(max(lag, 0))
	switch o.kind {
	case OK:
		t.succeedLocked(o)
	case Interrupted:
		t.counts.Interrupted++
	default:
		t.failLocked(o)
	}
}

func (t *tally) succeedLocked(o *outcome) {
	t.counts.OK++
	t.tokens.Prompt += o.promptTokens
	t.tokens.Cached += o.cachedTokens
	t.tokens.Repeated += int(math.Round(o.repeated * float64(o.promptTokens)))
	t.tokens.Output += o.outputTokens
	if !o.counted {
		t.tokens.Uncounted++
	}
	if t.slo.any() && o.meets(t.slo) {
		t.sloMet++
	}
	t.e2e.add(o.e2e)
	if o.ttft == 0 {
		return // not streamed, or without content
	}
	t.ttft.add(o.ttft)
	for _, gap := range o.gaps {
		t.itl.add(gap)
	}
	if tpot, ok := o.tpot(); ok {
		t.tpot.add(tpot)
	}
}

func (t *tally) failLocked(o *outcome) {
	t.counts.Failed++
	t.errors[o.kind]++
	if t.errors[o.kind] > samplesPerKind {
		return
	}
	t.samples = append(t.samples, ErrorSample{
		Kind:      o.kind,
		Detail:    o.detail,
		RequestID: o.requestID,
		At:        o.due.Seconds(),
	})
}

// Snapshot is the state of a run under way.
type Snapshot struct {
	Counts
	Errors  map[Kind]int
	Elapsed time.Duration
	// Planned is the time that the arrivals take in all; 0: not known.
	Planned time.Duration
	// MeanTTFT is of the whole answers so far; 0: none was streamed.
	MeanTTFT time.Duration
}

func (t *tally) snapshot() Snapshot {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := Snapshot{Counts: t.counts, Errors: maps.Clone(t.errors)}
	if t.ttft.count > 0 {
		s.MeanTTFT = t.ttft.sum / time.Duration(t.ttft.count)
	}
	return s
}
