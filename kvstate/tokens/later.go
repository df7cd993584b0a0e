package tokens

import (
	"context"
	"time"
)

// Later is what an engine answers of a prompt whose request has gone on without it: one that waits
// for its servers may still learn of it there.
type Later struct {
	flight *flight
	// prompt has what is known of the prompt beside its tokens.
	prompt Tokens
	wait   time.Duration
}

// Await waits for the answer as long as a request does whose prompt is mostly unknown.
func (l *Later) Await(ctx context.Context) { l.flight.wait(ctx, l.wait) }

// Tokens returns what the engine answered, false while it has not, and where it found nothing.
func (l *Later) Tokens() (Tokens, bool) {
	select {
	case <-l.flight.done:
	default:
		return Tokens{}, false
	}
	if !l.flight.ok {
		return Tokens{}, false
	}
	found := l.flight.found
	found.Mode, found.Adapter, found.Salt, found.Text = l.prompt.Mode, l.prompt.Adapter, l.prompt.Salt, l.prompt.Text
	found.context, found.root = l.prompt.context, l.prompt.root
	found.Opening, found.Whole, found.Before = l.prompt.Opening, l.prompt.Whole, l.prompt.Before
	return found, true
}

// laterTokens are what is known of a prompt for now, with what an ask that goes on will answer.
func laterTokens(known *Tokens, f *flight, wait time.Duration) *Later {
	l := &Later{flight: f, prompt: *known, wait: wait}
	l.prompt.IDs = nil
	return l
}
