package order

import "testing"

// All 4,000 tokens in use come free within an answer: 100 steps of 20 ms.
func TestDecodeState_RoomSeconds(t *testing.T) {
	for _, of := range []struct {
		room, used, running, tokens int
		want                        float64
	}{
		{1000, 4000, 1, 3000, 1}, // half of it is missing
		{1000, 4000, 0, 3000, 0}, // an empty server takes anything
		{3000, 4000, 1, 3000, 0},
		{2999, 4000, 1, 3000, 0.0005},
		{0, 1000, 1, 3000, 2}, // no more than the whole can be waited for
		{0, 0, 1, 0, 0},       // nothing needs no room
	} {
		d := DecodeState{KVRoom: of.room, Used: of.used, Running: of.running, Step: 0.02}
		if got := d.KVRoomSeconds(&Ticket{Tokens: of.tokens, Output: 100}); got != of.want {
			t.Errorf("%+v: %v s, want %v", of, got, of.want)
		}
	}
}
