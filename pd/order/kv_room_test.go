package order

import (
	"testing"
	"time"
)

// shortOfKV is one prefill server, and a decode server with little KV room whose answers end every few seconds: 100 of
// 1,000 tokens free some 13,000 tokens a second.
func shortOfKV(room int) *Servers {
	return &Servers{
		Gate: true, Now: time.Minute, Links: NewLinkTable(1, 1), Prefill: []PrefillState{{Self: -1}},
		Decode: []DecodeState{{Step: 0.02, Used: 100_000, KVRoom: room, Running: 100}},
	}
}

// A decode server that is kept for a large request until all of its room is there stands half empty, and so does that
// room while the prompt is computed.
func TestOrder_WhoWaitedTooLongForKVRoomGoesBeforeAllOfItIsThere(t *testing.T) {
	for _, c := range []struct {
		why     string
		arrived time.Duration
		room    int
		goes    bool
	}{
		{"some comes free while its prompt is computed", 0, 0, true},
		{"too little does", 0, -30_000, false},
		{"it has not waited for long", time.Minute, 0, false},
		{"there is room", time.Minute, 20_000, true},
	} {
		s, o := shortOfKV(c.room), New(DefaultConfig())
		large := &Ticket{Arrived: c.arrived, Tokens: 20_000, Output: 300, Prefill: []float64{3}, Reference: []float64{3}, Missing: []float64{0}}
		o.Add(large, s.Links)
		if _, goes := o.Next(s); goes != c.goes {
			t.Errorf("%s: it goes: %v", c.why, goes)
		}
	}
}

// While decode computes a prompt nothing of its KV comes free for those who wait for some.
func TestOrder_DecodeComputesNothingWhereItsKVIsWaitedFor(t *testing.T) {
	for waiting, want := range map[int]int{0: Aggregated, 20: 0} {
		s, o := shortOfKV(1000), New(DefaultConfig())
		s.Decode[0].Running = 1
		small := &Ticket{Arrived: time.Minute, Tokens: 500, Output: 300, Prefill: []float64{0.1}, Reference: []float64{0.1}, Missing: []float64{1e9}, Aggregated: []float64{0.1}}
		s.Links.Latency[0] = 0.3
		o.Add(small, s.Links)
		for id := range waiting {
			o.Add(&Ticket{ID: int64(1 + id), Arrived: time.Minute, Tokens: 50_000, Output: 300, Prefill: []float64{9}, Reference: []float64{9}, Missing: []float64{0}}, s.Links)
		}
		if turn, goes := o.Next(s); !goes || turn.Ticket != small || turn.Prefill != want {
			t.Errorf("beside %d that wait: %v, %+v", waiting, goes, turn.Pair)
		}
	}
}
