package gateway

import (
	"sync"
	"testing"
	"time"
)

func TestRate_IsTheMeanOfTheLastTenSeconds(t *testing.T) {
	var r rate
	start := time.Unix(1_000_000, 0)
	for second := range 5 {
		for range 20 {
			r.add(start.Add(time.Duration(second) * time.Second))
		}
	}
	for _, c := range []struct {
		at   time.Duration
		want float64
	}{
		{4 * time.Second, 8}, // the present second is not over
		{5 * time.Second, 10},
		{10 * time.Second, 10},
		{12 * time.Second, 6},
		{15 * time.Second, 0},
		{time.Hour, 0},
	} {
		if got := r.perSecond(start.Add(c.at)); got != c.want {
			t.Errorf("after %v it is %v a second, want %v", c.at, got, c.want)
		}
	}
}

// A rate counts from many requests at once, and forgets none.
func TestRate_OfManyAtOnce(t *testing.T) {
	var r rate
	start := time.Unix(1_000_000, 0)
	r.add(start)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 25 {
				r.add(start)
				r.perSecond(start)
			}
		})
	}
	all.Wait()
	if got := r.perSecond(start.Add(time.Second)); got != 10.1 {
		t.Errorf("%v a second of 101 in ten", got)
	}
}
