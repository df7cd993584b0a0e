package envoy

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
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

// A picker that is killed before it has chosen costs nothing, in full duplex too: Envoy sends what the picker
// was shown to the other one, as long as nothing has come back, and as it has kept no more than 64 KiB of it. Longer
// requests fail at once.
func TestPickerKilled_BeforeItChoosesCostsNothing(t *testing.T) {
	for _, c := range []struct {
		name  string
		size  int // of a prompt, in bytes
		costs bool
	}{{"prompts of 2 KB", 2 << 10, false}, {"prompts of 48 KB", 48 << 10, false}, {"prompts of 220 KB", 220 << 10, true}} {
		t.Run(c.name, func(t *testing.T) {
			f := startPairs(t, "--time-scale", "0.01", "--max-model-len", "131072")
			pickers := []*picker{startPicker(t, f), startPicker(t, f)}
			s := standalone(t, pickers[0])
			s.Pickers = append(s.Pickers, addressOf(t, pickers[1].address))
			s.PickerRetries = 2
			e := startProxy(t, s)
			before := startTraffic(t, e.url, 8) // so that Envoy's threads are connected to the pickers
			before.goOn(t, 50)
			before.lostNothing(t)
			// The first picker does not go on, so what Envoy shows it from now on waits there for a choice.
			pickers[0].freeze(t)
			const requests = 16
			var answered, failed atomic.Int64
			var under sync.WaitGroup
			for n := range requests {
				under.Go(func() {
					a := send(context.WithoutCancel(t.Context()), e.url+chatPath, chat(n, words(c.size), []string{"", streamed}[n%2]))
					if a.status == http.StatusOK && a.err == nil && a.text != "" {
						answered.Add(1)
						return
					}
					failed.Add(1)
					if !c.costs || a.status < 500 {
						t.Errorf("%d, %v: %.300s", a.status, a.err, a.body)
					}
				})
			}
			waiting := 0
			process.WaitFor(t, nil, "all requests to be answered or to wait for the first picker", process.ReadyWithin, func() error {
				waiting = e.active(t, pickers[0]) + e.stat(t, "cluster.ext_proc.upstream_rq_pending_active")
				if done := int(answered.Load()); waiting == 0 || done+waiting != requests {
					return fmt.Errorf("%d are answered, %d wait", done, waiting)
				}
				return nil
			})
			pickers[0].p.Kill(t)
			under.Wait()
			t.Logf("%d waited for the picker that was killed: %d failed, %d were answered", waiting, failed.Load(), answered.Load())
			checkIdle(t, pickers[1])
		})
	}
}

// freeze stops the picker, and returns when none of its threads runs any more: one that does may begin an answer
// that is never ended.
func (p *picker) freeze(t *testing.T) {
	t.Helper()
	stopped := p.p.Cmd.Process
	if err := stopped.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	process.WaitFor(t, nil, "the picker to stop", process.ReadyWithin, func() error {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", stopped.Pid))
		for _, thread := range threads {
			var stat []byte
			if stat, err = os.ReadFile(thread); err != nil {
				return err
			}
			if _, state, _ := bytes.Cut(stat, []byte(") ")); !bytes.HasPrefix(state, []byte("T")) {
				return fmt.Errorf("%s: %.1s", thread, state)
			}
		}
		return err
	})
}

// A picker that is killed costs no request where Envoy keeps what it shows it: request bodies
// BUFFERED, answers STREAMED or their heads alone, and failureMode FailOpen. What the picker answered goes on as it is; what it
// did not goes to a server that Envoy chooses, or through the filter again.
func TestPickerKilled_CostsNoRequest(t *testing.T) {
	if testing.Short() {
		t.Skip("make e2e-envoy runs it")
	}
	for name, kept := range map[string]func(*setup, fleet){
		"the gateway knows the pool": func(s *setup, f fleet) {
			for _, server := range f["decode"] {
				s.Pool = append(s.Pool, addressOf(t, server.url))
			}
		},
		"the picker alone knows it": func(s *setup, _ fleet) { s.Again = true },
		"heads of answers alone":    func(s *setup, _ fleet) { s.Again, s.Answers = true, "NONE" },
	} {
		t.Run(name, func(t *testing.T) {
			f := startPairs(t, "--time-scale", "0.2")
			pickers := []*picker{startPicker(t, f), startPicker(t, f)}
			s := standalone(t, pickers[0])
			s.Pickers = append(s.Pickers, addressOf(t, pickers[1].address))
			s.PickerRetries, s.FailOpen, s.Requests, s.Answers = 2, true, "BUFFERED", "STREAMED"
			kept(&s, f)
			l := startTraffic(t, startProxy(t, s).url, 16)
			for i := range pickers {
				l.goOn(t, 100)
				pickers[i].p.Kill(t)
				l.goOn(t, 100)
				pickers[i].start(t)
			}
			l.goOn(t, 50)
			l.lostNothing(t)
			for _, p := range pickers {
				checkIdle(t, p)
			}
		})
	}
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

// Where Tandem is the plain backend of a route, an engine that is killed under load costs nothing: not
// even the streams that it was writing, which go on elsewhere.
func TestPlainBackend_AnEngineKilledCostsNothing(t *testing.T) {
	f := startPairs(t, "--time-scale", "0.2")
	p := startPicker(t, f)
	l := startTraffic(t, startProxy(t, plainBackend(t, p)).url, 8)
	l.goOn(t, 50)
	f["decode"][0].p.Kill(t)
	l.goOn(t, 100)
	for _, lost := range l.stop() {
		t.Errorf("a request failed: %v", lost)
	}
	checkIdle(t, p)
}

// An engine is killed under load while it streams, or while it prefills: the picker has it down as soon as
// an answer of it breaks, and what begins later goes elsewhere. It is shown what the kill cost, of
// requests that were on the engine and of those that began later, and how soon it was avoided.
func TestEngineKilled_IsAvoidedAtOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("make e2e-envoy runs it")
	}
	for name, c := range map[string]struct {
		killed   string // role
		fallback bool   // the gateway knows the pool, and tries the next server
	}{
		"decode, no retries":              {killed: "decode"},
		"decode, ordered fallbacks":       {killed: "decode", fallback: true},
		"prefill, no retries":             {killed: "prefill"},
		"prefill, retries of the gateway": {killed: "prefill", fallback: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := startPairs(t, "--time-scale", "0.2")
			p := startPicker(t, f)
			s := standalone(t, p)
			if c.fallback {
				p = startPicker(t, f, "--picker-fallbacks", "2")
				s = ofPool(t, p, f["decode"])
			}
			e := startProxy(t, s)
			l := startTraffic(t, e.url, 16)
			l.goOn(t, 100)
			retried := e.stat(t, "cluster.servers.upstream_rq_retry")
			killed := time.Now()
			f[c.killed][0].p.Kill(t)
			process.WaitFor(t, p.p, "the picker to have it down", process.ReadyWithin, process.SeesUp("http://"+p.admin, 3))
			down := time.Now()
			answered := l.succeeded.Load()
			l.goOn(t, 200)
			failed := l.stop()
			before, between, after, last := 0, 0, 0, time.Duration(0)
			for _, lost := range failed {
				last = max(last, lost.ended.Sub(killed))
				switch {
				case lost.began.Before(killed):
					before++
				case lost.began.Before(down):
					between++
				default:
					after++
					t.Errorf("a request that began %v after it was down: %v", lost.began.Sub(down), lost)
				}
			}
			t.Logf("down after %v; lost: %d that were under way, %d that began before it was down, %d later, the last %v after the kill; Envoy tried %v again; %d were answered since",
				down.Sub(killed).Round(time.Millisecond), before, between, after, last.Round(time.Millisecond),
				e.stat(t, "cluster.servers.upstream_rq_retry")-retried, l.succeeded.Load()-answered)
			t.Logf("the picker counts %v", p.outcomes(t))
			checkIdle(t, p)
		})
	}
}
