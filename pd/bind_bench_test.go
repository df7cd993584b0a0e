package pd

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pd/order"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/curve"
)

// BenchmarkBindFree: how long a request takes to its servers that finds nobody waiting and a free
// prefill server, at 500 requests a second, of which every other is bound on arrival and the others
// late: these hand it to the decider's goroutine and back. It is a rate and not a loop, so ns/op says
// nothing; what is reported is the quantiles in us. Budget (2-core VM, nothing else running): late
// at most 100 us more than on arrival in the median, 500 us in the p99. Run it for 10 s at least:
// -benchtime 5000x.
func BenchmarkBindFree(b *testing.B) {
	prompt := testPrompt(4000)
	f := newTestFleet(b, 8, prompt)
	onArrival, late := *f.Binder, *f.Binder
	late.Late = NewDecider(f.Binder.Chooser, order.DefaultConfig(), time.Hour, f.Log)
	ctx, stop := context.WithCancel(b.Context())
	var deciding, bindings sync.WaitGroup
	deciding.Go(func() { late.Late.Run(ctx) })
	defer deciding.Wait()
	defer stop()

	var mu sync.Mutex // guards took
	var took [2][]time.Duration
	rng := rand.New(rand.NewPCG(1, 1))
	due := time.Now()
	for n := 0; b.Loop(); n++ {
		due = due.Add(time.Duration(rng.ExpFloat64() * float64(time.Second) / 500))
		time.Sleep(time.Until(due))
		way := n % 2
		binder := [2]*Binder{&onArrival, &late}[way]
		bindings.Go(func() {
			r := &f.arrives(prompt, time.Now()).bind
			start := time.Now()
			bound, err := binder.Bind(ctx, r)
			in := time.Since(start)
			if err != nil {
				b.Error(err)
			}
			bound.undo()
			mu.Lock()
			took[way] = append(took[way], in)
			mu.Unlock()
		})
	}
	bindings.Wait()
	if len(took[1]) < 100 {
		return // too few for a p99
	}
	for way, name := range []string{"arrival", "late"} {
		slices.Sort(took[way])
		b.ReportMetric(quantile(took[way], 0.5), name+"-p50-us")
		b.ReportMetric(quantile(took[way], 0.99), name+"-p99-us")
	}
}

// BenchmarkBindAtOnce: how long a request takes to its servers that finds nobody waiting and free servers, of n + n,
// with what the record of its choice takes. At work each decode server has a sequence. Budget (2-core VM): 0.1 ms with
// 64 + 64, 0.3 ms with 256 + 256, 0.4 ms at work.
func BenchmarkBindAtOnce(b *testing.B) {
	for _, c := range []struct {
		n      int
		atWork bool
		name   string
	}{{1, false, ""}, {16, false, ""}, {64, false, ""}, {256, false, ""}, {256, true, "-at-work"}} {
		b.Run(fmt.Sprintf("%dx%d%s", c.n, c.n, c.name), func(b *testing.B) {
			prompt := testPrompt(4000)
			f := newTestFleet(b, c.n, prompt)
			for _, s := range f.Fleet.Servers() {
				if !c.atWork || s.Role != pools.Decode {
					continue
				}
				lease, err := s.Claim(pools.Decode, curve.Work{Tokens: 1000, Estimate: time.Hour}, false, time.Now())
				if err != nil {
					b.Fatal(err)
				}
				defer lease.Release()
			}
			late := *f.Binder
			late.Late = NewDecider(f.Binder.Chooser, order.DefaultConfig(), time.Hour, f.Log)
			ctx, stop := context.WithCancel(b.Context())
			var deciding sync.WaitGroup
			deciding.Go(func() { late.Late.Run(ctx) })
			defer deciding.Wait()
			defer stop()
			b.ReportAllocs()
			for b.Loop() {
				bound, err := late.Bind(b.Context(), &f.arrives(prompt, time.Now()).bind)
				if err != nil {
					b.Fatal(err)
				}
				bound.undo()
			}
		})
	}
}

// quantile is one of sorted times, in us.
func quantile(sorted []time.Duration, q float64) float64 {
	return float64(sorted[int(q*float64(len(sorted)-1))].Nanoseconds()) / 1e3
}
