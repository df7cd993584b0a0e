package engine

import (
	"slices"
	"time"
)

// work is one sequence's part of a batch: the number of tokens to compute.
type work struct {
	s *sequence
	n int
}

// attended is how many times one of its tokens attends to one before it, twice: the square of where it ends less
// that of where it begins.
func (w work) attended() float64 { return float64(w.n) * float64(2*w.s.computed+w.n) }

// schedule chooses the next batch within the token budget and says how long its step
// takes. Sequences already running come first, so that prefills do not stop decodes;
// then those that wait, as long as there are seats and KV room. Long prompts are
// computed in chunks over several steps.
func (r *rank) schedule() ([]work, time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	budget := r.cfg.MaxBatchedTokens
	var batch []work
	add := func(s *sequence) {
		if n := min(s.need(), budget); n > 0 {
			batch = append(batch, work{s, n})
			budget -= n
		}
	}
	preempted := r.growLocked()
	for _, s := range r.running {
		add(s)
	}
	if !preempted {
		r.admitLocked(func(s *sequence) bool { add(s); return budget > 0 }, budget > 0)
	}
	took := r.stepTime(batch)
	r.counts.longestStep = max(r.counts.longestStep, took)
	return batch, took
}

// growLocked gives every running sequence the block for its next token. When none is
// free the sequence that would be served last gives up its blocks and starts again
// later (preemption by recompute).
func (r *rank) growLocked() (preempted bool) {
	for i := 0; i < len(r.running); i++ {
		s := r.running[i]
		for s.state == running && len(s.blocks)*r.cfg.BlockSize < len(s.tokens) {
			if b := r.cache.take(); b != nil {
				s.blocks = append(s.blocks, b)
				continue
			}
			last := slices.MaxFunc(r.running, r.compare)
			if slices.Index(r.running, last) < i {
				i--
			}
			r.preemptLocked(last)
			preempted = true
		}
		if s.state != running {
			i--
		}
	}
	return preempted
}

func (r *rank) preemptLocked(s *sequence) {
	r.running = without(r.running, s)
	r.cache.release(s.blocks)
	s.blocks, s.computed, s.stored = nil, 0, 0
	r.counts.preempted++
	r.meters.preemptions.Inc()
	r.enqueueLocked(s)
}

// admitLocked moves sequences from the queue into the batch while take wants more.
// Once one finds no room, later ones that need room wait behind it, so that long
// prompts are not overtaken for ever; those that hold their blocks already go on, or
// they would hold them for ever. One whose adapter finds no place is passed over.
func (r *rank) admitLocked(take func(*sequence) bool, more bool) {
	full := false
	for i := 0; more && i < len(r.waiting) && len(r.running) < r.cfg.MaxSeqs; {
		s := r.waiting[i]
		if !r.adapterFitsLocked(s.adapter) {
			i++
			continue
		}
		if s.blocks == nil && (full || !r.allocateLocked(s)) {
			full = true
			i++
			continue
		}
		r.waiting = slices.Delete(r.waiting, i, i+1)
		if s.fetches {
			r.startLoadingLocked(s)
			continue
		}
		s.state = running
		if s.times.scheduled.IsZero() {
			s.times.scheduled = time.Now()
		}
		r.running = append(r.running, s)
		more = take(s)
	}
}

// startLoadingLocked lets the goroutine that fetches the sequence's KV begin to read.
func (r *rank) startLoadingLocked(s *sequence) {
	s.state = loading
	r.loading[s] = true
	s.admitted <- room{
		have: s.computed / r.cfg.BlockSize,
		want: s.pasts[:s.prompt/r.cfg.BlockSize],
	}
}

// adapterFitsLocked says whether the batch has a place for one more of this adapter.
func (r *rank) adapterFitsLocked(adapter string) bool {
	if adapter == "" {
		return true
	}
	distinct := map[string]bool{adapter: true}
	for _, s := range r.running {
		if s.adapter != "" {
			distinct[s.adapter] = true
		}
	}
	return len(distinct) <= r.cfg.MaxAdapters
}

// allocateLocked gives a sequence blocks for all its tokens: shared ones for the
// longest prefix whose KV is here, new ones for the rest. At least one token is left
// to compute. It changes nothing when there is no room.
func (r *rank) allocateLocked(s *sequence) bool {
	size := r.cfg.BlockSize
	s.hashTo(len(s.tokens)/size, size, r.cache.root)
	var hits []*block
	idle := 0 // hits that count as free until they are held
	for _, h := range s.hashes[:(len(s.tokens)-1)/size] {
		if r.cfg.NoPrefixCaching || s.bootstrap != nil && s.decodeLeg && !r.cfg.DecodeReuse {
			break // in the latter case it takes all KV from prefill
		}
		b := r.cache.lookup(h)
		if b == nil {
			break
		}
		if b.refs == 0 {
			idle++
		}
		hits = append(hits, b)
	}
	missing := (len(s.tokens)+size-1)/size - len(hits)
	if missing > r.cache.freeCount-idle {
		return false
	}
	for _, b := range hits {
		r.cache.hold(b)
	}
	s.blocks = hits
	for range missing {
		s.blocks = append(s.blocks, r.cache.take())
	}
	s.computed, s.stored = len(hits)*size, len(hits)
	if s.cached < 0 {
		s.cached = s.computed
		r.meters.prefixQueries.Add(float64(s.prompt))
		r.meters.prefixHits.Add(float64(s.computed))
	}
	if s.reportsHits && len(hits) > 0 {
		r.cache.events = append(r.cache.events, r.cache.storedEvent(s, 0, len(hits), r.cache.root))
	}
	return true
}

// stepTime of a batch: what any step takes, one prefill pass over all new prompt tokens, and one
// decode step. What is left to compute after KV came from another engine is as short as a
// decode and counts as one.
func (r *rank) stepTime(batch []work) time.Duration {
	prefill, attended, decodes, slow := 0, 0.0, 0, 1.0
	for _, w := range batch {
		slow = max(slow, w.s.slow)
		if w.s.emitted() > 0 && w.n == 1 || w.s.pulled && w.n <= r.cfg.BlockSize {
			decodes++
		} else {
			prefill += w.n
			attended += w.attended()
		}
	}
	took := r.cfg.StepBase + prefillTime(prefill, attended)
	if decodes > 0 {
		took += decodeTime(r.cache.share())
	}
	return time.Duration(float64(took) * slow * r.cfg.TimeScale)
}

// finishStep takes the results of a batch: blocks become reusable, and a sequence
// with nothing left to compute says its next token. Sequences that ended or were
// preempted meanwhile are skipped.
func (r *rank) finishStep(batch []work) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts.steps++
	now := time.Now()
	for _, w := range batch {
		s := w.s
		if s.state != running {
			continue
		}
		s.computed += w.n
		r.storeLocked(s)
		if s.need() > 0 {
			continue
		}
		p := s.emit(r.language, r.cfg.BlockSize)
		r.emittedAt.Store(now.UnixNano())
		r.meters.recordToken(s, now)
		if s.finish != "" && s.session != nil {
			r.offerLocked(s, p)
			continue
		}
		if s.finish != "" {
			r.countLocked(s)
			r.endLocked(s, s.finish)
			p.result = s.result
		}
		s.out.put(p)
	}
}

// storeLocked makes the full blocks that a sequence has computed reusable.
func (r *rank) storeLocked(s *sequence) {
	size := r.cfg.BlockSize
	full := s.computed / size
	if full == s.stored {
		return
	}
	s.hashTo(full, size, r.cache.root)
	parent := r.cache.root
	if s.stored > 0 {
		parent = s.hashes[s.stored-1]
	}
	for i := s.stored; i < full; i++ {
		s.blocks[i].digest = s.pasts[i]
	}
	r.cache.store(s, s.stored, full, parent)
	s.stored = full
}

// countLocked counts an answer made to its end.
func (r *rank) countLocked(s *sequence) {
	switch {
	case s.handoffOut || s.bootstrap != nil && !s.decodeLeg,
		r.cfg.Connector == ConnectorStore && r.cfg.Role == RolePrefill:
		r.counts.prefills++
	case s.decodeLeg:
		r.counts.decodes++
	default:
		r.counts.aggregated++
	}
}
