package order

import "testing"

// Each ticket has one place: the lower rank, of equal ones the lower ID.
func TestByRank(t *testing.T) {
	low, first, second := &Ticket{ID: 9, rank: 1}, &Ticket{ID: 1, rank: 2}, &Ticket{ID: 2, rank: 2}
	sorted := []*Ticket{low, first, second}
	for i, a := range sorted {
		for k, b := range sorted {
			if got, want := byRank(a, b), max(-1, min(i-k, 1)); got != want {
				t.Errorf("ticket %d against %d: %d, want %d", a.ID, b.ID, got, want)
			}
		}
	}
}
