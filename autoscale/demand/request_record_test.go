package demand

import (
	"github.com/tandem-gateway/tandem/autoscale/sizing"
	"testing"
	"time"
)

// attainedOf is what a meter's requests of model m kept of late.
func attainedOf(m *Meter, c *clock) (ttft, itl Attained) {
	c.pass(sizing.Bin)
	t := Sum([]Reading{m.Read()}, "m", 0, BinOf(c.Now()))
	return t.TTFT, t.ITL
}

// came is a request with objectives of 2 s and 50 ms.
func came(m *Meter, fingerprint uint64, stream bool) *RequestRecord {
	return m.RecordArrival(Arrival{
		Model: "m", Fingerprint: fingerprint, PromptTokens: 100, Stream: stream, TTFT: 2 * time.Second, ITL: 50 * time.Millisecond,
	})
}

func TestRequestRecord_WhatIsKeptOfTheObjectives(t *testing.T) {
	kept, missed, unjudged := Attained{1, 1}, Attained{1, 0}, Attained{}
	for _, of := range []struct {
		name      string
		does      func(*Meter, *clock)
		ttft, itl Attained
	}{
		{"in time", func(m *Meter, c *clock) {
			v := came(m, 1, true)
			c.pass(2 * time.Second)
			v.RecordFirstToken(100, 100)
			c.pass(450 * time.Millisecond)
			v.RecordEnd(10, false)
		}, kept, kept},
		{"a slow answer", func(m *Meter, c *clock) {
			v := came(m, 1, true)
			v.RecordFirstToken(100, 100)
			c.pass(460 * time.Millisecond)
			v.RecordEnd(10, false)
		}, kept, missed},
		{"one token has no gap", func(m *Meter, c *clock) {
			v := came(m, 1, true)
			c.pass(3 * time.Second)
			v.RecordFirstToken(100, 100)
			v.RecordEnd(1, false)
		}, missed, unjudged},
		{"a stream that broke", func(m *Meter, _ *clock) {
			v := came(m, 1, true)
			v.RecordFirstToken(100, 100)
			v.RecordEnd(5, true)
		}, kept, missed},
		{"failed", func(m *Meter, _ *clock) { came(m, 1, true).RecordEnd(-1, true) }, missed, missed},
		{"refused, tried again twice, then served", func(m *Meter, _ *clock) {
			came(m, 1, true).RecordRefusal()
			came(m, 1, true).RecordRefusal()
			v := came(m, 1, true)
			v.RecordFirstToken(100, 100)
			v.RecordEnd(2, false)
		}, missed, missed},
		{"the client left at once", func(m *Meter, _ *clock) { came(m, 1, true).RecordEnd(-1, false) }, unjudged, unjudged},
		{"the client waited long and left", func(m *Meter, c *clock) {
			v := came(m, 1, true)
			c.pass(3 * time.Second)
			v.RecordEnd(-1, false)
		}, missed, unjudged},
		{"the client left when its first token was due", func(m *Meter, c *clock) {
			v := came(m, 1, true)
			c.pass(2 * time.Second)
			v.RecordEnd(-1, false)
		}, unjudged, unjudged},
		{"without objectives the client left late", func(m *Meter, c *clock) {
			v := m.RecordArrival(Arrival{Model: "m", Stream: true})
			c.pass(time.Hour)
			v.RecordEnd(-1, false)
		}, unjudged, unjudged},
		{"served without objectives", func(m *Meter, c *clock) {
			v := m.RecordArrival(Arrival{Model: "m", Stream: true})
			c.pass(time.Hour)
			v.RecordFirstToken(100, 100)
			v.RecordEnd(10, false)
		}, unjudged, unjudged},
		{"refused with an objective of its first token alone", func(m *Meter, _ *clock) {
			m.RecordArrival(Arrival{Model: "m", Stream: true, TTFT: time.Second}).RecordRefusal()
		}, missed, unjudged},
		{"refused with one of its tokens alone", func(m *Meter, _ *clock) {
			m.RecordArrival(Arrival{Model: "m", Stream: true, ITL: time.Second}).RecordRefusal()
		}, unjudged, missed},
		{"a whole answer with one alone is not judged", func(m *Meter, _ *clock) {
			m.RecordArrival(Arrival{Model: "m", TTFT: time.Second}).RecordRefusal()
			m.RecordArrival(Arrival{Model: "m", Fingerprint: 2, ITL: time.Second}).RecordRefusal()
		}, unjudged, unjudged},
		{"a whole answer with both is", func(m *Meter, _ *clock) { came(m, 1, false).RecordRefusal() }, missed, missed},
		{"a whole answer when its last token is due", func(m *Meter, c *clock) {
			v := came(m, 1, false)
			c.pass(2450 * time.Millisecond)
			v.RecordFirstToken(100, 100)
			v.RecordEnd(10, false)
		}, kept, kept},
		{"a whole answer after that", func(m *Meter, c *clock) {
			v := came(m, 1, false)
			c.pass(2460 * time.Millisecond)
			v.RecordFirstToken(100, 100)
			v.RecordEnd(10, false)
		}, missed, missed},
		{"no objectives", func(m *Meter, _ *clock) { m.RecordArrival(Arrival{Model: "m", Stream: true}).RecordRefusal() }, unjudged, unjudged},
		{"long ago", func(m *Meter, c *clock) {
			came(m, 1, true).RecordRefusal()
			c.pass(attainedSpan)
		}, unjudged, unjudged},
	} {
		t.Run(of.name, func(t *testing.T) {
			c := newClock()
			m := NewMeter(c.Now)
			of.does(m, c)
			if ttft, itl := attainedOf(m, c); ttft != of.ttft || itl != of.itl {
				t.Errorf("ttft %+v, itl %+v; want %+v, %+v", ttft, itl, of.ttft, of.itl)
			}
		})
	}
}
