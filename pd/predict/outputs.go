package predict

import (
	"sync"
	"time"
)

// UnknownOutput is the tokens of an answer that are expected while nothing is known.
const UnknownOutput = 256

// How lengths of answers are learned.
const (
	outputMemory = 100.0 // answers that a mean remembers
	outputPrior  = 4.0   // answers after which a mean counts as much as what was believed without it
	maxRecords   = 512   // means that are reported to other replicas

	// Answers of one session are much more like each other than like a model's: in the later
	// turns of the Mooncake conversation trace the mean error is 200
	// tokens by model, 145 by session with these two, and 165 with a prior of 4.
	sessionMemory = 8.0
	sessionPrior  = 1.0
)

// Outputs learns how long answers are: by model, then by priority class, then by tenant, then by
// what the tenant calls a session, each as far as it has shown. Safe for concurrent use; a nil
// one knows nothing.
//
// Sessions are a client's word: they are kept by tenant and bounded as those of Sessions are,
// change no mean but their own, and are not reported to other replicas.
type Outputs struct {
	mu       sync.Mutex // guards the rest
	means    map[outputKey]*outputMean
	swept    time.Time // when the stale last made room
	sessions bySession[mean]
}

// Answer is what is known of an answer before it is there.
type Answer struct {
	Model, Tenant string
	Class         int    // of priority
	Session       uint64 // a hash of the tenant's name for it, as in Session; 0 where there is none
	Tokens        int    // that are expected while nothing is learned; 0: nothing is generated
	Max           int    // the client's or its key's bound, 0 without one
}

// outputKey is whose answers a mean is of. Without a tenant it is of all tenants, without
// a class of all classes.
type outputKey struct {
	Model  string `json:"m"`
	Class  int    `json:"c"` // one more than it is; 0: all
	Tenant string `json:"t,omitempty"`
}

// mean is a mean length with forgetting.
type mean struct {
	tokens  float64
	answers float64 // that it remembers
}

// outputMean is what is known of a key's answers.
type outputMean struct {
	mean
	seen time.Time
	// Of the answers that were seen here, for other replicas.
	count uint64
	sum   float64
}

func (m *outputMean) lastSeen() time.Time { return m.seen }

// NewOutputs returns outputs that know nothing.
func NewOutputs() *Outputs { return &Outputs{means: make(map[outputKey]*outputMean)} }

// levels are the means that an answer belongs to, the widest first.
func (a *Answer) levels() []outputKey {
	all := []outputKey{{Model: a.Model}, {Model: a.Model, Class: a.Class + 1}}
	if a.Tenant != "" {
		all = append(all, outputKey{Model: a.Model, Class: a.Class + 1, Tenant: a.Tenant})
	}
	return all
}

// Expect returns the tokens that an answer is expected to have, 0 where nothing is generated.
// No client's bound is exceeded.
func (o *Outputs) Expect(a Answer) int {
	if o == nil || a.Tokens <= 0 {
		return a.Tokens
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	expected := o.believedLocked(&a)
	if a.Max > 0 {
		expected = min(expected, float64(a.Max))
	} else if a.Tokens < UnknownOutput { // the bound stands elsewhere
		expected = min(expected, float64(a.Tokens))
	}
	return max(1, int(expected+0.5))
}

// believedLocked is the length without a bound: of each mean as much as it has shown, of
// the wider one the rest.
func (o *Outputs) believedLocked(a *Answer) float64 {
	believed := float64(UnknownOutput)
	for _, key := range a.levels() {
		if m := o.means[key]; m != nil {
			believed = m.of(believed, outputPrior)
		}
	}
	if m, known := o.sessions.get(a.session()); known && a.Session != 0 {
		believed = m.of(believed, sessionPrior)
	}
	return believed
}

// of is the mean as far as it has shown, and for the rest what is believed without it.
func (m mean) of(believed, prior float64) float64 {
	return (m.answers*m.tokens + prior*believed) / (m.answers + prior)
}

func (a *Answer) session() Session { return Session{a.Tenant, a.Model, a.Session} }

// Observe learns from an answer that came to its end. One that reached its bound would have
// been longer: it says no more than that, where shorter ones are believed.
func (o *Outputs) Observe(a Answer, tokens int, now time.Time) {
	if o == nil || tokens <= 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	length := float64(tokens)
	if a.Max > 0 && tokens >= a.Max {
		length = max(length, o.believedLocked(&a))
	}
	for _, key := range a.levels() {
		if m := o.entryLocked(key, now); m != nil {
			m.learn(length, 1, now)
			m.count++
			m.sum += length
		}
	}
	if a.Session != 0 {
		m, _ := o.sessions.get(a.session())
		m.learn(length, 1, sessionMemory)
		o.sessions.put(a.session(), m, now)
	}
}

// learn takes in a number of answers of a mean length.
func (m *outputMean) learn(tokens, answers float64, now time.Time) {
	m.mean.learn(tokens, answers, outputMemory)
	m.seen = now
}

func (m *mean) learn(tokens, answers, memory float64) {
	m.answers = min(m.answers+answers, memory)
	m.tokens += (tokens - m.tokens) * min(1, answers/m.answers)
}

// entryLocked returns a mean, nil where there is no room for a new one.
func (o *Outputs) entryLocked(key outputKey, now time.Time) *outputMean {
	if m := o.means[key]; m != nil {
		return m
	}
	if !makeRoom(o.means, &o.swept, now) {
		return nil
	}
	m := &outputMean{seen: now}
	o.means[key] = m
	return m
}
