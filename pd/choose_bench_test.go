package pd

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// BenchmarkChoice: the pair of one request whose blocks are known, on servers that hold
// different parts of it, the look-up in the index included. Budget (2-core VM, one core):
// <= 10 us on 64 + 64 servers, <= 25 us on 128 + 128, without allocations.
func BenchmarkChoice(b *testing.B) {
	for _, each := range []int{64, 128} {
		prompt := testPrompt(4000)
		f := newTestFleet(b, each, prompt)
		now := time.Now()
		r, view := &f.arrives(prompt, now).bind, f.Binder.takeSnapshot(testModel, testModel, now)
		b.Run(fmt.Sprintf("%dx%d", each, each), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				view.kindIsSet = false // another request was looked at before
				f.Binder.applyRequest(r, &view, now)
				if _, ok := f.Binder.Cost.Choose(f.Binder.demand(r, now), &view.candidates, rand.IntN); !ok {
					b.Fatal("no choice")
				}
			}
		})
	}
}

// BenchmarkGather: looking at all servers of a model, which a choice on arrival does
// first and late binding once for all that wait. Budget: <= 1 us a server.
func BenchmarkGather(b *testing.B) {
	for _, each := range []int{64, 128} {
		f := newTestFleet(b, each, testPrompt(4000))
		b.Run(fmt.Sprintf("%dx%d", each, each), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				f.Binder.takeSnapshot(testModel, testModel, time.Now())
			}
		})
	}
}
