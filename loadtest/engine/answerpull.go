package engine

import (
	"context"
	"log/slog"
	"slices"
	"time"
)

// vLLM's bidirectional_kv_xfer, as 0.33 has it (nixl/pull_scheduler.py): a decode that began with
// a hand-off keeps the blocks of prompt and answer when it ends, for decoder_kv_blocks_ttl, and
// names them in its answer or in the last chunk of it. The next turn's prefill leg may name them
// in turn, and reads from them what it has not. vLLM reads whatever it is told to; here a read
// is checked against the prompt, so that a gateway which names another answer's KV is seen.

// recomputeThreshold is vLLM's kv_recompute_threshold: fewer tokens than that are computed, and
// the blocks let go of unread.
const recomputeThreshold = 64

// recomputeTail names a read of more tokens than the blocks have, or whose blocks end elsewhere
// than its tokens: vLLM takes as many blocks as it lacks from the end of the list
// (nixl/base_worker.py, _apply_prefix_caching), so that all of them would be others' KV.
const recomputeTail = "wrong_tail"

// holdAnswerLocked keeps all blocks of a finished decode and describes them. The last token was
// said and not computed.
func (r *rank) holdAnswerLocked(s *sequence) *handoff {
	size := r.cfg.BlockSize
	used := (s.computed + size - 1) / size
	if s.computed%size > 0 {
		s.blocks[used-1].digest = r.pastAt(s, s.computed)
	}
	r.cache.release(s.blocks[used:])
	ids := make([]int32, used)
	for i, b := range s.blocks[:used] {
		ids[i] = b.id
	}
	name, held := s.id, &heldKV{answer: true, blocks: s.blocks[:used]}
	held.timer = time.AfterFunc(r.cfg.AnswerLife, func() { r.expire(name, held) })
	r.held.hold(name, held)
	r.counts.answersKept++
	return &handoff{
		DoRemoteDecode: true, EngineID: r.id, RequestID: s.id, BlockIDs: [][]int32{ids}, Host: r.side.host, Port: r.side.port,
		TPSize: 1, Tokens: s.computed, ExpiryTime: float64(time.Now().Add(r.cfg.AnswerLife).UnixMicro()) / 1e6, TransferMode: "pull",
	}
}

// pullAnswer reads the KV of an answer for a prefill leg, once it has room.
func (r *rank) pullAnswer(life, ctx context.Context, s *sequence, h *handoff) {
	name := kvPull{EngineID: h.EngineID, RequestID: h.RequestID}
	var got room
	select {
	case <-ctx.Done():
		r.abandon(life, h, name)
		return
	case got = <-s.admitted:
	}
	if !r.cfg.KeepAnswers {
		// The scheduler counts the tokens as coming, and nobody is told to fetch them.
		slog.Warn("waits for ever: an answer's KV is named to an engine without bidirectional_kv_xfer", "engine_id", r.id)
		return
	}
	tokens, size := min(h.Tokens, s.prompt), r.cfg.BlockSize
	if tokens-got.have*size < recomputeThreshold {
		r.abandon(life, h, name)
		r.answerRead(s, 0, "")
		return
	}
	got.want = slices.Clone(s.pasts[:tokens/size])
	if tokens%size > 0 {
		got.want = append(got.want, r.pastAt(s, tokens))
	}
	failure := recomputeTail
	if len(h.BlockIDs[0]) == len(got.want) {
		name.BlockIDs, name.Skip, name.Rack = h.BlockIDs[0], got.have, r.cfg.Rack
		failure = r.pull(ctx, got, h, name)
	} else {
		r.reject(recomputeTail)
	}
	if ctx.Err() != nil {
		r.abandon(life, h, name)
		return
	}
	if failure != "" {
		r.meters.failedTransfers.Inc()
		slog.Warn("an answer's KV is not usable", "engine_id", r.id, "reason", failure, "remote_engine_id", h.EngineID, "remote_request_id", h.RequestID)
	}
	r.answerRead(s, tokens, failure)
}

// answerRead takes a prefill leg back that has so many leading tokens from an answer, or has them
// not and why.
func (r *rank) answerRead(s *sequence, tokens int, failure string) {
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
		r.counts.prefixPulled += max(0, tokens-s.computed) / r.cfg.BlockSize
		s.cached = max(s.cached, tokens)
		s.computed = min(max(s.computed, tokens), s.prompt-1)
		r.storeLocked(s)
	case r.cfg.LoadFailure == LoadFailureFail:
		r.counts.loadFailures[failure]++
		r.endLocked(s, finishError)
		return
	default:
		r.counts.recomputed[failure]++
	}
	r.enqueueLocked(s)
}
