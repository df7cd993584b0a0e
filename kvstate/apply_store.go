package kvstate

// isInStore reports whether an event is about a store outside the engine, and not about the
// engine's own memory or disk: where it says so; where the medium is "cpu", as vLLM's
// MooncakeStoreConnector (0.32, 0.33: mooncake/store/worker.py) and LMCache (v1/cache_engine.py) write it,
// which say what they put and never what is forgotten (an engine's own memory is "CPU"); and what a
// server that names its store has on a disk that it does not call local.
func (s *Source) isInStore(e *event, tier Tier) bool {
	switch {
	case tier == GPU || e.local:
		return false
	case e.remote || string(e.medium) == "cpu":
		return true
	}
	return s.spec.Store != "" && tier == Disk
}

// applyPut notes blocks that the engine has put into a store. Most are on its GPU, or were, so they
// are known by the engine's hash, with their salt and adapter, which events of stores leave out. The
// others are noted as nodes that are held nowhere, for those that follow them.
func (s *Source) applyPut(e *event, tier Tier) {
	if len(e.tokens) == 0 {
		s.putKnown(e, tier)
		return
	}
	h := s.holderOfTokens(e)
	if h == nil {
		return
	}
	parent, own := uint32(0), s.root(e)
	if e.hasParent {
		parent = h.find(e.parent)
		own = h.nodes.node(parent).own
	}
	extra, covered := e.extraKeys(s.seed, !e.hasParent), e.covered()
	for i, engine := range e.hashes {
		key, err := extra.next()
		if err != nil {
			s.drop(DropMalformed)
			return
		}
		node := h.find(engine)
		if node == 0 {
			if e.hasParent && parent == 0 {
				s.drop(DropParent)
				return
			}
			own = s.seed.Block(own, covered[i*e.blockTokens:(i+1)*e.blockTokens], key)
			if node, _ = h.store(parent, engine, own, nowhere, s.age); node == 0 {
				s.drop(DropFull)
				return
			}
			s.journal.begin(h, nowhere, parent != 0, h.nodes.node(parent).engine)
			s.journal.block(engine, own)
			s.journal.end()
		}
		parent, own = node, h.nodes.node(node).own
		s.putOne(own, tier)
	}
}

// putKnown is applyPut for an event without tokens.
func (s *Source) putKnown(e *event, tier Tier) {
	for _, engine := range e.hashes {
		h, i := s.holderOf(e, engine)
		if h == nil {
			s.drop(DropOffload)
			continue
		}
		s.putOne(h.nodes.node(i).own, tier)
	}
}

// putOne notes a block in the source's store.
func (s *Source) putOne(own Hash, tier Tier) {
	s.storeIn(tier).believe(own)
	s.journal.put(own, tier, true)
	s.counts.Stored++
}

// storeIn returns the source's store: one of its own, in the tier of the first block, where none is
// named.
func (s *Source) storeIn(tier Tier) *store {
	if s.store == nil {
		s.store = newStore(tier, &s.index.cfg)
		for _, h := range s.holders {
			s.model.useStore(h.number, s.store)
		}
	}
	return s.store
}

// applyForgotten notes blocks that the store has dropped, where one says so.
func (s *Source) applyForgotten(e *event) {
	for _, engine := range e.hashes {
		h, i := s.holderOf(e, engine)
		if h == nil || s.store == nil {
			s.drop(DropRemoval)
			continue
		}
		own := h.nodes.node(i).own
		s.store.disbelieve(own)
		s.journal.put(own, s.store.tier, false)
		s.counts.Removed++
	}
}
