package engine

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"
)

// Reasons for which a decode cannot use its hand-off, besides the rejections of the
// prefill engine.
const (
	recomputeMissing     = "missing_field"  // the params lack a field
	recomputeUnreachable = "unreachable"    // no answer from the address they name
	recomputeForeign     = "foreign_prompt" // the KV belongs to other tokens than this prompt's
)

// heartbeatsPerLease is vLLM's: a decode that waits for room renews every lease/6.
const heartbeatsPerLease = 6

// releaseTimeout bounds the message that frees a hand-off that will not be read.
const releaseTimeout = 2 * time.Second

// room is what a sequence gets when it has blocks for its prompt.
type room struct {
	have int    // leading blocks whose KV is here already
	want []past // digest of each full block of the prompt
}

// fetch brings the KV of a decode leg over: it renews the lease until the sequence
// has room, reads the blocks, checks them, and gives the sequence back to its rank.
// One goroutine runs it for each hand-off until ctx ends, which is when the sequence
// ends; the engine lives on until life ends. A sequence that ends before its KV was
// read frees the hand-off.
func (r *rank) fetch(life, ctx context.Context, s *sequence, h *handoff) {
	switch {
	case r.cfg.Connector == ConnectorStore:
		r.lookUp(ctx, s)
		return
	case s.source != nil:
		r.pullPrefix(ctx, s)
		return
	case s.answerIn != nil:
		r.pullAnswer(life, ctx, s, s.answerIn)
		return
	}
	if s.bootstrap != nil {
		r.joinSession(ctx, s)
		return
	}
	name := kvPull{EngineID: h.EngineID, RequestID: h.RequestID}
	got, ok := r.awaitRoom(ctx, s.admitted, h, name)
	if !ok {
		r.abandon(life, h, name)
		return
	}
	got.want = r.handedOver(s, h)
	start := time.Now()
	name.BlockIDs, name.Skip, name.Rack = h.BlockIDs[0], got.have, r.cfg.Rack
	failure := r.pull(ctx, got, h, name)
	if ctx.Err() != nil {
		r.abandon(life, h, name)
		return
	}
	if failure == "" {
		r.meters.recordTransfer(time.Since(start), len(got.want)-got.have, r.blockBytes())
	} else {
		r.meters.failedTransfers.Inc()
		slog.Warn("hand-off not usable", "engine_id", r.id, "reason", failure,
			"remote_engine_id", h.EngineID, "remote_request_id", h.RequestID)
	}
	r.loaded(s, failure, -1)
}

// awaitRoom renews the lease until the sequence has blocks for its prompt; ok is
// false if it ended before.
func (r *rank) awaitRoom(ctx context.Context, admitted <-chan room, h *handoff, name kvPull) (got room, ok bool) {
	beat := time.NewTicker(r.cfg.Lease / heartbeatsPerLease)
	defer beat.Stop()
	for {
		select {
		case <-ctx.Done():
			return room{}, false
		case got = <-admitted:
			return got, true
		case <-beat.C:
			if h.TPSize == 0 {
				continue // as in vLLM: no heartbeat without tp_size
			}
			if _, err := r.side.call(ctx, h.Host, h.Port, heartbeatPath, name); err != nil && ctx.Err() == nil {
				r.meters.failedNotifications.Inc()
				slog.Warn("lease not renewed", "engine_id", r.id, "error", err)
			}
		}
	}
}

// pull reads the missing blocks over both engines' links and checks what they hold.
// It returns why the KV is not usable, or "".
func (r *rank) pull(ctx context.Context, got room, h *handoff, name kvPull) (failure string) {
	if missing := len(got.want) - got.have; missing > len(name.BlockIDs) {
		// vLLM asserts num_decode_blocks <= len(prefill_group) (nixl/base_worker.py).
		r.fatal(fmt.Sprintf("AssertionError: %d blocks to load of a hand-off of %d", missing, len(name.BlockIDs)))
		return recomputeForeign
	}
	if len(name.BlockIDs) != len(got.want) {
		return recomputeForeign
	}
	ctx, cancel := context.WithTimeout(ctx, pullTimeout)
	bytes := float64(len(got.want)-got.have) * r.blockBytes() * r.faults.linkFactor(h.EngineID)
	arrived := make(chan struct{})
	go func() {
		defer close(arrived)
		// It fails only with ctx, of which the caller learns by itself.
		_ = r.incoming.transfer(ctx, bytes)
	}()
	defer func() { cancel(); <-arrived }()
	content, err := r.side.call(ctx, h.Host, h.Port, pullPath, name)
	switch {
	case err != nil:
		return recomputeUnreachable
	case content.Rejected != "":
		return content.Rejected
	case !slices.Equal(content.Digests, got.want):
		r.reject(recomputeForeign)
		return recomputeForeign
	}
	<-arrived
	return ""
}

// handedOver is what each block of a decode's prompt must hold. The last token of the prompt is
// computed here in any case, and may be missing from the hand-off: so it is with a prompt that
// goes on with the token that prefill said.
func (r *rank) handedOver(s *sequence, h *handoff) []past {
	size := r.cfg.BlockSize
	if !r.handsPartOver() {
		return s.pasts[:s.prompt/size]
	}
	tokens := s.prompt
	if h.Tokens == s.prompt-1 {
		tokens = h.Tokens
	}
	want := slices.Clone(s.pasts[:tokens/size])
	if len(want) < (s.prompt+size-1)/size {
		want = append(want, r.pastAt(s, tokens))
	}
	return want
}

// abandon frees the KV of a sequence that ended before reading it, as vLLM does.
func (r *rank) abandon(life context.Context, h *handoff, name kvPull) {
	ctx, cancel := context.WithTimeout(life, releaseTimeout)
	defer cancel()
	if _, err := r.side.call(ctx, h.Host, h.Port, releasePath, name); err != nil && life.Err() == nil {
		r.meters.failedNotifications.Inc()
		slog.Warn("hand-off not released", "engine_id", r.id, "remote_engine_id", h.EngineID, "error", err)
	}
}

// loaded takes a sequence back whose KV has come, or has not and why. Then it is
// computed here or ends with an error, by the load failure policy; SGLang knows only
// the error. cached is what prefill did not compute of the prompt, -1 if it does not
// tell.
func (r *rank) loaded(s *sequence, failure string, cached int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.state != loading {
		return // ended meanwhile
	}
	delete(r.loading, s)
	s.fetches = false
	s.cancel()
	switch {
	case failure == "":
		before := s.computed
		full := s.prompt / r.cfg.BlockSize * r.cfg.BlockSize
		if s.handoffIn != nil && r.handsPartOver() {
			full = min(s.prompt, s.handoffIn.Tokens) / r.cfg.BlockSize * r.cfg.BlockSize
		}
		r.meters.externalQueries.Add(float64(s.prompt - before))
		r.meters.externalHits.Add(float64(full - before))
		s.pulled, s.cached = true, full
		if cached >= 0 {
			s.cached = cached
		}
		s.computed = min(full, s.prompt-1) // the last token is computed again to say the next
		if r.handsPartOver() && s.handoffIn != nil {
			s.computed = s.prompt - 1
		}
		r.storeLocked(s)
	case r.cfg.Connector == ConnectorSGLang:
		r.counts.loadFailures[failure]++
		r.endLocked(s, finishTransfer)
		return
	case r.cfg.LoadFailure == LoadFailureFail:
		r.counts.loadFailures[failure]++
		r.endLocked(s, finishError)
		return
	default:
		r.counts.recomputed[failure]++
	}
	r.enqueueLocked(s)
}

func (r *rank) blockBytes() float64 { return float64(r.cfg.BlockSize * r.cfg.KVBytesPerToken) }

func (r *rank) countRecomputed(why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts.recomputed[why]++
}
