package kvstate

import "slices"

// maxHolders bounds the KV cache groups and block sizes that a source may have.
const maxHolders = 8

// apply carries out a decoded batch.
func (s *Source) apply(b *batch) {
	s.age = s.index.age.now()
	confirmed := s.counts.Stored
	for i := range b.events {
		e := &b.events[i]
		switch e.kind {
		case blockStored:
			s.applyStored(e)
		case blockRemoved:
			s.applyRemoved(e)
		case allBlocksCleared:
			s.clear(GPU)
			s.counts.Cleared++
		}
	}
	s.counts.Batches++
	s.counts.Events += uint64(len(b.events) + b.odd)
	s.counts.Dropped[DropUnknown] += uint64(b.odd)
	s.index.age.confirm(int(s.counts.Stored - confirmed))
	s.recount()
}

// reusable reports whether a block of the event's group means that a prefix can be
// reused. Blocks of sliding windows and of state spaces do not; those of full attention with sinks, which lie in
// blocks of their own, do (vLLM 0.33 v1/kv_cache_interface.py, KVCacheSpecKind). Where the engine does
// not say, the first group is taken, and those that were of that group before.
func (s *Source) reusable(e *event) bool {
	switch string(e.spec) {
	case "full_attention", "mla_attention", "sink_full_attention":
		return true
	case "":
		return e.group == 0 || s.hasGroup(e.group)
	}
	return false
}

// fillsBlocks reports whether the event has as many tokens as its blocks take.
func (e *event) fillsBlocks() bool {
	return e.blockTokens > 0 && len(e.tokens)/e.blockTokens == len(e.hashes) && len(e.tokens)%e.blockTokens == 0 &&
		len(e.lookahead) <= min(maxLookahead, e.blockTokens)
}

func (s *Source) applyStored(e *event) {
	tier, known := tierOf(e.medium)
	switch {
	case !known:
		s.drop(DropTier)
		return
	case !s.reusable(e):
		s.drop(DropGroup)
		return
	case s.isInStore(e, tier):
		s.applyPut(e, tier)
		return
	case len(e.tokens) == 0:
		s.applyOffload(e, tier)
		return
	}
	h := s.holderOfTokens(e)
	if h == nil {
		return
	}
	parent, own := uint32(0), Hash(0)
	if e.hasParent {
		if parent = h.find(e.parent); parent == 0 {
			s.drop(DropParent)
			return
		}
		own = h.nodes.node(parent).own
	} else {
		own = s.root(e)
	}
	s.storeRun(e, h, tier, parent, own)
}

// storeRun stores the blocks of an event, each the parent of the next.
func (s *Source) storeRun(e *event, h *holder, tier Tier, parent uint32, own Hash) {
	extra, covered := e.extraKeys(s.seed, !e.hasParent), e.covered()
	s.owns = s.owns[:0]
	for i := range e.hashes {
		key, err := extra.next()
		if err != nil {
			s.drop(DropMalformed)
			return
		}
		own = s.seed.Block(own, covered[i*e.blockTokens:(i+1)*e.blockTokens], key)
		s.owns = append(s.owns, own)
	}
	s.sink = h.warm(e.hashes, s.owns)
	s.journal.begin(h, tier, e.hasParent, e.parent)
	defer s.journal.end()
	for i, engine := range e.hashes {
		node, outcome := h.store(parent, engine, s.owns[i], tier, s.age)
		switch outcome {
		case isOther:
			s.drop(DropConflict)
			return
		case isFull:
			s.drop(DropFull)
			return
		}
		s.journal.block(engine, s.owns[i])
		parent = node
		s.counts.Stored++
	}
}

// applyOffload notes copies of blocks whose tokens were reported before. Where several
// blocks are offloaded as one, only the last is reported, and nothing is noted.
func (s *Source) applyOffload(e *event, tier Tier) {
	for _, engine := range e.hashes {
		h, i := s.holderOf(e, engine)
		if h == nil {
			s.drop(DropOffload)
			continue
		}
		s.journal.copy(opHold, h, tier, engine)
		h.nodes.node(i).setAge(s.age)
		h.hold(i, tier)
		s.counts.Stored++
	}
	s.journal.end()
}

func (s *Source) applyRemoved(e *event) {
	tier, known := tierOf(e.medium)
	if !known {
		s.drop(DropTier)
		return
	}
	if e.groupKnown && !s.hasGroup(e.group) {
		s.drop(DropGroup)
		return
	}
	if s.isInStore(e, tier) {
		s.applyForgotten(e)
		return
	}
	for _, engine := range e.hashes {
		h, i := s.holderOf(e, engine)
		if h == nil || !h.release(i, tier) {
			s.drop(DropRemoval)
			continue
		}
		s.journal.copy(opRelease, h, tier, engine)
		s.counts.Removed++
	}
	s.journal.end()
}

func (s *Source) hasGroup(group int) bool {
	return slices.ContainsFunc(s.holders, func(h *holder) bool { return h.group == group })
}

// holderOf returns the holder of a block that is reported without its tokens, nil if there
// is none, and the block's node. Engines that report no group mean the only one.
func (s *Source) holderOf(e *event, engine uint64) (*holder, uint32) {
	for _, h := range s.holders {
		if h.group != e.group && (e.groupKnown || len(s.holders) > 1) || e.blockTokens != 0 && e.blockTokens != h.blockTokens {
			continue
		}
		if i := h.find(engine); i != 0 {
			return h, i
		}
	}
	return nil, 0
}

// holderOfTokens returns the holder of blocks that are reported with their tokens; nil, and counted,
// where the event has not as many tokens as its blocks take, or there are too many holders.
func (s *Source) holderOfTokens(e *event) *holder {
	if !e.fillsBlocks() {
		s.drop(DropMalformed)
		return nil
	}
	h := s.holderFor(e.group, e.form())
	if h == nil {
		s.drop(DropGroup)
	}
	return h
}

// holderFor returns the holder of a group with blocks of a form, a new one if need be;
// nil if there are too many. A connector behind the engine may report larger blocks
// than the engine itself.
func (s *Source) holderFor(group int, form blockForm) *holder {
	for _, h := range s.holders {
		if h.group == group && h.blockForm == form {
			return h
		}
	}
	if len(s.holders) == maxHolders {
		return nil
	}
	s.holders = append(s.holders, s.newHolder(group, form))
	return s.holders[len(s.holders)-1]
}

func (s *Source) newHolder(group int, form blockForm) *holder {
	number := s.model.join(member{
		server: s.spec.Server, rank: s.spec.Rank, group: group, blockForm: form, store: s.store,
	})
	return newHolder(group, form, number, &s.model.tiers, s.seed.place)
}
