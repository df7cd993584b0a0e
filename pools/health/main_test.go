package health

import (
	"errors"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/breaker"
	"github.com/tandem-gateway/tandem/pools/curve"
)

// A name look-up that was given up reads on by itself, in package net, until its own
// timeout of 5 s.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("net.(*Resolver).goLookupIPCNAMEOrder"),
		goleak.IgnoreAnyFunction("net.(*Resolver).lookupIPAddr.func2"),
		goleak.IgnoreAnyFunction("net.(*Resolver).tryOneName"))
}

// fleetOf is a fleet whose servers are watched through a transport.
func fleetOf(t *testing.T, cfg pools.Config, transport http.RoundTripper, specs ...pools.Spec) *pools.Fleet {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	f := pools.NewFleet(cfg, log)
	Watch(f, transport, log)
	t.Cleanup(f.Close)
	if err := f.Apply(specs); err != nil {
		t.Fatal(err)
	}
	return f
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !holds(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within 30 s: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

func spec(url string, role pools.Role) pools.Spec {
	return pools.Spec{URL: url, Role: role, Connector: "nixl"}
}

var errEngine = errors.New("engine failed")

// use claims and settles once, unless the claim is refused.
func use(t *testing.T, s *pools.Server, leg pools.Role, verdict error) {
	t.Helper()
	l, err := s.Claim(leg, curve.Work{}, false, time.Now())
	if err != nil {
		if !errors.Is(err, pools.ErrRefused) {
			t.Fatalf("claim: %v", err)
		}
		return
	}
	l.MarkSent(0, time.Now())
	l.RecordResult(verdict)
	l.Release()
}

// trip has the server ejected for decode.
func trip(t *testing.T, s *pools.Server) {
	t.Helper()
	for range breaker.Default().Consecutive {
		use(t, s, pools.Decode, errEngine)
	}
}
