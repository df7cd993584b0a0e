package kvstate

import (
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

	mu      sync.Mutex // guards what follows, and orders changes of view
	members []*member  // by number; nil: free
	stores  map[string]*store
	sharing map[SourceID]*store // of the sources that name one
}

// member is a holder as the model knows it.
type member struct {
	server string
	rank   int
	group  int
	blockForm
	store *store // nil: none
}

func newModel(name string, cfg *Config) *model {
	m := &model{name: name, guesses: newGuesses(cfg), stores: map[string]*store{}, sharing: map[SourceID]*store{}}
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
	m.publishLocked()
	return number
}

// share returns the store of a name, which the source's server counts on from now on, also before
// it has published anything. To load from it is as to load from a disk.
func (m *model) share(name string, by SourceID, cfg *Config) *store {
	m.mu.Lock()
	defer m.mu.Unlock()
	st := m.stores[name]
	if st == nil {
		st = newStore(Disk, cfg)
		m.stores[name] = st
	}
	m.sharing[by] = st
	m.publishLocked()
	return st
}

// storeSizes is what is believed to be in each store, nil without one.
func (m *model) storeSizes() map[string]TierState {
	m.mu.Lock()
	defer m.mu.Unlock()
	var sizes map[string]TierState
	for name, st := range m.stores {
		if sizes == nil {
			sizes = map[string]TierState{}
		}
		blocks, bytes := st.index.size()
		sizes[name] = TierState{Blocks: blocks, Bytes: bytes}
	}
	return sizes
}

// unshare ends share.
func (m *model) unshare(by SourceID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.sharing, by)
	m.publishLocked()
}

// publishLocked makes a new view of what is known of the holders.
func (m *model) publishLocked() { m.view.Store(newMemberTable(m.members, m.sharing)) }

// useStore gives a holder a store after it has joined.
func (m *model) useStore(number int, st *store) {
	m.mu.Lock()
	defer m.mu.Unlock()
	using := *m.members[number]
	using.store = st
	m.members[number] = &using
	m.publishLocked()
}

// leave gives a number back. Nothing of it is left in the tier indexes.
func (m *model) leave(number int) {
	m.guesses.forget(number)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.members[number] = nil
	m.publishLocked()
}

// memberTable is an immutable view of the holders of a model.
type memberTable struct {
	words   int // of 64 holders
	sizes   []blockSize
	servers map[string][]rank
	stores  []*store
	sharing map[string]*store // by server
}

// blockSize is one form of blocks and the holders that use it.
type blockSize struct {
	blockForm
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

// held is a holder and the form of its blocks.
type held struct {
	number int
	blockForm
	store *store
}

func newMemberTable(members []*member, sharing map[SourceID]*store) *memberTable {
	r := &memberTable{words: (len(members) + 63) / 64, servers: map[string][]rank{}, sharing: map[string]*store{}}
	for id, st := range sharing {
		r.sharing[id.Server] = st
		r.addStore(st)
	}
	for number, m := range members {
		if m == nil {
			continue
		}
		size := slices.IndexFunc(r.sizes, func(s blockSize) bool { return s.blockForm == m.blockForm })
		if size < 0 {
			size = len(r.sizes)
			r.sizes = append(r.sizes, blockSize{m.blockForm, make([]uint64, r.words)})
		}
		r.sizes[size].holders[number/64] |= 1 << (number % 64)

		r.servers[m.server] = addTo(r.servers[m.server], m, held{number, m.blockForm, m.store})
		if m.store != nil {
			r.addStore(m.store)
		}
	}
	return r
}

func (r *memberTable) addStore(st *store) {
	if !slices.Contains(r.stores, st) {
		r.stores = append(r.stores, st)
	}
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
