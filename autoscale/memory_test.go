package autoscale

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/autoscale/demand"
	"github.com/tandem-gateway/tandem/autoscale/mix"
	"github.com/tandem-gateway/tandem/autoscale/sizing"
	"github.com/tandem-gateway/tandem/pools"
)

// The KV of a bin is the mean of its readings, known once it is over; so many bins are kept.
func TestMemory_Sample(t *testing.T) {
	c, m := newClock(), &memory{}
	for _, of := range []struct {
		kv   float64
		then time.Duration
		want sizing.Series
	}{
		{100, sizing.Bin / 3, sizing.Series{100}}, {200, sizing.Bin / 3, sizing.Series{100}}, {600, sizing.Bin - 2*(sizing.Bin/3), sizing.Series{100}},
		{50, sizing.Bin, sizing.Series{100, 300}}, {70, sizing.Bin, sizing.Series{100, 300, 50}},
	} {
		if m.sample(of.kv, c.Now()); !slices.Equal(m.KV, of.want) {
			t.Errorf("after %g it is %v, want %v", of.kv, m.KV, of.want)
		}
		c.pass(of.then)
	}
	for range 2 * demand.KeptBins {
		m.sample(9, c.Now())
		c.pass(sizing.Bin)
	}
	if len(m.KV) != demand.KeptBins || m.KV[0] != 9 {
		t.Errorf("%d bins are kept, the first of %g", len(m.KV), m.KV[0])
	}
}

// Servers are starting for as long as they may come: three cold starts. What took longer says
// nothing of how long it takes.
func TestMemory_StartsOfServers(t *testing.T) {
	const cold = 2 * time.Minute
	wanted := sizing.Memory{Known: true, Prefill: sizing.StandingTarget{Servers: 1}, Decode: sizing.StandingTarget{Servers: 3}}
	for _, of := range []struct {
		took    time.Duration
		pending int
		learned time.Duration
	}{
		{time.Minute, 2, 105 * time.Second}, {3*cold - time.Nanosecond, 2, 3 * time.Minute}, {3 * cold, 2, cold}, {3*cold + time.Nanosecond, 0, cold},
	} {
		c, m := newClock(), &memory{ColdStart: cold, Memory: wanted}
		there := sizing.Signals{Prefill: sizing.Pool{Ready: 1}, Decode: sizing.Pool{Ready: 1}}
		m.learnColdStart(&there, c.Now())
		if !m.Raised[0].IsZero() || m.Raised[1] != c.Now() {
			t.Errorf("two of decode are missing: %v", m.Raised)
		}
		raised := c.Now()
		c.pass(of.took)
		if m.learnColdStart(&there, c.Now()); m.Raised[1] != raised {
			t.Error("they are waited for anew")
		}
		if got := m.pending(1, 2, c.Now()); got != of.pending {
			t.Errorf("after %v %d are starting, want %d", of.took, got, of.pending)
		}
		if got := m.pending(1, -1, c.Now()); got != 0 {
			t.Errorf("more than wanted are there, and %d are starting", got)
		}
		there.Decode.Ready = 3
		if m.learnColdStart(&there, c.Now()); m.ColdStart.Round(time.Microsecond) != of.learned || !m.Raised[1].IsZero() {
			t.Errorf("after %v a cold start is %v, want %v", of.took, m.ColdStart, of.learned)
		}
		if got := m.pending(1, 2, c.Now()); got != 0 {
			t.Errorf("no server was asked for, and %d are starting", got)
		}
	}
}

// Where hardware is chosen its units are what stands.
func TestMemory_Wanted(t *testing.T) {
	m := memory{Memory: sizing.Memory{Prefill: sizing.StandingTarget{Servers: 1}, Decode: sizing.StandingTarget{Servers: 2}}}
	if prefill, decode := m.wanted(); prefill != 1 || decode != 2 {
		t.Errorf("%d and %d", prefill, decode)
	}
	m.Allocation = &mix.HardwareAllocation{Prefill: map[string]int{"a": 3, "b": 1}, Decode: map[string]int{"a": 2, "b": 5}}
	if prefill, decode := m.wanted(); prefill != 4 || decode != 7 {
		t.Errorf("%d and %d of the hardware", prefill, decode)
	}
}

// What servers can do is remembered for when none is there; before the first it is what was
// measured elsewhere.
func TestMemory_Remember(t *testing.T) {
	prior := testConfig().Prior
	prior.KVTokens = 5000
	w := workload{seen: true, prompt: 1000, computed: 800, output: 100, context: 1050, itl: 50 * time.Millisecond}
	var m memory
	var none poolState
	m.remember(&none, &prior, w)
	if none.prefillSpeed != prior.PrefillSpeed(800, 200) || none.decodeSpeed != prior.DecodeSpeed(w.itl, w.context) || none.kvCapacity != 5000 {
		t.Errorf("before any server: %+v", none)
	}
	m.remember(&poolState{prefillSpeed: 1, decodeSpeed: 2, kvCapacity: 3}, &prior, w)
	some := poolState{decodeSpeed: 7}
	if m.remember(&some, &prior, w); some.prefillSpeed != 1 || some.decodeSpeed != 7 || some.kvCapacity != 3 {
		t.Errorf("of each what was known last: %+v", some)
	}
	var idle memory // no request has come
	if err := json.Unmarshal([]byte(`{"prefill_speed":1,"decode_speed":1}`), &idle); err != nil {
		t.Fatal(err)
	}
	idle.remember(&poolState{prefillSpeed: 1, decodeSpeed: 2, kvCapacity: 3}, &prior, workload{prompt: 1})
	if idle.Prefill != 0 || idle.Decode != 0 || idle.Capacity != 3 {
		t.Errorf("before the first request, and from an older gateway: %+v", idle)
	}
}

// Without servers nothing is known of them: neither speed nor room.
func TestSumUp(t *testing.T) {
	if g := sumUp(nil); g != (poolState{}) {
		t.Errorf("of no server: %+v", g)
	}
	prefill := Hardware{Role: pools.Prefill, Ready: 2, Speed: 600, servers: 4, busy: 1}
	if g := sumUp([]Hardware{prefill}); g.prefill.Ready != 2 || g.prefillSpeed != 300 || g.idlePrefill != 3 || g.decodeSpeed != 0 || g.kvCapacity != 0 {
		t.Errorf("of prefill servers: %+v", g)
	}
	decode := Hardware{Role: pools.Decode, Ready: 2, Speed: 100, KVTokens: 1000, KVUsed: 300, Waiting: 3}
	both := Hardware{Role: pools.Decode, Ready: 2, Convertible: 2, Speed: 60, KVTokens: 200, KVUsed: 100, Waiting: 9}
	if g := sumUp([]Hardware{decode, both}); g.decode != (sizing.Pool{Ready: 4, Convertible: 2}) || g.decodeSpeed != 40 || g.kvCapacity != 300 || g.kv != 400 || g.decodeWaiting != 3 {
		t.Errorf("of decode servers: %+v", g)
	}
	if g := sumUp([]Hardware{{Role: pools.Decode, Ready: 1}}); g.kvCapacity != UnknownKV {
		t.Errorf("a server that reports no room has some: %+v", g)
	}
}

// What units have shown is the capacity of one: of two servers in each unit the work of both.
func TestHardware_Teach(t *testing.T) {
	k := Hardware{Role: pools.Prefill, Ready: 2, servers: 4}
	k.prefill = [3]float64{4, 8, 12}
	c := sizing.Capacity{KVTokens: 7}
	if k.Teach(&c); c.Prefill != [3]float64{0.5, 1, 1.5} || c.KVTokens != 7 || c.Step != [3]float64{} {
		t.Errorf("prefill: %+v", c)
	}
	k = Hardware{Role: pools.Decode, Ready: 2, servers: 4, KVTokens: 1000}
	k.step = [3]float64{4, 8, 12}
	c = sizing.Capacity{KVTokens: 7}
	if k.Teach(&c); c.Step != [3]float64{1, 1, 1.5} || c.KVTokens != 500 || c.Prefill != [3]float64{} {
		t.Errorf("decode: %+v", c)
	}
	k.KVTokens = 0
	c = sizing.Capacity{KVTokens: 7}
	if k.Teach(&c); c.KVTokens != 7 {
		t.Errorf("a server that reports no room teaches some: %+v", c)
	}
}

// Decode is as fast as its steps allow and its KV has room: of long contexts fewer fit.
func TestLook_RoomBoundsTheSpeedOfDecode(t *testing.T) {
	fleet := newFleet(t, pools.Decode)
	s := fleet.Servers()[0]
	room := s.FreshLoad(time.Now()).KVTokens.Value
	for _, context := range []float64{100, room / 3} {
		w := workload{prompt: 1000, computed: 1000, output: 100, itl: time.Second, context: context}
		all := hardwareOf(fleet.Servers(), model, w, time.Now())
		fits := sizing.Capacity{Step: s.StepCurve(), KVTokens: int(room)}
		if len(all) != 1 || all[0].Speed != fits.DecodeSpeed(w.itl, context) || all[0].KVTokens != room {
			t.Errorf("context of %g: %+v, want a speed of %g", context, all, fits.DecodeSpeed(w.itl, context))
		}
		if n := fits.Sequences(w.itl, context); context > 100 && n != room/context && int(n) != 3 {
			t.Errorf("%g sequences of a third of the room", n)
		}
	}
}
