package picker

import "testing"

// Whatever length grpc-go asks for it gets, in memory of a frame where that is not much too long.
func TestFramePool_LengthsAndMemory(t *testing.T) {
	p := newFramePool()
	for length, ofFrames := range map[int]bool{0: false, 1: false, frameSize / 4: false, frameSize/4 + 1: true, frameSize: true, frameSize + 1: false, 1 << 20: false} {
		b := p.Get(length)
		if len(*b) != length || (cap(*b) == frameSize) != ofFrames {
			t.Errorf("%d bytes: %d of %d", length, len(*b), cap(*b))
		}
		*b = (*b)[:length/2] // as grpc-go may give it back
		p.Put(b)
	}
}

// Memory of frames is given out as it was left.
func TestFramePool_ClearsNothing(t *testing.T) {
	p := newFramePool()
	allocated := testing.AllocsPerRun(1000, func() {
		b := p.Get(frameSize)
		(*b)[0] = 1
		p.Put(b)
	})
	if allocated >= 1 {
		t.Errorf("%v allocations for each", allocated)
	}
	cleared := 0
	for range 1000 { // a pool may forget some
		b := p.Get(frameSize)
		(*b)[frameSize-1] = 1
		p.Put(b)
		again := p.Get(frameSize)
		if (*again)[frameSize-1] == 0 {
			cleared++
		}
		p.Put(again)
	}
	if cleared > 500 {
		t.Errorf("%d of 1,000 were cleared", cleared)
	}
}
