package pd

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/tandem-gateway/tandem/loadtest/redisserver"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/leader"
	"github.com/tandem-gateway/tandem/pd/leader/leaderpb"
	"github.com/tandem-gateway/tandem/pd/order"
)

// turns is a leader whose order gives every request the servers that stand here.
type turns struct {
	mu              sync.Mutex // guards the rest
	prefill, decode string
	given           int
}

func (o *turns) Bind(_ context.Context, r *leaderpb.RemoteRequest) (*leaderpb.Turn, func(), error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.given++
	return &leaderpb.Turn{Id: r.Id, Prefill: o.prefill, Decode: o.decode}, func() {}, nil
}

// ReportedDecisions is leader.Reports'.
func (o *turns) ReportedDecisions(string) (uint64, <-chan struct{}) { return 0, nil }

func (o *turns) give(prefill, decode string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.prefill, o.decode, o.given = prefill, decode, 0
}

// follow returns a follower of another replica, which decides by an order.
func follow(t *testing.T, by *turns) *leader.Follower {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	log, metrics := slog.New(slog.DiscardHandler), leader.NewMetrics(prometheus.NewRegistry())
	ctx, stop := context.WithCancel(context.Background())
	var parts sync.WaitGroup
	redis := redisserver.Start(t).Client()
	leads := leader.NewElection(redis, "test:", "leader", listener.Addr().String(), log)
	serves := leader.NewServer(leads, by, by, metrics, log).GRPC()
	t.Cleanup(func() {
		stop()
		serves.Stop()
		parts.Wait()
	})
	parts.Go(func() { _ = serves.Serve(listener) })
	parts.Go(func() { leads.Run(ctx) })
	await := func(is func() bool) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); !is(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("it does not lead or follow")
			}
		}
	}
	await(func() bool { _, own, _ := leads.Current(); return own })
	own := leader.NewElection(redis, "test:", "follower", "", log)
	f := leader.NewFollower(own, "follower", func() uint64 { return 1 }, insecure.NewCredentials(), metrics, log)
	f.Patience = 30 * time.Second
	parts.Go(func() { own.Run(ctx) })
	parts.Go(func() { f.Run(ctx) })
	await(f.Follows)
	return f
}

// The servers of a turn are those that the leader has chosen. Where one of them is not there any
// more, or takes nothing, the request is bound here at once, and not lost.
func TestBinder_TakesTheServersOfItsTurnOrItsOwn(t *testing.T) {
	by := &turns{}
	f := newEngineFleet(t, fleetShape{prefill: 2, decode: 2})
	f.Binder.Late = NewDecider(f.Binder.Chooser, order.DefaultConfig(), time.Minute, f.Log) // whose turns nobody waits for
	f.Binder.Leader = follow(t, by)
	req := f.asks(api.Chat, more(api.Chat, false))
	for i := range 12 {
		p, d := f.server(f.prefill[i/2%2]).ID(), f.server(f.decode[i%2]).ID()
		by.give(p, d)
		if got := f.served(req); got.Prefill != p || got.Decode != d || by.given != 1 {
			t.Fatalf("of %d turns on %s and %s it went to %s and %s", by.given, p, d, got.Prefill, got.Decode)
		}
	}
	resting := f.server(f.decode[1])
	resting.MarkBusy(time.Hour)
	for name, turn := range map[string][2]string{
		"a prefill that is gone":     {"gone:1", f.server(f.decode[0]).ID()},
		"a decode that is gone":      {f.server(f.prefill[0]).ID(), "gone:1"},
		"a decode that takes no leg": {f.server(f.prefill[0]).ID(), resting.ID()},
	} {
		by.give(turn[0], turn[1])
		if got := f.served(req); got.Decode != f.server(f.decode[0]).ID() || by.given != 1 {
			t.Errorf("%s: of %d turns, it went to %s and %s", name, by.given, got.Prefill, got.Decode)
		}
	}
	f.nothingIsLeft()
}
