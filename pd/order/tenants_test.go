package order

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// The forecast takes the tenants' turns as they are defined: each time the line that was
// served least, and of equal ones the first.
func TestServed_TakesTurnsByWorkWhateverTheNumberOfTenants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		links := NewLinkTable(1, 1)
		o := New(DefaultConfig())
		for id := range rapid.IntRange(0, 40).Draw(t, "requests") {
			seconds := rapid.SampledFrom([]float64{0, 0.5, 1, 2, 2.5}).Draw(t, "prefill")
			k := &Ticket{
				ID: int64(id), Class: rapid.IntRange(0, 1).Draw(t, "class"), Tenant: fmt.Sprint(rapid.IntRange(0, 9).Draw(t, "tenant")),
				Prefill: []float64{seconds}, Reference: []float64{seconds}, Missing: []float64{0}, Aggregated: []float64{math.Inf(1)}, Stall: []float64{0},
			}
			o.Add(k, links)
			if rapid.Bool().Draw(t, "was served") {
				o.queues.setServed(k, rapid.SampledFrom([]float64{0, 1, 1.5, 4}).Draw(t, "served"))
			}
		}
		var got []int64
		for _, w := range o.served {
			got = append(got, w.ID)
		}
		if want := slowlyServed(o); !slices.Equal(got, want) {
			t.Fatalf("served %v\n  want %v", got, want)
		}
	})
}

func slowlyServed(o *Order) (ids []int64) {
	play := make([]tenantQueue, len(o.queues.sorted))
	for i, l := range o.queues.sorted {
		play[i] = *l
	}
	for len(play) > 0 {
		next := 0
		for i := range play {
			if play[i].takesTurnsWith(&play[0]) && play[i].served < play[next].served {
				next = i
			}
		}
		l := &play[next]
		ids = append(ids, l.waiting[0].ID)
		l.served += l.waiting[0].leastWork
		if l.waiting = l.waiting[1:]; len(l.waiting) == 0 {
			play = slices.Delete(play, next, next+1)
		}
	}
	return ids
}

// Times of one run are compared, the best of several: quadratic, 4,096 tenants took eighty
// times as long as one.
func TestAdmit_ManyTenantsCostLittleMoreThanOne(t *testing.T) {
	best := func(tenants int) time.Duration {
		o, s := benchTenants(4096, tenants)
		newcomer := *o.All(nil)[0]
		newcomer.ID, newcomer.Tenant, newcomer.onPrefill = -1, "newcomer", nil
		least := time.Hour
		for range 20 {
			o.firstLatest = math.MinInt64 // whoever waits may be late, so that all are looked at
			began := time.Now()
			if _, _, ok := o.Admit(&newcomer, s, Forecast{Margin: func(d time.Duration) time.Duration { return d }}); !ok {
				t.Fatal("refused")
			}
			least = min(least, time.Since(began))
			o.Remove(&newcomer)
		}
		return least
	}
	if one, many := best(1), best(4096); many > 20*one {
		t.Errorf("%v with 4,096 tenants, %v with one", many, one)
	}
}
