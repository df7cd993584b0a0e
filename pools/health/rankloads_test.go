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
	pages int  // that were asked for
	fails bool // so do its pages
}

func (e *ranksEngine) RoundTrip(req *http.Request) (*http.Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	status, body := http.StatusOK, ""
	switch req.URL.Path {
	case modelsPath:
		body = `{"data":[{"id":"m","owned_by":"vllm"}]}`
	case "/metrics":
		e.pages++
		if e.fails {
			status = http.StatusInternalServerError
		}
		for r := range e.ranks {
			body += fmt.Sprintf("vllm:num_requests_running{engine=\"%d\"} %d\n", r, 100*e.turn+r)
		}
	case "/health":
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

// asked returns how many pages of metrics were asked for in a time.
func (e *ranksEngine) asked(in time.Duration) (pages int) {
	e.set(func() { e.pages = 0 })
	time.Sleep(in) // of synctest
	e.set(func() { pages = e.pages })
	return pages
}

// The ranks behind one address read their loads from one page an interval, which none of them has later than it would have
// its own: also after the page could not be read for a while, and after a rank has gone.
func TestProbes_RanksBehindOneAddressReadOnePage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, interval := &ranksEngine{ranks: 8}, pools.Default().ProbeInterval
		var specs []pools.Spec
		for r := range e.ranks {
			s := spec("http://10.0.0.1:8000", pools.Decode)
			s.Rank = &r
			specs = append(specs, s)
		}
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
		if n := e.asked(20 * interval); n < 16 || n > 26 {
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
		if n := e.asked(20 * interval); n < 16 || n > 26 {
			t.Errorf("asked for %d pages in 20 intervals without a rank", n)
		}
	})
}
