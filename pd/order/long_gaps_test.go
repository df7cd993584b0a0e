package order

import (
	"math"
	"testing"
	"time"
)

// While few gaps are long, a part of what streams count is left out, and nothing once many are. What was long
// ago counts less.
func TestLongGaps_DiscountEndsAsTheyBecomeMany(t *testing.T) {
	s := &Servers{Decode: []DecodeState{{Running: 10, Step: 0.02}}}
	var g longGaps
	s.Now = 100 * time.Second
	g.advance(s) // 500 gaps a second
	for _, c := range []struct{ share, want float64 }{
		{0, mostDiscount}, {fewGaps, mostDiscount}, {(fewGaps + manyGaps) / 2, mostDiscount / 2}, {manyGaps, 0}, {1, 0},
	} {
		if g.long = c.share * 50_000; math.Abs(g.discount()-c.want) > 1e-9 {
			t.Errorf("%g of the gaps are long: discount %g, want %g", c.share, g.discount(), c.want)
		}
	}
	for range 10 {
		s.Now += 5 * time.Minute
		g.advance(s)
	}
	if g.discount() != mostDiscount {
		t.Errorf("discount %g, though long gaps are long ago", g.discount())
	}
}

// A prompt that decode computes makes a long gap in each stream of its server for each step of it. One whose
// turn came to nothing makes none.
func TestOrder_CountsLongGaps(t *testing.T) {
	s := &Servers{Gate: true, Links: NewLinkTable(1, 1), Prefill: []PrefillState{{Self: -1}}, Decode: []DecodeState{{Running: 10, Step: 0.02, KVRoom: 1 << 20}}}
	o, k := New(DefaultConfig()), &Ticket{Tokens: 1000, Weights: Latency.Weights()}
	k.Resize(1, 1)
	k.Prefill[0], k.Missing[0], k.Aggregated[0], k.LongGaps[0] = math.Inf(1), 0, 0.1, 3
	o.Add(k, s.Links)
	turn, ok := o.Next(s)
	if !ok || turn.Prefill != Aggregated || o.gaps.long != 30 {
		t.Fatalf("went %v to %+v: %g long gaps, want 30", ok, turn.Pair, o.gaps.long)
	}
	if o.UndoTurn(turn); o.gaps.long != 0 {
		t.Errorf("%g long gaps of a turn that was undone", o.gaps.long)
	}
}
