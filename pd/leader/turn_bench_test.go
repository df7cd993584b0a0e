package leader

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pd/leader/leaderpb"
)

// What it takes a request of a follower to have its turn where the leader decides at once, over TCP on
// one machine: two hops, with the hashes of a prompt of 32,000 tokens. Budget: 1 ms alone (p99) and
// 4 ms with 64 that ask again at once (p50; some 20,000 turns a second), since loadtest/policy reckons
// with 2 ms for each hop (decider_hop), of which a cluster's network has the rest.
func BenchmarkFollower_Turn(b *testing.B) {
	for name, atOnce := range map[string]int{"alone": 1, "64at_once": 64} {
		b.Run(name, func(b *testing.B) {
			leader, follower := pair(b)
			go func() {
				for {
					select {
					case leader.grant <- "d1":
					case <-b.Context().Done():
						return
					}
				}
			}()
			chain := []*leaderpb.Chain{{BlockTokens: 16, Hashes: make([]uint64, 2000)}}
			took, rest := make([][]time.Duration, atOnce), make(chan struct{}, b.N)
			for range b.N {
				rest <- struct{}{}
			}
			close(rest)
			b.ReportAllocs()
			b.ResetTimer()
			var asking sync.WaitGroup
			for i := range took {
				asking.Go(func() {
					for range rest {
						began := time.Now()
						_, taken, err := follower.follower.Bind(b.Context(), &leaderpb.RemoteRequest{Model: "m", Chains: chain})
						if err != nil {
							b.Error(err)
							return
						}
						took[i] = append(took[i], time.Since(began))
						taken()
						leader.receive("second", follower.taken.Load())
					}
				})
			}
			asking.Wait()
			all := slices.Concat(took...)
			slices.Sort(all)
			b.ReportMetric(float64(all[len(all)/2].Microseconds()), "p50_us")
			b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "p99_us")
		})
	}
}
