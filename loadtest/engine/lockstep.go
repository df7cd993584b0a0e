package engine

import (
	"context"
	"sync"
	"time"
)

// lockstep makes the ranks of an engine step together, as with wide expert
// parallelism: each layer needs all of them, so a step lasts as long as on the slowest
// rank that has work, and when one has died the others wait for it for ever.
type lockstep struct {
	mu      sync.Mutex
	dead    int
	working int           // ranks with work
	arrived int           // of them, at the end of their own part of the step
	slowest time.Duration // of those that arrived
	step    *step
}

// step is one step of all; done closes when it may begin, and took is what it takes.
type step struct {
	done chan struct{}
	took time.Duration
}

func newLockstep() *lockstep { return &lockstep{step: newStep()} }

func newStep() *step { return &step{done: make(chan struct{})} }

// join and leave say that a rank has work, or none any more.
func (l *lockstep) join() { l.change(1, 0) }

func (l *lockstep) leave() { l.change(-1, 0) }

// die and revive are those of one rank.
func (l *lockstep) die() { l.change(0, 1) }

func (l *lockstep) revive() { l.change(0, -1) }

func (l *lockstep) change(working, dead int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.working += working
	l.dead += dead
	l.releaseLocked()
}

// releaseLocked begins the step once all are there.
func (l *lockstep) releaseLocked() {
	if l.dead > 0 || l.arrived == 0 || l.arrived < l.working {
		return
	}
	l.step.took = l.slowest
	close(l.step.done)
	l.step, l.arrived, l.slowest = newStep(), 0, 0
}

// await says how long a rank's own part would take, and returns how long the step of
// all takes once all are there; 0 when ctx ends before.
func (l *lockstep) await(ctx context.Context, own time.Duration) time.Duration {
	l.mu.Lock()
	l.arrived++
	l.slowest = max(l.slowest, own)
	mine := l.step
	l.releaseLocked()
	l.mu.Unlock()
	select {
	case <-mine.done:
		return mine.took
	case <-ctx.Done():
		return 0
	}
}
