package order

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"
)

// benchTenants is requests that wait before 32 + 32 servers, each of another tenant, each
// with an hour to begin.
func benchTenants(requests, tenants int) (*Order, *Servers) {
	o, s := benchOrder()
	template := o.All(nil)
	o = New(DefaultConfig())
	for i := range requests {
		t := *template[i%len(template)]
		t.ID, t.Tenant, t.Latest, t.onPrefill = int64(i), fmt.Sprint("tenant-", i%tenants), time.Hour, nil
		o.Add(&t, s.Links)
	}
	return o, s
}

// Budget (2-core VM): <= 300 us for a newcomer with 4,096 waiting of 4,096 tenants, or of
// one, where any of them could be late. Of tenants with several requests each further one costs a heap's turn: <= 600 us.
func BenchmarkOrderAdmit4096(b *testing.B) {
	for _, tenants := range []int{1, 64, 1024, 4096} {
		b.Run(fmt.Sprint(tenants, " tenants"), func(b *testing.B) {
			o, s := benchTenants(4096, tenants)
			waiting := o.All(nil)
			newcomer := *waiting[0]
			newcomer.ID, newcomer.Tenant, newcomer.onPrefill = -1, "newcomer", nil
			forecast := benchForecast()
			b.ReportAllocs()
			for b.Loop() {
				o.firstLatest = math.MinInt64
				if _, _, ok := o.Admit(&newcomer, s, forecast); !ok {
					b.Fatal("refused")
				}
				o.Remove(&newcomer)
			}
		})
	}
}

// Budget (2-core VM): <= 200 us for a wake-up that lets one request go and takes a new one,
// with 1,000 waiting of 1,000 tenants.
func BenchmarkOrderTurnTenants1000x32x32(b *testing.B) {
	o, s := benchTenants(1000, 1000)
	b.ReportAllocs()
	for b.Loop() {
		turn, ok := o.Next(s)
		if !ok {
			b.Fatal("no request went")
		}
		o.Stale(8, nil)
		o.Add(turn.Ticket, s.Links)
	}
}

// BenchmarkOrderDisplace4096: a newcomer of a higher class that 4,095 others give way to, and
// that they come again. Budget (2-core VM): <= 20 ms, 5 us for each.
func BenchmarkOrderDisplace4096(b *testing.B) {
	o, s := benchTenants(4096, 4096)
	for _, t := range o.All(nil) {
		t.Latest = 10 * 24 * time.Hour
	}
	newcomer := *o.All(nil)[0]
	newcomer.ID, newcomer.Class, newcomer.onPrefill = -1, -1, nil
	newcomer.Prefill = slices.Repeat([]float64{1e9}, len(newcomer.Prefill))
	newcomer.Aggregated = newcomer.Prefill
	for b.Loop() {
		_, gaveWay, ok := o.Admit(&newcomer, s, benchForecast())
		if !ok || len(gaveWay) < 4000 {
			b.Fatalf("%d gave way, %v", len(gaveWay), ok)
		}
		o.Remove(&newcomer)
		for _, t := range gaveWay {
			o.Add(t, s.Links)
		}
	}
}

// benchForecast is a forecast of which all is supported.
func benchForecast() Forecast {
	return Forecast{Margin: func(d time.Duration) time.Duration { return d }, Supported: func(seconds float64, _ int) float64 { return seconds }}
}
