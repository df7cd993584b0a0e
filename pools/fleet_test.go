package pools

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

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

func newTestFleet(t *testing.T) *Fleet { return newFleetOf(t, Default()) }

func newFleetOf(t *testing.T, cfg Config) *Fleet {
	f := NewFleet(cfg, slog.New(slog.DiscardHandler))
	t.Cleanup(f.Close)
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

func spec(url string, role Role) Spec { return Spec{URL: url, Role: role, Connector: "nixl"} }

func TestFleet_ApplyRefusesWhatCannotBe(t *testing.T) {
	f := newTestFleet(t)
	rank := -1
	for name, specs := range map[string][]Spec{
		"twice":     {spec("http://a:1", Prefill), spec("http://a:1", Decode)},
		"no scheme": {spec("a:1", Prefill)},
		"path":      {spec("http://a:1/v1", Prefill)},
		"no role":   {spec("http://a:1", 0)},
		"rank":      {{URL: "http://a:1", Role: Both, Connector: "nixl", Rank: &rank}},
		"connector": {{URL: "http://a:1", Role: Both, Connector: "pigeon"}},
	} {
		if err := f.Apply(specs); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if len(f.Servers()) != 0 {
		t.Error("a refused fleet was taken over")
	}
}

// follower notes which servers it follows, by rack, and how often it was made for one.
type follower struct {
	mu    sync.Mutex // guards the rest
	made  int
	racks map[string]string // by ID
}

func (w *follower) watch() func(context.Context, *Server) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.made++
	return func(ctx context.Context, s *Server) {
		s.ProbePassed(s.Health(), []Model{{ID: "m"}}, time.Now())
		w.mu.Lock()
		w.racks[s.ID()] = s.Rack
		w.mu.Unlock()
		<-ctx.Done()
		w.mu.Lock()
		delete(w.racks, s.ID())
		w.mu.Unlock()
	}
}

func (w *follower) follows(racks map[string]string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Equal(w.racks, racks)
}

// A server that stays keeps its state, its leases, and its followers, which see its new
// spec; one that is gone is followed no more.
func TestFleet_ApplyKeepsWhatStays(t *testing.T) {
	f, w := newTestFleet(t), &follower{racks: make(map[string]string)}
	f.Watch(w.watch)
	stays := spec("http://b:1", Decode)
	if err := f.Apply([]Spec{spec("http://a:1", Prefill), stays}); err != nil {
		t.Fatal(err)
	}
	before := f.Servers()[1]
	eventually(t, "both are followed", func() bool { return w.follows(map[string]string{"a:1": "", "b:1": ""}) })
	lease, err := before.Claim(Decode, curve.Work{Tokens: 10}, false, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	stays.Rack = "r1"
	if err := f.Apply([]Spec{stays}); err != nil {
		t.Fatal(err)
	}
	after := f.Servers()
	if len(after) != 1 || after[0].Rack != "r1" || !after[0].Health().Up || after[0].InFlight(Decode, time.Now()).Requests != 1 {
		t.Errorf("the server lost its state: %+v", after)
	}
	lease.Release()
	if after[0].InFlight(Decode, time.Now()).Requests != 0 {
		t.Error("a lease of the old snapshot did not release on the new one")
	}
	eventually(t, "the one that stays is followed with its new spec", func() bool { return w.follows(map[string]string{"b:1": "r1"}) })
	if w.made != 2 {
		t.Errorf("%d followers were made for two servers", w.made)
	}
	f.Close()
	if !w.follows(map[string]string{}) {
		t.Error("a fleet that is closed is followed")
	}
}
