package breaker

import (
	"errors"
	"time"
)

// How a probe fails, beside not being answered.
var (
	ErrWrongAnswer = errors.New("wrong answer to a probe request") // certain: the server works, and wrongly
	ErrBusy        = errors.New("server too busy for a probe request")
)

// notify wakes what sends probes.
func (b *Breaker) notify() {
	select {
	case b.changed <- struct{}{}:
	default:
	}
}

// Suspect asks for a probe: something failed that may have been the server, or
// its partner, or what lies between them.
func (b *Breaker) Suspect() {
	b.mu.Lock()
	b.suspected = true
	b.mu.Unlock()
	b.notify()
}

// ProbeNow makes the probe of an ejected server due at once: it was down and is
// up again, so it is most likely another process.
func (b *Breaker) ProbeNow(now time.Time) {
	if until := b.openUntil.Load(); until != nil && now.Before(*until) && b.openUntil.CompareAndSwap(until, &now) {
		b.notify()
	}
}

// ProbeDue returns when the next probe is due, false if none is. Suspicion
// sends at most one in each pause.
func (b *Breaker) ProbeDue(pause time.Duration) (time.Time, bool) {
	if until := b.openUntil.Load(); until != nil {
		return *until, true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.probedAt.Add(pause), b.suspected
}

// RecordProbe records the result of a probe: nil lets the server take requests again,
// after the time that is returned; an error ejects it, or keeps it ejected.
func (b *Breaker) RecordProbe(verdict error, now time.Time) (away time.Duration) {
	switch {
	case verdict == nil:
		b.failedCheck.Store(false)
	case errors.Is(verdict, ErrWrongAnswer):
		b.failedCheck.Store(true) // until one passes: that it does not answer, or is busy, is no proof
	}
	b.mu.Lock()
	b.suspected, b.probedAt = false, now
	b.mu.Unlock()
	if errors.Is(verdict, ErrBusy) {
		b.busy(now)
		return 0
	}
	b.reportBlame(verdict != nil, now)
	if verdict != nil {
		b.failed.Add(1)
		b.recordFailure(verdict)
		b.eject(now)
		return 0
	}
	b.passed.Add(1)
	if b.openUntil.Load() == nil {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gate.Store(b.newGate())
	b.openUntil.Store(nil)
	b.closedAt, b.failedInRow, b.brokenStreams = now, 0, 0
	return now.Sub(b.openedAt)
}

// OnBlame sets what is called when a probe failed, or passed after such, with the time of the
// last one that passed before: what was charged to others since was this server's fault. It is
// called before the first probe.
func (b *Breaker) OnBlame(blamed func(since time.Time)) { b.onBlame = blamed }

// reportBlame reports that this server was at fault for transfers that failed. It does so
// again when the server has recovered: legs that were under way may have failed since.
func (b *Breaker) reportBlame(failed bool, now time.Time) {
	b.mu.Lock()
	was, since := b.atFault, b.probePassedAt
	b.atFault = failed
	if !failed {
		b.probePassedAt = now
	}
	b.mu.Unlock()
	if (failed || was) && b.onBlame != nil {
		b.onBlame(since)
	}
}

// busy records that a server has no place for a probe: that is no fault,
// and no proof either. An ejected one is asked again soon.
func (b *Breaker) busy(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.openUntil.Load() != nil {
		b.openLocked(now.Add(b.ejection(0)))
	}
}

// ServedSince reports whether a request had a good verdict after a time.
func (b *Breaker) ServedSince(t time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.succeededAt.After(t)
}

// FailedCheck reports whether a probe got a wrong answer and none has passed since: that the
// server works wrongly is certain then.
func (b *Breaker) FailedCheck() bool { return b.failedCheck.Load() }

// Changed is notified when ProbeDue may answer otherwise than before.
func (b *Breaker) Changed() <-chan struct{} { return b.changed }

// Counts are totals since the breaker was made.
type Counts struct{ Ejections, ProbesPassed, ProbesFailed uint64 }

// Counts returns the totals.
func (b *Breaker) Counts() Counts {
	return Counts{Ejections: b.ejections.Load(), ProbesPassed: b.passed.Load(), ProbesFailed: b.failed.Load()}
}
