package pools

import (
	"sync/atomic"
	"time"
)

// withoutPieces is for how long a server computes prompts whole as a decode server after its cache
// has lost a piece of one.
const withoutPieces = time.Minute

// lostPieces follows whether a decode server's cache keeps the pieces of a prompt that it computes.
type lostPieces struct{ until atomic.Pointer[time.Time] } // nil: it has lost none

// RecordLostPiece notes that a piece of a prompt was evicted before the next one came.
func (l *lostPieces) RecordLostPiece(now time.Time) {
	until := now.Add(withoutPieces)
	l.until.Store(&until)
}

// LosesPieces reports whether that was lately.
func (l *lostPieces) LosesPieces(now time.Time) bool {
	until := l.until.Load()
	return until != nil && now.Before(*until)
}
