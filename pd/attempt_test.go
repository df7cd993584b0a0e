package pd

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/tandem-gateway/tandem/pd/api"
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
		got := f.primaryFailure(st, b, c.prefill, c.decode)
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
