package engine

import (
	"context"
	"sync"
)

// answers carries pieces from a rank to the handler of a request. A slow reader
// finds several pieces at once; the rank never waits for it. What it holds is
// bounded by the length of the answers.
type answers struct {
	wake chan struct{} // holds one token while pieces wait

	mu     sync.Mutex
	pieces []piece
}

func newAnswers() *answers { return &answers{wake: make(chan struct{}, 1)} }

func (a *answers) put(p piece) {
	a.mu.Lock()
	a.pieces = append(a.pieces, p)
	a.mu.Unlock()
	select {
	case a.wake <- struct{}{}:
	default: // already awake
	}
}

// take waits for pieces; the error is the context's.
func (a *answers) take(ctx context.Context) ([]piece, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-a.wake:
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	pieces := a.pieces
	a.pieces = nil
	return pieces, nil
}
