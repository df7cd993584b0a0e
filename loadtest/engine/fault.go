package engine

import (
	"errors"
	"fmt"
	"slices"
	"sync"
)

// Fault makes the engine misbehave. Faults of several kinds may be set at once.
type Fault struct {
	Kind string `json:"kind"`
	// Status is the answer's code of kind status.
	Status int `json:"status,omitempty"`
	// Tokens is after how many tokens die_after_tokens cuts the connection.
	Tokens int `json:"tokens,omitempty"`
	// Factor is how many times longer steps take with kind slow, and transfers with
	// slow_link; without time scale (0) there is nothing to make longer.
	Factor float64 `json:"factor,omitempty"`
	// Count is how many requests it hits; 0: all until cleared.
	Count int `json:"count,omitempty"`
	// Leg is "prefill" (requests that ask for a hand-off), "decode" (all others) or
	// "" (both).
	Leg string `json:"leg,omitempty"`
	// Rank is the one that rank_dies ends; of other kinds the only one whose requests it
	// hits, where they name it. Null: the first, and all.
	Rank *int `json:"rank,omitempty"`
	// Path is the only path it hits; "": all that do a model's work; "*": all.
	Path string `json:"path,omitempty"`
	// Peer is the only engine id from which slow_link makes KV come slowly; "": all.
	Peer string `json:"peer,omitempty"`
}

// Kinds of faults.
const (
	// FaultRefuse closes the listener, so that connections are refused; requests
	// under way go on. With a count, leg or path: reads the request, then resets
	// the connection.
	FaultRefuse = "refuse"
	// FaultStatus answers with a code and vLLM's error body.
	FaultStatus = "status"
	// FaultHangBeforeHeaders and FaultHangAfterHeaders do not go on until the client
	// hangs up or the engine is closed.
	FaultHangBeforeHeaders = "hang_before_headers"
	FaultHangAfterHeaders  = "hang_after_headers"
	// FaultDieAfterTokens cuts the connection after some tokens; an answer that is
	// not streamed is cut before its first byte.
	FaultDieAfterTokens = "die_after_tokens"
	// FaultErrorAfterTokens ends a stream with an error event after some tokens.
	FaultErrorAfterTokens = "error_after_tokens"
	// FaultEmptyStream answers 200 with no event but [DONE], or an empty body.
	FaultEmptyStream = "empty_stream"
	// FaultNoDone ends a whole stream without [DONE], as Hugging Face's transformers serve
	// does.
	FaultNoDone = "no_done"
	// FaultGarbageSSE answers 200 with what is no SSE, or no JSON.
	FaultGarbageSSE = "garbage_sse"
	// FaultSlow makes every step with the request slower.
	FaultSlow = "slow"
	// FaultDropHandoff answers a prefill leg without a hand-off and frees the KV.
	FaultDropHandoff = "drop_handoff"
	// FaultWrongHandoff names a request and blocks that are not held; the true ones
	// stay until their lease ends.
	FaultWrongHandoff = "wrong_handoff"
	// FaultSlowLink makes KV come in slowly, as over a link that fell back to TCP.
	FaultSlowLink = "slow_link"
	// FaultRankDies ends one rank: its work breaks, and its own address, if it has one,
	// refuses. Ranks in lockstep with it go on answering health checks, and do nothing.
	FaultRankDies = "rank_dies"
	// FaultUnhealthy answers 503 to health checks; all else works.
	FaultUnhealthy = "unhealthy"
)

var faultKinds = []string{FaultRefuse, FaultStatus, FaultHangBeforeHeaders, FaultHangAfterHeaders, FaultDieAfterTokens, FaultErrorAfterTokens,
	FaultEmptyStream, FaultNoDone, FaultGarbageSSE, FaultSlow, FaultDropHandoff, FaultWrongHandoff, FaultSlowLink, FaultRankDies, FaultUnhealthy}

// validate reports a fault that could never do anything.
func (f Fault) validate() error {
	switch {
	case !slices.Contains(faultKinds, f.Kind):
		return fmt.Errorf("fault kind %q is none of %v", f.Kind, faultKinds)
	case f.Kind == FaultStatus && (f.Status < 400 || f.Status > 599):
		return fmt.Errorf("fault status %d is no error", f.Status)
	case (f.Kind == FaultSlow || f.Kind == FaultSlowLink) && f.Factor <= 1:
		return fmt.Errorf("%s factor %v is not above 1", f.Kind, f.Factor)
	case f.Peer != "" && f.Kind != FaultSlowLink:
		return fmt.Errorf("fault %s has no peer", f.Kind)
	case f.Kind == FaultSlowLink && f.Count != 0:
		return errors.New("slow_link lasts until it is cleared")
	case (f.Kind == FaultDieAfterTokens || f.Kind == FaultErrorAfterTokens) && f.Tokens < 0 || f.Count < 0:
		return fmt.Errorf("fault with %d tokens and count %d", f.Tokens, f.Count)
	case f.Leg != "" && f.Leg != RolePrefill && f.Leg != RoleDecode:
		return fmt.Errorf("fault leg %q is neither prefill nor decode", f.Leg)
	}
	return nil
}

// closesListener says whether the fault works on the listener, not on requests.
func (f Fault) closesListener() bool {
	return f.Kind == FaultRankDies || f.Kind == FaultRefuse && f.Count == 0 && f.Leg == "" && f.Path == ""
}

// effects are what the faults do to one request. The zero value: nothing.
type effects struct {
	reset        bool
	status       int
	hangBefore   bool
	hangAfter    bool
	dies         bool
	errs         bool // where it dies, with an error event
	dieAfter     int  // tokens
	empty        bool
	noDone       bool
	garbage      bool
	slow         float64
	dropHandoff  bool
	wrongHandoff bool
	unhealthy    bool
}

// faults are those set now.
type faults struct {
	mu     sync.Mutex
	active []*Fault // Count is what is left; 0 is no limit
}

func (f *faults) add(fault Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.active = append(f.active, &fault)
}

func (f *faults) clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.active = nil
}

func (f *faults) list() []Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := []Fault{}
	for _, fault := range f.active {
		all = append(all, *fault)
	}
	return all
}

// hit says what happens to a request, and counts it for those faults that are limited.
func (f *faults) hit(path string, kind pathKind, of shape) (fx effects) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.active = slices.DeleteFunc(f.active, func(fault *Fault) bool {
		if fault.closesListener() || !fault.hits(path, kind, of) {
			return false
		}
		fx.add(*fault)
		if fault.Count == 0 {
			return false
		}
		fault.Count--
		return fault.Count == 0
	})
	return fx
}

// linkFactor is how many times longer KV takes to come from an engine.
func (f *faults) linkFactor(engineID string) float64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	factor := 1.0
	for _, fault := range f.active {
		if fault.Kind == FaultSlowLink && (fault.Peer == "" || fault.Peer == engineID) {
			factor = max(factor, fault.Factor)
		}
	}
	return factor
}

// hits says whether a fault concerns a request.
func (f Fault) hits(path string, kind pathKind, of shape) bool {
	if f.Leg != "" && (f.Leg == RolePrefill) != of.prefillLeg {
		return false
	}
	if f.Rank != nil && *f.Rank != of.rank {
		return false
	}
	switch {
	case f.Kind == FaultSlowLink:
		return false // it is no request's
	case f.Kind == FaultUnhealthy:
		return kind == pathHealth
	case f.Kind == FaultDropHandoff || f.Kind == FaultWrongHandoff:
		return of.prefillLeg
	case f.Path == "":
		return kind == pathModel
	}
	return f.Path == "*" || f.Path == path
}

func (fx *effects) add(f Fault) {
	switch f.Kind {
	case FaultRefuse:
		fx.reset = true
	case FaultStatus:
		fx.status = f.Status
	case FaultHangBeforeHeaders:
		fx.hangBefore = true
	case FaultHangAfterHeaders:
		fx.hangAfter = true
	case FaultDieAfterTokens:
		fx.dies, fx.dieAfter = true, f.Tokens
	case FaultErrorAfterTokens:
		fx.dies, fx.errs, fx.dieAfter = true, true, f.Tokens
	case FaultEmptyStream:
		fx.empty = true
	case FaultNoDone:
		fx.noDone = true
	case FaultGarbageSSE:
		fx.garbage = true
	case FaultSlow:
		fx.slow = max(fx.slow, f.Factor)
	case FaultDropHandoff:
		fx.dropHandoff = true
	case FaultWrongHandoff:
		fx.wrongHandoff = true
	case FaultUnhealthy:
		fx.unhealthy = true
	}
}
