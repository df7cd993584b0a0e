package kvstate

import "iter"

// Hits is what Match found: for each server, how much of the prompt it holds. The zero
// value is ready; used again it allocates nothing. It belongs to one goroutine.
type Hits struct {
	tokens       int
	countGuesses bool
	model        *model
	roster       *roster
	prefixes     []prefixLengths // by holder
	hashes       []Hash          // all chains, one after the other
	chains       []chain         // one for each block size
	best         [tiers]int      // tokens that the best server holds, by tier
}

// chain is the hashes from..to of Hits for one block size.
type chain struct{ blockTokens, from, to int }

// Held is how many leading tokens of a prompt a server holds. Slower tiers include the
// faster ones: CPU is the longest prefix of which every block is on the GPU or in CPU
// memory. Guessed counts, behind those on the GPU, blocks that the server was sent
// lately and has not confirmed.
type Held struct {
	GPU, CPU, Disk int
	Guessed        int
}

// In returns the tokens held in a tier and those faster.
func (h Held) In(t Tier) int {
	switch t {
	case GPU:
		return h.GPU
	case CPU:
		return h.CPU
	}
	return h.Disk
}

// Held returns what a server holds, nothing for one that is not known. Where several
// ranks of unknown choice share the server, it is what the best of them holds. Where a
// rank has several KV groups, it is what all of them hold.
func (h *Hits) Held(server string) Held {
	if h.roster == nil {
		return Held{}
	}
	return h.held(h.roster.servers[server])
}

// Spot remembers where a server stands among the holders of a model, so that asking for
// it again needs no look-up by its name. The zero value is ready.
type Spot struct {
	of    *roster
	ranks []rank
	only  *held // its one holder; nil where it has several, or none
}

// HeldAt is Held for a server that is asked for again and again, always with one spot.
func (h *Hits) HeldAt(server string, at *Spot) Held {
	if h.roster == nil {
		return Held{}
	}
	if at.of != h.roster {
		at.of, at.ranks = h.roster, h.roster.servers[server]
		at.only = onlyHolder(at.ranks)
	}
	if at.only != nil {
		return h.heldByOne(at.only)
	}
	return h.held(at.ranks)
}

// onlyHolder is the holder of ranks that have one, as most servers do; nil where there are
// several, or none.
func onlyHolder(ranks []rank) *held {
	if len(ranks) != 1 || len(ranks[0].groups) != 1 || len(ranks[0].groups[0].holders) != 1 {
		return nil
	}
	return &ranks[0].groups[0].holders[0]
}

// Tokens is Held(server).In(tier).
func (h *Hits) Tokens(server string, tier Tier) int { return h.Held(server).In(tier) }

// All returns every known server of the prompt's model, in no order.
func (h *Hits) All() iter.Seq2[string, Held] {
	return func(yield func(string, Held) bool) {
		if h.roster == nil {
			return
		}
		for server, ranks := range h.roster.servers {
			if !yield(server, h.held(ranks)) {
				return
			}
		}
	}
}

func (h *Hits) held(ranks []rank) Held {
	var best Held
	for i := range ranks {
		all := Held{GPU: h.tokens, CPU: h.tokens, Disk: h.tokens, Guessed: h.tokens}
		for j := range ranks[i].groups {
			all = all.least(h.heldBy(ranks[i].groups[j].holders))
		}
		best = best.most(all)
	}
	return h.counted(best)
}

// counted is what is held with the guesses, if those count.
func (h *Hits) counted(best Held) Held {
	if h.countGuesses {
		best.GPU = max(best.GPU, best.Guessed)
		best.CPU, best.Disk = max(best.CPU, best.GPU), max(best.Disk, best.GPU)
	}
	return best
}

// heldBy is the most that one of some holders has.
func (h *Hits) heldBy(holders []held) (best Held) {
	for i := range holders {
		best = best.most(h.prefix(&holders[i]))
	}
	return best
}

// heldByOne is held for the ranks of one holder.
func (h *Hits) heldByOne(holder *held) Held {
	has, all := h.prefix(holder), h.tokens
	return h.counted(Held{min(has.GPU, all), min(has.CPU, all), min(has.Disk, all), min(has.Guessed, all)})
}

// prefix is what a holder has, in tokens.
func (h *Hits) prefix(holder *held) Held {
	r, n := &h.prefixes[holder.number], holder.blockTokens
	return Held{GPU: int(r[GPU]) * n, CPU: int(r[CPU]) * n, Disk: int(r[Disk]) * n, Guessed: int(r[guessed]) * n}
}

func (h Held) most(o Held) Held {
	return Held{max(h.GPU, o.GPU), max(h.CPU, o.CPU), max(h.Disk, o.Disk), max(h.Guessed, o.Guessed)}
}

func (h Held) least(o Held) Held {
	return Held{min(h.GPU, o.GPU), min(h.CPU, o.CPU), min(h.Disk, o.Disk), min(h.Guessed, o.Guessed)}
}

// Chain is the hashes of a prompt's whole blocks, for servers with one block size.
type Chain struct {
	BlockTokens int
	Hashes      []Hash
}

// Chains returns the hashes that the match was made with: what another replica with
// the same Secret needs to make it again, by MatchChains. They are h's own, until it
// is used again.
func (h *Hits) Chains() []Chain {
	all := make([]Chain, len(h.chains))
	for i, c := range h.chains {
		all[i] = Chain{c.blockTokens, h.hashes[c.from:c.to]}
	}
	return all
}

// reset forgets the last match and keeps the memory.
func (h *Hits) reset(tokens int, countGuesses bool) {
	*h = Hits{tokens: tokens, countGuesses: countGuesses, prefixes: h.prefixes[:0], hashes: h.hashes[:0], chains: h.chains[:0]}
}
