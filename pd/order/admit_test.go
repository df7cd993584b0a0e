package order

import (
	"math"
	"testing"
)

// From any server to any other KV takes half a second, a second leg 0.1 s, and a step 20 ms.
func TestServers_Quickest(t *testing.T) {
	out := func(servers ...*bool) {
		for _, s := range servers {
			*s = true
		}
	}
	for _, of := range []struct {
		name   string
		change func(*Servers, *Ticket)
		want   float64
	}{
		{"a second of prefill", func(*Servers, *Ticket) {}, 1.62},
		{"work ahead does not count", func(s *Servers, _ *Ticket) { s.Prefill[0].Ahead, s.Prefill[1].Ahead = 9, 9 }, 1.62},
		{"one is quicker", func(_ *Servers, t *Ticket) { t.Prefill[1] = 0.5 }, 1.12},
		{"which is out", func(s *Servers, t *Ticket) { t.Prefill[1] = 0.5; out(&s.Prefill[1].Excluded) }, 1.62},
		{"which is not ready", func(_ *Servers, t *Ticket) { t.Prefill[1], t.PrefillReady = 0.5, []float64{0, 0.3} }, 1.42},
		{"decode is quicker", func(_ *Servers, t *Ticket) { t.Aggregated[1] = 0.25 }, 0.27},
		{"which is out as well", func(s *Servers, t *Ticket) { t.Aggregated[1] = 0.25; out(&s.Decode[1].Excluded) }, 1.62},
		{"which is not ready either", func(_ *Servers, t *Ticket) { t.Aggregated[1], t.DecodeReady = 0.25, []float64{0, 1} }, 1.27},
		{"decode alone is left", func(s *Servers, _ *Ticket) { out(&s.Prefill[0].Excluded, &s.Prefill[1].Excluded) }, 3.02},
		{"prefill says the first token", firstFromPrefill, 1},
		{"only where both servers can", func(s *Servers, t *Ticket) {
			firstFromPrefill(s, t)
			s.Prefill[0].SaysFirst, s.Decode[1].GoesOn = false, false
		}, 1},
		{"no prefill server says it", func(s *Servers, t *Ticket) {
			firstFromPrefill(s, t)
			s.Prefill[0].SaysFirst, s.Prefill[1].SaysFirst = false, false
		}, 1.62},
		{"no decode server goes on", func(s *Servers, t *Ticket) {
			firstFromPrefill(s, t)
			s.Decode[0].GoesOn, s.Decode[1].GoesOn = false, false
		}, 1.62},
		{"which goes on is out", func(s *Servers, t *Ticket) {
			firstFromPrefill(s, t)
			s.Decode[0].GoesOn, s.Decode[1].Excluded = false, true
		}, 1.62},
		{"nothing is left", func(s *Servers, _ *Ticket) {
			out(&s.Prefill[0].Excluded, &s.Prefill[1].Excluded, &s.Decode[0].Excluded, &s.Decode[1].Excluded)
		}, math.Inf(1)},
	} {
		s, ticket := fleetOf(2, 2), &Ticket{}
		s.HandOff = 0.1
		for i := range s.Links.Latency {
			s.Links.Latency[i] = 0.5
		}
		ticket.price(s, 3)
		of.change(s, ticket)
		if got := s.LeastTTFT(ticket); got != of.want && !(math.Abs(got-of.want) < 1e-9) {
			t.Errorf("%s: %v s, want %v", of.name, got, of.want)
		}
	}
}

// firstFromPrefill lets all servers and a request take the first token from prefill.
func firstFromPrefill(s *Servers, t *Ticket) {
	t.FirstFromPrefill = true
	for p := range s.Prefill {
		s.Prefill[p].SaysFirst = true
	}
	for d := range s.Decode {
		s.Decode[d].GoesOn = true
	}
}
