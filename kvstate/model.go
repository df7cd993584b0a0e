package kvstate

import (
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
)

// model is the index of one model: its tier indexes, and which holders they have bits for.
type model struct {
	name    string
	tiers   [tiers]*tierIndex
	guesses *guesses
	counts  modelCounts

	view atomic.Pointer[memberTable]

	mu      sync.Mutex // guards the members, and orders changes of view
	members []*member  // by number; nil: free
}

// member is a holder as the model knows it.
type member struct {
	server      string
	rank        int
	group       int
	blockTokens int
}

func newModel(name string, cfg *Config) *model {
	m := &model{name: name, guesses: newGuesses(cfg)}
	for t := range m.tiers {
		m.tiers[t] = newTierIndex()
	}
	m.view.Store(&memberTable{})
	return m
}

// join gives a holder the lowest free number.
func (m *model) join(new member) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	number := slices.Index(m.members, nil)
	if number < 0 {
		number = len(m.members)
		m.members = append(m.members, nil)
		for _, s := range m.tiers {
			s.widen(len(m.members))
		}
		m.guesses.index.widen(len(m.members))
	}
	m.members[number] = &new
	m.view.Store(newMemberTable(m.members))
	return number
}

// leave gives a number back. Nothing of it is left in the tier indexes.
func (m *model) leave(number int) {
	m.guesses.forget(number)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.members[number] = nil
	m.view.Store(newMemberTable(m.members))
}

// memberTable is an immutable view of the holders of a model.
type memberTable struct {
	words   int // of 64 holders
	sizes   []blockSize
	servers map[string][]rank
}

// blockSize is one block size and the holders that use it.
type blockSize struct {
	tokens  int
	holders []uint64
}

// rank is the holders of one data-parallel rank, by KV cache group. A group has more
// than one where a connector keeps other blocks than the engine.
type rank struct {
	number int
	groups []group
}

type group struct {
	number  int
	holders []held
}

// held is a holder and its block size.
type held struct {
	number      int
	blockTokens int
}

func newMemberTable(members []*member) *memberTable {
	r := &memberTable{words: (len(members) + 63) / 64, servers: map[string][]rank{}}
	for number, m := range members {
		if m == nil {
			continue
		}
		size := slices.IndexFunc(r.sizes, func(s blockSize) bool { return s.tokens == m.blockTokens })
		if size < 0 {
			size = len(r.sizes)
			r.sizes = append(r.sizes, blockSize{m.blockTokens, make([]uint64, r.words)})
		}
		r.sizes[size].holders[number/64] |= 1 << (number % 64)

		r.servers[m.server] = addTo(r.servers[m.server], m, held{number, m.blockTokens})
	}
	return r
}

// addTo adds a holder to its rank and group.
func addTo(ranks []rank, m *member, new held) []rank {
	at := slices.IndexFunc(ranks, func(k rank) bool { return k.number == m.rank })
	if at < 0 {
		at = len(ranks)
		ranks = append(ranks, rank{number: m.rank})
	}
	groups := &ranks[at].groups
	in := slices.IndexFunc(*groups, func(g group) bool { return g.number == m.group })
	if in < 0 {
		in = len(*groups)
		*groups = append(*groups, group{number: m.group})
	}
	(*groups)[in].holders = append((*groups)[in].holders, new)
	return ranks
}

// each visits the holders in a word.
func eachBit(word int, set uint64, visit func(number int)) {
	for ; set != 0; set &= set - 1 {
		visit(word*64 + bits.TrailingZeros64(set))
	}
}
