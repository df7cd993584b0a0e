package replicas

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/curve"
)

// What a replica has in flight another one knows at once over a connection that they have: no Redis
// is there. A report that got lost is made good by the next, and one that comes twice does no harm.
func TestStream_SaysWhatIsInFlightAtOnceAndAllOfItEachBeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := slog.New(slog.DiscardHandler)
		own, there := fleetOf(t, 2), fleetOf(t, 2)
		from, to := NewExchange(own, nil, "", "a", log), NewExchange(there, nil, "", "b", log)
		ctx, stop := context.WithCancel(t.Context())
		sent, loses := 0, 0
		var runs sync.WaitGroup
		runs.Go(func() {
			from.Stream(ctx, func(report []byte) bool {
				sent++
				if loses > 0 {
					loses--
					return false
				}
				to.Receive("a", report)
				to.Receive("a", report)
				return true
			})
		})
		defer runs.Wait()
		defer stop()
		knows := func(within time.Duration, want ...int) {
			t.Helper()
			time.Sleep(within)
			synctest.Wait()
			for i, s := range there.Servers() {
				if got := s.InFlight(pools.Prefill, time.Now()).Requests; got != want[i] {
					t.Errorf("server %d is known to have %d requests, want %d", i, got, want[i])
				}
			}
		}
		claim := func(i int) *pools.Lease {
			l, err := own.Servers()[i].Claim(pools.Prefill, curve.Work{Tokens: 10, Estimate: time.Hour}, false, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		knows(2*directDelay, 0, 0)
		first := claim(0)
		knows(0, 1, 0)
		second := claim(1)
		second.Release()
		third := claim(1)
		knows(directDelay, 1, 1)
		if before := sent; before > 3 {
			t.Errorf("%d reports of what was one change after the other", before)
		}
		before := sent
		for range 100 {
			claim(0).Release()
			time.Sleep(directDelay / 10)
		}
		synctest.Wait()
		if n := sent - before; n > 12 {
			t.Errorf("%d reports in ten times as long as changes are gathered", n)
		}
		knows(directDelay, 1, 1)
		loses = 1
		first.Release()
		knows(directDelay, 1, 1)
		third.Release()
		knows(directDelay, 0, 0) // both: the lost one is told again
		if n := from.CountDecision(); n != 1 {
			t.Errorf("%d decisions", n)
		}
		time.Sleep(directDelay)
		synctest.Wait()
		if n, _ := to.ReportedDecisions("a"); n != 1 {
			t.Errorf("%d decisions are reported", n)
		}
		claim(0)
		knows(3*workExpiry, 1, 0) // it beats
		stop()
		knows(2*workExpiry, 0, 0) // one that says nothing has nothing
	})
}

// While a replica reports directly what it publishes comes late and does not count, and counts again
// when that connection is lost.
func TestReceive_GoesBeforeWhatIsPublished(t *testing.T) {
	f := fleetOf(t, 1)
	r := NewExchange(f, nil, "", "b", slog.New(slog.DiscardHandler))
	id := f.Servers()[0].ID()
	report := func(replica string, requests int) []byte {
		m := workMessage{Replica: replica, Servers: map[string][2]sharedWork{id: {{Requests: requests}}}, Decisions: 1}
		return m.encode()
	}
	for _, step := range []struct {
		name string
		do   func()
		want int
	}{
		{"published", func() { r.take(report("a", 5), time.Now()) }, 5},
		{"reported directly", func() { r.Receive("a", report("a", 1)) }, 1},
		{"published before that", func() { r.take(report("a", 5), time.Now()) }, 1},
		{"reported by another", func() { r.Receive("c", report("a", 7)) }, 1},
		{"unreadable", func() { r.Receive("a", []byte("no report")) }, 1},
		{"reported by itself", func() { r.Receive("b", report("b", 7)) }, 1},
		{"lost", func() { r.Lost("a"); r.Lost("unknown") }, 1},
		{"published after that", func() { r.take(report("a", 2), time.Now()) }, 2},
	} {
		step.do()
		if got := r.InFlight(id, pools.Prefill, time.Now()).Requests; got != step.want {
			t.Errorf("%s: %d requests, want %d", step.name, got, step.want)
		}
	}
	if n := r.ignored.Load(); n != 3 {
		t.Errorf("%d are counted as ignored", n)
	}
}
