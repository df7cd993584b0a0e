package cost

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pd/order"
)

// Requests choose, transfers begin, end and fail, servers are cleared, and other replicas'
// records come and go, all at once. It is the race detector that looks.
func TestLinks_AreSafeForConcurrentUse(t *testing.T) {
	l, other := NewLinks(DefaultLinks()), NewLinks(DefaultLinks())
	now := teach(other, evenly(3, 3), 5, linkTime)
	record := other.Record(now)
	newer := other.Record(teach(other, evenly(3, 3), 5, now))
	prefill, decode := []Candidate{*at("p1", "r1"), *at("p2", "r1")}, []Candidate{*at("d1", "r1"), *at("d2", "r1")}
	var all sync.WaitGroup
	for _, act := range []func(i int){
		func(i int) { l.Observe(prefill[i%2].LinkEnd(), decode[i%2].LinkEnd(), 1e9, time.Second, 0, now) },
		func(i int) { l.Begin(prefill[i%2].LinkEnd(), decode[i%2].LinkEnd(), 1e9, now).End(now) },
		func(i int) { l.Blame("p1", fmt.Sprint("d", i%4), now) },
		func(int) { l.Clear("d1", now) },
		func(i int) { l.Table(prefill[:1+i%2], decode, now) },
		func(int) { l.Fill(new(order.LinkTable), prefill, decode, now) },
		func(int) { l.Record(now) },
		func(int) {
			var s LinkSync
			s.TakeIn(l, record, 0, now)
			s.TakeIn(l, newer, 0, now)
		},
		func(int) { l.adopt(record, 0, now) },
		func(int) { l.receivePair(nil, record.Pairs[0], 0, now) },
	} {
		for range 2 {
			all.Go(func() {
				for i := range 50 {
					act(i)
				}
			})
		}
	}
	all.Wait()
	if r := l.Record(now); len(l.moving) != 0 || r.Samples() == 0 {
		t.Errorf("%d are under way, %d are told of", len(l.moving), r.Samples())
	}
}
