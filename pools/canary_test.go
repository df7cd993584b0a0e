package pools

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fakeEngine answers probes and canaries without a socket, so that time can be
// that of synctest.
type fakeEngine struct {
	mu       sync.Mutex // guards the rest
	health   []time.Time
	canaries []time.Time
	bodies   []string
	sick     bool
	generate func(context.Context) (status int, body string, err error)
}

func (e *fakeEngine) RoundTrip(req *http.Request) (*http.Response, error) {
	status, body := http.StatusOK, ""
	switch req.URL.Path {
	case "/health":
		e.mu.Lock()
		e.health = append(e.health, time.Now())
		if e.sick {
			status = http.StatusServiceUnavailable
		}
		e.mu.Unlock()
	case "/v1/models":
		body = `{"data":[{"id":"adapter","parent":"m"},{"id":"m"}]}`
	case "/v1/completions":
		sent, _ := io.ReadAll(req.Body) // bytes in memory
		e.mu.Lock()
		e.canaries, e.bodies = append(e.canaries, time.Now()), append(e.bodies, string(sent))
		generate := e.generate
		e.mu.Unlock()
		var err error
		if status, body, err = generate(req.Context()); err != nil {
			return nil, err
		}
	}
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: req}, nil
}

func (e *fakeEngine) setSick(sick bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sick = sick
}

func (e *fakeEngine) probed() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.health)
}

func (e *fakeEngine) sung() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.canaries)
}

func sings(context.Context) (int, string, error) { return 200, `{"choices":[{"text":"o"}]}`, nil }

func hangs(ctx context.Context) (int, string, error) {
	<-ctx.Done()
	return 0, "", ctx.Err()
}

// watched is a fleet of one server of an engine, up.
func watched(t *testing.T, e *fakeEngine, role Role) *Server {
	t.Helper()
	f := NewFleet(Default(), e, slog.New(slog.DiscardHandler))
	t.Cleanup(f.Close)
	if err := f.Apply([]Spec{spec("http://10.0.0.1:8000", role)}); err != nil {
		t.Fatal(err)
	}
	s := f.Servers()[0]
	synctest.Wait()
	if !s.Health().Up {
		t.Fatal("not up")
	}
	return s
}

func TestCanary_ProvesAnEjectedServer(t *testing.T) {
	for name, c := range map[string]struct {
		generate func(context.Context) (int, string, error)
		proves   bool
	}{
		"a completion": {sings, true},
		"refused":      {func(context.Context) (int, string, error) { return 404, "", nil }, true}, // alive; clients will tell
		"500":          {func(context.Context) (int, string, error) { return 500, "", nil }, false},
		"busy":         {func(context.Context) (int, string, error) { return 503, "", nil }, false},
		"no choice":    {func(context.Context) (int, string, error) { return 200, `{"choices":[]}`, nil }, false},
		"empty":        {func(context.Context) (int, string, error) { return 200, "", nil }, false},
		"cut":          {func(context.Context) (int, string, error) { return 0, "", errors.New("connection reset") }, false},
		"hangs":        {hangs, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &fakeEngine{generate: c.generate}
				s := watched(t, e, Decode)
				trip(t, s, Decode)
				time.Sleep(1300 * time.Millisecond) // the first ejection is 1 s +-20 %
				if e.sung() == 0 {                  // the first failure may have asked for one already
					t.Fatal("no canary")
				}
				time.Sleep(DefaultBreaker().Probe) // a canary that hangs is judged by now
				if closed := s.Breaker(Decode, time.Now()) == Closed; closed != c.proves {
					t.Errorf("breaker is %s", s.Breaker(Decode, time.Now()))
				}
				if !s.Health().Up {
					t.Error("a canary took the server down")
				}
			})
		})
	}
}

// A canary is of the base model, and asks for no hand-off: the engine would keep its blocks.
func TestCanary_WhatItAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &fakeEngine{generate: sings}
		s := watched(t, e, Both)
		s.Suspect(Decode)
		synctest.Wait()
		s.Suspect(Prefill)
		synctest.Wait()
		want := []string{
			`{"model":"m","prompt":"ping","max_tokens":1,"temperature":0}`,
			`{"model":"m","prompt":"ping","max_tokens":1,"temperature":0}`,
		}
		if got := strings.Join(e.bodies, "\n"); got != strings.Join(want, "\n") {
			t.Errorf("got\n%s", got)
		}
	})
}

func TestCanary_AServerThatWasDownIsProvedAsSoonAsItIsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &fakeEngine{generate: hangs}
		s := watched(t, e, Decode)
		trip(t, s, Decode)
		time.Sleep(time.Minute) // canaries failed; the next ejection is long
		e.setSick(true)
		time.Sleep(3 * time.Second)
		before := e.sung()
		time.Sleep(time.Minute)
		if now := e.sung(); now != before {
			t.Errorf("%d canaries to a server that is down", now-before)
		}
		e.mu.Lock()
		e.sick, e.generate = false, sings
		e.mu.Unlock()
		time.Sleep(3 * time.Second)
		if state := s.Breaker(Decode, time.Now()); state != Closed {
			t.Errorf("3 s after it is up: %s", state)
		}
	})
}

// A sleeping engine cannot answer, and need not.
func TestCanary_LetsSleepingServersSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &fakeEngine{generate: sings}
		s := watched(t, e, Decode)
		s.turn.slept()
		trip(t, s, Decode)
		time.Sleep(time.Minute)
		if n := e.sung(); n != 0 {
			t.Errorf("%d canaries while it slept", n)
		}
		s.turn.woke(0, time.Now())
		time.Sleep(3 * time.Second)
		if state := s.Breaker(Decode, time.Now()); state != Closed {
			t.Errorf("awake again: %s", state)
		}
	})
}

// Under overload a canary waits as everybody does. While others are served, that is
// no fault.
func TestCanary_ThatWaitsWhileOthersAreServedConvictsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &fakeEngine{generate: hangs}
		s := watched(t, e, Decode)
		s.Suspect(Decode)
		time.Sleep(DefaultBreaker().Probe - time.Second)
		use(t, s, Decode, nil)
		time.Sleep(2 * time.Second)
		if state := s.Breaker(Decode, time.Now()); state != Closed {
			t.Errorf("one was served meanwhile: %s", state)
		}
		s.Suspect(Decode)
		time.Sleep(DefaultBreaker().Probe + 2*time.Second)
		if state := s.Breaker(Decode, time.Now()); state == Closed {
			t.Error("nobody was served, and it was not ejected")
		}
	})
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
			f := NewFleet(Default(), byHost, slog.New(slog.DiscardHandler))
			defer f.Close()
			var specs []Spec
			for n := range engines {
				specs = append(specs, spec(fmt.Sprintf("http://10.0.0.%d:1", n), Decode))
			}
			if err := f.Apply(specs); err != nil {
				t.Fatal(err)
			}
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

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }
