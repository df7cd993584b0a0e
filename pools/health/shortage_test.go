package health

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/breaker"
	"github.com/tandem-gateway/tandem/pools/load"
)

// short is a transport of a gateway that now and then has no descriptor left.
type short struct {
	http.RoundTripper
	errno atomic.Pointer[syscall.Errno] // nil: it has some
	path  string                        // only for this one; empty: for all
}

func (s *short) RoundTrip(req *http.Request) (*http.Response, error) {
	if errno := s.errno.Load(); errno != nil && (s.path == "" || s.path == req.URL.Path) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("socket", *errno)}
	}
	return s.RoundTripper.RoundTrip(req)
}

// That we have no descriptors left says nothing of any server: none is down for it, unresponsive
// or ejected, no work is taken from it, and what was to be asked is asked afterwards.
func TestShortage_OfOurDescriptorsBlamesNoServer(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE} {
		synctest.Test(t, func(t *testing.T) {
			e := &fakeEngine{generate: sings}
			transport := &short{RoundTripper: e}
			s := fleetOf(t, pools.Default(), transport, spec("http://10.0.0.1:1", pools.Decode)).Servers()[0]
			synctest.Wait()
			if s.State() != pools.Alive {
				t.Fatal(s.State())
			}
			var fell atomic.Bool
			defer s.OnDown(new(pools.DownWatch), pools.DownFunc(func(pools.DownCause) { fell.Store(true) })).Stop()
			for round := 1; round <= 2; round++ {
				transport.errno.Store(&errno)
				s.Suspect(pools.Decode)
				for range 60 {
					time.Sleep(time.Second)
					if state := s.Breaker(pools.Decode, time.Now()); s.State() != pools.Alive || state != breaker.Closed || fell.Load() {
						t.Fatalf("%v: %v (%s), %s, fell %v", errno, s.State(), s.Health().Reason, state, fell.Load())
					}
				}
				transport.errno.Store(nil)
				time.Sleep(3 * time.Second)
				if n := e.sung(); n != round {
					t.Errorf("%v is over: %d probe requests have come, want %d", errno, n, round)
				}
			}
			e.setSick(true)
			time.Sleep(3 * time.Second)
			if s.State() != pools.Down {
				t.Errorf("%v is over and the server is ill: %v", errno, s.State())
			}
		})
	}
}

// Nor does it ease anything: a server that is down or ejected stays so until it was asked.
func TestShortage_ProvesNoServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &fakeEngine{generate: sings}
		transport := &short{RoundTripper: e}
		s := fleetOf(t, pools.Default(), transport, spec("http://10.0.0.1:1", pools.Decode)).Servers()[0]
		synctest.Wait()
		transport.errno.Store(new(syscall.EMFILE))
		trip(t, s)
		s.MarkDown("connection refused")
		time.Sleep(time.Minute)
		if state := s.Breaker(pools.Decode, time.Now()); s.State() != pools.Down || state == breaker.Closed || e.sung() > 0 {
			t.Errorf("%v, %s, %d probe requests", s.State(), state, e.sung())
		}
		transport.errno.Store(nil)
		time.Sleep(3 * time.Second)
		if state := s.Breaker(pools.Decode, time.Now()); s.State() != pools.Alive || state != breaker.Closed {
			t.Errorf("it is asked again: %v, %s", s.State(), state)
		}
	})
}

// A question beside the probes that could not be put is not an answer which later probes go
// by: they would find out nothing any more, also not that the engine hangs.
func TestShortage_IsNoAnswerOfOlderSGLang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stopped atomic.Bool
		e := &fakeSGLang{ready: 404, health: 200, asked: make(map[string]int)}
		transport := &short{path: "/health", RoundTripper: roundTripper(func(req *http.Request) (*http.Response, error) {
			if stopped.Load() {
				<-req.Context().Done()
				return nil, req.Context().Err()
			}
			return e.RoundTrip(req)
		})}
		s := fleetOf(t, pools.Default(), transport, spec("http://10.0.0.1:1", pools.Prefill)).Servers()[0]
		time.Sleep(3 * time.Second)
		if s.State() != pools.Alive {
			t.Fatal(s.State())
		}
		transport.errno.Store(new(syscall.EMFILE))
		upFor(t, s, slowHealthEvery+5*time.Second)
		stopped.Store(true)
		transport.errno.Store(nil)
		time.Sleep(5 * time.Second)
		if s.State() != pools.Unresponsive {
			t.Errorf("the engine answers nothing any more: %v", s.State())
		}
	})
}

// A name that could not be looked up for want of a descriptor is such a shortage too: it
// makes no server unresponsive that is up, and is not the reason why one is down.
func TestShortage_WhileANameIsLookedUp(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENETUNREACH} {
		names := &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Net: "udp", Err: os.NewSyscallError("socket", errno)}
		}}
		transport := &http.Transport{DialContext: (&net.Dialer{Resolver: names}).DialContext}
		s := pools.NewServer(spec("http://engine.test:1", pools.Decode))
		s.ProbePassed(s.Health(), []pools.Model{{ID: "m"}}, time.Now())
		p := newProber(engine{server: s, transport: transport}, newSlowHealth(), pools.Default(), load.NewPages(nil), slog.New(slog.DiscardHandler))
		want := pools.Alive
		if errno == syscall.ENETUNREACH {
			want = pools.Unresponsive
		}
		if p.probe(t.Context()); s.State() != want {
			t.Errorf("%v: %v, want %v", errno, s.State(), want)
		}
	}
}
