package pools

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
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

// engine answers probes; its state is changed while the fleet watches.
type engine struct {
	*httptest.Server
	sick   atomic.Bool
	model  atomic.Value
	probes atomic.Int64
}

func newEngine(t *testing.T, model string) *engine {
	e := &engine{}
	e.model.Store(model)
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/health":
			e.probes.Add(1)
			if e.sick.Load() {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		case r.URL.Path == "/v1/models":
			_, _ = fmt.Fprintf(w, `{"data":[{"id":%q,"max_model_len":4096}]}`, e.model.Load())
		case r.URL.Path == "/metrics":
			_, _ = fmt.Fprint(w, vllmExposition)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(e.Close)
	return e
}

func newTestFleet(t *testing.T) *Fleet {
	cfg := Default()
	cfg.ProbeInterval, cfg.ProbeTimeout = 20*time.Millisecond, 10*time.Second
	transport := &http.Transport{}
	f := NewFleet(cfg, transport, slog.New(slog.DiscardHandler))
	t.Cleanup(func() {
		f.Close()
		transport.CloseIdleConnections()
	})
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

func TestFleet_AServerIsUsedOnceItAnswersAndSaysWhatItServes(t *testing.T) {
	f, e := newTestFleet(t), newEngine(t, "m")
	if err := f.Apply([]Spec{spec(e.URL, Both)}); err != nil {
		t.Fatal(err)
	}
	s := f.Servers()[0]
	eventually(t, "up", func() bool { return s.Health().Up })
	if !s.Health().Serves("m") || s.Health().Models[0].MaxModelLen != 4096 {
		t.Errorf("models: %+v", s.Health().Models)
	}
	eventually(t, "load is read", func() bool { return s.Load().Running == Gauge{7, true} })

	e.sick.Store(true)
	eventually(t, "down", func() bool { return !s.Health().Up })
	if !s.Health().Serves("m") {
		t.Error("a server that is down lost its models")
	}
	eventually(t, "roles are missing", func() bool { return slices.Equal(f.Missing(), []Role{Prefill, Decode}) })
	// Another engine takes the address.
	e.model.Store("other")
	e.sick.Store(false)
	eventually(t, "up again", func() bool { return s.Health().Up })
	if s.Health().Serves("m") || !s.Health().Serves("other") {
		t.Errorf("models after the address changed hands: %+v", s.Health().Models)
	}
}

func TestFleet_MarkDownIsCheckedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &fakeEngine{generate: sings}
		s := watched(t, e, Both)
		for e.probed() < 2 { // the next regular probe comes after most of an interval
			time.Sleep(time.Millisecond)
		}
		s.MarkDown("connection refused")
		if s.Health().Up {
			t.Fatal("still up")
		}
		time.Sleep(Default().ProbeInterval / 5)
		if !s.Health().Up {
			t.Error("a server that answers is still out")
		}
	})
}

func TestFleet_ApplyKeepsTheStateOfServersThatStay(t *testing.T) {
	f, a, b := newTestFleet(t), newEngine(t, "m"), newEngine(t, "m")
	if err := f.Apply([]Spec{spec(a.URL, Prefill), spec(b.URL, Decode)}); err != nil {
		t.Fatal(err)
	}
	before := f.Servers()[1]
	eventually(t, "up", func() bool { return before.Health().Up })
	lease, err := before.Claim(Decode, curve.Work{Tokens: 10}, false)
	if err != nil {
		t.Fatal(err)
	}
	labelled := spec(b.URL, Decode)
	labelled.Rack = "r1"
	if err := f.Apply([]Spec{labelled}); err != nil {
		t.Fatal(err)
	}
	after := f.Servers()
	if len(after) != 1 || after[0].Rack != "r1" || !after[0].Health().Up || after[0].InFlight(Decode, time.Now()).Requests != 1 {
		t.Errorf("the server lost its state: %+v", after)
	}
	probes := a.probes.Load()
	lease.Release()
	if after[0].InFlight(Decode, time.Now()).Requests != 0 {
		t.Error("a lease of the old snapshot did not release on the new one")
	}
	eventually(t, "the server that stayed is still probed", func() bool { return b.probes.Load() > probes+3 })
	if now := a.probes.Load(); now > probes+1 {
		t.Errorf("a server that is gone was probed %d more times", now-probes)
	}
}

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
