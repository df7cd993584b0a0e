package health

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/pools"
)

// ranksEngine is one address with data-parallel ranks behind it, without a socket. Its page shows of rank r that turn*100+r
// requests run.
type ranksEngine struct {
	ranks int

	mu    sync.Mutex // guards the rest
	turn  int
	asks  map[string]int // by path
	fails bool           // so do its pages
	ill   bool           // so does its health
	also  string         // another model, "" if there is none
}

func (e *ranksEngine) RoundTrip(req *http.Request) (*http.Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	status, body := http.StatusOK, ""
	if e.asks == nil {
		e.asks = make(map[string]int)
	}
	e.asks[req.URL.Path]++
	switch req.URL.Path {
	case modelsPath:
		created := fmt.Sprintf(`"created":%d`, time.Now().Unix()) // as vLLM has it
		body = `{"data":[{"id":"m","owned_by":"vllm",` + created + `}]}`
		if e.also != "" {
			body = `{"data":[{"id":"m","owned_by":"vllm",` + created + `},{"id":"` + e.also + `","parent":"m",` + created + `}]}`
		}
	case "/metrics":
		if e.fails {
			status = http.StatusInternalServerError
		}
		for r := range e.ranks {
			body += fmt.Sprintf("vllm:num_requests_running{engine=\"%d\"} %d\n", r, 100*e.turn+r)
		}
	case "/health":
		if e.ill {
			status = http.StatusServiceUnavailable
		}
	default:
		status = http.StatusNotFound
	}
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: req}, nil
}

func (e *ranksEngine) set(change func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change()
}

// asked returns how often a path was asked for in a time.
func (e *ranksEngine) asked(path string, in time.Duration) (times int) {
	e.set(func() { e.asks = nil })
	time.Sleep(in) // of synctest
	e.set(func() { times = e.asks[path] })
	return times
}

// specs are the engine's ranks, as servers.
func (e *ranksEngine) specs() (all []pools.Spec) {
	for r := range e.ranks {
		s := spec("http://10.0.0.1:8000", pools.Decode)
		s.Rank = &r
		all = append(all, s)
	}
	return all
}

// The ranks behind one address read their loads from one page an interval, which none of them has later than it would have
// its own: also after the page could not be read for a while, and after a rank has gone.
func TestProbes_RanksBehindOneAddressReadOnePage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, interval := &ranksEngine{ranks: 8}, pools.Default().ProbeInterval
		specs := e.specs()
		f := fleetOf(t, pools.Default(), e, specs...)
		synctest.Wait()
		known := func(when string, turn int) {
			t.Helper()
			for _, s := range f.Servers() {
				if got := s.Load(); got.Running.Value != float64(100*turn+*s.Rank) || time.Since(got.At) > 2*interval {
					t.Errorf("%s: %s has %v of %v ago", when, s.ID(), got.Running, time.Since(got.At))
				}
			}
		}
		known("at the start", 0)
		if n := e.asked("/metrics", 20*interval); n < 16 || n > 26 {
			t.Errorf("asked for %d pages in 20 intervals", n)
		}
		for turn := 1; turn <= 20; turn++ {
			e.set(func() { e.turn = turn })
			time.Sleep(2 * interval)
			known("later", turn)
		}
		e.set(func() { e.fails = true })
		time.Sleep(3 * interval)
		e.set(func() { e.fails, e.turn = false, 30 })
		time.Sleep(2 * interval)
		known("after a page that failed", 30)
		if err := f.Apply(specs[1:]); err != nil {
			t.Fatal(err)
		}
		e.set(func() { e.turn = 31 })
		time.Sleep(2 * interval)
		known("without a rank", 31)
		if n := e.asked("/metrics", 20*interval); n < 16 || n > 26 {
			t.Errorf("asked for %d pages in 20 intervals without a rank", n)
		}
	})
}

// The ranks behind one address ask for its health and its models once an interval together. What changes there each of
// them knows as soon as if it had asked itself, but for the age of what another was told: another model, an engine that is
// not well, and one that is well again.
func TestProbes_RanksBehindOneAddressAskForItsHealthOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, interval := &ranksEngine{ranks: 8}, pools.Default().ProbeInterval
		f := fleetOf(t, pools.Default(), e, e.specs()...)
		synctest.Wait()
		up := func(models int) (n int) {
			for _, s := range f.Servers() {
				if h := s.Health(); h.Up && len(h.Models) == models {
					n++
				}
			}
			return n
		}
		time.Sleep(2 * interval)
		for _, path := range []string{"/health", modelsPath} {
			if n := e.asked(path, 20*interval); n < 16 || n > 26 {
				t.Errorf("%s is asked for %d times in 20 intervals", path, n)
			}
		}
		e.set(func() { e.also = "ada" })
		time.Sleep(2 * interval)
		if n := up(2); n != 8 {
			t.Errorf("%d of 8 ranks know of another model", n)
		}
		e.set(func() { e.also = "" })
		time.Sleep(2 * interval)
		if n := up(1); n != 8 {
			t.Errorf("%d of 8 ranks know that it is gone", n)
		}
		f.Servers()[3].MarkDown("connection refused")
		time.Sleep(2 * interval)
		if n := up(1); n != 8 {
			t.Errorf("%d of 8 ranks are up after one was marked down", n)
		}
		e.set(func() { e.ill = true })
		time.Sleep(2 * interval)
		if n := up(1); n != 0 {
			t.Errorf("%d of 8 ranks are up where the engine is not well", n)
		}
		e.set(func() { e.ill = false })
		time.Sleep(2 * interval)
		if n := up(1); n != 8 {
			t.Errorf("%d of 8 ranks are up again", n)
		}
	})
}
