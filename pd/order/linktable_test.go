package order

import "testing"

// Servers of one rack have like links: the first of them stands for all. Those that differ
// in one figure have their own.
func TestLinkTable_GroupsWhatIsAlike(t *testing.T) {
	rows := []struct{ latency, perByte [2]float64 }{
		{[2]float64{1, 2}, [2]float64{3, 3}},
		{[2]float64{1, 4}, [2]float64{3, 3}},
		{[2]float64{1, 2}, [2]float64{3, 3}},
		{[2]float64{1, 2}, [2]float64{3, 5}},
		{[2]float64{1, 4}, [2]float64{3, 3}},
		{[2]float64{1, 2}, [2]float64{3, 3}},
	}
	links := NewLinkTable(len(rows), 2)
	for p, r := range rows {
		copy(links.Latency[2*p:], r.latency[:])
		copy(links.SecondsPerByte[2*p:], r.perByte[:])
	}
	links.Group(2)
	for p, want := range []int{0, 1, 0, 3, 1, 0} {
		if got := links.First(p); got != want {
			t.Errorf("server %d is like %d, want %d", p, got, want)
		}
	}
	links.Reset(len(rows)) // anything may be in it now
	for p := range rows {
		if got := links.First(p); got != p {
			t.Errorf("server %d is like %d before they are grouped", p, got)
		}
	}
}
