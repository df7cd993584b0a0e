package pools

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/tandem-gateway/tandem/pools/address"
)

const (
	// handoffsMissed is how many prefills in a row may end without a hand-off. One is
	// normal, where the answer is over with its first token.
	handoffsMissed = 5
	// handoffPause is how long prefill is not asked for hand-offs then.
	handoffPause = 30 * time.Second
)

// handoffs follows whether a prefill server hands over what it computes. One that does
// not (its KV connector is not set up) answers well and fast, and all of its work is done
// again by decode.
type handoffs struct {
	missed atomic.Int64              // in a row
	until  atomic.Pointer[time.Time] // it is left out until then; nil: it is not
}

// RecordHandoff notes a prefill with a hand-off.
func (l *serverState) RecordHandoff() {
	l.handoffs.missed.Store(0)
	l.handoffs.until.Store(nil)
}

// RecordMissingHandoff notes a prefill without one, and reports whether the server is left out from
// now on because of it. After the pause each further one leaves it out again.
func (l *serverState) RecordMissingHandoff(now time.Time) (out bool) {
	if l.handoffs.missed.Add(1) < handoffsMissed || l.MissesHandoffs(now) {
		return false
	}
	until := now.Add(handoffPause)
	l.handoffs.until.Store(&until)
	l.countChange()
	return true
}

// MissesHandoffs reports whether the server is left out as the prefill of a pair.
func (l *serverState) MissesHandoffs(now time.Time) bool {
	until := l.handoffs.until.Load()
	return until != nil && now.Before(*until)
}

// withoutPieces is for how long a server computes prompts whole as a decode server after its cache
// has lost a piece of one.
const withoutPieces = time.Minute

// lostPieces follows whether a decode server's cache keeps the pieces of a prompt that it computes.
type lostPieces struct{ until atomic.Pointer[time.Time] } // nil: it has lost none

// RecordLostPiece notes that a piece of a prompt was evicted before the next one came.
func (l *serverState) RecordLostPiece(now time.Time) {
	until := now.Add(withoutPieces)
	l.lostPieces.until.Store(&until)
	l.countChange()
}

// LosesPieces reports whether that was lately.
func (l *lostPieces) LosesPieces(now time.Time) bool {
	until := l.until.Load()
	return until != nil && now.Before(*until)
}

// KVHosts are the hosts that the server's hand-offs may name: its own and that of its
// kv-address.
func (s Spec) KVHosts() []string {
	bare := s
	bare.KVAddress = ""
	own, _, _ := bare.kvHostPort(0) // the spec was validated
	other, _, _ := s.kvHostPort(0)
	return slices.Compact([]string{own, other})
}

// JudgeHost returns the ownership of a host that the server's hand-off names: the server's own,
// if it is its host or that of its kv-address.
func (s *Server) JudgeHost(host string, reader *Server) address.Ownership {
	return s.addresses.Judge(host, s.kvHosts, reader.addresses)
}

// RecordForeign remembers that a hand-off named a foreign host, and reports whether that is
// new in this incarnation of the server.
func (l *serverState) RecordForeign(host string) bool {
	return l.addresses.RecordForeign(host, l.Incarnation())
}
