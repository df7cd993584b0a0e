package order

import (
	"math"
	"slices"
	"testing"
)

// fiveWaiting are the requests 0 to 4 of two tenants, in their order.
func fiveWaiting(s *Servers) *Order {
	o := New(DefaultConfig())
	for id, tenant := range []string{"a", "a", "b", "b", "b"} {
		ticket := &Ticket{ID: int64(id), Tenant: tenant}
		ticket.price(s, math.Inf(1))
		ticket.Prefill[0] = float64(id + 1)
		o.Add(ticket, s.Links)
	}
	return o
}

// The first are priced at each look, the others one after another.
func TestOrder_StaleTakesTurns(t *testing.T) {
	for _, of := range []struct {
		n    int
		want [][]int64 // look by look
	}{
		{1, [][]int64{{0, 2}, {0, 3}, {0, 4}, {0, 1}, {0, 2}}},
		{2, [][]int64{{0, 1, 3, 4}, {0, 1, 2, 3}, {0, 1, 4, 2}}},
		{4, [][]int64{{0, 1, 2, 3, 4}, {0, 1, 2, 3, 4}}},
		{5, [][]int64{{0, 1, 2, 3, 4}}}, // there are no others
		{9, [][]int64{{0, 1, 2, 3, 4}}},
	} {
		o := fiveWaiting(fleetOf(1, 1))
		for look, want := range of.want {
			var got []int64
			for _, w := range o.Stale(of.n, nil) {
				got = append(got, w.ID)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%d at a time, look %d: %v, want %v", of.n, look, got, want)
			}
		}
	}
	if none := New(DefaultConfig()).Stale(2, nil); len(none) > 0 {
		t.Errorf("%v of none", none)
	}
}

// What a request costs has changed, and so has its place among those of its tenant.
func TestOrder_UpdateMovesWhatCostsLess(t *testing.T) {
	s := fleetOf(1, 1)
	o := fiveWaiting(s)
	last := o.All(nil)[4]
	last.Prefill[0] = 0.5
	o.Update(last, s.Links)
	var got []int64
	for _, w := range o.All(nil) {
		got = append(got, w.ID)
	}
	if want := []int64{0, 1, 4, 2, 3}; !slices.Equal(got, want) {
		t.Errorf("they wait as %v, want %v", got, want)
	}
}
