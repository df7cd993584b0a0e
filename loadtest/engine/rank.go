package engine

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// rank is one data-parallel rank: a scheduler with its own KV cache, hand-offs and
// event stream. An engine without data parallelism has one.
type rank struct {
	index     int
	id        string // engine id, as hand-offs name it
	cfg       *Config
	language  *language
	side      *sideChannel
	incoming  *link // shared by the ranks of an engine
	outgoing  *link
	uplink    *link // what leaves for another rack
	faults    *faults
	fatal     func(why string) // ends the engine
	meters    *rankMeters
	events    *publisher     // nil: no events
	pushes    *loadPublisher // nil: load is not pushed
	wake      chan struct{}
	fetches   sync.WaitGroup
	steps     *lockstep    // of the ranks of the engine; nil: each steps by itself
	emittedAt atomic.Int64 // nanoseconds since 1970 of its last token
	shown     rankLoad     // in the metrics; metricsPages.mu guards it

	mu       sync.Mutex // guards everything below, and the sequences
	cache    *kvCache
	held     *heldHandoffs
	sessions map[string]*bootstrapSession // by room; this rank is prefill's
	waiting  []*sequence                  // next to be served first
	loading  map[*sequence]bool
	running  []*sequence // longest running first
	arrivals uint64
	asleep   bool
	lost     bool // its weights are garbage
	dead     bool // by a fault
	closed   bool

	adaptersUsed bool // an adapter has been asked for since the start
	counts       counts
}

// counts are what happened so far; the state endpoint shows them.
type counts struct {
	prefills, decodes, aggregated, aborted                       int
	prefixPulled                                                 int // blocks
	answersKept, answersPulled                                   int
	handoffsPulled, handoffsExpired, handoffsReleased, preempted int
	deaths, steps                                                int
	longestStep                                                  time.Duration
	rejected, recomputed, loadFailures                           map[string]int // by reason
}

func newRank(index int, id string, cfg *Config, l *language) *rank {
	return &rank{
		index:    index,
		id:       id,
		cfg:      cfg,
		language: l,
		wake:     make(chan struct{}, 1),
		cache:    newKVCache(cfg.Blocks, cfg.BlockSize, rootHash(cfg.HashSeed)),
		held:     newHeldHandoffs(),
		sessions: map[string]*bootstrapSession{},
		loading:  map[*sequence]bool{},
		counts: counts{
			rejected: map[string]int{}, recomputed: map[string]int{}, loadFailures: map[string]int{},
		},
	}
}

// run is the scheduler's loop, until ctx ends: choose a batch, let its time pass,
// take the results. Without work it sleeps until it is woken.
func (r *rank) run(ctx context.Context) {
	var p pace
	working := false // as the lockstep knows
	for ctx.Err() == nil {
		b, took := r.schedule()
		if has := len(b) > 0; r.steps != nil && has != working {
			if working = has; has {
				r.steps.join()
			} else {
				r.steps.leave()
			}
		}
		if len(b) == 0 {
			r.publish()
			select {
			case <-ctx.Done():
			case <-r.wake:
			}
			continue
		}
		if r.steps != nil {
			took = r.steps.await(ctx, took)
		}
		p.wait(ctx, took)
		r.finishStep(b)
		r.publish()
	}
}

// signal wakes the loop: there may be something to do, or room to do it.
func (r *rank) signal() {
	select {
	case r.wake <- struct{}{}:
	default: // already awake
	}
}

// begin is the past before the first token.
func (r *rank) begin(adapter string) past {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lost {
		adapter += " of garbage"
	}
	return r.language.start(adapter)
}

// submit puts a sequence into the queue and starts fetching its KV if it is a decode
// leg. life is the engine's. It returns false when the engine is closing.
func (r *rank) submit(life context.Context, s *sequence) bool {
	s.past = r.begin(s.adapter)
	prompt := s.tokens
	s.tokens = make([]int32, 0, len(prompt)+min(s.sampling.maxTokens, 1024))
	for _, token := range prompt {
		s.extend(token, r.cfg.BlockSize)
	}
	s.prompt, s.cached = len(prompt), -1
	s.hashTo(len(prompt)/r.cfg.BlockSize, r.cfg.BlockSize, r.cache.root)
	s.times.arrived = time.Now()

	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.dead {
		return false
	}
	r.arrivals++
	s.order = r.arrivals
	r.adaptersUsed = r.adaptersUsed || s.adapter != ""
	if s.bootstrap != nil && !s.decodeLeg {
		r.joinPrefillLocked(s)
		return true
	}
	if s.fetches {
		var ctx context.Context
		ctx, s.cancel = context.WithCancel(life)
		s.admitted = make(chan room, 1)
		r.fetches.Go(func() { r.fetch(life, ctx, s, s.handoffIn) })
	}
	r.enqueueLocked(s)
	return true
}

// enqueueLocked puts a sequence into the waiting queue: by priority if the engine
// schedules so, then by arrival.
func (r *rank) enqueueLocked(s *sequence) {
	s.state = waiting
	at, _ := slices.BinarySearchFunc(r.waiting, s, r.compare)
	r.waiting = slices.Insert(r.waiting, at, s)
	r.signal()
}

// compare is negative when a is served before b.
func (r *rank) compare(a, b *sequence) int {
	if r.cfg.PriorityScheduling && a.priority != b.priority {
		return cmp.Compare(a.priority, b.priority)
	}
	return int(int64(a.order) - int64(b.order))
}

// abort ends a sequence whose client has gone, and frees its blocks at once.
func (r *rank) abort(s *sequence) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.state == ended {
		return
	}
	r.counts.aborted++
	r.endLocked(s, finishAbort)
}

// endLocked takes a sequence out of wherever it is and tells its reader, unless the
// reader got the ending with the last token. It wakes the loop, since there is room.
func (r *rank) endLocked(s *sequence, finish string) {
	switch s.state {
	case waiting:
		r.waiting = without(r.waiting, s)
	case loading:
		delete(r.loading, s)
	case running:
		r.running = without(r.running, s)
	}
	s.state = ended
	r.leavePrefillLocked(s, finish)
	if s.cancel != nil {
		s.cancel()
	}
	switch complete := finish == finishLength || finish == finishStop; {
	case s.handoffOut && complete && !s.dropHandoff:
		s.result = r.holdLocked(s)
	case s.decodeLeg && complete && r.cfg.KeepAnswers:
		s.result = r.holdAnswerLocked(s)
	default:
		r.cache.release(s.blocks)
	}
	s.blocks = nil
	r.meters.recordEnd(s, finish)
	if s.finish == "" {
		s.finish = finish
		s.out.put(piece{at: s.at, finish: finish})
	}
	r.signal()
}

func without(all []*sequence, s *sequence) []*sequence {
	if i := slices.Index(all, s); i >= 0 {
		return slices.Delete(all, i, i+1)
	}
	return all
}

// reset clears the prefix cache; false while blocks are in use.
func (r *rank) reset() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.signal() // to publish the event
	return r.cache.clear()
}

// sleep drops all work, hand-offs and KV.
func (r *rank) sleep() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dropLocked()
	r.asleep = true
	r.cache.clear()
	r.signal()
}

// wakeUp lets the rank work again, unless something of it still sleeps. With lost
// weights it says what has nothing to do with the model.
func (r *rank) wakeUp(asleep, lost bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asleep, r.lost = asleep, lost
}

// close ends everything and waits for the goroutines that fetch.
func (r *rank) close() {
	r.mu.Lock()
	r.closed = true
	r.dropLocked()
	r.mu.Unlock()
	r.fetches.Wait()
}

// die ends all work with an error and takes none, until revive.
func (r *rank) die() {
	r.mu.Lock()
	if !r.dead {
		r.counts.deaths++
	}
	r.dead = true
	r.dropLocked()
	r.mu.Unlock()
	if r.steps != nil {
		r.steps.die()
	}
}

func (r *rank) isDead() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dead
}

func (r *rank) revive() {
	r.mu.Lock()
	was := r.dead
	r.dead = false
	r.mu.Unlock()
	if was && r.steps != nil {
		r.steps.revive()
	}
}

// dropLocked ends all sequences and hand-offs.
func (r *rank) dropLocked() {
	for _, s := range slices.Concat(r.waiting, r.running) {
		r.endLocked(s, finishAbort)
	}
	for s := range r.loading {
		r.endLocked(s, finishAbort)
	}
	for id := range r.held.open {
		r.freeHeldLocked(id, rejectedFreed)
	}
	for _, m := range r.sessions {
		if m.prefill != nil {
			r.endLocked(m.prefill, finishAbort)
		}
	}
}

// publish sends what happened in the KV cache since the last time.
func (r *rank) publish() {
	r.mu.Lock()
	events := r.cache.takeEvents()
	r.mu.Unlock()
	if r.events != nil && len(events) > 0 {
		r.events.publish(events)
	}
}
