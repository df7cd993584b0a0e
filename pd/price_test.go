package pd

import (
	"reflect"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/order"
)

// What waiting requests have in common is worked out once: each is still priced as if it had
// come alone, whichever was looked at before it.
func TestPrice_IsTheSameWhoeverWasLookedAtBefore(t *testing.T) {
	prompt := testPrompt(14_000)
	f := newTestFleet(t, 9, prompt)
	now := time.Now()
	for i, s := range f.Fleet.Servers() { // no two are as fast
		s.ObserveStep(time.Duration(20+i)*time.Millisecond, 100, 400_000, now)
	}
	requests := make([]*bindRequest, 40)
	for i := range requests {
		r := &f.arrives(prompt[:f.rng.IntN(len(prompt))], now).bind
		r.req.Dialect, r.req.Aggregated = api.Dialects()[f.rng.IntN(len(api.Dialects()))], f.rng.IntN(4) == 0
		r.tried.mustAggregate, r.req.ITL = r.req.Aggregated || f.rng.IntN(4) == 0, time.Duration(f.rng.IntN(2))*time.Second
		if f.rng.IntN(3) == 0 {
			servers := f.Fleet.Servers()
			leg := []Leg{PrefillLeg, DecodeLeg, AggregatedLeg}[f.rng.IntN(3)]
			r.tried.exclude(leg, servers[f.rng.IntN(len(servers))].ID())
		}
		requests[i] = r
	}
	price := func(r *bindRequest, v *snapshot) (priced order.Ticket) {
		var servers order.Servers
		f.Binder.Cost.PriceServers(&v.candidates, &servers)
		f.Binder.applyRequest(r, v, now)
		f.Binder.Cost.PriceRequest(f.Binder.demand(r, now), &v.candidates, &priced)
		return priced
	}
	shared := f.Binder.takeSnapshot(testModel, testModel, now)
	for range 200 {
		r := requests[f.rng.IntN(len(requests))]
		alone := f.Binder.takeSnapshot(testModel, testModel, now)
		if got, want := price(r, &shared), price(r, &alone); !reflect.DeepEqual(got, want) {
			t.Fatalf("after others it is priced\n%+v\nalone\n%+v", got, want)
		}
	}
}
