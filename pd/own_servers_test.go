package pd

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/curve"
)

// A server that is left out beside a better one, here since it has as many requests as its slow start allows, serves a
// request that may use no better one: since its client names servers, or since it has failed on the others.
func TestBind_AServerLeftOutServesWhoMayUseNoOther(t *testing.T) {
	for name, c := range map[string]struct {
		subset, fails, late bool
		want                int // decode server; the slow one is 0
	}{
		"any":                       {want: 1},
		"any, late":                 {late: true, want: 1},
		"its client names it":       {subset: true},
		"its client names it, late": {subset: true, late: true},
		"the other one fails":       {fails: true},
		"the other one fails, late": {fails: true, late: true},
	} {
		for _, aggregated := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				f := newTestFleet(t, 2, testPrompt(100))
				decode := f.Fleet.Servers()[2:]
				if c.late {
					d := newTestDecider(f)
					f.Binder.Late = d
					ctx, stop := context.WithCancel(t.Context())
					var running sync.WaitGroup
					defer running.Wait()
					defer stop()
					running.Go(func() { d.Run(ctx) })
				}
				time.Sleep(time.Minute) // nobody starts slowly any more
				slow := decode[0]
				slow.MarkDown("refused")
				time.Sleep(time.Minute)
				slow.ProbePassed(slow.Health(), []pools.Model{{ID: testModel}}, time.Now())
				lease, err := slow.Claim(pools.Decode, curve.Work{Tokens: 1000, Estimate: time.Hour}, false, time.Now())
				if err != nil {
					t.Fatal(err)
				}
				defer lease.Release()
				served := ""
				f.Transport = sends(func(r *http.Request) (*http.Response, error) {
					s := f.serverOf(r)
					if s.Role == pools.Decode {
						if served = s.ID(); c.fails && s == decode[1] {
							return &http.Response{StatusCode: http.StatusBadGateway, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
						}
					}
					return f.answersOf(r, false), nil
				})
				req := f.pairRequest(t, false)
				req.Aggregated = aggregated
				if c.subset {
					req.Subset = pools.NewSubset([]string{decode[0].Address()})
				}
				if _, err := f.ends(t.Context(), req); err != nil || served != decode[c.want].ID() {
					t.Errorf("%s, aggregated %v: served by %q, not by %s: %v", name, aggregated, served, decode[c.want].ID(), err)
				}
			})
		}
	}
}
