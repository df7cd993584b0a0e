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
	return m.Arrived(Arrival{
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
			v.Answered(100, 100)
			c.pass(450 * time.Millisecond)
			v.Ended(10, false)
		}, kept, kept},
		{"a slow answer", func(m *Meter, c *clock) {
			v := came(m, 1, true)
			v.Answered(100, 100)
			c.pass(460 * time.Millisecond)
			v.Ended(10, false)
		}, kept, missed},
		{"one token has no gap", func(m *Meter, c *clock) {
			v := came(m, 1, true)
			c.pass(3 * time.Second)
			v.Answered(100, 100)
			v.Ended(1, false)
		}, missed, unjudged},
		{"a stream that broke", func(m *Meter, _ *clock) {
			v := came(m, 1, true)
			v.Answered(100, 100)
			v.Ended(5, true)
		}, kept, missed},
		{"failed", func(m *Meter, _ *clock) { came(m, 1, true).Ended(-1, true) }, missed, missed},
		{"refused, tried again twice, then served", func(m *Meter, _ *clock) {
			came(m, 1, true).Refused()
			came(m, 1, true).Refused()
			v := came(m, 1, true)
			v.Answered(100, 100)
			v.Ended(2, false)
		}, missed, missed},
		{"the client left at once", func(m *Meter, _ *clock) { came(m, 1, true).Ended(-1, false) }, unjudged, unjudged},
		{"the client waited long and left", func(m *Meter, c *clock) {
			v := came(m, 1, true)
			c.pass(3 * time.Second)
			v.Ended(-1, false)
		}, missed, unjudged},
		{"a whole answer when its last token is due", func(m *Meter, c *clock) {
			v := came(m, 1, false)
			c.pass(2450 * time.Millisecond)
			v.Answered(100, 100)
			v.Ended(10, false)
		}, kept, kept},
		{"a whole answer after that", func(m *Meter, c *clock) {
			v := came(m, 1, false)
			c.pass(2460 * time.Millisecond)
			v.Answered(100, 100)
			v.Ended(10, false)
		}, missed, missed},
		{"no objectives", func(m *Meter, _ *clock) { m.Arrived(Arrival{Model: "m", Stream: true}).Refused() }, unjudged, unjudged},
		{"long ago", func(m *Meter, c *clock) {
			came(m, 1, true).Refused()
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
