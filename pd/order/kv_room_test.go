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

// A part of what is expected to come free while a prompt is computed is room for it: a decode server on which all of it
// stands empty first, and through the prefill, serves so much less.
func TestOrder_RoomThatComesFreeDuringThePrefillCounts(t *testing.T) {
	for _, c := range []struct {
		why     string
		arrived time.Duration
		room    int
		goes    bool
	}{
		{"enough of it counts", time.Minute, 8000, true},
		{"not enough counts", time.Minute, 6000, false},
		{"all of it is enough for one that has waited too long", 0, -10_000, true},
		{"all of it is too little", 0, -30_000, false},
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

// Room that is kept for a large prompt stands empty while it is computed: a small one may have it if enough else comes
// free until then.
func TestOrder_SmallRequestsUseRoomThatIsKeptForALargePrompt(t *testing.T) {
	for _, c := range []struct {
		why     string
		coming  int
		comesIn float64
		goes    bool
	}{
		{"the large one comes late enough", 20_000, 2, true},
		{"it comes too soon", 20_000, 1, false},
		{"it has come", 0, 0, false},
	} {
		s, o := shortOfKV(-15_000), New(DefaultConfig())
		s.Decode[0].KVComing, s.Decode[0].KVComesIn = c.coming, c.comesIn
		small := &Ticket{Arrived: time.Minute, Tokens: 1000, Output: 300, Prefill: []float64{0.1}, Reference: []float64{0.1}, Missing: []float64{0}}
		o.Add(small, s.Links)
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

// Beside the server that is kept for an overdue request, the one with the most room that is left is kept for one of a
// higher class that has none now, though it had before.
func TestOrder_RoomIsKeptForTheHigherClassBesideAnOverdueRequest(t *testing.T) {
	for _, higher := range []bool{true, false} {
		s := &Servers{
			Gate: true, Now: time.Minute, Links: NewLinkTable(1, 2), Prefill: []PrefillState{{Self: -1}},
			Decode: []DecodeState{{Step: 0.02, Used: 1000, KVRoom: 6000, Running: 1}, {Step: 0.02, Used: 1000, KVRoom: 2000, Running: 1}},
		}
		o := New(DefaultConfig())
		add := func(id int64, arrived time.Duration, tokens, class int) *Ticket {
			k := &Ticket{ID: id, Arrived: arrived, Class: class, Tokens: tokens, Output: 300, Prefill: []float64{0.1}, Reference: []float64{0.1}, Missing: []float64{0, 0}}
			o.Add(k, s.Links)
			return k
		}
		add(1, 0, 50_000, 1)
		if higher {
			add(2, time.Minute, 5000, 0)
		}
		lower := add(3, time.Minute, 1000, 1)
		if turn, goes := o.Next(s); goes == higher || goes && turn.Ticket != lower {
			t.Errorf("one of a higher class waits: %v; one of a lower goes: %v", higher, goes)
		}
	}
}
