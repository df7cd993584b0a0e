package gateway

import (
	"bytes"
	"testing"
)

// Memory comes back in a few sizes, of which none is more than twice what a body needs.
func TestSizeFor(t *testing.T) {
	for room, want := range map[int]int{
		shortestKept/2 + 1: shortestKept, shortestKept: shortestKept, shortestKept + 1: 2 * shortestKept, 220_000: 256 << 10, 256 << 10: 256 << 10,
		longestKept - 1: longestKept, longestKept: longestKept, longestKept + 1: longestKept + 1,
	} {
		if got := sizeFor(room); got != want {
			t.Errorf("room for %d bytes takes %d, want %d", room, got, want)
		}
	}
	if got := sizeFor(100); got != 100 && !spoilsReleased {
		t.Errorf("a short body takes %d bytes", got)
	}
}

// Memory is for others when the last of its holders has released it and not before.
func TestHeldMemory_ComesBackFromTheLastHolder(t *testing.T) {
	const size = 2 * shortestKept
	for name, x := range map[string]struct {
		end  func(h *heldMemory)
		back bool
	}{
		"released":              {func(h *heldMemory) { h.Release() }, true},
		"held by another":       {func(h *heldMemory) { h.Hold(); h.Release() }, false},
		"released by another":   {func(h *heldMemory) { h.Hold(); h.Release(); h.Release() }, true},
		"released, then grown":  {func(h *heldMemory) { h.grow(&bodyMemory{}, size, nil) }, true},
		"released, then larger": {func(h *heldMemory) { h.grow(&bodyMemory{}, longestKept+1, nil) }, true},
	} {
		back := false
		for range 100 { // with the race detector a pool forgets some
			var m bodyMemory
			var h heldMemory
			body := h.grow(&m, size, []byte("text"))
			if string(body) != "text" || cap(body) != size {
				t.Fatalf("%q, with room for %d", body, cap(body))
			}
			x.end(&h)
			again, _ := m.bySize[sizeIndex(size)].Get().(*[]byte)
			back = back || again != nil && &(*again)[0] == &body[0]
			if again != nil && spoilsReleased && bytes.Count(*again, []byte{0xDD}) != size {
				t.Fatalf("%s: not overwritten", name)
			}
		}
		if back != x.back {
			t.Errorf("%s: it came back: %v", name, back)
		}
	}
}
