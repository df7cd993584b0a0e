package pd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"
	"weak"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/enginehttp"
	"github.com/tandem-gateway/tandem/pd/retry"
	"github.com/tandem-gateway/tandem/pools/curve"
)

// aggregatedRequest is one that decode answers alone.
func aggregatedRequest(t *testing.T, stream bool) *Request {
	t.Helper()
	body, err := api.ParseBody([]byte(`{"model":"m","prompt":"hi"}`))
	if err != nil {
		t.Fatal(err)
	}
	return &Request{ID: "r", Dialect: api.Completions, Model: testModel, Body: body, Header: http.Header{}, Stream: stream, Aggregated: true, PromptTokens: 2}
}

// Each retry is load that a failing pool has to bear: one request makes MaxRetries of them,
// as long as the budget of all requests has some left, and not one more.
func TestRun_TriesAgainMaxRetriesTimesWithinTheBudget(t *testing.T) {
	for _, c := range []struct{ retries, budget, legs int }{
		{0, 10, 1}, {1, 10, 2}, {3, 10, 4}, {3, 1, 2}, {3, 0, 1},
	} {
		f := newTestFleet(t, c.retries+2, testPrompt(100)) // so that a server is left to be tried
		f.Config.MaxRetries, f.Budget = c.retries, retry.NewBudget(0, c.budget)
		legs := 0
		f.Transport = sends(func(r *http.Request) (*http.Response, error) {
			legs++
			return &http.Response{StatusCode: http.StatusInternalServerError, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(`{}`)), Request: r}, nil
		})
		_, err := f.Run(t.Context(), aggregatedRequest(t, false))
		var failed *LegError
		if !errors.As(err, &failed) || failed.Status != http.StatusInternalServerError {
			t.Errorf("%d retries, a budget of %d: %v", c.retries, c.budget, err)
		}
		if legs != c.legs {
			t.Errorf("%d retries, a budget of %d: %d legs were sent, want %d", c.retries, c.budget, legs, c.legs)
		}
		if waiting, inFlight := f.Queue.Len(); waiting != 0 || inFlight != 0 {
			t.Errorf("%d retries, a budget of %d: after the failure %d wait and %d are in flight", c.retries, c.budget, waiting, inFlight)
		}
	}
}

// A retry that finds no other server is none: it is not counted, and is left for requests that have another server.
func TestRun_ARetryWithoutAnotherServerIsNone(t *testing.T) {
	f := newTestFleet(t, 1, testPrompt(100))
	f.Budget = retry.NewBudget(0, 1)
	f.Transport = sends(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusInternalServerError, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(`{}`)), Request: r}, nil
	})
	for range 3 {
		_, err := f.Run(t.Context(), aggregatedRequest(t, false))
		var failed *LegError
		if !errors.As(err, &failed) || failed.Status != http.StatusInternalServerError {
			t.Errorf("the client is told %v", err)
		}
	}
	if _, ok := f.Budget.TakeRetry("", false, time.Now()); !ok {
		t.Error("the budget is spent")
	}
	if made, spent := testutil.CollectAndCount(f.Metrics.retries), testutil.ToFloat64(f.Metrics.exhausted); made != 0 || spent != 0 {
		t.Errorf("%d kinds of retries, %v for which there was no budget", made, spent)
	}
}

// Nor is one whose prompt fits on no server that is left.
func TestRun_ARetryThatFitsNowhereIsNone(t *testing.T) {
	f := newEngineFleet(t, fleetShape{decode: 1, engine: func(c *engine.Config) { c.MaxModelLen = 64 }})
	f.identified()
	f.Budget = retry.NewBudget(0, 1)
	req := requestOf(t, api.Completions, `{"model":"m","prompt":[1,2,3],"max_tokens":1}`)
	req.PromptIsIDs, req.PromptTokens = true, 100
	st, err := f.wait(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	f.locate(t.Context(), st)
	taken, _ := f.Budget.TakeRetry("", false, time.Now())
	st.retrying = retrying{&LegError{Leg: AggregatedLeg, Kind: Broken, Err: errSilent}, taken}
	var long *ContextLengthError
	if _, err := f.assign(t.Context(), st); !errors.As(err, &long) {
		t.Errorf("the client is told %v", err)
	}
	f.end(st)
	if _, ok := f.Budget.TakeRetry("", false, time.Now()); !ok {
		t.Error("the budget is spent")
	}
	f.wantMetrics(map[string]float64{"tandem_retries_total": 0})
}

// What ends a request behind a failed leg is that leg's error, but where its client has left.
func TestRequestState_LastErrorOr(t *testing.T) {
	none, left := error(&NoServerError{}), fmt.Errorf("while it waited: %w", context.Canceled)
	st := &requestState{}
	if got := st.lastErrorOr(none); got != none {
		t.Errorf("no leg has failed: %v", got)
	}
	st.last = &LegError{Kind: Broken, Err: errSilent}
	if got := st.lastErrorOr(none); got != st.last {
		t.Errorf("no other server: %v", got)
	}
	if got := st.lastErrorOr(left); got != left {
		t.Errorf("the client left: %v", got)
	}
}

// slowly is a transport whose engines answer decode legs after so long with one token; the first
// of them fail at once.
func slowly(took time.Duration, failing int) sends {
	return func(r *http.Request) (*http.Response, error) {
		if failing--; failing >= 0 {
			return &http.Response{StatusCode: http.StatusBadGateway, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
		}
		time.Sleep(took)
		body := io.NopCloser(strings.NewReader(textEvent + "data: [DONE]\n\n"))
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: body, Request: r}, nil
	}
}

// streamAggregated runs a streamed chat on one server and reads none of its answer.
func (f *testFleet) streamAggregated(t *testing.T) *Request {
	t.Helper()
	req := aggregatedRequest(t, true)
	req.Dialect = api.Chat
	answer, err := f.Run(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	answer.Stream.Close()
	return req
}

// What a first token took corrects what is promised of the next, unless it came from a second
// attempt; and a request that was answered just now is no sign that none is.
func TestRun_AFirstTokenTeachesWhatIsPromised(t *testing.T) {
	for failing, teaches := range map[int]bool{0: true, 1: false} {
		synctest.Test(t, func(t *testing.T) {
			f := newTestFleet(t, 2, testPrompt(100))
			f.Transport = slowly(15*time.Second, failing)
			f.streamAggregated(t)
			promised := cost.Terms{Prefill: time.Second}
			if got := f.Binder.ttftMargin.Bound(&promised); (got > time.Second) != teaches {
				t.Errorf("after %d failed attempts and 15 s to the first token, one in a second is promised in %v", failing, got)
			}
			if f.Binder.deadlineProbes.Take(testModel, time.Now()) {
				t.Error("a probe is due at the moment of an answer")
			}
		})
	}
}

// Legs that run together end together, but for prefill's answer, which may come some time after
// decode's: then it is not waited for any more.
func TestRun_PrefillIsNotAwaitedForEverAfterDecode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestFleet(t, 1, testPrompt(100))
		f.Config.PrefillTimeout = time.Hour
		f.becomesSGLangPair(t)
		f.Transport = sends(func(r *http.Request) (*http.Response, error) {
			if r.URL.Host == "10.8.0.2:8000" {
				return slowly(time.Second, 0)(r)
			}
			<-r.Context().Done()
			return nil, context.Cause(r.Context())
		})
		st := f.arrives(testPrompt(100), time.Now())
		st.client.Body, st.client.Stream = aggregatedRequest(t, true).Body, true
		answer, err := f.Run(t.Context(), st.client)
		if err != nil || answer.Prefill == "" {
			t.Fatalf("%+v, %v", answer, err)
		}
		start := time.Now()
		answer.Stream.Close()
		f.Wait()
		if took := time.Since(start); took != afterDecode {
			t.Errorf("prefill was awaited for %v after decode", took)
		}
	})
}

// A stream that has ended is forgotten: what its server would call when it falls would hold the
// request for as long as the server lives.
func TestRun_AServerHoldsNothingOfAStreamThatEnded(t *testing.T) {
	f := newTestFleet(t, 1, testPrompt(100))
	f.Transport = slowly(0, 0)
	serve := func() weak.Pointer[Request] { // in a frame of its own, which keeps nothing
		return weak.Make(f.streamAggregated(t))
	}
	req := serve()
	f.await(t, func() bool {
		runtime.GC()
		return req.Value() == nil
	})
}

// nothing is a body of so many spaces.
type nothing struct{}

func (nothing) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

// A whole answer has a bound; one of just that length is read, and one that breaks is an error.
func TestReadAnswer_IsBounded(t *testing.T) {
	for name, c := range map[string]struct {
		body io.Reader
		err  error
	}{
		"the longest": {io.LimitReader(nothing{}, enginehttp.MaxAnswer), nil},
		"longer":      {nothing{}, enginehttp.ErrAnswerTooLong},
		"cut off":     {io.MultiReader(strings.NewReader("{"), iotest.ErrReader(io.ErrUnexpectedEOF)), io.ErrUnexpectedEOF},
	} {
		if body, err := enginehttp.ReadAnswer(&http.Response{Body: io.NopCloser(c.body)}, new(enginehttp.HeldAnswer)); !errors.Is(err, c.err) || err == nil && len(body) != enginehttp.MaxAnswer {
			t.Errorf("%s: %d bytes, %v", name, len(body), err)
		}
	}
}

// Of legs that run together decode's whole answer counts, though prefill failed before it came: the
// client has all of it. A stream whose prefill failed is begun anew.
func TestRun_AWholeAnswerCountsThoughPrefillFailed(t *testing.T) {
	for _, stream := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newTestFleet(t, 1, testPrompt(100))
			f.becomesSGLangPair(t)
			f.Transport = sends(func(r *http.Request) (*http.Response, error) {
				switch {
				case r.URL.Host == "10.8.0.1:8000":
					return &http.Response{StatusCode: http.StatusBadGateway, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
				case stream:
					return slowly(time.Second, 0)(r)
				}
				time.Sleep(time.Second) // and it does not hear that its peer failed
				body := io.NopCloser(strings.NewReader(`{"choices":[{"index":0,"message":{"content":"hi"}}]}`))
				return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: body, Request: r}, nil
			})
			var open atomic.Int64 // answers
			through := f.Transport
			f.Transport = sends(func(r *http.Request) (*http.Response, error) {
				resp, err := through.RoundTrip(r)
				if err == nil {
					open.Add(1)
					resp.Body = onClose{resp.Body, func() { open.Add(-1) }}
				}
				return resp, err
			})
			st := f.arrives(testPrompt(100), time.Now())
			st.client.Body, st.client.Stream = aggregatedRequest(t, stream).Body, stream
			answer, err := f.Run(t.Context(), st.client)
			f.Wait()
			if (err == nil) == stream {
				t.Errorf("stream %v: %+v, %v", stream, answer, err)
			}
			if n := open.Load(); n != 0 {
				t.Errorf("stream %v: %d answers are open", stream, n)
			}
		})
	}
}

// onClose is a body that says when it is closed first.
type onClose struct {
	io.ReadCloser
	closed func()
}

func (b onClose) Close() error {
	b.closed()
	return b.ReadCloser.Close()
}

// A prompt that decode computes at once beside streams does not teach that it takes what their steps take: a long
// one would be believed to take as many times as long as the short one that showed it. Nor does a whole answer that is
// its first token.
func TestRun_APromptBesideStreamsTeachesWhatIsItsOwn(t *testing.T) {
	for _, stream := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			f := newTestFleet(t, 1, testPrompt(100))
			decode := candidateOf(f.Fleet.Servers()[1], time.Now())
			if decode.Running == 0 {
				t.Fatal("nothing streams there")
			}
			own, long := decode.Prefill.Time(curve.PrefillFeatures(10, 0)), curve.PrefillFeatures(10_000, 0)
			took := own + decode.Step.Time(curve.StepFeatures(decode.Running+1, decode.KVUsed))*3/2
			f.Transport = slowly(took, 0)
			if !stream {
				f.Transport = sends(func(r *http.Request) (*http.Response, error) {
					time.Sleep(took)
					body := io.NopCloser(strings.NewReader(`{"choices":[{"index":0,"message":{"content":"hi"}}],"usage":{"prompt_tokens":10,"completion_tokens":1,"total_tokens":11}}`))
					return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: body, Request: r}, nil
				})
			}
			for range 30 {
				if stream {
					f.streamAggregated(t)
				} else if _, err := f.Run(t.Context(), aggregatedRequest(t, false)); err != nil {
					t.Fatal(err)
				}
			}
			if got := f.Fleet.Servers()[1].PrefillCurve().Seconds(long) / decode.Prefill.Seconds(long); got < 0.9 || got > 1.1 {
				t.Errorf("stream %v: a long prompt is believed to take %.2f times as long", stream, got)
			}
		})
	}
}
