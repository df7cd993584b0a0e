package health

import (
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/testlog"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/curve"
	"github.com/tandem-gateway/tandem/pools/load"
)

// httpEngine answers probes; its state is changed while the fleet watches.
type httpEngine struct {
	*httptest.Server
	sick   atomic.Bool
	model  atomic.Value
	probes atomic.Int64
}

// fastProbes are as frequent as a test over sockets wants them.
func fastProbes() pools.Config {
	cfg := pools.Default()
	cfg.ProbeInterval, cfg.ProbeTimeout = 20*time.Millisecond, 10*time.Second
	return cfg
}

func newEngine(t *testing.T, model string) *httpEngine {
	e := &httpEngine{}
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
			_, _ = fmt.Fprint(w, "vllm:num_requests_running 7\n")
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(e.Close)
	return e
}

func TestFleet_AServerIsUsedOnceItAnswersAndSaysWhatItServes(t *testing.T) {
	e, transport := newEngine(t, "m"), &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	f := fleetOf(t, fastProbes(), transport, spec(e.URL, pools.Both))
	s := f.Servers()[0]
	eventually(t, "up", func() bool { return s.Health().Up })
	if !s.Health().Serves("m") || s.Health().Models[0].MaxModelLen != 4096 {
		t.Errorf("models: %+v", s.Health().Models)
	}
	eventually(t, "load is read", func() bool { return s.Load().Running == load.Gauge{Value: 7, Known: true} })

	e.sick.Store(true)
	eventually(t, "down", func() bool { return !s.Health().Up })
	if !s.Health().Serves("m") {
		t.Error("a server that is down lost its models")
	}
	eventually(t, "roles are missing", func() bool { return slices.Equal(f.Missing(), []pools.Role{pools.Prefill, pools.Decode}) })
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
		s := watched(t, e, pools.Both)
		for e.probed() < 2 { // the next regular probe comes after most of an interval
			time.Sleep(time.Millisecond)
		}
		s.MarkDown("connection refused")
		if s.Health().Up {
			t.Fatal("still up")
		}
		time.Sleep(pools.Default().ProbeInterval / 5)
		if !s.Health().Up {
			t.Error("a server that answers is still out")
		}
	})
}

func TestFleet_ApplyKeepsTheStateOfServersThatStay(t *testing.T) {
	a, b, transport := newEngine(t, "m"), newEngine(t, "m"), &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	f := fleetOf(t, fastProbes(), transport, spec(a.URL, pools.Prefill), spec(b.URL, pools.Decode))
	before := f.Servers()[1]
	eventually(t, "up", func() bool { return before.Health().Up })
	lease, err := before.Claim(pools.Decode, curve.Work{Tokens: 10}, false, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	labelled := spec(b.URL, pools.Decode)
	labelled.Rack = "r1"
	if err := f.Apply([]pools.Spec{labelled}); err != nil {
		t.Fatal(err)
	}
	after := f.Servers()
	if len(after) != 1 || after[0].Rack != "r1" || !after[0].Health().Up || after[0].InFlight(pools.Decode, time.Now()).Requests != 1 {
		t.Errorf("the server lost its state: %+v", after)
	}
	probes := a.probes.Load()
	lease.Release()
	if after[0].InFlight(pools.Decode, time.Now()).Requests != 0 {
		t.Error("a lease of the old snapshot did not release on the new one")
	}
	eventually(t, "the server that stayed is still probed", func() bool { return b.probes.Load() > probes+3 })
	if now := a.probes.Load(); now > probes+1 {
		t.Errorf("a server that is gone was probed %d more times", now-probes)
	}
}

// Gateways and engines that all start at once must not probe in step: the gaps
// between the probes that reach one engine vary as those of independent ones do.
func TestProbes_OfGatewaysThatStartTogetherAreNotInStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engines := make([]*fakeEngine, 8)
		for i := range engines {
			engines[i] = &fakeEngine{}
		}
		byHost := roundTripper(func(req *http.Request) (*http.Response, error) {
			var n int
			_, _ = fmt.Sscanf(req.URL.Hostname(), "10.0.0.%d", &n) // the hosts are ours
			return engines[n].RoundTrip(req)
		})
		for range 3 {
			var specs []pools.Spec
			for n := range engines {
				specs = append(specs, spec(fmt.Sprintf("http://10.0.0.%d:1", n), pools.Decode))
			}
			fleetOf(t, pools.Default(), byHost, specs...)
		}
		time.Sleep(2 * time.Minute)
		var sum, squares, n float64
		for _, e := range engines {
			e.mu.Lock()
			for i := range e.health[1:] {
				gap := e.health[i+1].Sub(e.health[i]).Seconds()
				sum, squares, n = sum+gap, squares+gap*gap, n+1
			}
			e.mu.Unlock()
		}
		mean := sum / n
		if cv := math.Sqrt(squares/n-mean*mean) / mean; cv < 0.5 {
			t.Errorf("the gaps between probes vary by only %.2f of their mean", cv)
		}
	})
}

// A server that stays up and lists other base models has most likely been replaced between two probes: that is logged
// once. Adapters, which come and go, are logged for who debugs.
func TestProbe_OtherModelsOfAServerThatStaysUpAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &listing{models: `{"data":[{"id":"m"},{"id":"adapter","parent":"m"}]}`}
		var log testlog.Buffer
		f := pools.NewFleet(pools.Default(), slog.New(slog.DiscardHandler))
		Watch(f, e, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
		defer f.Close()
		if err := f.Apply([]pools.Spec{spec("http://10.0.0.1:8000", pools.Decode)}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		log.Take()
		for _, step := range []struct{ models, want string }{
			{`{"data":[{"id":"m"},{"id":"adapter","parent":"m"}]}`, ""},
			{`{"data":[{"id":"adapter","parent":"m"},{"id":"m"}]}`, ""},
			{`{"data":[{"id":"m"}]}`, `level=DEBUG msg="server's adapters changed"`},
			{`{"data":[{"id":"other"}]}`, `level=INFO msg="server serves other models" server=10.0.0.1:8000 role=decode models=[other] before=[m]`},
		} {
			e.list(step.models)
			time.Sleep(3 * pools.Default().ProbeInterval) // of synctest: two probes at least
			if got := log.Take(); strings.Count(got, "\n") != min(1, len(step.want)) || !strings.Contains(got, step.want) {
				t.Errorf("of %s the log says %q, want %q", step.models, got, step.want)
			}
		}
	})
}

// listing is an engine that is well and lists models, without a socket.
type listing struct {
	mu     sync.Mutex // guards models
	models string
}

func (e *listing) list(models string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.models = models
}

func (e *listing) RoundTrip(req *http.Request) (*http.Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	body := ""
	if req.URL.Path == modelsPath {
		body = e.models
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: req}, nil
}
