package health

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/testlog"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/breaker"
	"github.com/tandem-gateway/tandem/pools/curve"
)

// fakeEngine answers probes and requests without a socket, so that time can be
// that of synctest.
type fakeEngine struct {
	mu       sync.Mutex // guards the rest
	health   []time.Time
	requests []time.Time
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
		e.requests, e.bodies = append(e.requests, time.Now()), append(e.bodies, string(sent))
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
	return len(e.requests)
}

func sings(context.Context) (int, string, error) { return 200, `{"choices":[{"text":"o"}]}`, nil }

func hangs(ctx context.Context) (int, string, error) {
	<-ctx.Done()
	return 0, "", ctx.Err()
}

// watched is a fleet of one server of an engine, up.
func watched(t *testing.T, e *fakeEngine, role pools.Role) *pools.Server {
	t.Helper()
	s := fleetOf(t, pools.Default(), e, spec("http://10.0.0.1:8000", role)).Servers()[0]
	synctest.Wait()
	if !s.Health().Up {
		t.Fatal("not up")
	}
	return s
}

func TestProbeRequest_ProvesAnEjectedServer(t *testing.T) {
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
				s := watched(t, e, pools.Decode)
				trip(t, s)
				time.Sleep(1300 * time.Millisecond) // the first ejection is 1 s +-20 %
				if e.sung() == 0 {                  // the first failure may have asked for one already
					t.Fatal("no probe request")
				}
				time.Sleep(breaker.Default().Probe) // a probe request that hangs is judged by now
				if closed := s.Breaker(pools.Decode, time.Now()) == breaker.Closed; closed != c.proves {
					t.Errorf("breaker is %s", s.Breaker(pools.Decode, time.Now()))
				}
				if !s.Health().Up {
					t.Error("a probe request took the server down")
				}
			})
		})
	}
}

// A probe request is of the base model, and asks for no hand-off: the engine would keep its blocks.
func TestProbeRequest_WhatItAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &fakeEngine{generate: sings}
		s := watched(t, e, pools.Both)
		s.Suspect(pools.Decode)
		synctest.Wait()
		s.Suspect(pools.Prefill)
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

func TestProbeRequest_AServerThatWasDownIsProvedAsSoonAsItIsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &fakeEngine{generate: hangs}
		s := watched(t, e, pools.Decode)
		trip(t, s)
		time.Sleep(time.Minute) // requests failed; the next ejection is long
		e.setSick(true)
		time.Sleep(3 * time.Second)
		before := e.sung()
		time.Sleep(time.Minute)
		if now := e.sung(); now != before {
			t.Errorf("%d requests to a server that is down", now-before)
		}
		e.mu.Lock()
		e.sick, e.generate = false, sings
		e.mu.Unlock()
		time.Sleep(3 * time.Second)
		if state := s.Breaker(pools.Decode, time.Now()); state != breaker.Closed {
			t.Errorf("3 s after it is up: %s", state)
		}
	})
}

// A sleeping engine cannot answer, and need not.
func TestProbeRequest_LetsSleepingServersSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &fakeEngine{generate: sings}
		s := watched(t, e, pools.Decode)
		s.GPUShare().RecordSleep()
		trip(t, s)
		time.Sleep(time.Minute)
		if n := e.sung(); n != 0 {
			t.Errorf("%d requests while it slept", n)
		}
		s.GPUShare().RecordWake(0, time.Now())
		time.Sleep(3 * time.Second)
		if state := s.Breaker(pools.Decode, time.Now()); state != breaker.Closed {
			t.Errorf("awake again: %s", state)
		}
	})
}

// Under overload a probe request waits as all requests do. While others are served, that is
// no fault.
func TestProbeRequest_ThatWaitsWhileOthersAreServedBlamesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &fakeEngine{generate: hangs}
		s := watched(t, e, pools.Decode)
		s.Suspect(pools.Decode)
		time.Sleep(breaker.Default().Probe - time.Second)
		use(t, s, pools.Decode, nil)
		time.Sleep(2 * time.Second)
		if state := s.Breaker(pools.Decode, time.Now()); state != breaker.Closed {
			t.Errorf("one was served meanwhile: %s", state)
		}
		s.Suspect(pools.Decode)
		time.Sleep(breaker.Default().Probe + 2*time.Second)
		if state := s.Breaker(pools.Decode, time.Now()); state == breaker.Closed {
			t.Error("no request was served, and it was not ejected")
		}
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// A probe request that waits while streams of the server go on says that it is busy.
func TestProbeRequest_ThatWaitsWhileStreamsGoOnBlamesNoServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &fakeEngine{generate: func(ctx context.Context) (int, string, error) { return hangs(ctx) }}
		s := watched(t, e, pools.Decode)
		var fell atomic.Bool
		defer s.OnDown(new(pools.DownWatch), pools.DownFunc(func(pools.DownCause) { fell.Store(true) })).Stop()
		s.Suspect(pools.Decode)
		for range 100 {
			time.Sleep(100 * time.Millisecond)
			s.RecordProgress(time.Now())
		}
		if state := s.Breaker(pools.Decode, time.Now()); state != breaker.Closed || fell.Load() {
			t.Errorf("%s, fell %v", state, fell.Load())
		}
	})
}

// What waits on a server that lets a probe request wait is told so, each time, as long as it
// waits: it may never be answered either.
func TestProbeRequest_ThatHangsWarnsAllThatWait(t *testing.T) {
	for _, leg := range []pools.Role{pools.Prefill, pools.Decode} {
		synctest.Test(t, func(t *testing.T) {
			e := &fakeEngine{generate: hangs}
			s := watched(t, e, leg)
			var hung, other atomic.Int32
			stop := s.OnDown(new(pools.DownWatch), pools.DownFunc(func(why pools.DownCause) {
				if why == pools.Hangs {
					hung.Add(1)
				} else {
					other.Add(1)
				}
			})).Stop
			s.Suspect(leg)
			time.Sleep(breaker.Default().Probe - time.Second)
			if n := hung.Load(); n != 0 {
				t.Errorf("%s: warned %d times of one that may be answered yet", leg, n)
			}
			time.Sleep(2 * time.Second)
			if n := hung.Load(); n != 1 {
				t.Errorf("%s: warned %d times of the first that hangs", leg, n)
			}
			time.Sleep(10 * time.Second) // an ejection, and a second one
			if n := hung.Load(); n < 2 || other.Load() > 0 {
				t.Errorf("%s: warned %d times of two that hang, and %d times of something else", leg, n, other.Load())
			}
			stop()
			before := hung.Load()
			time.Sleep(time.Minute)
			if n := hung.Load(); n != before {
				t.Errorf("%s: %d warnings to what waits no more", leg, n-before)
			}
		})
	}
}

// What engines see of a probe request, for each way of asking.
func TestProbeRequest_HowItAsks(t *testing.T) {
	rank := 3
	for _, c := range []struct {
		connector string
		leg       pools.Role
		rank      *int
		want      string // method, path, content type, rank
	}{
		{"nixl", pools.Prefill, nil, "POST /v1/completions application/json "},
		{"nixl", pools.Decode, &rank, "POST /v1/completions application/json 3"},
		{"sglang", pools.Decode, nil, "GET /health_generate  "},
		{"p2p-nccl", pools.Prefill, nil, "GET /health  "},
		{"p2p-nccl", pools.Decode, nil, "POST /v1/completions application/json "},
	} {
		var asked, agent, id string
		body := &answer{status: 200, ends: io.EOF}
		transport := roundTripper(func(req *http.Request) (*http.Response, error) {
			asked = strings.Join([]string{req.Method, req.URL.Path, req.Header.Get("Content-Type"), req.Header.Get("X-Data-Parallel-Rank")}, " ")
			agent, id = req.Header.Get("User-Agent"), req.Header.Get("X-Request-Id")
			return body.RoundTrip(req)
		})
		s := pools.NewServer(pools.Spec{URL: "http://10.0.0.1:1", Role: pools.Both, Connector: c.connector, Rank: c.rank})
		s.ProbePassed(s.Health(), []pools.Model{{ID: "m"}}, time.Now())
		s.RecordLate(time.Now().Add(time.Hour))
		p := probeRequester{engine: engine{server: s, transport: transport}, leg: c.leg, cfg: pools.Default(), log: slog.New(slog.DiscardHandler)}
		err := p.generate(t.Context())
		if strings.TrimRight(asked, " ") != strings.TrimRight(c.want, " ") || agent != "tandem" || !strings.HasPrefix(id, "tandem-canary-") {
			t.Errorf("%s, %s: asked %q by %q as %q", c.connector, c.leg, asked, agent, id)
		}
		if get := strings.HasPrefix(c.want, "GET"); (err == nil) != get {
			t.Errorf("%s, %s: an empty answer: %v", c.connector, c.leg, err)
		}
		if !body.closed || s.State() != pools.Alive {
			t.Errorf("%s, %s: its answer is closed %v, the server %v", c.connector, c.leg, body.closed, s.State())
		}
	}
}

// On the prefill leg a probe request waits behind what was sent there before, up to a bound.
func TestProbeRequest_PatienceGrowsWithThePromptsAhead(t *testing.T) {
	usual := pools.Default().Breaker.Probe
	for _, c := range []struct{ ahead, prefill time.Duration }{{0, usual}, {time.Second, usual + 3*time.Second}, {usual, 4 * usual}, {time.Hour, 4 * usual}} {
		synctest.Test(t, func(t *testing.T) {
			s := pools.NewServer(spec("http://10.0.0.1:1", pools.Both))
			l, err := s.Claim(pools.Prefill, curve.Work{Estimate: c.ahead}, true, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			defer l.Release()
			for leg, want := range map[pools.Role]time.Duration{pools.Prefill: c.prefill, pools.Decode: usual} {
				if got := (&probeRequester{engine: engine{server: s}, leg: leg, cfg: pools.Default()}).patience(time.Now()); got != want {
					t.Errorf("%v ahead: %s waits for %v, want %v", c.ahead, leg, got, want)
				}
			}
		})
	}
}

// That a server was proved, or was not, is said; that one which was not ejected answered well
// is no news.
func TestProbeRequest_SaysWhatItFound(t *testing.T) {
	for _, c := range []struct {
		ejected bool
		status  int
		want    string
	}{{false, 200, ""}, {true, 200, "server proved by a probe request"}, {false, 500, "probe request failed"}, {true, 500, "probe request failed"}} {
		var log testlog.Buffer
		s := pools.NewServer(spec("http://10.0.0.1:1", pools.Both))
		s.ProbePassed(s.Health(), []pools.Model{{ID: "m"}}, time.Now())
		if c.ejected {
			trip(t, s)
		}
		e := &fakeEngine{generate: func(context.Context) (int, string, error) { return c.status, `{"choices":[{}]}`, nil }}
		p := probeRequester{engine: engine{server: s, transport: e}, leg: pools.Decode, cfg: pools.Default(), log: slog.New(slog.NewTextHandler(&log, nil))}
		p.prove(t.Context())
		if said := log.Take(); (said == "") != (c.want == "") || !strings.Contains(said, c.want) {
			t.Errorf("%+v: said %q", c, said)
		}
	}
}

// What is logged of an answer is what it means and its status, and it is told from others all the same.
func TestProbeRequest_TheReasonHasTheStatus(t *testing.T) {
	err := error(&statusVerdict{breaker.ErrWrongAnswer, 500})
	if got := reason(err); got != "wrong answer to a probe request: 500" {
		t.Error(got)
	}
	if !errors.Is(err, breaker.ErrWrongAnswer) || errors.Is(err, breaker.ErrBusy) {
		t.Error("it is another verdict")
	}
}
