package access

import (
	"cmp"
	"fmt"
	"sync"
	"time"
)

// Limits bound what a key may use. 0 is no limit. Those per minute may be used up at
// once and come back evenly.
type Limits struct {
	Requests   int // per minute
	Prompt     int // tokens per minute
	Output     int // tokens per minute
	Concurrent int // requests at once
}

// What a limit is of.
const (
	OfRequests   = "requests"
	OfPrompt     = "prompt_tokens"
	OfOutput     = "output_tokens"
	OfConcurrent = "concurrent_requests"
)

// LimitError says that a key has used up one of its limits.
type LimitError struct {
	Of    string
	Limit int
	Wait  time.Duration // until the request could come in, as far as is known
	// Never is set for a request that is larger than the limit itself.
	Never bool
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("the key's limit of %d %s is used up", e.Limit, e.Of)
}

// quota is what one key has used. It outlives reloads of the file.
type quota struct {
	shared *QuotaSync // nil: with no replica
	id     string

	mu                       sync.Mutex // guards the rest
	limits                   Limits
	requests, prompt, output bucket
	running                  int
	used                     usage                // since the start of the process
	first                    time.Time            // use
	others                   map[string]remoteUse // by replica
}

// usage is what a key has used: requests, tokens.
type usage struct {
	Requests float64 `json:"r,omitempty"`
	Prompt   float64 `json:"p,omitempty"`
	Output   float64 `json:"o,omitempty"`
}

func (u usage) minus(v usage) usage {
	return usage{u.Requests - v.Requests, u.Prompt - v.Prompt, u.Output - v.Output}
}

// remoteUse is what another replica has of the key in flight.
type remoteUse struct {
	running int
	until   time.Time
}

func newQuota(s *QuotaSync, id string) *quota {
	return &quota{shared: s, id: id, others: make(map[string]remoteUse)}
}

func (q *quota) setLimits(l Limits) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.limits = l
	q.requests.setLimit(l.Requests)
	q.prompt.setLimit(l.Prompt)
	q.output.setLimit(l.Output)
}

// admit charges one request with the prompt that is estimated, or charges nothing and
// says which limit is used up.
func (q *quota) admit(prompt int, now time.Time) *LimitError {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.refillLocked(now)
	if refused := q.exceededLocked(float64(prompt), now); refused != nil {
		return refused
	}
	q.running++
	if q.first.IsZero() {
		q.first = now
	}
	q.chargeLocked(usage{Requests: 1, Prompt: float64(prompt)})
	return nil
}

// chargePrompt charges the prompt of a request that was admitted, or nothing where the limit has not so much left.
func (q *quota) chargePrompt(prompt int, now time.Time) *LimitError {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.refillLocked(now)
	if refused := cmp.Or(q.neverLocked(float64(prompt)), q.prompt.exceeded(OfPrompt, float64(prompt))); refused != nil {
		return refused
	}
	q.chargeLocked(usage{Prompt: float64(prompt)})
	return nil
}

// isLimitedLocked reports whether the key has any limit. Most have none, and nothing of their buckets is asked for.
func (q *quota) isLimitedLocked() bool { return q.limits != (Limits{}) }

// concurrentWait is what a caller at its limit of requests at once waits:
// it is not known when one of its own ends.
const concurrentWait = time.Second

func (q *quota) exceededLocked(prompt float64, now time.Time) *LimitError {
	if !q.isLimitedLocked() {
		return nil
	}
	if never := q.neverLocked(prompt); never != nil {
		return never
	}
	running := q.running
	for _, o := range q.others {
		if now.Before(o.until) {
			running += o.running
		}
	}
	if q.limits.Concurrent > 0 && running >= q.limits.Concurrent {
		return &LimitError{Of: OfConcurrent, Limit: q.limits.Concurrent, Wait: concurrentWait}
	}
	return cmp.Or(q.requests.exceeded(OfRequests, 1), q.prompt.exceeded(OfPrompt, max(prompt, 1)), q.output.exceeded(OfOutput, 1))
}

// neverLocked is the refusal of a prompt that is longer than all of a minute's tokens.
func (q *quota) neverLocked(prompt float64) *LimitError {
	if q.limits.Prompt > 0 && prompt > float64(q.limits.Prompt) {
		return &LimitError{Of: OfPrompt, Limit: q.limits.Prompt, Never: true}
	}
	return nil
}

// exceeded is the refusal of what needs more than the bucket has, nil where it has enough.
func (b *bucket) exceeded(of string, need float64) *LimitError {
	if wait := b.wait(need); wait > 0 {
		return &LimitError{Of: of, Limit: int(b.perMinute), Wait: wait}
	}
	return nil
}

func (q *quota) refillLocked(now time.Time) {
	if !q.isLimitedLocked() {
		return
	}
	share := q.shared.share(now)
	for _, b := range []*bucket{&q.requests, &q.prompt, &q.output} {
		b.refill(now, share)
	}
}

// chargeLocked takes from the buckets and reports it to the other replicas.
func (q *quota) chargeLocked(u usage) {
	q.used.Requests += u.Requests
	q.used.Prompt += u.Prompt
	q.used.Output += u.Output
	if q.isLimitedLocked() {
		q.takeLocked(u)
		q.shared.report(q)
	}
}

func (q *quota) takeLocked(u usage) {
	q.requests.take(u.Requests)
	q.prompt.take(u.Prompt)
	q.output.take(u.Output)
}

// charge takes what is known now of a request that was admitted; negative parts give
// back. ended ends the request.
func (q *quota) charge(u usage, ended bool, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.refillLocked(now)
	if ended {
		q.running--
	}
	q.chargeLocked(u)
}

// LimitStatus is how much of one limit is left.
type LimitStatus struct {
	Limit, Remaining int
	Reset            time.Duration // until it is whole again
}

func (b *bucket) status() LimitStatus {
	return LimitStatus{Limit: int(b.perMinute), Remaining: max(0, int(b.level)), Reset: b.wait(b.perMinute)}
}

// statuses are those of the limits per minute that the key has, by what they are of.
func (q *quota) statuses(now time.Time) map[string]LimitStatus {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.refillLocked(now)
	all := make(map[string]LimitStatus)
	for of, b := range map[string]*bucket{OfRequests: &q.requests, OfPrompt: &q.prompt, OfOutput: &q.output} {
		if b.perMinute > 0 {
			all[of] = b.status()
		}
	}
	return all
}

// usage is what is reported of the key to other replicas.
func (q *quota) usage(now time.Time) reportedUsage {
	q.mu.Lock()
	defer q.mu.Unlock()
	return reportedUsage{usage: q.used, Running: float64(q.running), Age: now.Sub(q.first).Seconds()}
}

// chargeRemote charges what another replica has let in since its last report, and keeps
// what it has running until a time.
func (q *quota) chargeRemote(replica string, more usage, running int, now, until time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.refillLocked(now)
	q.takeLocked(more)
	for id, o := range q.others {
		if now.After(o.until) {
			delete(q.others, id)
		}
	}
	if running > 0 {
		q.others[replica] = remoteUse{running, until}
	} else {
		delete(q.others, replica)
	}
}
