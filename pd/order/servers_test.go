package order

import (
	"math"
	"testing"
)

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

// A step that is longer than those of the other decode servers costs more than it takes, but where batches are to be
// filled.
func TestServers_CompareSteps(t *testing.T) {
	s := &Servers{Decode: []DecodeState{{Step: 0.020}, {Step: 0.020}, {Step: 0.026}}}
	s.CompareSteps(s.MeanStep())
	for d, want := range []float64{0, 0, 0.004} {
		if math.Abs(s.Decode[d].Beyond-want) > 1e-12 {
			t.Errorf("server %d is %g s beyond the mean, want %g", d, s.Decode[d].Beyond, want)
		}
	}
	for objective, want := range map[Objective]float64{Latency: 0.1 * 100 * (0.006 + 6*0.004), Throughput: 0.05 * 100 * 0.006} {
		k := &Ticket{Output: 100, Weights: objective.Weights()}
		if cost := s.Decode[2].DecodeCost(k) - s.Decode[0].DecodeCost(k); math.Abs(cost-want) > 1e-12 {
			t.Errorf("%s: the largest batch costs %g s more, want %g", objective, cost, want)
		}
	}
}

// Where servers do not say how much KV they have, there is room for any request: so much on each is not more than a number holds.
func TestServers_KVRoomOfServersThatDoNotSay(t *testing.T) {
	s := &Servers{Gate: true, Decode: []DecodeState{{KVRoom: math.MaxInt, Running: 1}, {KVRoom: math.MaxInt, Running: 1}, {KVRoom: 7, Running: 1}}}
	if most, all := s.kvRoom(); most != math.MaxInt || all != math.MaxInt {
		t.Errorf("room for %d tokens at most, for %d in all", most, all)
	}
}
