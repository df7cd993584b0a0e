package cost

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pd/order"
	"github.com/tandem-gateway/tandem/pd/packing"
)

// Links are the same once they were packed, wherever they are alike: in a fleet of one rack, of several, and with slow
// servers.
func TestCandidates_PackKeepsLinks(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		prefills, decodes, speeds := rng.IntN(8), rng.IntN(8), 1+rng.IntN(3)
		f := Candidates{Prefill: make([]Candidate, prefills), Decode: make([]Candidate, decodes), Links: order.NewLinkTable(prefills, decodes)}
		for i := range f.Links.Latency {
			f.Links.Latency[i], f.Links.SecondsPerByte[i] = float64(rng.IntN(speeds))/7, float64(rng.IntN(speeds))/9
		}
		f.Links.Fastest = 0.25
		if rng.IntN(2) == 0 {
			f.Links.Group(decodes)
		}
		w := packing.Writer(nil)
		f.Pack(&w)
		var got Candidates
		r := packing.Reader(w.Data())
		if got.Pack(&r); len(r.Data()) != 0 || !slices.Equal(got.Links.Latency, f.Links.Latency) || !slices.Equal(got.Links.SecondsPerByte, f.Links.SecondsPerByte) || got.Links.Fastest != 0.25 {
			t.Fatalf("%d x %d: %+v\nwant %+v, %d bytes left", prefills, decodes, got.Links, f.Links, len(r.Data()))
		}
	}
}

// What each server of a decision takes to pack, its links included. All but a few fields of a server are set.
func BenchmarkCandidates_Pack(b *testing.B) {
	for _, n := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("%dx%d", n, n), func(b *testing.B) {
			f := largeFleet(n)
			var data []byte
			for b.Loop() {
				w := packing.Writer(data[:0])
				f.Pack(&w)
				data = w.Data()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(2*n), "ns/server")
			b.ReportMetric(float64(len(data))/float64(2*n), "bytes/server")
		})
	}
}

// largeFleet is so many busy servers of each role, of which each has curves of its own, in four racks.
func largeFleet(n int) *Candidates {
	f := &Candidates{Links: order.NewLinkTable(n, n)}
	for _, servers := range []*[]Candidate{&f.Prefill, &f.Decode} {
		for i := range n {
			c := Candidate{
				ID: fmt.Sprintf("10.0.0.%d:8000", i), Class: 0x9e3779b97f4a7c15, Topology: Topology{Host: fmt.Sprintf("h%d", i/4), Rack: fmt.Sprintf("r%d", i%4), Zone: "z1"},
				Queue: 12_345_678, Queued: 3, Running: 60, Decodes: 5, KVUsed: 123_456, KVFree: 54_321, KVKnown: true, KVBytesPerToken: 131_072,
				PrefillKnown: 0.93, StepKnown: 0.87, PrefillError: 0.03, StepError: 0.02,
			}
			for k := range c.Prefill {
				c.Prefill[k] = 1e-5 * (1 + float64(i+k)/97)
			}
			for k := range c.Step {
				c.Step[k] = 1e-6 * (1 + float64(i+k)/89)
			}
			c.Cached.GPU, c.Cached.CPU, c.Cached.Disk = 1024, 1024, 1024
			*servers = append(*servers, c)
		}
	}
	for p := range n {
		for d := range n {
			f.Links.Latency[p*n+d], f.Links.SecondsPerByte[p*n+d] = 0.0003, 1/23.1e9
			if p%4 == d%4 {
				f.Links.SecondsPerByte[p*n+d] = 1 / 46.3e9
			}
		}
	}
	f.Links.Fastest = 1 / 46.3e9
	f.Links.Group(n)
	return f
}

// What the order of service added to the prices of servers is there when they are priced again.
func TestCandidates_ArePricedAgainAsTheyWere(t *testing.T) {
	m, f := Default(), largeFleet(2)
	var was, again order.Servers
	m.PriceServers(f, &was)
	was.Prefill[1].Awaiting, was.AverageAwaiting, was.StreamDiscount, was.KVPrice = 3, 1.5, 0.5, 1e-6
	f.RecordOrder(&was, new(Room))
	m.PriceServers(f, &again)
	if again.Prefill[1].Awaiting != 3 || again.AverageAwaiting != 1.5 || again.StreamDiscount != 0.5 || again.KVPrice != 1e-6 {
		t.Errorf("priced again with %d awaiting, %v on average, a discount of %v, KV at %v", again.Prefill[1].Awaiting, again.AverageAwaiting, again.StreamDiscount, again.KVPrice)
	}
}

// A choice is explained alike before and after it was packed.
func TestCandidates_ExplainedAlikeOncePacked(t *testing.T) {
	m, f := Default(), largeFleet(8)
	for i := range f.Prefill {
		f.Prefill[i].Queue, f.Decode[i].Running = time.Duration(i)*time.Millisecond, 10*i
		f.Prefill[i].Cached.GPU, f.Prefill[i].FirstBlock, f.Decode[i].FirstBlock = 100*i, 16, 16
		f.Awaiting = append(f.Awaiting, i%3)
		f.Decode[i].PieceBlock, f.Decode[i].Group, f.Decode[i].Protected = 16, 1+i/2, i%2 == 0
	}
	f.AverageAwaiting, f.StreamDiscount, f.KVPrice = 0.75, 0.5, 1e-6
	r := Demand{PromptTokens: 5000, OutputTokens: 200, TTFT: time.Second, ITL: 50 * time.Millisecond, Gap: 100 * time.Millisecond, FirstFromPrefill: true, New: 4000, LostShare: 0.15}
	chosen, ok := m.Choose(r, f, func(int) int { return 0 })
	if !ok {
		t.Fatal("there is no alternative")
	}
	w := packing.Writer(nil)
	f.Pack(&w)
	var packed Candidates
	x := packing.Reader(w.Data())
	packed.Pack(&x)
	want := m.Explain(r, *f, chosen, 1000)
	if got := m.Explain(r, packed, chosen, 1000); len(want) < 64 || !slices.Equal(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
}

// Others may read candidates and their links while they are packed: the race detector sees any that is written.
func TestCandidates_PackOnlyReads(t *testing.T) {
	f := largeFleet(4)
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			w := packing.Writer(nil)
			f.Pack(&w)
			if len(w.Data()) == 0 {
				t.Error("nothing is packed")
			}
		})
	}
	both.Wait()
}
