package health

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/pools"
)

// fakeSGLang answers probes as SGLang does: /health generates a token, so it takes a second
// at least, and as long as the scheduler is busy.
type fakeSGLang struct {
	mu     sync.Mutex // guards the rest
	ready  int        // status of /ready; 404: it is older
	health int        // status of /health
	busy   time.Duration
	asked  map[string]int
}

func (e *fakeSGLang) RoundTrip(req *http.Request) (*http.Response, error) {
	e.mu.Lock()
	e.asked[req.URL.Path]++
	ready, health, busy := e.ready, e.health, max(time.Second, e.busy)
	e.mu.Unlock()
	status, body := http.StatusNotFound, ""
	switch req.URL.Path {
	case "/ready":
		status = ready
	case "/health":
		select {
		case <-time.After(busy):
		case <-req.Context().Done():
			return nil, req.Context().Err()
		}
		status = health
	case "/v1/models":
		status, body = http.StatusOK, `{"data":[{"id":"m","owned_by":"sglang"}]}`
	}
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: req}, nil
}

func (e *fakeSGLang) set(change func(*fakeSGLang)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change(e)
}

func (e *fakeSGLang) times(path string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.asked[path]
}

func watchedSGLang(t *testing.T, e *fakeSGLang) *pools.Server {
	t.Helper()
	e.asked = make(map[string]int)
	return fleetOf(t, pools.Default(), e, spec("http://10.0.0.1:8000", pools.Prefill)).Servers()[0]
}

// upFor fails the test as soon as the server is not up.
func upFor(t *testing.T, s *pools.Server, d time.Duration) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if h := s.Health(); !h.Up {
			t.Fatalf("down: %s", h.Reason)
		}
	}
}

// SGLang says at /ready how it is, without a token generated for it.
func TestHealth_OfSGLangIsItsReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &fakeSGLang{ready: 200, health: 200, busy: time.Minute}
		s := watchedSGLang(t, e)
		synctest.Wait()
		upFor(t, s, 10*time.Second)
		if n := e.times("/health"); n != 0 {
			t.Errorf("/health was asked %d times", n)
		}
		e.set(func(e *fakeSGLang) { e.ready = 503 })
		time.Sleep(2 * time.Second)
		if h := s.Health(); h.Up || h.Reason != "/ready answered 503" {
			t.Errorf("%+v", h)
		}
	})
}

// An older one has no /ready: its /health is asked rarely, and may take longer than a probe.
func TestHealth_OfOlderSGLangIsAskedRarelyAndPatiently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &fakeSGLang{ready: 404, health: 200, busy: 15 * time.Second}
		s := watchedSGLang(t, e)
		time.Sleep(14 * time.Second)
		if s.Health().Up {
			t.Error("up before it said that it is well")
		}
		time.Sleep(2 * time.Second)
		upFor(t, s, time.Minute)
		if n := e.times("/health"); n > 3 {
			t.Errorf("/health was asked %d times in 76 s", n)
		}
		e.set(func(e *fakeSGLang) { e.health = 503 })
		time.Sleep(slowHealthEvery + 20*time.Second)
		if h := s.Health(); h.Up || h.Reason != "/health answered 503" {
			t.Errorf("%+v", h)
		}
		e.set(func(e *fakeSGLang) { e.health, e.busy = 200, 0 })
		time.Sleep(20 * time.Second) // the question under way was sent to a busy engine
		if h := s.Health(); !h.Up {
			t.Errorf("%+v", h)
		}
	})
}

// An engine that was started anew says again that it is well before it gets anything, and
// may have /ready now.
func TestHealth_OfOlderSGLangStartedAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &fakeSGLang{ready: 404, health: 200}
		s := watchedSGLang(t, e)
		time.Sleep(2 * time.Second)
		upFor(t, s, time.Second)
		s.MarkDown("connection refused")
		time.Sleep(500 * time.Millisecond)
		if h := s.Health(); h.Up {
			t.Error("up by what it said before")
		}
		time.Sleep(2 * time.Second)
		upFor(t, s, time.Second)
		e.set(func(e *fakeSGLang) { e.ready = 200 })
		s.MarkDown("connection refused")
		time.Sleep(3 * time.Second)
		asked := e.times("/health")
		upFor(t, s, 2*slowHealthEvery)
		if n := e.times("/health"); n != asked {
			t.Errorf("/health was asked %d times more", n-asked)
		}
	})
}

// A label that changes is no reason to ask again.
func TestHealth_OfOlderSGLangIsKeptWhenItsSpecChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &fakeSGLang{ready: 404, health: 200, busy: 5 * time.Second, asked: make(map[string]int)}
		labelled := spec("http://10.0.0.1:8000", pools.Prefill)
		f := fleetOf(t, pools.Default(), e, labelled)
		time.Sleep(7 * time.Second)
		upFor(t, f.Servers()[0], time.Second)
		labelled.Rack = "r1"
		if err := f.Apply([]pools.Spec{labelled}); err != nil {
			t.Fatal(err)
		}
		upFor(t, f.Servers()[0], 10*time.Second)
	})
}

// One look by hand waits as long as such an engine may take.
func TestProbe_WaitsForOlderSGLang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &fakeSGLang{ready: 404, health: 200, busy: 15 * time.Second, asked: make(map[string]int)}
		_, err := Probe(context.Background(), spec("http://10.0.0.1:8000", pools.Prefill), pools.Default(), e, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Error(err)
		}
	})
}

func TestParseModels_ATimeMayHaveAFraction(t *testing.T) {
	models, _, err := parseModels([]byte(`{"data":[{"id":"m","created":1755000000.123,"owned_by":"hf"}]}`))
	if err != nil || len(models) != 1 || models[0].Created != 1755000000 {
		t.Errorf("%+v %v", models, err)
	}
}

// A time that is none, such as one in milliseconds, is not known: no page could write it.
func TestParseModels_ATimeThatIsNone(t *testing.T) {
	for said, want := range map[string]int64{"1755000000": 1755000000, "-5": 0, "1755000000000": 0, "1e300": 0} {
		models, _, err := parseModels([]byte(`{"data":[{"id":"m","created":` + said + `}]}`))
		if err != nil || len(models) != 1 || models[0].Created != want {
			t.Errorf("%s: %+v %v", said, models, err)
		}
	}
}

// An older SGLang that is down is probed as soon as it has said that it is well, and not when
// it is up or said something else. The question is over with its answer.
func TestSlowHealth_AGoodAnswerOfAServerThatIsDownIsProbedAtOnce(t *testing.T) {
	for _, c := range []struct {
		up     bool
		status int
		due    bool
	}{{false, 200, true}, {true, 200, false}, {false, 503, false}} {
		s := pools.NewServer(spec("http://10.0.0.1:1", pools.Prefill))
		if c.up {
			s.ProbePassed(s.Health(), []pools.Model{{ID: "m"}}, time.Now())
		}
		var asked context.Context
		transport := roundTripper(func(req *http.Request) (*http.Response, error) {
			asked = req.Context()
			return (&answer{status: c.status, ends: io.EOF}).RoundTrip(req)
		})
		h := newSlowHealth()
		h.ask(t.Context(), engine{server: s, transport: transport})
		due := false
		select {
		case <-s.ProbeDue():
			due = true
		default:
		}
		if due != c.due {
			t.Errorf("%+v: probed at once %v", c, due)
		}
		if asked.Err() == nil {
			t.Errorf("%+v: the time of the question runs on", c)
		}
	}
}

// A good answer is kept for its time, a bad one is asked anew at each look, and an answer from
// before the server was down is none. There is one question at a time.
func TestSlowHealth_WhenItIsAskedAnew(t *testing.T) {
	start := time.Now()
	at := func(d time.Duration) time.Time { return start.Add(d) }
	bad := statusError{"/health", 503}
	for _, c := range []struct {
		name       string
		asked      time.Duration // 0: never
		err        error
		after, now time.Duration
		want       error
		due        bool
	}{
		{"never asked", 0, nil, 0, time.Second, errSlowHealth, true},
		{"a good answer", time.Second, nil, 0, time.Second + slowHealthEvery - 1, nil, false},
		{"an old one", time.Second, nil, 0, time.Second + slowHealthEvery, nil, true},
		{"a bad one", time.Second, bad, 0, 2 * time.Second, bad, true},
		{"a good one from before it was down", time.Second, nil, 2 * time.Second, 3 * time.Second, errSlowHealth, true},
		{"a bad one from before it was down", time.Second, bad, 2 * time.Second, 3 * time.Second, bad, true},
	} {
		h := newSlowHealth()
		if c.asked > 0 {
			h.take(at(c.asked), c.err)
		}
		for look := range 3 {
			if err := h.verdict(at(c.after), at(c.now)); !errors.Is(err, c.want) {
				t.Errorf("%s, look %d: %v", c.name, look, err)
			}
		}
		if got := len(h.due) == 1; got != c.due {
			t.Errorf("%s: due %v", c.name, got)
		}
	}
	for name, err := range map[string]error{"no answer": context.DeadlineExceeded, "the end of the fleet": context.Canceled} {
		h := newSlowHealth()
		h.take(at(time.Second), bad)
		if h.take(at(2*time.Second), err); !errors.Is(h.verdict(at(0), at(3*time.Second)), bad) {
			t.Errorf("%s is taken for an answer", name)
		}
	}
}

// Probes and the question beside them go on at once.
func TestSlowHealth_IsSafeForConcurrentUse(t *testing.T) {
	h := newSlowHealth()
	var wg sync.WaitGroup
	for _, each := range []func(){
		func() {
			_ = h.verdict(time.Now(), time.Now())
			select {
			case <-h.due:
				h.take(time.Now(), statusError{"/health", 503})
			default:
			}
		},
		func() { h.recordNoReady(3) },
		func() { h.lacksReady(3) },
	} {
		wg.Go(func() {
			for range 300 {
				each()
			}
		})
	}
	wg.Wait()
	if !h.lacksReady(3) || h.lacksReady(4) {
		t.Error("in which life it has no /ready is not known")
	}
}
