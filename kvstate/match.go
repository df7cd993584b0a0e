package kvstate

import (
	"math/bits"
	"slices"
	"sync/atomic"
)

// search finds how much of one chain the 64 holders of a word have.
//
// A holder's blocks of a chain are a run in the index of the GPU, then one in that of the
// CPU, then one in that of the disk, each perhaps empty (see tierIndex). So it is enough
// to look where a run may end: ahead in steps that double while no run ends, then by
// halves between the last two looks for those that did. Holders that end together cost
// as much as one.
type search struct {
	tiers    [tiers + 1]*tierIndex // by tier, then the guesses; nil: nothing was ever put there
	chain    []Hash
	word     int
	prefixes []prefixLengths // of the word's holders
	longest  prefixLengths   // of all words
}

// prefixLengths are where a holder's leading runs end, in blocks: up to the end of each tier,
// and up to the end of the guesses behind the GPU.
type prefixLengths [tiers + 1]uint32

const guessed = tiers

// firstStep is how far the first jump behind the first block goes, in blocks.
const firstStep = 16

// gallop finds the ends of the runs in one tier index: all of the set have the blocks before
// lo.
func (s *search) gallop(tier Tier, lo int, set uint64) {
	for step := 1; set != 0 && lo < len(s.chain); step = max(2*step, firstStep) {
		look := min(lo+step, len(s.chain)) - 1
		kept := set & s.bits(tier, look)
		if gone := set &^ kept; gone != 0 {
			s.bisect(tier, lo, look, gone)
		}
		set = kept
		lo = look + 1
	}
	if set != 0 {
		s.end(tier, len(s.chain), set)
	}
}

// bisect finds ends in [lo, hi]: all of the set have the blocks before lo, and none has
// block hi.
func (s *search) bisect(tier Tier, lo, hi int, set uint64) {
	for lo < hi {
		middle := (lo + hi) / 2
		kept := set & s.bits(tier, middle)
		switch kept {
		case set:
			lo = middle + 1
		case 0:
			hi = middle
		default:
			s.bisect(tier, lo, middle, set&^kept)
			lo, set = middle+1, kept
		}
	}
	s.end(tier, lo, set)
}

// end notes that the runs of a tier end before a block, and goes on from there with the
// slower tiers, and behind the GPU with the guesses.
func (s *search) end(tier Tier, at int, set uint64) {
	if tier == guessed {
		s.recordEnd(guessed, at, set)
		return
	}
	if at > 0 {
		s.recordEnd(tier, at, set)
	}
	for next := tier + 1; next < tiers; next++ {
		if s.tiers[next] != nil {
			s.gallop(next, at, set)
			break
		}
	}
	if tier == GPU && s.tiers[guessed] != nil {
		s.gallop(guessed, at, set)
	}
}

// recordEnd writes an end down for a tier and all slower ones.
func (s *search) recordEnd(tier Tier, at int, set uint64) {
	s.longest[tier] = max(s.longest[tier], uint32(at))
	for ; set != 0; set &= set - 1 {
		r := &s.prefixes[bits.TrailingZeros64(set)]
		for t := tier; t < guessed; t++ {
			r[t] = uint32(at)
		}
		if tier == GPU || tier == guessed {
			r[guessed] = uint32(at)
		}
	}
}

func (s *search) bits(tier Tier, block int) uint64 {
	return s.tiers[tier].word(s.chain[block], s.word)
}

// match fills h for a prompt.
func (m *model) match(p *Prompt, seed *Seed, h *Hits) {
	view := m.view.Load()
	for i := range view.sizes {
		h.addChain(p, seed, view.sizes[i].blockForm)
	}
	m.matchChains(view, h)
}

// addChain adds the hashes of a prompt for one form of blocks.
func (h *Hits) addChain(p *Prompt, seed *Seed, form blockForm) {
	if p.Hashed != nil && len(p.Media) == 0 {
		h.chains = append(h.chains, chain{form, p.Hashed.chain(p, seed, form)})
		return
	}
	from := len(h.hashes)
	h.hashes = p.appendChain(h.hashes, seed, form)
	h.chains = append(h.chains, chain{form, h.hashes[from:]})
}

// matchChains fills h from its chains, one for each block size of the view.
func (m *model) matchChains(view *memberTable, h *Hits) {
	h.members = view
	h.prefixes = slices.Grow(h.prefixes[:0], view.words*64)[:view.words*64]
	clear(h.prefixes)
	s := search{tiers: [...]*tierIndex{
		GPU: m.tiers[GPU], CPU: m.tiers[CPU].ifUsed(), Disk: m.tiers[Disk].ifUsed(), guessed: m.guesses.index.ifUsed(),
	}}
	h.runs = h.runs[:0]
	for i, c := range h.chains {
		s.chain, s.longest = c.hashes, prefixLengths{}
		s.matchSize(&view.sizes[i], h)
		for t, longest := range s.longest[:tiers] {
			h.best[t] = max(h.best[t], int(longest)*c.blockTokens)
			if t > 0 {
				h.best[t] = max(h.best[t], h.best[t-1])
			}
		}
		for _, st := range view.stores {
			run := storeRun{store: st, blockForm: c.blockForm, end: st.end(s.chain, 0)}
			h.runs = append(h.runs, run)
			for t := st.tier; t < tiers; t++ {
				h.best[t] = max(h.best[t], run.end*c.blockTokens)
			}
		}
	}
}

// matchSize runs the search for the holders of one block size. The first block is
// looked up once for all of them: mostly few have it.
func (s *search) matchSize(size *blockSize, h *Hits) {
	if len(s.chain) == 0 {
		return
	}
	t, at := s.tiers[GPU].find(s.chain[0])
	slow := s.tiers[CPU] != nil || s.tiers[Disk] != nil || s.tiers[guessed] != nil
	for word, holders := range size.holders {
		s.word, s.prefixes = word, h.prefixes[word*64:]
		on := uint64(0)
		if t != nil && uint64(word) < t.stride-1 {
			on = holders & atomic.LoadUint64(&t.words[at+uint64(word)])
		}
		if on != 0 {
			s.gallop(GPU, 1, on)
		}
		if off := holders &^ on; slow && off != 0 {
			s.end(GPU, 0, off)
		}
	}
}
