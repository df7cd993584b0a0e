package kvstate

import "slices"

// trimWhenFull forgets what was confirmed longest ago while there are more blocks than
// configured, down to 15/16 of that. The goroutine that brought the last block does it, without
// holding a source's lock; a second one goes on.
func (ix *Index) trimWhenFull() {
	for ix.blocks.Load() > int64(ix.cfg.MaxBlocks) && ix.trim.TryLock() {
		dropped := ix.trimOnce()
		ix.trim.Unlock()
		if dropped == 0 {
			return
		}
	}
}

// trimOnce drops at least the excess: the oldest generations first, and of a chain its
// tail. Each server keeps half of its share of what is left, so that none can push out all that others hold.
func (ix *Index) trimOnce() (dropped int) {
	most := ix.cfg.MaxBlocks - ix.cfg.MaxBlocks/16
	excess := int(ix.blocks.Load()) - most
	now := ix.age.now()
	sources, held := ix.List(), make(map[string]int) // blocks, by server
	for _, s := range sources {
		held[s.spec.Server] += s.heldBlocks()
	}
	kept := most / max(1, 2*len(held))
	sources = slices.DeleteFunc(sources, func(s *Source) bool { return held[s.spec.Server] <= kept })
	var byAge [ages]int // how many generations ago
	for _, s := range sources {
		s.mu.Lock()
		for _, h := range s.holders {
			h.each(func(_ uint32, n *node) { byAge[(now-n.age())%ages]++ })
		}
		s.mu.Unlock()
	}
	oldest := ages - 1
	for sum := byAge[oldest]; sum < excess && oldest > 0; sum += byAge[oldest] {
		oldest--
	}
	for ; ; oldest /= 2 { // where what is old has younger blocks behind it, these go too
		for _, s := range sources {
			s.mu.Lock()
			for _, h := range s.holders {
				before := h.blocks()
				h.trim(func(n *node) bool { return (now-n.age())%ages >= uint32(oldest) }, min(excess-dropped, held[s.spec.Server]-kept))
				gone := before - h.blocks()
				dropped, held[s.spec.Server] = dropped+gone, held[s.spec.Server]-gone
			}
			s.recount()
			s.mu.Unlock()
		}
		if dropped >= excess || oldest == 0 {
			return dropped
		}
	}
}

// trim drops old blocks from the tails of their chains on, at most so many.
func (h *holder) trim(old func(*node) bool, most int) {
	for i := h.nodes.top - 1; i > 0 && most > 0; i-- {
		for at := i; at != 0 && most > 0; {
			n := h.nodes.node(at)
			if !n.inUse() || n.child != 0 || !old(n) {
				break
			}
			parent := uint32(0)
			if n.prev&firstChild != 0 && n.next == 0 {
				parent = n.prev &^ firstChild
			}
			before := h.blocks()
			for t := GPU; t < tiers; t++ {
				n.setCopies(t, 0)
			}
			h.relevel(at)
			h.prune(at)
			most -= before - h.blocks()
			at = parent
		}
	}
	h.compact()
}
