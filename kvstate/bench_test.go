package kvstate

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
)

// eachBit visits the numbers that are set in a word.
func eachBit(word int, set uint64, visit func(number int)) {
	for ; set != 0; set &= set - 1 {
		visit(word*64 + bits.TrailingZeros64(set))
	}
}

// fleet is an index of servers that were told blocks directly, for benchmarks.
type fleet struct {
	ix      *Index
	sources []*Source
}

func newFleet(tb testing.TB, servers int) *fleet {
	tb.Helper()
	cfg := Default()
	cfg.MaxBlocks = 1 << 30
	ix, err := New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	f := &fleet{ix: ix}
	for i := range servers {
		s, err := ix.Open(Spec{SourceID: SourceID{Server: fmt.Sprint("s", i)}, Model: "m", BlockTokens: 16})
		if err != nil {
			tb.Fatal(err)
		}
		f.sources = append(f.sources, s)
	}
	return f
}

// hold makes a server hold the first blocks of a chain.
func (f *fleet) hold(server int, chain []Hash) {
	h := f.sources[server].holders[0]
	parent := uint32(0)
	for _, own := range chain {
		parent, _ = h.store(parent, uint64(own), own, GPU, 0)
	}
}

// fill adds blocks that are in no prompt, in chains of 250.
func (f *fleet) fill(blocks int) {
	r := rand.New(rand.NewPCG(7, 7))
	chain := make([]Hash, 250)
	for n := 0; n < blocks; n += len(chain) {
		for i := range chain {
			chain[i] = Hash(r.Uint64() | 1)
		}
		f.hold(n/len(chain)%len(f.sources), chain)
	}
}

// lengths is how much of a prompt of n blocks the servers hold. "usual": all share a
// system prompt of n/16, one in eight has seen earlier turns, of different lengths, and
// one the whole. "all different": no two hold the same.
func lengths(pattern string, servers, n int) []int {
	l := make([]int, servers)
	for i := range l {
		switch {
		case pattern == "all different":
			l[i] = n * (i + 1) / servers
		case i == 0:
			l[i] = n
		case i%8 == 0:
			l[i] = n/4 + n*i/(2*servers)
		default:
			l[i] = n / 16
		}
	}
	return l
}

// goMap is the plain answer: a sharded map from hashes to sets of servers.
type goMap struct {
	shards [64]struct {
		sync.RWMutex
		m map[Hash][]uint64
	}
}

func (g *goMap) put(h Hash, server, width int) {
	s := &g.shards[h>>58]
	s.Lock()
	defer s.Unlock()
	if s.m == nil {
		s.m = map[Hash][]uint64{}
	}
	if s.m[h] == nil {
		s.m[h] = make([]uint64, width)
	}
	s.m[h][server/64] |= 1 << (server % 64)
}

func (g *goMap) match(chain []Hash, alive []uint64, runs []int) {
	for i, h := range chain {
		s := &g.shards[h>>58]
		s.RLock()
		set := s.m[h]
		left := uint64(0)
		for w := range alive {
			if set == nil {
				alive[w] = 0
				continue
			}
			alive[w] &= set[w]
			left |= alive[w]
			eachBit(w, alive[w], func(n int) { runs[n] = i + 1 })
		}
		s.RUnlock()
		if left == 0 {
			return
		}
	}
}

func inBlocksOf16(hashes []Hash) chain { return chain{blockForm{blockTokens: 16}, hashes} }

// BenchmarkMatch: a prompt of 1,000 blocks, hashes given. Budget: 2, 3 and 6 us on 8, 64
// and 256 servers, without allocations. Beside it a sharded Go map.
func BenchmarkMatch(b *testing.B) {
	const n = 1000
	tokens := randomTokens(rand.New(rand.NewPCG(1, 1)), 16*n)
	for _, servers := range []int{8, 64, 256} {
		for _, pattern := range []string{"usual", "all different"} {
			name := fmt.Sprintf("servers=%d/%s", servers, pattern)
			f := newFleet(b, servers)
			m := f.sources[0].model
			chain := f.ix.seed.Load().Chain(nil, f.ix.seed.Load().Root("m", 16, ""), tokens, 16, 0)
			whole := inBlocksOf16(chain)
			plain := &goMap{}
			for i, l := range lengths(pattern, servers, n) {
				f.hold(i, chain[:l])
				for _, h := range chain[:l] {
					plain.put(h, i, (servers+63)/64)
				}
			}
			b.Run(name, func(b *testing.B) {
				var h Hits
				b.ReportAllocs()
				for b.Loop() {
					h.reset(16*n, false)
					h.chains = append(h.chains, whole)
					m.matchChains(m.view.Load(), &h)
				}
				for i, l := range lengths(pattern, servers, n) {
					if got := h.Held(fmt.Sprint("s", i)).GPU; got != 16*l {
						b.Fatalf("server %d: %d tokens, want %d", i, got, 16*l)
					}
				}
			})
			b.Run(name+"/go map", func(b *testing.B) {
				alive, runs := make([]uint64, (servers+63)/64), make([]int, servers)
				for b.Loop() {
					for w := range alive {
						alive[w] = ^uint64(0)
					}
					plain.match(chain, alive, runs)
				}
			})
		}
	}
}

// BenchmarkMatchPrompt: the same from tokens on. Budget: 20 us.
func BenchmarkMatchPrompt(b *testing.B) {
	const n = 1000
	f := newFleet(b, 64)
	tokens := randomTokens(rand.New(rand.NewPCG(1, 1)), 16*n)
	chain := f.ix.seed.Load().Chain(nil, f.ix.seed.Load().Root("m", 16, ""), tokens, 16, 0)
	for i, l := range lengths("usual", 64, n) {
		f.hold(i, chain[:l])
	}
	p := Prompt{Model: "m", Tokens: tokens}
	var h Hits
	b.ReportAllocs()
	for b.Loop() {
		f.ix.Match(&p, &h)
	}
}

// BenchmarkHeld: what the chooser reads for each server after a match. Budget: 50 ns a
// server.
func BenchmarkHeld(b *testing.B) {
	for _, servers := range []int{64, 256} {
		b.Run(fmt.Sprintf("servers=%d", servers), func(b *testing.B) {
			f := newFleet(b, servers)
			var names []string
			for _, s := range f.sources {
				names = append(names, s.ID().Server)
			}
			var h Hits
			f.ix.Match(&Prompt{Model: "m", Tokens: count(0, 1600)}, &h)
			sum := 0
			for b.Loop() {
				for _, name := range names {
					sum += h.Held(name).GPU
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*servers), "ns/server")
		})
	}
}

// BenchmarkMemory reports the bytes of a block that one server holds. Budget: 64 on up
// to 64 servers, 120 on 256.
func BenchmarkMemory(b *testing.B) {
	for _, servers := range []int{64, 256} {
		for _, blocks := range []int{1_000_000, 1_100_000, 1_200_000} {
			b.Run(fmt.Sprintf("servers=%d/blocks=%d", servers, blocks), func(b *testing.B) {
				var before, after runtime.MemStats
				for b.Loop() {
					runtime.GC()
					runtime.ReadMemStats(&before)
					f := newFleet(b, servers)
					f.fill(blocks)
					runtime.GC()
					runtime.ReadMemStats(&after)
					runtime.KeepAlive(f)
				}
				b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(blocks), "B/block")
			})
		}
	}
}
