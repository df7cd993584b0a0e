package order

import (
	"math/rand/v2"
	"testing"
	"time"
)

// benchOrder is 1,000 waiting requests before 32 + 32 servers on eight racks, of
// which one prefill server is about to be free. Half of the requests have most
// of their prompt on some prefill server.
func benchOrder() (*Order, *Servers) {
	const servers, requests, racks = 32, 1000, 8
	rng := rand.New(rand.NewPCG(1, 1))
	s := &Servers{Now: 20 * time.Second, Gate: true, Prefill: make([]PrefillState, servers), Decode: make([]DecodeState, servers), Links: NewLinkTable(servers, servers)}
	for p := range servers {
		s.Prefill[p] = PrefillState{Ahead: 0.2 + 5*rng.Float64(), Self: -1}
		for d := range servers {
			perByte := 1 / 12.5e9
			if p%racks != d%racks {
				perByte *= 2
			}
			s.Links.Latency[p*servers+d], s.Links.SecondsPerByte[p*servers+d] = 0.002, perByte
		}
		s.Decode[p] = DecodeState{Step: 0.02 + 0.01*rng.Float64(), PerToken: 1e-8, Used: 1 << 19, KVRoom: rng.IntN(1 << 20), Running: 10}
	}
	s.Links.Fastest = 1 / 12.5e9
	s.Prefill[7].Ahead = 0.02
	o := New(DefaultConfig())
	for i := range requests {
		whole := 0.05 + rng.ExpFloat64()
		t := &Ticket{ID: int64(i), Arrived: time.Duration(i) * 10 * time.Millisecond, Tokens: 12_000, Output: 300, Weights: Latency.Weights(), ITL: 0.1,
			Prefill: make([]float64, servers), Reference: make([]float64, servers), Missing: make([]float64, servers)}
		for p := range servers {
			t.Prefill[p], t.Reference[p], t.Missing[p] = whole, whole, 4e9
			t.Aggregated, t.Stall = append(t.Aggregated, whole), append(t.Stall, 0.2)
		}
		if i%2 == 0 {
			p := rng.IntN(servers)
			t.Prefill[p], t.Reference[p] = whole/5, whole/5
		}
		o.Add(t, s.Links)
	}
	return o, s
}

// Budget (2-core VM): <= 200 us for one wake-up with 1,000 waiting and 32 + 32
// servers where no request may go, which looks at everything.
func BenchmarkOrderNext1000x32x32(b *testing.B) {
	o, s := benchOrder()
	// No request wants the free server.
	for _, t := range o.All(nil) {
		t.Prefill[7], t.Reference[7] = 1000, 1000
		o.Update(t, s.Links)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := o.Next(s); ok {
			b.Fatal("a request went")
		}
	}
}

// Budget (2-core VM): <= 200 us for one wake-up with 1,000 waiting and 32 + 32 servers where decode has no KV room for
// any, and each is asked what will come free while its prompt is computed.
func BenchmarkOrderNextLittleKV1000x32x32(b *testing.B) {
	o, s := benchOrder()
	for d := range s.Decode {
		s.Decode[d].Used, s.Decode[d].KVRoom, s.Decode[d].KVComing, s.Decode[d].KVComesIn = 1<<20, -500_000, 530_000, 1
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := o.Next(s); ok {
			b.Fatal("a request went")
		}
	}
}

// Budget (2-core VM): <= 200 us for a wake-up that lets one request go and takes
// a new one.
func BenchmarkOrderTurn1000x32x32(b *testing.B) {
	o, s := benchOrder()
	b.ReportAllocs()
	for b.Loop() {
		turn, ok := o.Next(s)
		if !ok {
			b.Fatal("no request went")
		}
		o.Add(turn.Ticket, s.Links)
	}
}

// Budget (2-core VM): <= 3 ms from scratch: all tickets priced again.
func BenchmarkOrderScratch1000x32x32(b *testing.B) {
	o, s := benchOrder()
	b.ReportAllocs()
	for b.Loop() {
		for _, t := range o.All(nil) {
			t.derive(s.Links)
		}
		o.Next(s)
		if o.Len() < 900 {
			o, s = benchOrder()
		}
	}
}
