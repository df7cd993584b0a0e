package kvstate

import (
	"hash/crc32"
	"math"
	"sync"
	"time"
)

// Source takes in what one engine publishes: bytes in, changes of the index and requests
// for replays out. It opens no sockets and waits for nothing, so that a feed (zmqsub)
// or a test can drive it:
//
//	request := source.RecordConnect()           // each time
//	request = source.ApplyLive(message)         // with a request: offer it again afterwards
//	request = source.Check()                    // now and then
//	source.RecordDisconnect()                   // after what came before is taken
//
//	source.BeginReplay(request)                 // whenever request.Needed()
//	source.ApplyReplayed(message)               // for each answer
//	request = source.EndReplay(complete)
type Source struct {
	index *Index
	model *model
	spec  Spec
	seed  *Seed

	mu      sync.Mutex // guards what follows
	seq     sequence
	holders []*holder
	store   *store // outside the engine; nil: none is known of
	batch   batch
	owns    []Hash // scratch of storeRun
	sink    uint64 // of reads that mean nothing
	journal journal
	age     uint32 // generation of the batch being applied
	epoch   uint64 // of the publisher's numbering: see Snapshot
	counts  Counts
	counted int // blocks that the index counts for this source
	closed  bool

	receiver string // see SourceState
}

func newSource(ix *Index, m *model, spec Spec) *Source {
	s := &Source{index: ix, model: m, spec: spec, seed: ix.seed.Load()}
	s.seq.replays = spec.Replays
	s.counts.EngineLag = math.NaN()
	s.epoch = newEpoch(0)
	if spec.Store != "" {
		s.store = m.share(spec.Store, spec.SourceID, &ix.cfg)
	}
	if spec.BlockTokens > 0 {
		s.holderFor(0, blockForm{blockTokens: spec.BlockTokens})
	}
	return s
}

// ID names the source.
func (s *Source) ID() SourceID { return s.spec.SourceID }

// RecordConnect records that the feed has connected, for the first time or again.
func (s *Source) RecordConnect() ReplayRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seq.recordConnect()
}

// RecordDisconnect records that the connection broke, so that something may be missed. A
// source that cannot request a replay forgets everything.
func (s *Source) RecordDisconnect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.seq.replays {
		s.resetLocked(ResetDisconnect)
	}
}

// RecordMisread counts a message whose frames are of no known form.
func (s *Source) RecordMisread() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts.Misread++
}

// Check returns what would show that what the source knows is still true: a batch that
// was lost as the last one, or a restart without a word, is noticed so.
func (s *Source) Check() ReplayRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seq.consistencyCheck()
}

// ApplyLive applies a published message. With a request, it is to be offered again after the
// replay.
func (s *Source) ApplyLive(m Message) ReplayRequest {
	s.mu.Lock()
	request := s.applyLiveLocked(m)
	s.mu.Unlock()
	s.index.trimWhenFull()
	return request
}

func (s *Source) applyLiveLocked(m Message) ReplayRequest {
	if s.closed {
		return ReplayRequest{}
	}
	this := stampOf(m)
	known := s.seq.last
	do, request := s.seq.classify(this, m.Publisher)
	ahead := known.known && this.seq > known.seq+1
	switch {
	case do == ignore:
		s.counts.Duplicates++
	case ahead && s.seq.requests <= 1:
		s.counts.Gaps++
	}
	switch {
	case do != reset && do != resetOnly:
	case ahead:
		s.resetLocked(ResetGap)
	default:
		s.restartLocked()
	}
	if !request.Needed() {
		if do != ignore {
			if seconds, ok := s.applyLocked(m, this); ok {
				s.counts.recordLag(seconds, time.Now())
			}
		}
		s.seq.recordSeen(this)
	}
	return request
}

// applyLocked applies a message that is the next in order. One that cannot be read takes
// all knowledge with it, since it may have reported removals. It returns the time of the message by the engine's clock.
func (s *Source) applyLocked(m Message, this stamp) (seconds float64, ok bool) {
	defer s.seq.recordApplied(this)
	s.counts.Bytes += uint64(len(m.Payload))
	defer s.batch.reset()
	if err := s.batch.decode(m.Payload); err != nil {
		s.counts.Unreadable++
		s.resetLocked(ResetUnreadable)
		return 0, false
	}
	s.apply(&s.batch)
	s.counts.LastBatch = time.Now()
	return s.batch.seconds, true
}

// BeginReplay says that the answers to a request will follow.
func (s *Source) BeginReplay(request ReplayRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts.Replays++
	s.seq.begin(request)
}

// ApplyReplayed applies one answer of a replay.
func (s *Source) ApplyReplayed(m Message) {
	s.mu.Lock()
	s.applyReplayedLocked(m)
	s.mu.Unlock()
	s.index.trimWhenFull()
}

func (s *Source) applyReplayedLocked(m Message) {
	if s.closed {
		return
	}
	this := stampOf(m)
	do := s.seq.offerReplayed(this)
	switch do {
	case ignore:
		return
	case resetOnly:
		s.restartLocked()
		return
	case reset:
		why := ResetGap
		if s.seq.replay.request.Reason == Rebuild {
			why = ResetRebuild
		}
		s.resetLocked(why)
	}
	s.applyLocked(m, this)
	s.seq.replay.useful = true
	s.counts.Replayed++
}

// EndReplay says that no more answers will come: the replay is complete, or it broke
// off.
func (s *Source) EndReplay(complete bool) ReplayRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ReplayRequest{}
	}
	if !complete {
		s.counts.ReplaysFailed++
	}
	forget, next := s.seq.finish(complete)
	switch {
	case forget && complete:
		s.restartLocked()
	case forget:
		s.resetLocked(ResetGap)
	}
	return next
}

// RecordGap records that messages are missing which nothing will bring: what is known is void.
func (s *Source) RecordGap() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resetLocked(ResetGap)
}

// Close forgets what the source holds and takes it out of the index.
func (s *Source) Close() {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		s.dropHolders()
		s.recount()
		if s.spec.Store != "" {
			s.model.unshare(s.spec.SourceID)
		}
	}
	s.mu.Unlock()
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	if s.index.sources[s.spec.SourceID] == s {
		delete(s.index.sources, s.spec.SourceID)
	}
}

// restartLocked forgets what another engine process held.
func (s *Source) restartLocked() {
	s.counts.Restarts++
	s.resetLocked(ResetRestart)
	s.epoch = newEpoch(s.epoch)
}

// resetLocked forgets what the engine holds and where in its numbering it is.
func (s *Source) resetLocked(why Reset) {
	if s.closed {
		return
	}
	s.counts.Resets[why]++
	s.forgetBlocks()
	s.seq.forget()
	s.recount()
}

// forgetBlocks forgets what the engine holds, and which groups and block sizes it has.
func (s *Source) forgetBlocks() {
	s.journal.clearAll()
	s.dropHolders()
	if s.spec.BlockTokens > 0 {
		s.holderFor(0, blockForm{blockTokens: s.spec.BlockTokens})
	}
}

func (s *Source) dropHolders() {
	for _, h := range s.holders {
		h.clearAll()
		s.model.leave(h.number)
	}
	s.holders = nil
	if s.spec.Store == "" {
		s.store, s.journal.puts = nil, puts{} // with what it has
	}
}

// recount updates how many blocks the index has now.
func (s *Source) recount() {
	now := s.blocks()
	s.index.blocks.Add(int64(now - s.counted))
	s.counted = now
}

// clear drops all copies in one tier.
func (s *Source) clear(tier Tier) {
	s.journal.clearTier(tier)
	for _, h := range s.holders {
		h.clear(tier)
	}
}

// blocks of all holders.
func (s *Source) blocks() (n int) {
	for _, h := range s.holders {
		n += h.blocks()
	}
	return n
}

func (s *Source) drop(why Drop) { s.counts.Dropped[why]++ }

// newEpoch names a publisher's numbering by when it was first seen.
func newEpoch(last uint64) uint64 { return max(last+1, uint64(time.Now().UnixMilli())) }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// stampOf distinguishes messages of equal number: their times differ, if nothing else.
func stampOf(m Message) stamp {
	sum := uint64(len(m.Payload))<<32 | uint64(crc32.Checksum(m.Payload, castagnoli))
	return stamp{known: true, seq: m.Seq, sum: sum}
}
