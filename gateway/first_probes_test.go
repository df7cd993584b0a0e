package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/gateway/access"
	"github.com/tandem-gateway/tandem/pd/queue"
	"github.com/tandem-gateway/tandem/pools"
)

// starting is a gateway that has just begun to listen: its servers are not known yet, until arrive is called.
func starting(t *testing.T, of shape, legs roundTripper) (g *running, arrive func(...pools.Spec)) {
	g = run(t, of, legs)
	g.pd.Binder.Config.UnresponsiveWait = time.Hour
	arrived := g.fleet.ExpectServers()
	return g, func(specs ...pools.Spec) {
		t.Helper()
		if err := g.fleet.Apply(specs); err != nil {
			t.Fatal(err)
		}
		arrived()
	}
}

// wait sends requests that wait until the gateway knows its servers.
func (g *running) wait(n int, ask func() reply) <-chan reply {
	g.t.Helper()
	before, _ := g.queue.Len()
	answers := make(chan reply, n)
	for range n {
		go func() { answers <- ask() }()
	}
	eventually(g.t, "they wait, or have an answer", func() bool {
		waiting, _ := g.queue.Len()
		return len(answers) > 0 || waiting == before+n
	})
	if len(answers) > 0 {
		got := <-answers
		g.t.Fatalf("one does not wait: %d %s", got.status, got.body)
	}
	return answers
}

// Requests that wait until a gateway knows its servers are bounded as those that wait for servers are, in number and
// in bytes, and refused alike; the bodies of those that wait are counted.
func TestFirstProbes_WaitsAreBounded(t *testing.T) {
	t.Parallel()
	long := `{"model":"m","prompt":"` + strings.Repeat("river ", 1000) + `"}`
	for name, bound := range map[string]func(*queue.Config){
		"in number": func(c *queue.Config) { c.MaxWaiting = 2 },
		"in bytes":  func(c *queue.Config) { c.MaxBytes = int64(2*len(long) + 100) },
	} {
		of := usual(t)
		of.queue = bound
		g, arrive := starting(t, of, complete().roundTrip)
		answers := g.wait(2, func() reply { return g.post(long) })
		if n := g.queue.Bytes(); n != int64(2*len(long)) {
			t.Errorf("%s: %d bytes are counted of two bodies of %d", name, n, len(long))
		}
		refused := make(chan reply, 1)
		go func() { refused <- g.post(long) }()
		eventually(t, name+": a third has its answer", func() bool { return len(refused) > 0 })
		got := <-refused
		if got.status != 503 || gjson.Get(got.body, "error.code").String() != "overloaded" || got.header.Get("Retry-After") == "" {
			t.Errorf("%s: a third is answered by %d %v %s", name, got.status, got.header, got.body)
		}
		arrive(alone(t))
		for range 2 {
			if got := <-answers; got.status != 200 {
				t.Errorf("%s: one that waited gets %d %s", name, got.status, got.body)
			}
		}
		nothingHeld(t, g.queue, g.fleet.Servers()[0])
	}
}

// One of a higher class takes the place of another, which is told so.
func TestFirstProbes_AHigherClassTakesThePlace(t *testing.T) {
	t.Parallel()
	of := usual(t, "ada class=batch", "eve")
	of.queue = func(c *queue.Config) { c.MaxWaiting = 1 }
	g, arrive := starting(t, of, complete().roundTrip)
	ask := func(key string) func() reply {
		return func() reply { return g.post(`{"model":"m","prompt":"hi"}`, as(key)...) }
	}
	last := g.wait(1, ask("ada"))
	first := make(chan reply, 1)
	go func() { first <- ask("eve")() }()
	eventually(t, "the one of the lower class has its answer", func() bool { return len(last) > 0 })
	if got := <-last; got.status != 503 || !strings.Contains(got.body, "higher priority") {
		t.Errorf("the one of the lower class gets %d %s", got.status, got.body)
	}
	arrive(alone(t))
	if got := <-first; got.status != 200 {
		t.Errorf("the one of the higher class gets %d %s", got.status, got.body)
	}
	nothingHeld(t, g.queue, g.fleet.Servers()[0])
}

// A wait ends with the request's deadline, or the gateway's patience, which refuse it as they do others, and when its
// client leaves; then its place is free.
func TestFirstProbes_WaitsEnd(t *testing.T) {
	t.Parallel()
	const body = `{"model":"m","prompt":"hi"}`
	g, _ := starting(t, usual(t), complete().roundTrip)
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.base+"/v1/completions", strings.NewReader(body))
		if err == nil {
			_, err = client.Do(req) //nolint:bodyclose // there is no answer
		}
		left <- err
	}()
	waiting := func(want int) func() bool {
		return func() bool { n, _ := g.queue.Len(); return n == want }
	}
	eventually(t, "it waits", waiting(1))
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("the client that leaves: %v", err)
	}
	eventually(t, "its place is free", waiting(0))
	if got := g.post(body, access.DeadlineHeader, "1"); got.status != 503 || gjson.Get(got.body, "error.code").String() != "deadline_unreachable" {
		t.Errorf("beyond its deadline: %d %s", got.status, got.body)
	}
	g.pd.Binder.Config.UnresponsiveWait = time.Millisecond
	if got := g.post(body); got.status != 503 || gjson.Get(got.body, "error.code").String() != "no_server" || got.header.Get("Retry-After") == "" {
		t.Errorf("beyond the gateway's patience: %d %s", got.status, got.body)
	}
	if waiting, inFlight := g.queue.Len(); waiting != 0 || inFlight != 0 {
		t.Errorf("%d wait, %d are in flight", waiting, inFlight)
	}
}

// A gateway that is started while the only server of a model loads its weights, or is down, does not say that there is no
// such model: clients would not try again. Whom their keys do not allow it learns nothing. Who has mistyped a name sees
// those that are served.
func TestFirstProbes_AModelWhoseServerIsDownSinceTheStartIsNotUnknown(t *testing.T) {
	t.Parallel()
	var loaded atomic.Bool
	loads := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !loaded.Load() {
			panic(http.ErrAbortHandler) // the connection breaks
		}
		if r.URL.Path == "/v1/models" {
			_, _ = io.WriteString(w, `{"data":[{"id":"big"}]}`)
		}
	}))
	t.Cleanup(loads.Close)
	of := usual(t, "ada", "eve models=[m]")
	of.pools.ProbeInterval = 50 * time.Millisecond
	g, arrive := starting(t, of, complete().roundTrip)
	arrive(alone(t), pools.Spec{URL: loads.URL, Role: pools.Both, Connector: "nixl"})
	eventually(t, "one is up, and one failed its first probe", func() bool {
		servers := g.fleet.Servers()
		return servers[0].Health().Up && !g.fleet.AwaitsFirstProbe(pools.Decode)
	})
	served := "m"
	ask := func(name, model string, status int, code string) {
		t.Helper()
		got := g.post(`{"model":"`+model+`","prompt":"hi"}`, as(name)...)
		if got.status != status || gjson.Get(got.body, "error.code").String() != code || (got.header.Get("Retry-After") == "") != (status != 503) {
			t.Errorf("%s asks for %s: %d %v %s", name, model, got.status, got.header, got.body)
		}
		if said := gjson.Get(got.body, "error.message").String(); !strings.Contains(said, "Served are: "+served+".") {
			t.Errorf("%s asks for %s: %q, want it to name %s", name, model, said, served)
		}
	}
	ask("ada", "big", 503, "no_server")
	ask("eve", "big", 404, "model_not_found")
	loaded.Store(true)
	eventually(t, "it is up", func() bool { return g.fleet.Servers()[1].Health().Up })
	if got := g.post(`{"model":"big","prompt":"hi"}`, as("ada")...); got.status != 200 {
		t.Errorf("once it is up: %d %s", got.status, got.body)
	}
	served = "big, m"
	ask("ada", "none", 404, "model_not_found")
	served = "m" // of those that there are, what its key allows
	ask("eve", "none", 404, "model_not_found")
}
