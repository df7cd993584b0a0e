package pools

import (
	"context"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/nameserver"
	"github.com/tandem-gateway/tandem/pools/address"
)

// A hand-off of a server that has just joined is not withheld because its names were not looked
// up yet.
func TestFleet_AServerJoinsOnceItsNamesWereLookedUp(t *testing.T) {
	names := nameserver.Start(t)
	names.Set("prefill.test.", "A", "prefill.test. 0 IN A 192.0.2.1")
	var probed, early atomic.Bool
	cfg := Default()
	cfg.AwaitAddresses = true
	f := NewFleet(cfg, slog.New(slog.DiscardHandler))
	f.Watch(func() func(context.Context, *Server) {
		return func(ctx context.Context, s *Server) {
			s.AwaitAddresses(ctx)
			probed.Store(true)
		}
	})
	t.Cleanup(f.Close)
	f.names = address.NewResolver(&net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		time.Sleep(50 * time.Millisecond) // a probe that does not wait is faster
		if probed.Load() {
			early.Store(true)
		}
		return new(net.Dialer).DialContext(ctx, network, names.Addr())
	}})
	if err := f.Apply([]Spec{spec("http://prefill.test:1", Prefill)}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the server is probed", probed.Load)
	if early.Load() || f.Servers()[0].JudgeHost("192.0.2.1", f.Servers()[0]) != address.Own {
		t.Error("it was probed before its names were looked up")
	}
}
