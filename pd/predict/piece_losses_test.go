package predict

import (
	"testing"
	"time"
)

func TestPieceLosses(t *testing.T) {
	var p PieceLosses
	now := time.Unix(1000, 0)
	is := func(when string, want int) {
		t.Helper()
		if got := p.Factor("a", now); got != want {
			t.Errorf("%s: pieces %d times as large, want %d", when, got, want)
		}
	}
	p.Observe("a", true, now)
	is("nothing was lost", 1)
	for _, want := range []int{2, 4, 8, 0} {
		p.Observe("a", false, now)
		is("a piece was lost", want)
	}
	if p.Factor("b", now) != 1 {
		t.Error("another server pays for it")
	}
	now = now.Add(withoutPieces)
	is("after a while", 8)
	for _, want := range []int{4, 2, 1} {
		p.Observe("a", true, now)
		is("one was kept", want)
	}
	if len(p.servers) != 0 {
		t.Errorf("%d servers are remembered", len(p.servers))
	}
}
