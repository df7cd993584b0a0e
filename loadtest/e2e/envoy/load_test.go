package envoy

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

// traffic is clients that send one request after the other until they are stopped.
type traffic struct {
	under     sync.WaitGroup
	stopped   atomic.Bool
	succeeded atomic.Int64

	mu     sync.Mutex // guards failed
	failed []failure
}

// failure is a request without its whole answer.
type failure struct {
	began, ended time.Time
	got          answer
}

func (f failure) String() string {
	return fmt.Sprintf("%d, %v after %v: %.200s", f.got.status, f.got.err, f.ended.Sub(f.began), f.got.body)
}

// startTraffic starts so many clients, of which every other one asks for streams.
func startTraffic(t *testing.T, gateway string, clients int) *traffic {
	t.Helper()
	l := &traffic{}
	for c := range clients {
		l.under.Go(func() {
			extra := []string{"", streamed}[c%2]
			for n := 0; !l.stopped.Load(); n++ {
				began := time.Now()
				got := send(context.WithoutCancel(t.Context()), gateway+chatPath, chat(c*1000+n, words(900), extra))
				if got.status == http.StatusOK && got.err == nil && got.text != "" {
					l.succeeded.Add(1)
					continue
				}
				l.mu.Lock()
				l.failed = append(l.failed, failure{began, time.Now(), got})
				l.mu.Unlock()
			}
		})
	}
	t.Cleanup(func() { l.stop() })
	return l
}

// goOn waits until so many more requests were answered.
func (l *traffic) goOn(t *testing.T, more int64) {
	t.Helper()
	until := l.succeeded.Load() + more
	process.WaitFor(t, nil, "the load to go on", process.ReadyWithin, func() error {
		if n := l.succeeded.Load(); n < until {
			l.mu.Lock()
			defer l.mu.Unlock()
			last := l.failed[max(0, len(l.failed)-1):]
			return fmt.Errorf("%d of %d requests were answered, %d failed, the last: %v", n, until, len(l.failed), last)
		}
		return nil
	})
}

// stop ends the clients after their requests, and returns those that failed.
func (l *traffic) stop() []failure {
	l.stopped.Store(true)
	l.under.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failed
}

// lostBefore stops, and fails if a request that began after the kill was lost.
func (l *traffic) lostBefore(t *testing.T, killed time.Time) {
	t.Helper()
	failed := l.stop()
	t.Logf("%d requests failed, %d were answered", len(failed), l.succeeded.Load())
	for _, lost := range failed {
		if lost.began.After(killed) {
			t.Errorf("a request that began %v after the kill: %v", lost.began.Sub(killed), lost)
		}
	}
}

// drains gives Envoy, which looks once a second and believes the third answer, the time to see
// that a picker is about to end.
var drains = []string{"--drain-delay", "5s"}

// Of two pickers each is restarted under load, and no request is lost: Envoy asks the other one.
func TestPickersRestarted_OneAfterTheOtherLoseNoRequest(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes half a minute; make e2e-envoy runs it")
	}
	f := startPairs(t, "--time-scale", "0.2")
	pickers := []*picker{startPicker(t, f, drains...), startPicker(t, f, drains...)}
	s := standalone(t, pickers[0])
	s.Pickers = append(s.Pickers, addressOf(t, pickers[1].address))
	e := startProxy(t, s)
	l := startTraffic(t, e.url, 8)
	for _, p := range pickers {
		l.goOn(t, 50)
		p.stop(t)
		l.goOn(t, 50)
		p.start(t)
		e.waitForPickers(t, len(pickers))
	}
	l.goOn(t, 50)
	l.lostNothing(t)
	for _, p := range pickers {
		checkIdle(t, p)
	}
}

// A single picker that is restarted under load costs no request where Envoy may send requests on
// without it (failureMode FailOpen): the servers are then chosen by Envoy.
func TestPickerRestarted_FailOpenLosesNoRequest(t *testing.T) {
	f := fleet{}
	f.start(t, "both", 2, "--time-scale", "0.2")
	p := startPicker(t, f, drains...)
	open := ofPool(t, p, f["both"])
	open.FailOpen = true
	e := startProxy(t, open)
	l := startTraffic(t, e.url, 8)
	l.goOn(t, 50)
	p.stop(t)
	l.goOn(t, 50)
	p.start(t)
	e.waitForPickers(t, 1)
	l.goOn(t, 50)
	l.lostNothing(t)
	checkIdle(t, p)
}

// lostNothing ends the clients and asserts that each of their requests was answered.
func (l *traffic) lostNothing(t *testing.T) {
	t.Helper()
	failed := l.stop()
	t.Logf("%d requests were answered", l.succeeded.Load())
	if len(failed) > 0 {
		t.Errorf("%d requests failed, the first: %v", len(failed), failed[0])
	}
}

// Of two pickers one is killed under load: that costs the requests that it had, and of those that
// begin later none from the moment at which Envoy believes that it is gone.
func TestPickerKilled_CostsItsOwnRequestsAlone(t *testing.T) {
	if testing.Short() {
		t.Skip("make e2e-envoy runs it")
	}
	f := startPairs(t, "--time-scale", "0.2")
	pickers := []*picker{startPicker(t, f), startPicker(t, f)}
	s := standalone(t, pickers[0])
	s.Pickers = append(s.Pickers, addressOf(t, pickers[1].address))
	s.PickerRetries = 2
	l := startTraffic(t, startProxy(t, s).url, 8)
	l.goOn(t, 50)
	killed := time.Now()
	pickers[0].p.Kill(t)
	l.goOn(t, 100)
	l.lostBefore(t, killed)
	checkIdle(t, pickers[1])
}

// Where Envoy may not send requests on without a picker (FailClose), they fail while none is
// there, and no longer.
func TestPickerGone_FailCloseRefuses(t *testing.T) {
	f := fleet{}
	f.start(t, "both", 1, "--time-scale", "0.2")
	p := startPicker(t, f)
	gateway := startProxy(t, ofPool(t, p, f["both"])).url
	ask := func() int { return send(t.Context(), gateway+chatPath, chat(0, words(900), "")).status }
	if status := ask(); status != http.StatusOK {
		t.Fatalf("with a picker: %d", status)
	}
	p.stop(t)
	if status := ask(); status < 500 {
		t.Errorf("without a picker: %d", status)
	}
	p.start(t)
	process.WaitFor(t, p.p, "requests to be served again", process.ReadyWithin, func() error {
		if status := ask(); status != http.StatusOK {
			return fmt.Errorf("status %d", status)
		}
		return nil
	})
}

// An engine that is killed under load costs the streams that it was writing: all other requests
// are answered, since Envoy tries the next server that the picker named.
func TestEngineKilled_CostsOnlyWhatItWasWriting(t *testing.T) {
	f := startPairs(t, "--time-scale", "0.2")
	p := startPicker(t, f, "--picker-fallbacks", "2")
	l := startTraffic(t, startProxy(t, ofPool(t, p, f["decode"])).url, 8)
	l.goOn(t, 50)
	killed := time.Now()
	f["decode"][0].p.Kill(t)
	l.goOn(t, 100)
	failed := l.stop()
	t.Logf("%d requests failed, %d were answered", len(failed), l.succeeded.Load())
	for _, lost := range failed {
		if lost.got.status != http.StatusOK || lost.began.After(killed) {
			t.Errorf("a request that began %v after the kill: %v", lost.began.Sub(killed), lost)
		}
	}
	checkIdle(t, p)
}
