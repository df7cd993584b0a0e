package sample

import (
	"sync"
	"testing"
)

func TestSample(t *testing.T) {
	var c counter
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(c.add)
	}
	wg.Wait()
	if c.n != 50 {
		t.Error(c.n)
	}
	// clamp(4, 4) is 4 with > and with >=: that fault is equivalent.
	if clamp(5, 4) != 4 || clamp(4, 4) != 4 || clamp(3, 4) != 3 {
		t.Error("clamp")
	}
	if a, b := both(1, 2); next(1) != 2 || a != 1 || b != 2 {
		t.Error("next, both")
	}
	if !isSmall(9) || isSmall(11) { // and not 10
		t.Error("isSmall")
	}
	if positive(1) != nil || positive(0) == nil {
		t.Error("positive")
	}
	calls := 0
	twice(func() { calls++ })
	if calls != 2 {
		t.Error(calls)
	}
}
