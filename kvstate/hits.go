package kvstate

import "github.com/tandem-gateway/tandem/kvstate/cached"

// Hits is what Match found: for each server, how much of the prompt it holds. The zero
// value is ready; used again it allocates nothing. It belongs to one goroutine.
type Hits struct {
	tokens       int
	countGuesses bool
	model        *model
	members      *memberTable
	prefixes     []prefixLengths // by holder
	hashes       []Hash          // those that were made for it, one chain after the other
	chains       []chain         // one for each block size
	runs         []storeRun      // of the stores of the model's servers
	best         [tiers]int      // tokens that the best server holds, by tier
}

// chain is the hashes for one form of blocks: of Hits, or those that are kept beside its tokens.
type chain struct {
	blockForm
	hashes []Hash // are not changed
}

// Held returns what a server holds, nothing for one that is not known; of one that has published
// nothing yet, what the store has that it names. Where several
// ranks of unknown choice share the server, it is what the best of them holds. Where a
// rank has several KV groups, it is what all of them hold.
func (h *Hits) Held(server string) cached.Tokens {
	if h.members == nil {
		return cached.Tokens{}
	}
	if ranks := h.members.servers[server]; len(ranks) > 0 {
		return h.held(ranks)
	}
	return h.sharedWith(server)
}

// HitPosition caches where a server is among the holders of a model, so that asking for
// it again needs no look-up by its name. The zero value is ready.
type HitPosition struct {
	members *memberTable
	ranks   []rank
	only    *held // its one holder; nil where it has several, or none
}

// find makes it the position of a server among some members.
func (at *HitPosition) find(server string, members *memberTable) {
	if at.members != members {
		at.members, at.ranks = members, members.servers[server]
		at.only = onlyHolder(at.ranks)
	}
}

// HeldAt is Held for a server that is asked for again and again, always with one position.
func (h *Hits) HeldAt(server string, at *HitPosition) cached.Tokens {
	if h.members == nil {
		return cached.Tokens{}
	}
	at.find(server, h.members)
	switch {
	case at.only != nil:
		return h.heldByOne(at.only)
	case len(at.ranks) > 0:
		return h.held(at.ranks)
	}
	return h.sharedWith(server)
}

// onlyHolder is the holder of ranks that have one, as most servers do; nil where there are
// several, or none.
func onlyHolder(ranks []rank) *held {
	if len(ranks) != 1 || len(ranks[0].groups) != 1 || len(ranks[0].groups[0].holders) != 1 {
		return nil
	}
	return &ranks[0].groups[0].holders[0]
}

func (h *Hits) held(ranks []rank) cached.Tokens {
	var best found
	for i := range ranks {
		all := found{h.tokens, h.tokens, h.tokens, h.tokens}
		for j := range ranks[i].groups {
			all = all.least(h.heldBy(ranks[i].groups[j].holders))
		}
		best = best.most(all)
	}
	return h.counted(best)
}

// found is how many leading tokens are on the GPU, there or in CPU memory, in any tier, and on
// the GPU if what was guessed is true.
type found struct{ gpu, cpu, disk, guessed int }

func (f found) most(o found) found {
	return found{max(f.gpu, o.gpu), max(f.cpu, o.cpu), max(f.disk, o.disk), max(f.guessed, o.guessed)}
}

func (f found) least(o found) found {
	return found{min(f.gpu, o.gpu), min(f.cpu, o.cpu), min(f.disk, o.disk), min(f.guessed, o.guessed)}
}

// counted is what was found with the guesses, if those count.
func (h *Hits) counted(best found) cached.Tokens {
	if !h.countGuesses || best.guessed <= best.gpu {
		return cached.Tokens{GPU: best.gpu, CPU: best.cpu, Disk: best.disk}
	}
	n := best.guessed
	return cached.Tokens{GPU: n, CPU: max(best.cpu, n), Disk: max(best.disk, n), Pending: n - best.gpu}
}

// heldBy is the most that one of some holders has.
func (h *Hits) heldBy(holders []held) (best found) {
	for i := range holders {
		best = best.most(h.prefix(&holders[i]))
	}
	return best
}

// heldByOne is held for the ranks of one holder.
func (h *Hits) heldByOne(holder *held) cached.Tokens {
	return h.counted(h.prefix(holder).least(found{h.tokens, h.tokens, h.tokens, h.tokens}))
}

// prefix is what a holder has, in tokens.
func (h *Hits) prefix(holder *held) found {
	r, n := &h.prefixes[holder.number], holder.blockTokens
	has := found{gpu: int(r[GPU]) * n, cpu: int(r[CPU]) * n, disk: int(r[Disk]) * n, guessed: int(r[guessed]) * n}
	if st := holder.store; st != nil {
		stored := h.withStore(holder, int(r[st.tier])) * n
		if has.disk = max(has.disk, stored); st.tier == CPU {
			has.cpu = max(has.cpu, stored)
		}
	}
	return has
}

// Chain is the hashes of a prompt's whole blocks, for servers with one block size.
type Chain struct {
	BlockTokens int
	Lookahead   int // tokens behind a block that its hash covers besides
	Hashes      []Hash
}

// Chains returns the hashes that the match was made with: what another replica with
// the same Secret needs to make it again, by MatchChains. They are not to be changed, and
// are h's until it is used again.
func (h *Hits) Chains() []Chain {
	all := make([]Chain, len(h.chains))
	for i, c := range h.chains {
		all[i] = Chain{c.blockTokens, c.lookahead, c.hashes}
	}
	return all
}

// Chain is that of Chains with the smallest blocks, of those with hashes: always the same one as long as servers have the
// same. Without hashes where there is none.
func (h *Hits) Chain() (smallest Chain) {
	for _, c := range h.chains {
		isFirst := len(smallest.Hashes) == 0 || c.blockTokens < smallest.BlockTokens ||
			c.blockTokens == smallest.BlockTokens && c.lookahead < smallest.Lookahead
		if len(c.hashes) > 0 && isFirst {
			smallest = Chain{c.blockTokens, c.lookahead, c.hashes}
		}
	}
	return smallest
}

// Knows reports whether a server has said what it holds.
func (h *Hits) Knows(server string) bool {
	return h.members != nil && len(h.members.servers[server]) > 0
}

// reset forgets the last match and keeps the memory.
func (h *Hits) reset(tokens int, countGuesses bool) {
	*h = Hits{tokens: tokens, countGuesses: countGuesses, prefixes: h.prefixes[:0], hashes: h.hashes[:0], chains: h.chains[:0], runs: h.runs[:0]}
}

// Extends reports whether another prompt, of which that server holds or will hold all, has
// more of h's beginning than h was found to have there. It is asked of many prompts, with one position.
func (h *Hits) Extends(server string, at *HitPosition, by *Hits) bool {
	if h.model == nil || h.model != by.model || h.members == nil {
		return false
	}
	at.find(server, h.members)
	for _, rank := range at.ranks {
		for _, group := range rank.groups {
			for i := range group.holders {
				if h.extends(&group.holders[i], by) {
					return true
				}
			}
		}
	}
	return false
}

func (h *Hits) extends(at *held, by *Hits) bool {
	has := int(h.prefixes[at.number][GPU])
	if h.countGuesses {
		has = max(has, int(h.prefixes[at.number][guessed]))
	}
	mine, theirs := h.chainOf(at.blockForm), by.chainOf(at.blockForm)
	// A block's hash is that of all the tokens up to its end.
	return has < len(mine) && has < len(theirs) && mine[has] == theirs[has]
}

// chainOf is the hashes for one form of blocks, nil if there is none.
func (h *Hits) chainOf(form blockForm) []Hash {
	for _, c := range h.chains {
		if c.blockForm == form {
			return c.hashes
		}
	}
	return nil
}
