package order

import (
	"math"
	"slices"
	"testing"
	"time"
)

// One that would go at an old price is priced anew before, and may wait then. Who would not go is not priced.
func TestOrder_WhoGoesIsPricedAnewBefore(t *testing.T) {
	type cost struct{ busy, free float64 } // seconds of prefill on two servers
	for name, c := range map[string]struct {
		waiting  []cost        // all priced long ago
		since    time.Duration // they came
		far      bool          // the busy server's KV takes a second to decode
		renewed  []cost        // what they cost then; nil: as much
		goes     int           // which goes; -1: none
		priced   []int64       // which were priced anew
		standing []int64       // who waits on, in the order of service
	}{
		"it is as it was":                               {[]cost{{1, 1}, {1.2, 1.2}}, 0, false, nil, 0, []int64{0}, []int64{1}},
		"the busy server holds its beginning now":       {[]cost{{1, 1}, {1.2, 1.2}}, 0, false, []cost{{0.1, 1.2}, {0.1, 1.2}}, -1, []int64{0, 1}, []int64{0, 1}},
		"and stands before others then":                 {[]cost{{1, 1}, {0.9, math.Inf(1)}}, 0, false, []cost{{0.1, 1}}, -1, []int64{0}, []int64{0, 1}},
		"also where another one goes":                   {[]cost{{1, 1}, {0.9, math.Inf(1)}, {1.2, 1.2}}, 0, false, []cost{{0.1, 1}, {}, {1.2, 1.2}}, 2, []int64{0, 2}, []int64{0, 1}},
		"it is slower than it was, and still the first": {[]cost{{1, 1}, {1.4, 2}}, 0, true, []cost{{0.2, 1.5}}, 0, []int64{0}, []int64{1}},
		// Until its pair is found the busy server might cost it less.
		"one behind the best so far": {[]cost{{0.4, 1}, {0.6, 1.5}}, 0, true, nil, 0, []int64{0}, []int64{1}},
		"one that is overdue":        {[]cost{{1, 1}, {1.2, 1.2}}, time.Minute, false, []cost{{0.1, 1.2}, {0.1, 1.2}}, -1, []int64{0, 1}, []int64{0, 1}},
	} {
		o, s := New(DefaultConfig()), fleetOf(2, 2)
		s.Now, s.Prefill[0].Ahead, s.Decode[1].Excluded = c.since, 0.5, true
		if c.far {
			s.Prefill[0].Ahead, s.Links.SecondsPerByte[0] = 0.7, 1e-9
		}
		var tickets []*Ticket
		for id, cost := range c.waiting {
			k := &Ticket{ID: int64(id), Outdated: true}
			k.price(s, math.Inf(1))
			k.Weights.Congestion = 0
			k.Prefill[0], k.Prefill[1] = cost.busy, cost.free
			copy(k.Reference, k.Prefill)
			tickets = append(tickets, k)
			o.Add(k, s.Links)
		}
		var priced []int64
		s.Renew = func(k *Ticket) {
			priced, k.Outdated = append(priced, k.ID), false
			if c.renewed != nil {
				k.Prefill[0], k.Prefill[1] = c.renewed[k.ID].busy, c.renewed[k.ID].free
			}
		}
		turn, ok := o.Next(s)
		if goes := c.goes >= 0; ok != goes || goes && turn.Ticket != tickets[c.goes] {
			t.Errorf("%s: one goes: %v, want %d", name, ok, c.goes)
		}
		var standing []int64
		for _, k := range o.All(nil) {
			standing = append(standing, k.ID)
		}
		if !slices.Equal(priced, c.priced) || !slices.Equal(standing, c.standing) {
			t.Errorf("%s: priced %v, standing %v, want %v and %v", name, priced, standing, c.priced, c.standing)
		}
		for _, id := range standing {
			if !o.Remove(tickets[id]) {
				t.Errorf("%s: %d does not stand where its price says", name, id)
			}
		}
	}
}
