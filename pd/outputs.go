package pd

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// UnknownOutput is the tokens of an answer that are expected while nothing is known.
const UnknownOutput = 256

// How lengths of answers are learned.
const (
	outputMemory = 100.0     // answers that a mean remembers
	outputProof  = 4.0       // answers after which a mean counts as much as what was believed without it
	maxOutputs   = 4096      // means that are kept: beyond it new tenants go by their class
	outputStale  = time.Hour // without answers for so long a mean may be forgotten
	outputRecord = 512       // means that other replicas are told of
)

// Outputs learns how long answers are: by model, then by priority class, then by tenant,
// each as far as it has shown. Safe for concurrent use; a nil one knows nothing.
type Outputs struct {
	mu    sync.Mutex // guards the rest
	means map[outputKey]*outputMean
	swept time.Time // when the stale last made room
}

// outputKey is whose answers a mean is of. Without a tenant it is of all tenants, without
// a class of all classes.
type outputKey struct {
	Model  string `json:"m"`
	Class  int    `json:"c"` // one more than it is; 0: all
	Tenant string `json:"t,omitempty"`
}

// outputMean is a mean with forgetting.
type outputMean struct {
	tokens  float64
	answers float64 // that it remembers
	seen    time.Time
	// Of the answers that were seen here, for other replicas.
	count uint64
	sum   float64
}

// NewOutputs returns outputs that know nothing.
func NewOutputs() *Outputs { return &Outputs{means: make(map[outputKey]*outputMean)} }

// levels are the means that a request's answer belongs to, the widest first.
func levels(req *Request) []outputKey {
	all := []outputKey{{Model: req.Model}, {Model: req.Model, Class: req.Class + 1}}
	if req.Tenant != "" {
		all = append(all, outputKey{Model: req.Model, Class: req.Class + 1, Tenant: req.Tenant})
	}
	return all
}

// Expect returns the tokens that a request's answer is expected to have, 0 for one that
// generates nothing. No client's bound is exceeded.
func (o *Outputs) Expect(req *Request) int {
	if o == nil || req.OutputTokens <= 0 {
		return req.OutputTokens
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	expected := o.believedLocked(req)
	if req.MaxOutput > 0 {
		expected = min(expected, float64(req.MaxOutput))
	} else if req.OutputTokens < UnknownOutput { // the bound stands elsewhere
		expected = min(expected, float64(req.OutputTokens))
	}
	return max(1, int(expected+0.5))
}

// believedLocked is the length without a bound: of each mean as much as it has shown, of
// the wider one the rest.
func (o *Outputs) believedLocked(req *Request) float64 {
	believed := float64(UnknownOutput)
	for _, key := range levels(req) {
		if m := o.means[key]; m != nil {
			believed = (m.answers*m.tokens + outputProof*believed) / (m.answers + outputProof)
		}
	}
	return believed
}

// Ended learns from an answer that came to its end. One that reached its bound would have
// been longer: it says no more than that, where shorter ones are believed.
func (o *Outputs) Ended(req *Request, tokens int, now time.Time) {
	if o == nil || tokens <= 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	length := float64(tokens)
	if req.MaxOutput > 0 && tokens >= req.MaxOutput {
		length = max(length, o.believedLocked(req))
	}
	for _, key := range levels(req) {
		if m := o.entryLocked(key, now); m != nil {
			m.learn(length, 1, now)
			m.count++
			m.sum += length
		}
	}
}

// learn takes in a number of answers of a mean length.
func (m *outputMean) learn(tokens, answers float64, now time.Time) {
	m.answers = min(m.answers+answers, outputMemory)
	m.tokens += (tokens - m.tokens) * min(1, answers/m.answers)
	m.seen = now
}

// entryLocked returns a mean, nil where there is no room for a new one.
func (o *Outputs) entryLocked(key outputKey, now time.Time) *outputMean {
	if m := o.means[key]; m != nil {
		return m
	}
	if len(o.means) >= maxOutputs && now.Sub(o.swept) > time.Minute {
		o.swept = now
		for k, m := range o.means {
			if now.Sub(m.seen) > outputStale {
				delete(o.means, k)
			}
		}
	}
	if len(o.means) >= maxOutputs {
		return nil
	}
	m := &outputMean{seen: now}
	o.means[key] = m
	return m
}

// outputRecordOf is one mean as other replicas are told: sums, of which differences are
// news, and what is believed.
type outputRecordOf struct {
	outputKey
	Count  uint64  `json:"n"`
	Sum    float64 `json:"s"`
	Tokens float64 `json:"l"`
	Known  float64 `json:"k"` // answers that the belief remembers
}

func (r *outputRecordOf) valid() bool {
	return r.Sum >= 0 && r.Sum < 1e15 && r.Tokens >= 0 && r.Tokens < 1e9 && r.Known >= 0 && r.Known <= outputMemory &&
		len(r.Model)+len(r.Tenant) < 1024
}

// record returns what others are to be told: the means that were seen last.
func (o *Outputs) record(now time.Time) (told []outputRecordOf) {
	o.mu.Lock()
	defer o.mu.Unlock()
	seen := make(map[outputKey]time.Time)
	for key, m := range o.means {
		if m.answers > 0 && now.Sub(m.seen) < outputStale {
			told = append(told, outputRecordOf{key, m.count, m.sum, m.tokens, m.answers})
			seen[key] = m.seen
		}
	}
	slices.SortFunc(told, func(a, b outputRecordOf) int {
		return cmp.Or(seen[b.outputKey].Compare(seen[a.outputKey]), cmp.Compare(b.Count, a.Count))
	})
	return told[:min(len(told), outputRecord)]
}

// hear takes in what another replica tells: what it saw since it told of it before, or
// what it believes where it did not and nothing is known here.
func (o *Outputs) hear(before *outputRecordOf, r outputRecordOf, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	m := o.entryLocked(r.outputKey, now)
	switch {
	case m == nil:
	case before == nil:
		if m.answers == 0 && r.Known > 0 {
			m.learn(r.Tokens, r.Known, now)
		}
	default:
		if r.Count < before.Count {
			before = &outputRecordOf{} // it has started anew
		}
		if n := float64(r.Count - before.Count); n > 0 {
			m.learn(max(0, r.Sum-before.Sum)/n, n, now)
		}
	}
}
