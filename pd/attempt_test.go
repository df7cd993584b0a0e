package pd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/order"
	"github.com/tandem-gateway/tandem/pools"
)

// A server that steps with one that stands still stands still too, and a server from which the
// leg was taken before never gets it again: two that stand still must not pass it to and fro.
func TestGivesUp_AServerThatHangsOnlyForOneThatDoesNot(t *testing.T) {
	for _, c := range []struct {
		groups []string // of the decode servers, of which the first hangs
		before []int    // of them that the leg was taken from
		why    pools.DownCause
		want   bool
	}{
		{[]string{""}, nil, pools.Hangs, false},
		{[]string{""}, nil, pools.Silent, false},
		{[]string{"", ""}, nil, pools.Silent, true},
		{[]string{"g", "g"}, nil, pools.Silent, false},
		{[]string{""}, nil, pools.ProbesFailed, true},
		{[]string{"", ""}, nil, pools.Hangs, true},
		{[]string{"", ""}, []int{1}, pools.Hangs, false},
		{[]string{"", ""}, []int{1}, pools.ProbesFailed, true},
		{[]string{"", "", ""}, []int{1}, pools.Hangs, true},
		{[]string{"g", "g"}, nil, pools.Hangs, false},
		{[]string{"g", "g"}, nil, pools.ProbesFailed, true},
		{[]string{"g", "g", "h", "h"}, nil, pools.Hangs, true},
	} {
		f := newTestFleet(t, 1, testPrompt(100))
		var specs []pools.Spec
		for i, group := range c.groups {
			specs = append(specs, pools.Spec{URL: fmt.Sprintf("http://d%d:8000", i), Role: pools.Decode, Connector: "nixl", Group: group})
		}
		if err := f.Fleet.Apply(specs); err != nil {
			t.Fatal(err)
		}
		f.await(t, f.up)
		hangs := f.Fleet.Servers()[0]
		var tried priorAttempts
		for _, i := range c.before {
			tried.record(&LegError{Leg: DecodeLeg, Server: f.Fleet.Servers()[i].ID(), Kind: Timeout}, false)
		}
		for _, again := range []bool{false, true} { // the fleet was told while the leg is under way
			if again {
				if err := f.Fleet.Apply(specs); err != nil {
					t.Fatal(err)
				}
			}
			if got := f.Binder.shouldAbandon(testModel, DecodeLeg, hangs, tried.servers(DecodeLeg), c.why); got != c.want {
				t.Errorf("decode servers of the groups %q, taken from %v before, %v, told again %v: %v", c.groups, c.before, c.why, again, got)
			}
		}
	}
}

// What a failed leg means for the next choice.
func TestPriorAttempts_WhatAFailedLegMeansForTheNext(t *testing.T) {
	for name, c := range map[string]struct {
		failed   []LegError
		forced   bool // a tool call is demanded
		excluded bool
		alone    bool
	}{
		"one prefill":                     {[]LegError{{Leg: PrefillLeg, Server: "s", Kind: Broken, Status: 502}}, false, true, false},
		"two prefills":                    {[]LegError{{Leg: PrefillLeg, Server: "o", Kind: Broken}, {Leg: PrefillLeg, Server: "s", Kind: Busy}}, false, true, true},
		"a forced tool and a 500":         {[]LegError{{Leg: PrefillLeg, Server: "s", Kind: Broken, Status: 500}}, true, true, true},
		"a forced tool and another error": {[]LegError{{Leg: PrefillLeg, Server: "s", Kind: Broken, Status: 502}}, true, true, false},
		"a decode that broke":             {[]LegError{{Leg: DecodeLeg, Server: "s", Kind: Broken}}, false, true, true},
		"a decode that was silent":        {[]LegError{{Leg: DecodeLeg, Server: "s", Kind: Timeout}}, false, true, true},
		"a decode that was busy":          {[]LegError{{Leg: DecodeLeg, Server: "s", Kind: Busy, Status: 503}}, false, true, false},
		"a decode that was never reached": {[]LegError{{Leg: DecodeLeg, Server: "s", Kind: Unsent}}, false, true, false},
		"decode alone that broke":         {[]LegError{{Leg: AggregatedLeg, Server: "s", Kind: Broken}}, false, true, false},
		"an adapter that was unloaded":    {[]LegError{{Leg: DecodeLeg, Server: "s", Kind: Unready, Status: 404}}, false, false, false},
		"an adapter that was not loaded":  {[]LegError{{Leg: DecodeLeg, Server: "s", Kind: Unready}}, false, true, false},
	} {
		var tried priorAttempts
		for i := range c.failed {
			tried.record(&c.failed[i], c.forced)
		}
		last := c.failed[len(c.failed)-1]
		if got := tried.legs[triedLeg{last.Leg, "s"}]; got != c.excluded || tried.mustAggregate != c.alone {
			t.Errorf("%s: excluded %v, alone from then on %v", name, got, tried.mustAggregate)
		}
	}
}

// Of two legs that ran together the one that failed by itself says what went wrong; where both
// say that the transfer did, one of them is left out, and prefill if another one is left.
func TestPrimaryFailure_IsThatOfTheLegThatFailedByItself(t *testing.T) {
	peer := func(leg Leg) *LegError { return &LegError{Leg: leg, Server: string(leg), Kind: Gone, Err: errPeer} }
	own := func(leg Leg, said string) *LegError {
		return &LegError{Leg: leg, Server: string(leg), Kind: Broken, Status: 500, Body: []byte(said), Err: errEmpty}
	}
	const transfer, other = "KVTransferError", "out of memory"
	for name, c := range map[string]struct {
		prefills        int
		prefill, decode *LegError
		want            Leg
		noted           bool // the other one too
	}{
		"prefill failed":                       {2, own(PrefillLeg, other), peer(DecodeLeg), PrefillLeg, false},
		"decode failed":                        {2, peer(PrefillLeg), own(DecodeLeg, other), DecodeLeg, false},
		"decode failed, prefill answered":      {2, nil, own(DecodeLeg, other), DecodeLeg, false},
		"both lost the transfer":               {2, own(PrefillLeg, transfer), own(DecodeLeg, transfer), PrefillLeg, false},
		"both did, and there is one prefill":   {1, own(PrefillLeg, transfer), own(DecodeLeg, transfer), DecodeLeg, false},
		"decode lost it, and prefill says why": {2, own(PrefillLeg, other), own(DecodeLeg, transfer), PrefillLeg, true},
		"prefill lost it, and decode says why": {2, own(PrefillLeg, transfer), own(DecodeLeg, other), DecodeLeg, true},
	} {
		f := newTestFleet(t, 1, testPrompt(100))
		var specs []pools.Spec
		for i := range c.prefills {
			specs = append(specs, pools.Spec{URL: fmt.Sprintf("http://p%d:8000", i), Role: pools.Prefill, Connector: "sglang"})
		}
		if err := f.Fleet.Apply(append(specs, pools.Spec{URL: "http://d0:8000", Role: pools.Decode, Connector: "sglang"})); err != nil {
			t.Fatal(err)
		}
		f.await(t, f.up)
		st := f.arrives(testPrompt(100), time.Now())
		b, err := f.Binder.bindNow(&st.bind)
		if err != nil || b.prefill == nil {
			t.Fatalf("%s: %+v, %v", name, b, err)
		}
		got := bothLegs{f.Orchestrator}.primaryFailure(st, b, c.prefill, c.decode)
		if got == nil || got.Leg != c.want || (st.last != nil) != c.noted {
			t.Errorf("%s: %v, noted too %v", name, got, st.last)
		}
		b.release()
	}
}

// A leg ends with its peer. Where that was silent for too long it is unknown which of the two the
// other waited for, and both count as silent.
func TestCauseForPeer_IsSilenceWhereThePeerWasSilent(t *testing.T) {
	for want, failed := range map[error][]*LegError{
		errPeer:   {nil, {Kind: Broken}, {Kind: Busy}, {Kind: Gone}, {Kind: Unsent}},
		errSilent: {{Kind: Timeout}},
	} {
		for _, f := range failed {
			if got := causeForPeer(f); !errors.Is(got, want) {
				t.Errorf("after %+v: %v, want %v", f, got, want)
			}
		}
	}
}

// A panic behind a claim holds no servers.
func TestBindNow_APanicHoldsNoServers(t *testing.T) {
	f := newTestFleet(t, 1, testPrompt(100))
	f.Metrics.aggregated = nil // counting that a request runs alone panics
	st := f.arrives(testPrompt(100), time.Now())
	st.bind.tried.mustAggregate = true
	func() {
		defer func() {
			if recover() == nil {
				t.Error("it did not panic")
			}
		}()
		_, _ = f.Binder.bindNow(&st.bind)
	}()
	for _, s := range f.Fleet.Servers() {
		for _, leg := range []pools.Role{pools.Prefill, pools.Decode} {
			if n := s.InFlight(leg, time.Now()).Requests; n != 0 {
				t.Errorf("%d requests are held on %s of %s", n, leg, s.ID())
			}
		}
	}
}

// A prompt that decode computes itself is work ahead of it, as one is that prefill computes.
func TestClaim_APromptThatDecodeComputesCountsThere(t *testing.T) {
	f := newTestFleet(t, 1, testPrompt(100))
	for _, alone := range []bool{true, false} {
		st := f.arrives(testPrompt(14_000), time.Now())
		st.bind.tried.mustAggregate = alone
		b, err := f.Binder.bindNow(&st.bind)
		if err != nil || (b.prefill == nil) != alone {
			t.Fatalf("%+v, %v", b, err)
		}
		for _, s := range f.Fleet.Servers() {
			computes := (s.Role == pools.Decode) == alone
			if in := s.InFlight(pools.Prefill, time.Now()); (in.Tokens == 14_000) != computes || (in.Tokens == 0) == computes {
				t.Errorf("alone %v: %d tokens are to be computed on %s %s", alone, in.Tokens, s.Role, s.ID())
			}
		}
		b.release()
	}
}

// closeCounter is a body that counts how often it was closed.
type closeCounter struct {
	io.Reader
	closed *int
}

func (c closeCounter) Close() error {
	*c.closed++
	return nil
}

// The body of an answer is closed once the leg is over, however that went: else its connection,
// and its descriptor, are lost.
func TestRun_BodiesOfAnswersAreClosed(t *testing.T) {
	for name, c := range map[string]struct {
		stream bool
		status int
		body   io.Reader
		kind   string
	}{
		"an answer":                       {false, 200, strings.NewReader(`{"choices":[]}`), "application/json"},
		"an error":                        {false, 400, strings.NewReader(`{}`), "application/json"},
		"an answer that breaks":           {false, 200, iotest.ErrReader(io.ErrUnexpectedEOF), "application/json"},
		"a stream that is refused":        {true, 400, strings.NewReader(`{}`), "application/json"},
		"a stream that is none":           {true, 200, strings.NewReader(`{}`), "application/json"},
		"a stream that begins and breaks": {true, 200, strings.NewReader("data: {}\n\n"), "text/event-stream"},
		"a stream to its end":             {true, 200, strings.NewReader(textEvent + "data: [DONE]\n\n"), "text/event-stream"},
	} {
		f := newTestFleet(t, 1, testPrompt(100))
		f.Config.MaxRetries = 0
		closed := 0
		f.Transport = sends(func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: c.status, Header: http.Header{"Content-Type": {c.kind}}, Body: closeCounter{c.body, &closed}, Request: r}, nil
		})
		req := aggregatedRequest(t, c.stream)
		req.Dialect = api.Chat
		answer, err := f.Run(t.Context(), req)
		if err == nil && answer.Stream != nil {
			for err == nil {
				_, err = answer.Stream.Next()
			}
			answer.Stream.Close()
		}
		if closed != 1 {
			t.Errorf("%s: its body was closed %d times (%v)", name, closed, err)
		}
	}
}

// A client that leaves when prefill has answered leaves a hand-off that nobody fetches: it is
// counted, and decode is asked for nothing.
func TestRun_AClientThatLeavesBehindPrefillStrandsItsHandoff(t *testing.T) {
	for _, stream := range []bool{false, true} {
		f := newTestFleet(t, 1, testPrompt(100))
		ctx, leave := context.WithCancel(t.Context())
		var from *pools.Server
		f.Transport = sends(func(r *http.Request) (*http.Response, error) {
			s := f.serverOf(r)
			if s.Role == pools.Decode {
				t.Errorf("stream %v: decode is asked", stream)
			}
			from = s
			leave()
			return f.answersOf(r, stream), nil
		})
		_, err := f.Run(ctx, f.pairRequest(t, stream))
		var failed *LegError
		if !errors.As(err, &failed) || failed.Kind != Gone || failed.Leg != DecodeLeg || !errors.Is(err, context.Canceled) {
			t.Errorf("stream %v: %v", stream, err)
		}
		if n := f.strandedOn(from); n != 1 {
			t.Errorf("stream %v: %v hand-offs are stranded", stream, n)
		}
		f.holdsNothing(t)
	}
}

// A hand-off is stranded where decode surely has not fetched it and no other server will: not where
// decode failed at it. One that decode never got waits for another attempt, if there is one.
func TestRun_AHandoffIsStrandedWhereNobodyCanHaveFetchedIt(t *testing.T) {
	for name, c := range map[string]struct {
		connector string
		status    int // of decode's answer; 0: no connection
		want      float64
	}{
		"refused":                          {"nixl", 400, 1},
		"busy":                             {"nixl", 503, 1},
		"failed":                           {"nixl", 502, 0},
		"unsent, and not tried again":      {"nixl", 0, 1},
		"unsent, and bound to that server": {"p2p-nccl", 0, 1},
	} {
		f := newTestFleet(t, 1, testPrompt(100))
		f.Config.MaxRetries = 0
		if err := f.Fleet.Apply([]pools.Spec{
			{URL: "http://10.8.0.1:8000", Role: pools.Prefill, Connector: c.connector, KVAddress: "10.8.0.1:9000"},
			{URL: "http://10.8.0.2:8000", Role: pools.Decode, Connector: c.connector, KVAddress: "10.8.0.2:9000"},
		}); err != nil {
			t.Fatal(err)
		}
		f.await(t, f.up)
		var from *pools.Server
		f.Transport = sends(func(r *http.Request) (*http.Response, error) {
			s := f.serverOf(r)
			switch {
			case s.Role == pools.Prefill:
				from = s
				return f.answersOf(r, false), nil
			case c.status == 0:
				return nil, &net.OpError{Op: "dial", Err: io.ErrClosedPipe}
			}
			return &http.Response{StatusCode: c.status, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
		})
		if _, err := f.Run(t.Context(), f.pairRequest(t, false)); err == nil || from == nil {
			t.Fatalf("%s: %v", name, err)
		}
		if n := f.strandedOn(from); n != c.want {
			t.Errorf("%s: %v hand-offs are stranded", name, n)
		}
		f.holdsNothing(t)
	}
}

// What decode takes beyond a step teaches the link of the pair that served a request, streamed or
// whole.
func TestRun_AServedRequestTeachesTheLink(t *testing.T) {
	for _, stream := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newTestFleet(t, 1, testPrompt(100))
			f.Transport = sends(func(r *http.Request) (*http.Response, error) {
				if f.serverOf(r).Role == pools.Decode {
					time.Sleep(20 * time.Second)
				}
				return f.answersOf(r, stream), nil
			})
			believed := func() float64 {
				now := time.Now()
				v := f.Binder.takeSnapshot(testModel, testModel, now)
				return v.candidates.Links.After(0, order.Pair{}, len(v.decode), 1e9)
			}
			before := believed()
			for range 10 { // the first of a pair may be what connecting takes
				if _, err := f.ends(t.Context(), f.pairRequest(t, stream)); err != nil {
					t.Fatal(err)
				}
			}
			if after := believed(); after < 2*before {
				t.Errorf("stream %v: a gigabyte was believed to take %v s, and then %v s", stream, before, after)
			}
		})
	}
}

// What is derived from a request's context ends with the request: the context may live for longer, as
// that of another replica's requests does, and keeps all that is left of them.
func TestRun_NothingIsLeftOfARequestInItsContext(t *testing.T) {
	for name, c := range map[string]struct {
		aggregated, stream, late bool
		status                   int // of the first decode leg; 0: it is answered
	}{
		"a pair, whole":           {false, false, false, 0},
		"a pair, streamed":        {false, true, false, 0},
		"a pair, bound late":      {false, true, true, 0},
		"alone, whole":            {true, false, false, 0},
		"alone, streamed":         {true, true, false, 0},
		"refused, whole":          {false, false, false, 400},
		"refused, streamed":       {false, true, false, 400},
		"served by another":       {false, true, false, 502},
		"served by another, late": {false, false, true, 502},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newTestFleet(t, 2, testPrompt(100))
			if c.late {
				d := newTestDecider(f)
				f.Binder.Late = d
				ctx, stop := context.WithCancel(t.Context())
				var running sync.WaitGroup
				defer running.Wait()
				defer stop()
				running.Go(func() { d.Run(ctx) })
			}
			status := c.status
			f.Transport = sends(func(r *http.Request) (*http.Response, error) {
				if status > 0 && f.serverOf(r).Role == pools.Decode {
					failed := &http.Response{StatusCode: status, Header: http.Header{}, Body: http.NoBody, Request: r}
					status = 0
					return failed, nil
				}
				return f.answersOf(r, c.stream), nil
			})
			req := f.pairRequest(t, c.stream)
			req.Aggregated = c.aggregated
			if _, err := f.ends(watch(t.Context()), req); (err != nil) != (c.status == 400) {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
}

// watched is a context that outlives the test and is unknown to package context: what is derived
// from it keeps a goroutine until it is cancelled, and synctest fails where one is left.
type watched struct {
	context.Context
	never chan struct{}
}

func watch(ctx context.Context) watched { return watched{ctx, make(chan struct{})} }

// Done is context.Context's.
func (w watched) Done() <-chan struct{} { return w.never }

// A prompt is computed when prefill has answered, and where decode computes it alone when the answer
// has begun: from then on only what engines report counts of it. One that failed is not computed.
func TestAttempt_SaysWhenThePromptIsComputed(t *testing.T) {
	for name, c := range map[string]struct {
		prefills          int
		stream, fails     bool
		inPrefill, inBoth int // how often it is said to be computed, at least
	}{
		"a pair":                  {1, true, false, 1, 1},
		"a pair, not streamed":    {1, false, false, 1, 1},
		"decode alone":            {0, true, false, 0, 1},
		"alone, not streamed":     {0, false, false, 0, 1},
		"prefill fails":           {1, true, true, 0, 0},
		"alone, and decode fails": {0, false, true, 0, 0},
	} {
		f := newEngineFleet(t, fleetShape{prefill: c.prefills, decode: 1})
		if c.fails {
			for _, e := range slices.Concat(f.prefill, f.decode) {
				e.SetFault(engine.Fault{Kind: engine.FaultStatus, Status: 500, Path: api.Chat.Path})
			}
		}
		st := &requestState{client: f.asks(api.Chat, more(api.Chat, c.stream)), entry: enter(t, f.Queue), arrived: time.Now()}
		f.reset(st)
		st.form = f.formOf(st.req)
		b, err := f.Binder.bindNow(&st.bind)
		if err != nil || (b.prefill != nil) != (c.prefills > 0) {
			t.Fatalf("%s: %+v, %v", name, b, err)
		}
		said := 0
		b.prediction = &prediction{computed: func() { said++ }}
		failed := f.Orchestrator.prefill(t.Context(), st, b)
		if said < c.inPrefill || c.inPrefill == 0 && said > 0 {
			t.Errorf("%s: said %d times behind the prefill leg", name, said)
		}
		if failed == nil {
			failed = f.Orchestrator.decode(t.Context(), st, b)
		}
		if (failed != nil) != c.fails || said < c.inBoth || c.inBoth == 0 && said > 0 {
			t.Errorf("%s: %v, said %d times", name, failed, said)
		}
		if b.answer != nil && b.answer.leg != nil {
			b.answer.leg.Close()
		}
		b.release()
		f.Queue.Leave(st.entry)
	}
}

// Which leg could not be sent is known where its server could not be made ready: decode with a
// hand-off is another one than decode alone.
func TestPrepare_SaysWhichLegIsNotReady(t *testing.T) {
	for want, handoff := range map[Leg]bool{DecodeLeg: true, AggregatedLeg: false} {
		f := newEngineFleet(t, fleetShape{prefill: 1, decode: 1, adapters: []string{"ada"}})
		f.decode[0].SetFault(engine.Fault{Kind: engine.FaultStatus, Status: 500, Path: "/v1/load_lora_adapter"})
		st := &requestState{client: requestOf(t, api.Chat, `{"model":"ada",`+promptOf(api.Chat)+`}`), entry: enter(t, f.Queue), arrived: time.Now()}
		f.reset(st)
		b, err := f.Binder.bindNow(&st.bind)
		if err != nil || b.prefill == nil {
			t.Fatalf("%+v, %v", b, err)
		}
		b.handoff = st.transfer(b).Handoff()
		b.handoff.Kept = handoff
		b.prefill.Release()
		b.prefill = nil
		if failed := f.prepare(t.Context(), st, b); failed == nil || failed.Leg != want || failed.Kind != Unready {
			t.Errorf("with a hand-off %v: %v", handoff, failed)
		}
		f.Queue.Leave(st.entry)
		f.nothingIsLeft()
	}
}

// A decode server that keeps the blocks of its answers is counted with each of them, and warned of once.
func TestRun_AnswersThatKeepTheirBlocksAreCounted(t *testing.T) {
	f := newTestFleet(t, 1, testPrompt(100))
	var warned atomic.Int64
	f.Log = slog.New(counting{slog.DiscardHandler, &warned})
	for _, stream := range []bool{false, true} {
		f.Transport = sends(func(r *http.Request) (*http.Response, error) {
			const keeps = `"kv_transfer_params":{"do_remote_decode":true}`
			body, kind := `{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}],`+keeps+`}`, "application/json"
			if stream {
				body, kind = strings.Replace(textEvent, `{"choices"`, `{`+keeps+`,"choices"`, 1)+"data: [DONE]\n\n", "text/event-stream"
			}
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {kind}}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
		})
		for range 2 {
			req := f.pairRequest(t, stream)
			req.Aggregated = true
			if _, err := f.ends(t.Context(), req); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := testutil.ToFloat64(f.Metrics.retained.WithLabelValues(f.Fleet.Servers()[1].ID())); n != 4 || warned.Load() != 1 {
		t.Errorf("of four answers %v are counted, %d warnings", n, warned.Load())
	}
}

// counting counts what is logged.
type counting struct {
	slog.Handler
	logged *atomic.Int64
}

func (counting) Enabled(context.Context, slog.Level) bool { return true }

func (c counting) Handle(context.Context, slog.Record) error {
	c.logged.Add(1)
	return nil
}

// An adapter that another gateway has unloaded is loaded again, on the server that lost it; what else an
// engine answers does not say that it is lost.
func TestRun_AnAdapterThatWasUnloadedIsLoadedAgain(t *testing.T) {
	for _, unloaded := range []bool{true, false} {
		f := newEngineFleet(t, fleetShape{decode: 1, adapters: []string{"ada"}})
		ask := func() error {
			_, err := f.run(t.Context(), requestOf(t, api.Chat, `{"model":"ada",`+promptOf(api.Chat)+more(api.Chat, false)+`}`))
			return err
		}
		if err := ask(); err != nil {
			t.Fatal(err)
		}
		if unloaded {
			resp, err := client.Post(f.decode[0].URL()+"/v1/unload_lora_adapter", "application/json", strings.NewReader(`{"lora_name":"ada"}`))
			if err != nil || resp.StatusCode != http.StatusOK {
				t.Fatalf("%+v, %v", resp, err)
			}
			_ = resp.Body.Close()
		} else {
			f.decode[0].SetFault(engine.Fault{Kind: engine.FaultStatus, Status: 500, Path: api.Chat.Path})
		}
		if err := ask(); (err == nil) != unloaded {
			t.Errorf("unloaded %v: %v", unloaded, err)
		}
		view, _ := f.server(f.decode[0]).Adapter("ada", time.Now())
		want := map[bool]float64{true: 1, false: 0}[unloaded]
		if got := f.metric("tandem_retries_total", "reason", string(Unready)); got != want || !view.Loaded {
			t.Errorf("unloaded %v: %v retries where it was not ready, loaded then %v", unloaded, got, view.Loaded)
		}
		f.nothingIsLeft()
	}
}

// A server that lets a leg wait for far longer than was expected is asked for a probe request, whichever
// leg it is.
func TestRun_AServerThatLetsALegWaitIsProbed(t *testing.T) {
	for name, c := range map[string]struct {
		connector          string
		slow               pools.Role
		aggregated, stream bool
	}{
		"prefill":                       {"nixl", pools.Prefill, false, true},
		"decode, streamed":              {"nixl", pools.Decode, false, true},
		"decode, whole":                 {"nixl", pools.Decode, false, false},
		"decode that calls its prefill": {"llmd-sidecar", pools.Decode, false, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newTestFleet(t, 1, testPrompt(100))
			if err := f.Fleet.Apply([]pools.Spec{
				{URL: "http://10.8.0.1:8000", Role: pools.Prefill, Connector: c.connector}, {URL: "http://10.8.0.2:8000", Role: pools.Decode, Connector: c.connector},
			}); err != nil {
				t.Fatal(err)
			}
			f.await(t, f.up)
			f.Config.FirstEventTimeout = 10 * time.Minute
			f.Transport = sends(func(r *http.Request) (*http.Response, error) {
				if f.serverOf(r).Role == c.slow {
					time.Sleep(100 * time.Second)
				}
				return f.answersOf(r, c.stream), nil
			})
			req := f.pairRequest(t, c.stream)
			req.OutputTokens = 3
			if _, err := f.ends(t.Context(), req); err != nil {
				t.Fatal(err)
			}
			for _, s := range f.Fleet.Servers() {
				probed := sumOf(t, f.Fleet.Collector(), "tandem_probe_requests_total", "server", s.ID())
				if slow := s.Role == c.slow || c.connector == "llmd-sidecar"; (probed > 0) != slow {
					t.Errorf("%s: %s %s got %v probe requests", name, s.Role, s.ID(), probed)
				}
			}
		})
	}
}

// A panic in a prefill leg that runs beside decode ends the attempt and not the process: both places are
// given back.
func TestConcurrentLegs_APanicInPrefillEndsBoth(t *testing.T) {
	f := newTestFleet(t, 1, testPrompt(100))
	f.becomesSGLangPair(t)
	f.Transport = sends(func(r *http.Request) (*http.Response, error) {
		if f.serverOf(r).Role == pools.Prefill {
			panic(whileSent)
		}
		<-r.Context().Done()
		return nil, r.Context().Err()
	})
	_, err := f.Run(t.Context(), f.pairRequest(t, true))
	var failed *LegError
	if !errors.As(err, &failed) || failed.Kind != Ours || failed.Leg != PrefillLeg || !strings.Contains(err.Error(), whileSent) {
		t.Errorf("%v", err)
	}
	f.Wait()
	f.holdsNothing(t)
}
