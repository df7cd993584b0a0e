package kvstate

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// publisher makes the messages of an engine: each stores a run of 16 blocks of a
// conversation of 64 runs, and, once so many messages' worth of blocks are cached, drops
// 16 of the oldest conversation.
type publisher struct {
	payloads [][]byte
	blocks   int // stored by each
}

// newPublisher prepares messages; each is to be offered once, in order.
func newPublisher(r *rand.Rand, messages, cached int, tailsFirst bool) *publisher {
	p := &publisher{blocks: 16}
	var held [][]uint64 // by conversation
	for i := range messages {
		if i%64 == 0 {
			held = append(held, nil)
		}
		last := &held[len(held)-1]
		stored := wireEvent{kind: "BlockStored", tokens: randomTokens(r, 16*16), size: 16, medium: "GPU", spec: "full_attention"}
		if n := len(*last); n > 0 {
			stored.parent = (*last)[n-1]
		}
		for range 16 {
			stored.hashes = append(stored.hashes, r.Uint64())
		}
		*last = append(*last, stored.hashes...)
		events := []wireEvent{stored}
		if i >= cached {
			oldest := held[0]
			gone := slices.Clone(oldest[:16])
			held[0] = oldest[16:]
			if tailsFirst {
				gone = slices.Clone(oldest[len(oldest)-16:])
				slices.Reverse(gone)
				held[0] = oldest[:len(oldest)-16]
			}
			if len(held[0]) == 0 {
				held = held[1:]
			}
			events = append(events, wireEvent{kind: "BlockRemoved", hashes: gone, medium: "GPU"})
		}
		p.payloads = append(p.payloads, wireBatch(wireForm{}, 1e9, events...))
	}
	return p
}

// BenchmarkIngest: decode, hash and insert events of 16 blocks of 16 tokens, on one core.
// Budget: 333 ns a block (3 M blocks/s). "growing": nothing is evicted; "tails first" and
// "heads first": a full cache, for each block stored one is removed.
func BenchmarkIngest(b *testing.B) {
	for _, servers := range []int{64, 256} {
		for _, mode := range []string{"growing", "tails first", "heads first"} {
			b.Run(fmt.Sprintf("servers=%d/%s", servers, mode), func(b *testing.B) {
				const messages = 10_000
				cached := 2000
				if mode == "growing" {
					cached = messages
				}
				p := newPublisher(rand.New(rand.NewPCG(1, 2)), messages, cached, mode == "tails first")
				f := newFleet(b, servers)
				n := 0
				b.ReportAllocs()
				b.ResetTimer()
				for b.Loop() {
					// Each round of messages goes to another server, as it were a new one.
					s := f.sources[n/messages%servers]
					if n%messages == 0 && n >= messages*servers {
						b.StopTimer()
						s.RecordGap()
						b.StartTimer()
					}
					s.ApplyLive(Message{Seq: uint64(n % messages), Payload: p.payloads[n%messages]})
					n++
				}
				perBlock := float64(b.Elapsed().Nanoseconds()) / float64(b.N*p.blocks)
				b.ReportMetric(perBlock, "ns/block")
				b.ReportMetric(1e3/perBlock, "Mblocks/s")
			})
		}
	}
}

// BenchmarkMatchUnderIngest: 64 servers that hold 16 M blocks, cold queries of 1,000
// blocks, while one goroutine ingests as fast as it can. A round reads memory larger than
// the processor's caches and then looks up 200 prompts, each for the first time since; the
// last 100 are timed, when what all lookups share is in the caches again and their blocks
// are not. Budget: p99 10 us without the hashing, 1 GiB.
func BenchmarkMatchUnderIngest(b *testing.B) {
	const servers, held, n = 63, 16_000_000, 1000 // the busy one is the 64th
	f := newFleet(b, servers)
	m := f.sources[0].model
	usual, each := lengths("usual", 8, n), 0 // on 8 of the servers
	for _, l := range usual {
		each += l
	}
	queries := held * 3 / 4 / each
	chain := make([]Hash, n)
	whole := inBlocksOf16(chain)
	ask := func(q int) {
		r := rand.New(rand.NewPCG(uint64(q), 3))
		for i := range chain {
			chain[i] = Hash(r.Uint64() | 1)
		}
	}
	for q := range queries {
		ask(q)
		for i, l := range usual {
			f.hold((q+8*i)%servers, chain[:l])
		}
	}
	f.fill(held - queries*each)
	cache := make([]uint64, 64<<20/8)
	for i := range cache { // memory that was never written is one page of zeros
		cache[i] = 1
	}

	for _, busy := range []bool{false, true} {
		b.Run(fmt.Sprintf("ingesting=%v", busy), func(b *testing.B) {
			var ingested atomic.Int64
			if busy {
				defer f.ingest(b, &ingested)()
			}
			var h Hits
			var took []time.Duration
			q, nothing := 0, uint64(0)
			for b.Loop() {
				for i := 0; i < len(cache); i += 8 { // a cache line each
					nothing += cache[i]
				}
				for i := range 200 {
					ask(q)
					h.reset(16*n, false)
					h.chains = append(h.chains, whole)
					at := time.Now()
					m.matchChains(m.view.Load(), &h)
					if i >= 100 {
						took = append(took, time.Since(at))
					}
					if h.best[GPU] != 16*n {
						b.Fatalf("%d tokens of query %d, %d", h.best[GPU], q, nothing)
					}
					q = (q + 1) % queries
				}
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "p50-ns")
			b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds()), "p99-ns")
			b.ReportMetric(float64(ingested.Load())/b.Elapsed().Seconds()/1e6, "ingested-Mblocks/s")
		})
	}
	blocks, bytes := 0, f.ix.Models()[0].Tiers[GPU].Bytes
	for _, s := range f.ix.Sources() {
		for _, h := range s.Holders {
			blocks, bytes = blocks+h.GPU, bytes+h.Bytes
		}
	}
	b.Logf("%d blocks held (%d distinct) in %d MiB: %.1f bytes each", blocks, f.ix.Models()[0].Tiers[GPU].Blocks, bytes>>20, float64(bytes)/float64(blocks))
}

// ingest makes one more server of the fleet store and remove blocks as fast as it can
// until the returned function is called, and counts those that it stored.
func (f *fleet) ingest(b *testing.B, stored *atomic.Int64) (stop func()) {
	p := newPublisher(rand.New(rand.NewPCG(5, 5)), 5_000, 2000, true)
	s, err := f.ix.Open(Spec{SourceID: SourceID{Server: "busy"}, Model: "m", BlockTokens: 16})
	if err != nil {
		b.Fatal(err)
	}
	var over atomic.Bool
	var running sync.WaitGroup
	running.Go(func() {
		defer s.Close()
		for i := 0; !over.Load(); i++ {
			if i%len(p.payloads) == 0 {
				s.RecordGap()
			}
			s.ApplyLive(Message{Seq: uint64(i % len(p.payloads)), Payload: p.payloads[i%len(p.payloads)]})
			stored.Add(int64(p.blocks))
		}
	})
	return func() {
		over.Store(true)
		running.Wait()
	}
}
