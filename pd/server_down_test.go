package pd

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/pools"
)

// A leg that is under way on a server that goes down is taken from it at that moment, whichever leg
// it is and in whichever form its answer comes; another server does it.
func TestRun_ALegIsTakenFromAServerThatGoesDown(t *testing.T) {
	for name, c := range map[string]struct {
		role               pools.Role
		aggregated, stream bool
	}{
		"prefill":                  {pools.Prefill, false, true},
		"decode, streamed":         {pools.Decode, false, true},
		"decode, whole":            {pools.Decode, false, false},
		"decode alone, streamed":   {pools.Decode, true, true},
		"decode alone, in a whole": {pools.Decode, true, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newTestFleet(t, 2, testPrompt(100))
			var down *pools.Server
			f.Transport = sends(func(r *http.Request) (*http.Response, error) {
				s := f.serverOf(r)
				if down != nil || s.Role != c.role {
					return f.answersOf(r, c.stream), nil
				}
				down = s
				s.ProbeFailed(&pools.Health{}, "for the test")
				<-r.Context().Done()
				return nil, r.Context().Err()
			})
			req := f.pairRequest(t, c.stream)
			req.Aggregated = c.aggregated
			start := time.Now()
			answer, err := f.ends(t.Context(), req)
			if err != nil || down == nil || answer.Prefill == down.ID() || answer.Decode == down.ID() {
				t.Fatalf("%s: %+v, %v", name, answer, err)
			}
			if took := time.Since(start); took != 0 {
				t.Errorf("%s: taken from it after %v", name, took)
			}
			f.holdsNothing(t)
		})
	}
}

// A stream that has begun stays with a server that is taken out for as long as it sends; it ends on
// one that is silent as well, and on one of a group, which waits for the dead one whatever it
// still sends.
func TestStream_StaysWithAServerThatIsDownAndSends(t *testing.T) {
	const interval = time.Second
	for name, c := range map[string]struct {
		group  string
		silent time.Duration
		ends   bool
	}{
		"it sends":                      {"", 0, false},
		"it was silent for two probes":  {"", 2 * interval, false},
		"it was silent for longer":      {"", 2*interval + 1, true},
		"it steps with one that is out": {"g", 0, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newProbedFleet(t, 1, testPrompt(100), interval)
			if c.group != "" {
				specs := []pools.Spec{{URL: "http://10.8.0.1:8000", Role: pools.Decode, Connector: "nixl", Group: c.group}}
				if err := f.Fleet.Apply(specs); err != nil {
					t.Fatal(err)
				}
				f.await(t, f.up)
			}
			f.Config.ContinueStreams = false
			reader, writer := io.Pipe()
			var sender *pools.Server
			f.Transport = sends(func(r *http.Request) (*http.Response, error) {
				sender = f.serverOf(r)
				context.AfterFunc(r.Context(), func() { _ = writer.CloseWithError(r.Context().Err()) })
				return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: reader, Request: r}, nil
			})
			go func() { _, _ = io.WriteString(writer, textEvent) }()
			req := f.pairRequest(t, true)
			req.Aggregated = true
			answer, err := f.Run(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			defer answer.Stream.Close()
			if _, err := answer.Stream.Next(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(c.silent)
			sender.ProbeFailed(&pools.Health{}, "for the test")
			synctest.Wait()
			go func() { _, _ = io.WriteString(writer, textEvent) }()
			if _, err := answer.Stream.Next(); errors.Is(err, errServerDown) != c.ends || (err != nil) != c.ends {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
}

// A server is reported down by its prober, in a goroutine of its own, while a stream from it opens and
// lets go of the client's text: what the prober asks of the request is what it was when its leg was sent.
func TestStream_IsJudgedWhileItOpens(t *testing.T) {
	f := newTestFleet(t, 1, testPrompt(100))
	spec := pools.Spec{URL: "http://10.8.0.1:8000", Role: pools.Decode, Connector: "nixl", Group: "g"} // whose streams are judged however they send
	if err := f.Fleet.Apply([]pools.Spec{spec}); err != nil {
		t.Fatal(err)
	}
	f.await(t, f.up)
	var judged sync.WaitGroup
	defer judged.Wait()
	done := make(chan struct{})
	defer close(done)
	f.Transport = sends(func(r *http.Request) (*http.Response, error) {
		s, begun := f.serverOf(r), make(chan struct{})
		judged.Go(func() {
			close(begun)
			for now := time.Now(); ; {
				select {
				case <-done:
					return
				default:
					s.ProbeLate(now)
				}
			}
		})
		<-begun
		return f.answersOf(r, true), nil
	})
	req := f.pairRequest(t, true)
	req.Aggregated = true
	if _, err := f.ends(t.Context(), req); err != nil {
		t.Error(err)
	}
}
