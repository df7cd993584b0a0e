package engine

import (
	"context"
	"time"
)

// prefillTime of one pass over a number of new tokens, unscaled; attended is work.attended of all of it. Source: the
// Dynamo mocker's polynomial (dynamo:lib/mocker/src/common/perf_model.rs), in milliseconds. Its square is of prompts
// computed at once: of a long one each step attends to all before it.
func prefillTime(tokens int, attended float64) time.Duration {
	if tokens == 0 {
		return 0
	}
	return milliseconds(4.209989e-07*attended + 1.518344e-02*float64(tokens) + 16.50142)
}

// decodeTime of one step of all decoding sequences, unscaled; kvShare is the share
// of the KV cache in use, 0..1. Source as prefillTime.
func decodeTime(kvShare float64) time.Duration {
	return milliseconds(max(1, -25.74*kvShare*kvShare+54.01*kvShare+5.74))
}

func milliseconds(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

// shortestSleep is the least a pace sleeps. A timer of less is late by its own
// length, so shorter waits are saved up.
const shortestSleep = time.Millisecond

// pace keeps a chain of simulated steps to the clock. Steps are far shorter than a
// timer's error when time is scaled down, so it tracks when the chain is due, and
// sleeps only once it is well ahead.
type pace struct{ due time.Time }

// wait lets d pass since the end of the step before, or since now if that is over.
func (p *pace) wait(ctx context.Context, d time.Duration) {
	now := time.Now()
	if p.due.Before(now.Add(-shortestSleep)) {
		p.due = now
	}
	p.due = p.due.Add(d)
	if ahead := p.due.Sub(now); ahead >= shortestSleep {
		sleep(ctx, ahead)
	}
}

// sleep returns after d or when ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
