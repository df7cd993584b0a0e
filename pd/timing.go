package pd

import "time"

// Timing is what the time of a request went to, from its arrival on. It names no server.
type Timing struct {
	Wait     time.Duration // in the gateway's queue, for a place and for its servers
	Choose   time.Duration // until its first servers were chosen, less the wait
	Retry    time.Duration // for attempts that failed
	Prefill  time.Duration // of the last attempt; 0 where it was not seen
	Transfer time.Duration // likewise, up to the first content event
	Decode   time.Duration // of a whole answer, behind prefill
}

// timing is what the request's time went to so far.
func (st *requestState) timing(b *binding) Timing {
	first, last, m := st.bindings[0].choice.Demand.Waited, b.choice.Demand.Waited, &b.choice.Measured
	t := Timing{Wait: st.bind.waited, Choose: max(0, first-st.bind.waited), Retry: last - first, Prefill: m.Prefill, Transfer: m.Transfer}
	if m.Whole > 0 {
		t.Decode = m.Whole - m.Prefill
	}
	return t
}
