package mix

import (
	"maps"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/autoscale/sizing"
	"github.com/tandem-gateway/tandem/pools/curve"
)

// kind is hardware of a speed: 10,000 prompt tokens and 500 output tokens a second of 1.
func kind(name string, speed, cost float64) Variant {
	return Variant{Name: name, Cost: cost, GPUs: 1, Capacity: sizing.Capacity{
		Schema: 1, Prefill: curve.Curve{0, 0.1 / speed, 0}, Step: curve.Curve{0.030, 0.002 / speed, 0}, KVTokens: 1 << 30,
	}}
}

// asked is the work of so many servers of speed 1, whose steps are full at 50 ms.
func asked(prefill, decode float64) AllocationRequest {
	v := kind("", 1, 1)
	return AllocationRequest{
		Prompt: 4000, Computed: 2000, Output: 200, Context: 4100, ITL: 50 * time.Millisecond,
		PrefillRate: prefill * v.Capacity.PrefillSpeed(2000, 2000), DecodeRate: decode * v.Capacity.DecodeSpeed(50*time.Millisecond, 4100),
	}
}

func TestInventory_SpreadsTheWork(t *testing.T) {
	slow, fast := kind("slow", 1, 1), kind("fast", 3, 2)
	scarce := fast
	scarce.Have = 2
	type units = map[string]int
	for _, of := range []struct {
		name            string
		variants        []Variant
		asked           AllocationRequest
		prefill, decode units
	}{
		{"one kind: the servers that were planned", []Variant{slow}, asked(3, 2), units{"slow": 3}, units{"slow": 2}},
		{"a little more than three", []Variant{slow}, asked(3.2, 1.6), units{"slow": 4}, units{"slow": 2}},
		{"the one that does more for its cost", []Variant{slow, fast}, asked(6, 3), units{"slow": 0, "fast": 2}, units{"slow": 0, "fast": 1}},
		{"a rest is cheaper on the small one", []Variant{slow, fast}, asked(4, 3), units{"slow": 1, "fast": 1}, units{"slow": 0, "fast": 1}},
		{"as many as there are", []Variant{slow, scarce}, asked(9, 1), units{"slow": 3, "fast": 2}, units{"slow": 1, "fast": 0}},
		{"nothing to do", []Variant{slow, fast}, asked(0, 0), units{"slow": 0, "fast": 0}, units{"slow": 0, "fast": 0}},
	} {
		s := Inventory{Variants: of.variants}
		got, err := s.Allocate(of.asked)
		if err != nil {
			t.Fatalf("%s: %v", of.name, err)
		}
		if !maps.Equal(got.Prefill, of.prefill) || !maps.Equal(got.Decode, of.decode) {
			t.Errorf("%s: prefill %v, decode %v; want %v, %v", of.name, got.Prefill, got.Decode, of.prefill, of.decode)
		}
	}
}

// What stands stays while it does the work, though something else has become as cheap.
func TestInventory_WhatStandsStays(t *testing.T) {
	s := Inventory{Variants: []Variant{kind("slow", 1, 1), kind("fast", 3, 2)}}
	a := asked(3, 2)
	a.Current = &HardwareAllocation{Prefill: map[string]int{"slow": 3}, Decode: map[string]int{"slow": 2}}
	got, err := s.Allocate(a)
	if err != nil || got.Prefill["slow"] != 3 || got.Decode["slow"] != 2 {
		t.Errorf("%+v, %v: what stood did the work", got, err)
	}
	a.PrefillRate *= 1.1
	if got, err = s.Allocate(a); err != nil || got.Prefill["fast"] == 0 {
		t.Errorf("%+v, %v: what stood does it no more", got, err)
	}
}

// A prompt that no hardware computes in time is no reason to want no server.
func TestInventory_AnObjectiveThatNobodyMeets(t *testing.T) {
	s := Inventory{Variants: []Variant{kind("slow", 1, 1)}}
	a := asked(2, 1)
	a.TTFT = time.Millisecond
	if got, err := s.Allocate(a); err != nil || got.Prefill["slow"] != 2 {
		t.Errorf("%+v, %v", got, err)
	}
}

// Hardware that does more for its cost is of no use where it is too slow for one prompt.
func TestInventory_AnObjectiveThatOneKindMeets(t *testing.T) {
	s := Inventory{Variants: []Variant{kind("slow", 1, 1), kind("fast", 3, 9)}} // 0.2 and 0.07 s a prompt
	for ttft, want := range map[time.Duration]string{0: "slow", time.Second: "slow", 100 * time.Millisecond: "fast"} {
		a := asked(2, 1)
		a.TTFT = ttft
		if got, err := s.Allocate(a); err != nil || got.Prefill[want] == 0 || got.Prefill["slow"]*got.Prefill["fast"] != 0 {
			t.Errorf("within %v: %+v, %v; want %s", ttft, got, err, want)
		}
	}
}

func TestInventory_PricesSayWhatIsShort(t *testing.T) {
	scarce := kind("only", 1, 1)
	scarce.Have = 4
	s := Inventory{Variants: []Variant{scarce}}
	got, err := s.Allocate(asked(5, 2))
	if err != nil {
		t.Fatal(err)
	}
	gpus := 0.0
	for _, p := range got.Prices {
		if p.What == "gpus" {
			gpus = p.PerHour
		}
	}
	if gpus <= 0 || got.Prefill["only"]+got.Decode["only"] != 4 {
		t.Errorf("all four are wanted, and one more is worth something: %+v", got)
	}
}

func TestInventory_ServersOfUnknownHardwareAreAnError(t *testing.T) {
	a := asked(1, 1)
	a.Running = []RunningUnits{{Variant: "other", Units: 1}}
	s := Inventory{Variants: []Variant{kind("slow", 1, 1)}}
	if got, err := s.Allocate(a); err == nil {
		t.Errorf("%+v", got)
	}
}
