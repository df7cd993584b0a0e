package pd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/loadtest/testlog"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/enginehttp"
	"github.com/tandem-gateway/tandem/pd/firsttoken"
	"github.com/tandem-gateway/tandem/pd/retry"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/breaker"
)

const streamed = `,"max_tokens":24,"stream":true`

// breaksOnce sets a fault on the decode servers that hits one request of each.
func (f *engineFleet) breaksOnce(kind string, tokens int) {
	for _, e := range f.decode {
		e.SetFault(engine.Fault{Kind: kind, Tokens: tokens, Count: 1})
	}
}

// A stream that breaks goes on elsewhere, and the client sees one answer: every token of it,
// once, in one stream, whatever API it is of, and whether the engines tell token ids or not.
func TestStream_ABrokenStreamIsContinued(t *testing.T) {
	for _, d := range []*api.Dialect{api.Chat, api.Completions} {
		for _, kind := range []string{engine.FaultDieAfterTokens, engine.FaultErrorAfterTokens} {
			for _, byText := range []bool{false, true} {
				if byText && d != api.Chat {
					continue
				}
				f := newEngineFleet(t, fleetShape{prefill: 1, decode: 2, engine: func(cfg *engine.Config) { cfg.NoTokenIDs = byText }})
				req := f.asks(d, streamed)
				want := reference(t, req)
				for _, e := range f.decode {
					e.SetFault(engine.Fault{Kind: kind, Tokens: 5, Count: 1})
				}
				got, err := f.run(t.Context(), req)
				if err != nil || got.err != nil {
					t.Fatalf("%s %s: %v %v", d.Name, kind, err, got.err)
				}
				if got.text != want || got.events[len(got.events)-1] != "[DONE]" || strings.Count(strings.Join(got.events, "\n"), "[DONE]") != 1 {
					t.Errorf("%s %s, by text %v: %q\nwant %q", d.Name, kind, byText, got.text, want)
				}
				f.nothingIsLeft()
				n := f.metric("tandem_continuations_total", "outcome", "continued")
				if n == 0 || n > 2 || f.metric("tandem_continuations_total") != n {
					t.Errorf("%s %s: continued %v times of %v", d.Name, kind, n, f.metric("tandem_continuations_total"))
				}
				f.wantMetrics(map[string]float64{"tandem_streams_broken_total": n, "tandem_ttft_seconds": 1, "tandem_wait_seconds": 1})
				kept := f.Decisions.Newest(9)
				if len(kept) != 1 || len(kept[0].Choices) != int(n)+1 || kept[0].Choices[0].Outcome == "" || kept[0].Choices[int(n)].Outcome != "" || kept[0].Outcome != "served" {
					t.Errorf("%s %s, continued %v times: of one request is remembered %+v", d.Name, kind, n, kept)
				}
				if u := got.Stream.Usage(); u != (api.Usage{}) {
					t.Errorf("of which leg is the usage %+v?", u)
				}
				if events := got.Stream.Events(); events < 20 || events > 24 {
					t.Errorf("%d content events", events)
				}
			}
		}
	}
}

// A stream whose event does not end is not continued where long events have no more memory: another engine would send the
// same, and the budget of retries is for streams whose servers die.
func TestStream_AnEventForWhichThereIsNoRoomEndsIt(t *testing.T) {
	f := newEngineFleet(t, fleetShape{prefill: 1, decode: 3})
	f.Answers = enginehttp.NewAnswerBudget(2<<20, func() bool { return false })
	through := f.Transport
	f.Transport = sends(func(r *http.Request) (*http.Response, error) {
		resp, err := through.RoundTrip(r)
		if err == nil && strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
			whole, failed := io.ReadAll(resp.Body)
			if failed != nil {
				return nil, failed
			}
			events := bytes.SplitAfter(whole, []byte("\n\n"))
			some := bytes.Join(events[:6], nil)
			resp.Body = io.NopCloser(io.MultiReader(bytes.NewReader(some), strings.NewReader("data: "+strings.Repeat("a", 5<<20))))
		}
		return resp, err
	})
	got, err := f.run(t.Context(), f.asks(api.Chat, streamed))
	if err != nil {
		t.Fatal(err)
	}
	if !errors.Is(got.err, api.ErrEventsHeld) || got.text == "" {
		t.Errorf("it ends with %v behind %q", got.err, got.text)
	}
	f.nothingIsLeft()
	f.wantMetrics(map[string]float64{"tandem_streams_broken_total": 1, "tandem_continuations_total": 1, "tandem_retry_budget_exhausted_total": 0})
	if n := f.metric("tandem_continuations_total", "outcome", "refused"); n != 1 {
		t.Errorf("%v continuations were refused", n)
	}
}

// A stream is not continued for ever, nor on credit, nor where that is switched off, nor where
// the client's request allows none: then the client is told that it broke, once.
func TestStream_WhatCannotBeContinuedBreaks(t *testing.T) {
	for name, c := range map[string]struct {
		orchestrator func(*Orchestrator)
		change       func(*Request)
		times        int // that it is continued before
		outcome      string
	}{
		"it breaks again and again": {nil, nil, maxContinuations, "refused"},
		"the budget is spent":       {func(o *Orchestrator) { o.Budget = retry.NewBudget(0, 1) }, nil, 1, "no_budget"},
		"there is no budget":        {func(o *Orchestrator) { o.Budget = retry.NewBudget(0, 0) }, nil, 0, "no_budget"},
		"streams are not continued": {func(o *Orchestrator) { o.Config.ContinueStreams = false }, nil, 0, ""},
		"several samples":           {nil, func(r *Request) { r.Aggregated = true }, 0, ""},
	} {
		f := newEngineFleet(t, fleetShape{prefill: 1, decode: 4, orchestrator: c.orchestrator})
		for _, e := range f.decode {
			e.SetFault(engine.Fault{Kind: engine.FaultErrorAfterTokens, Tokens: 3})
		}
		req := f.asks(api.Chat, streamed)
		if c.change != nil {
			c.change(req)
		}
		want := reference(t, req)
		got, err := f.run(t.Context(), req)
		var broken *BrokenStreamError
		if err != nil || !errors.As(got.err, &broken) || broken.Message == "" {
			t.Errorf("%s: %v, %v", name, err, got.err)
			continue
		}
		if !strings.HasPrefix(want, got.text) || got.text == "" {
			t.Errorf("%s: %q of %q", name, got.text, want)
		}
		if kept := f.Decisions.Newest(9); len(kept) != 1 || len(kept[0].Choices) != c.times+1 {
			t.Errorf("%s: of one request is remembered %+v", name, kept)
		}
		if _, err := got.Stream.Next(); !errors.As(err, &broken) {
			t.Errorf("%s: after its end: %v", name, err)
		}
		f.nothingIsLeft()
		metrics := map[string]float64{
			"tandem_continuations_total{outcome=continued}": float64(c.times), "tandem_continuations_total": float64(c.times),
			"tandem_streams_broken_total": float64(c.times + 1), "tandem_retry_budget_exhausted_total": 0,
		}
		if c.outcome != "" {
			metrics["tandem_continuations_total{outcome="+c.outcome+"}"] = 1
			metrics["tandem_continuations_total"]++
		}
		if c.outcome == "no_budget" {
			metrics["tandem_retry_budget_exhausted_total"] = 1
		}
		f.wantMetrics(metrics)
	}
}

// Who looks for why a stream was not continued finds the field of the request in the log, and not what it says.
func TestStream_TheFieldForWhichItIsNotContinuedIsLogged(t *testing.T) {
	for _, c := range []struct {
		d     *api.Dialect
		more  string
		field string // "": it is another reason
		first firsttoken.Source
	}{
		{api.Chat, `,"stop":["told"]`, "stop", firsttoken.FromDecode},
		{api.Chat, `,"stop":["told"]`, "stop", firsttoken.FromPrefill}, // whose token the answer begins with
		{api.Chat, `,"tools":[{"type":"function","function":{"name":"told"}}]`, "tools", firsttoken.FromDecode},
		{api.Completions, `,"told_tomorrow":"told"`, "told_tomorrow", firsttoken.FromDecode},
		{api.Responses, `,"instructions":"told"`, "", firsttoken.FromDecode},
		{api.Chat, ``, "", firsttoken.FromDecode},
	} {
		var log testlog.Buffer
		f := newEngineFleet(t, fleetShape{
			prefill: 1, decode: 2, engine: func(cfg *engine.Config) { cfg.Version = "0.32.0" }, // in front of which prefill says it
			orchestrator: func(o *Orchestrator) {
				o.Log, o.Binder.Config.FirstToken = slog.New(slog.NewJSONHandler(&log, nil)), c.first
			},
		})
		f.identified()
		f.breaksOnce(engine.FaultDieAfterTokens, 5)
		if _, err := f.run(t.Context(), f.asks(c.d, streamed+c.more)); err != nil {
			t.Errorf("%s: %v", c.more, err)
		}
		want := `"reason":"token ids do not determine the rest: the request has the field ` + c.field + `"`
		if got := log.String(); strings.Contains(got, want) != (c.field != "") || strings.Contains(got, `"told"`) {
			t.Errorf("%s, first token %v: %s", c.more, c.first, got)
		}
		if n := f.metric("tandem_first_tokens_total", "use", "first"); n != map[firsttoken.Source]float64{firsttoken.FromPrefill: 1}[c.first] {
			t.Errorf("%s, first token %v: %v begun by prefill", c.more, c.first, n)
		}
	}
}

// A stream that breaks where no other server can take it goes back to the server on which it
// broke; where that is down, it breaks.
func TestStream_ContinuedOnTheOnlyServerThereIs(t *testing.T) {
	f := newEngineFleet(t, fleetShape{prefill: 1, decode: 1})
	f.breaksOnce(engine.FaultErrorAfterTokens, 5)
	req := f.asks(api.Chat, streamed)
	if got, want := f.served(req), reference(t, req); got.text != want {
		t.Errorf("%q, want %q", got.text, want)
	}
	f.nothingIsLeft()

	f = newEngineFleet(t, fleetShape{prefill: 1, decode: 1})
	f.Budget = retry.NewBudget(0, 1)
	f.breaksOnce(engine.FaultErrorAfterTokens, 5)
	answer, err := f.Run(t.Context(), f.asks(api.Chat, streamed))
	if err != nil {
		t.Fatal(err)
	}
	f.server(f.decode[0]).MarkDown("for the test")
	for err == nil {
		_, err = answer.Stream.Next()
	}
	var broken *BrokenStreamError
	if !errors.As(err, &broken) {
		t.Errorf("%v", err)
	}
	answer.Stream.Close()
	f.nothingIsLeft()
	f.wantMetrics(map[string]float64{"tandem_continuations_total{outcome=failed}": 1, "tandem_continuations_total": 1})
	if _, ok := f.Budget.TakeRetry("", false, time.Now()); !ok {
		t.Error("a continuation that found no server took the retry of a request that has one")
	}
}

// Where only the end of a stream is missing, the answer is whole: the client gets the end.
func TestStream_OnlyItsEndIsMissing(t *testing.T) {
	f := newEngineFleet(t, fleetShape{prefill: 1, decode: 1})
	for _, e := range f.decode {
		e.SetFault(engine.Fault{Kind: engine.FaultNoDone})
	}
	req := f.asks(api.Chat, streamed)
	got, want := f.served(req), reference(t, req)
	if got.text != want || got.events[len(got.events)-1] != "[DONE]" {
		t.Errorf("%q, want %q; the last event is %s", got.text, want, got.events[len(got.events)-1])
	}
	if got.Stream.Ready() {
		t.Error("something is ready after its end")
	}
	if _, err := got.Stream.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("after its end: %v", err)
	}
	f.nothingIsLeft()
	f.wantMetrics(map[string]float64{"tandem_streams_broken_total": 0})
	if state := f.server(f.decode[0]).Breaker(pools.Decode, time.Now()); state != breaker.Closed {
		t.Errorf("its breaker is %v", state)
	}
}

// The connection breaks behind the last token: nothing is computed again for that, the client
// gets the end that is missing, with the usage where that was asked for.
func TestStream_BrokenBehindItsLastTokenIsEndedByUs(t *testing.T) {
	f := newEngineFleet(t, fleetShape{prefill: 1, decode: 1})
	through, legs := f.Transport, 0
	f.Transport = sends(func(r *http.Request) (*http.Response, error) {
		resp, err := through.RoundTrip(r)
		if err == nil && isEventStream(resp) {
			legs++
			resp.Body = &cut{resp.Body}
		}
		return resp, err
	})
	req := f.asks(api.Chat, streamed)
	got, err := f.run(t.Context(), req)
	if want := reference(t, req); err != nil || got.err != nil || got.text != want || got.events[len(got.events)-1] != "[DONE]" || legs != 1 {
		t.Errorf("%d legs, %v, %v: %q, want %q", legs, err, got.err, got.text, want)
	}
	if _, err := got.Stream.Next(); !errors.Is(err, io.EOF) || got.Stream.Ready() {
		t.Errorf("after its end: %v", err)
	}
	f.nothingIsLeft()
	f.wantMetrics(map[string]float64{"tandem_continuations_total{outcome=ended}": 1, "tandem_continuations_total": 1, "tandem_streams_broken_total": 1, "tandem_retry_budget_exhausted_total": 0})
}

// cut is a body whose connection breaks before the end marker.
type cut struct{ io.ReadCloser }

func (c *cut) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	if end := bytes.Index(p[:n], []byte("data: [DONE]")); end >= 0 {
		return end, errors.New("connection reset")
	}
	return n, err
}

// A client that leaves in the midst of a stream is no failure of the server's, and no stream
// is continued for it.
func TestStream_LeftByItsClientIsNoFailure(t *testing.T) {
	for _, cancels := range []bool{false, true} {
		f := newEngineFleet(t, fleetShape{prefill: 1, decode: 1, engine: func(cfg *engine.Config) { cfg.TimeScale = 1 }})
		ctx, leave := context.WithCancel(t.Context())
		answer, err := f.Run(ctx, f.asks(api.Chat, `,"max_tokens":2000,"stream":true`))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := answer.Stream.Next(); err != nil {
			t.Fatal(err)
		}
		if cancels {
			leave()
			for err == nil {
				_, err = answer.Stream.Next()
			}
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%v", err)
			}
		}
		answer.Stream.Close()
		leave()
		f.nothingIsLeft()
		f.wantMetrics(map[string]float64{"tandem_streams_broken_total": 0, "tandem_continuations_total": 0, "tandem_retries_total": 0})
		if n := f.decode[0].State().Aborted; n != 1 {
			t.Errorf("the engine ended %d answers early", n)
		}
	}
}

// A stream that is silent for too long has broken: the next event has its limit, however long
// the client takes to read.
func TestStream_ASilentStreamBreaks(t *testing.T) {
	f := newTestFleet(t, 1, testPrompt(100))
	f.Config.IdleTimeout = 50 * time.Millisecond
	reader, writer := io.Pipe()
	f.Transport = sends(func(r *http.Request) (*http.Response, error) {
		context.AfterFunc(r.Context(), func() { _ = writer.CloseWithError(r.Context().Err()) })
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: reader, Request: r}, nil
	})
	go func() { _, _ = io.WriteString(writer, "data: {\"choices\":[{\"index\":0,\"text\":\"a\"}]}\n\n") }()
	answer, err := f.Run(t.Context(), aggregatedRequest(t, true))
	if err != nil {
		t.Fatal(err)
	}
	_, err = answer.Stream.Next()
	if err != nil {
		t.Fatal(err)
	}
	_, err = answer.Stream.Next()
	var broken *BrokenStreamError
	if !errors.As(err, &broken) || !errors.Is(err, errSilent) || broken.Message != "the engine stopped sending" {
		t.Errorf("%v", err)
	}
	answer.Stream.Close()
}

// A refusal that quotes a request which names the field is no refusal of the wish for token ids: the engine is asked for
// them again.
func TestStream_ARequestThatNamesTheFieldEndsNoWishForTokenIDs(t *testing.T) {
	f := newEngineFleet(t, fleetShape{decode: 1})
	through, quotes, asked := f.Transport, true, 0
	f.Transport = sends(func(r *http.Request) (*http.Response, error) {
		if !quotes {
			return through.RoundTrip(r)
		}
		asked++
		return &http.Response{StatusCode: http.StatusBadRequest, Header: http.Header{}, Request: r,
			Body: io.NopCloser(strings.NewReader(`{"error":{"message":"top_k: Input should be a valid integer, input: 'return_token_ids'","code":400}}`))}, nil
	})
	var refused *LegError
	if _, err := f.run(t.Context(), f.asks(api.Chat, streamed)); !errors.As(err, &refused) || refused.Kind != Refused || asked != 2 {
		t.Errorf("asked %d times: %v", asked, err)
	}
	quotes = false
	f.served(f.asks(api.Chat, streamed))
	requests := f.decode[0].State().Requests
	if last := requests[len(requests)-1].Body; !strings.Contains(last, `"return_token_ids":true`) {
		t.Errorf("it is not asked for token ids any more: %s", last)
	}
	f.nothingIsLeft()
}

// An engine that reports no token ids, though it was asked to, is not asked again; one that does
// is asked each time.
func TestStream_AnEngineWithoutTokenIDsIsAskedForThemOnce(t *testing.T) {
	for _, without := range []bool{true, false} {
		f := newEngineFleet(t, fleetShape{decode: 1, engine: func(cfg *engine.Config) { cfg.NoTokenIDs = without }})
		for range 3 {
			f.served(f.asks(api.Chat, streamed))
		}
		asked := 0
		for _, r := range f.decode[0].State().Requests {
			if r.Path == api.Chat.Path && strings.Contains(r.Body, `"return_token_ids":true`) {
				asked++
			}
		}
		if want := map[bool]int{true: 1, false: 3}[without]; asked != want {
			t.Errorf("without token ids %v: asked for %d times", without, asked)
		}
		f.nothingIsLeft()
	}
}
