package pd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/breaker"
)

// late is an error that says only that something took too long.
type late struct{}

func (late) Error() string   { return "too long" }
func (late) Timeout() bool   { return true }
func (late) Temporary() bool { return false }

// What a leg that got no answer says, and so what is done about it.
func TestFailedSend_SaysWhoseFaultItWas(t *testing.T) {
	ended := func(cause error) context.Context {
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(cause)
		return ctx
	}
	refused := &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	event := func(status int) error {
		return &BrokenStreamError{Message: "m", Err: errErrorEvent, Status: status, Event: []byte("event")}
	}
	for name, c := range map[string]struct {
		ctx  context.Context
		err  error
		want Kind
		lost bool // the connection, as when a server dies
	}{
		"no connection":                         {context.Background(), refused, Unsent, false},
		"the connection broke":                  {context.Background(), &net.OpError{Op: "read", Err: syscall.ECONNRESET}, Broken, true},
		"the answer ended early":                {context.Background(), io.ErrUnexpectedEOF, Broken, true},
		"we have no descriptors":                {context.Background(), &net.OpError{Op: "dial", Err: os.NewSyscallError("socket", syscall.EMFILE)}, Ours, false},
		"the machine has none":                  {context.Background(), &net.OpError{Op: "dial", Err: os.NewSyscallError("socket", syscall.ENFILE)}, Ours, false},
		"the client left":                       {ended(nil), refused, Gone, false},
		"it was silent":                         {ended(errSilent), context.Canceled, Timeout, false},
		"it went down":                          {ended(errServerDown), context.Canceled, Broken, false},
		"its peer failed":                       {ended(errPeer), context.Canceled, Gone, false},
		"its first event refuses the request":   {context.Background(), event(400), Refused, false},
		"or the last status of those":           {context.Background(), event(499), Refused, false},
		"its first event says that it is busy":  {context.Background(), event(429), Broken, false},
		"or took too long":                      {context.Background(), event(408), Broken, false},
		"its first event says that it failed":   {context.Background(), event(500), Broken, false},
		"its first event says nothing of it":    {context.Background(), event(0), Broken, false},
		"its first event has a status of none":  {context.Background(), event(399), Broken, false},
		"the client left before an event of it": {ended(nil), event(404), Refused, false},
	} {
		e := failedSend(c.ctx, DecodeLeg, "d", c.err)
		if e.Kind != c.want || e.Leg != DecodeLeg || e.Server != "d" || e.Err == nil {
			t.Errorf("%s: %+v, want %s", name, e, c.want)
		}
		if e.lostConnection() != c.lost {
			t.Errorf("%s: lost connection %v", name, e.lostConnection())
		}
		if e.Kind == Refused && (e.Status == 0 || string(e.Body) != "event") {
			t.Errorf("%s: the client would not hear of it: %+v", name, e)
		}
		if wantStatus := e.Kind == Refused; (e.Status != 0) != wantStatus {
			t.Errorf("%s: status %d", name, e.Status)
		}
	}
}

// What the status of an answer says.
func TestFailedStatus_SaysWhoseFaultItWas(t *testing.T) {
	for status, want := range map[int]Kind{
		400: Refused, 401: Refused, 404: Refused, 407: Refused, 408: Busy, 409: Refused, 428: Refused, 429: Busy, 430: Refused, 499: Refused,
		500: Broken, 502: Broken, 503: Busy, 504: Broken, 599: Broken, 302: Broken, 399: Broken, 204: Broken,
	} {
		resp := &http.Response{StatusCode: status, Header: http.Header{"Retry-After": {"7"}}}
		e := failedStatus(t.Context(), PrefillLeg, "p", resp, []byte("body"))
		if e.Kind != want || e.Status != status || string(e.Body) != "body" || e.Leg != PrefillLeg || e.Server != "p" || e.Err == nil {
			t.Errorf("%d: %+v, want %s", status, e, want)
		}
		if (e.RetryAfter == 7*time.Second) != (want == Busy) {
			t.Errorf("%d: it asks for %v", status, e.RetryAfter)
		}
		if e.lostConnection() {
			t.Errorf("%d: it has answered", status)
		}
		if fault := e.engineFault(); fault != (status == 500) {
			t.Errorf("%d: the engine's own fault %v", status, fault)
		}
	}
}

// What an engine answers once the client has left is no server's fault: of two legs that wait for each other the one
// may fail since the other was ended. One that was ended for its peer's sake is judged as before.
func TestFailedStatus_BehindAClientThatLeft(t *testing.T) {
	for _, c := range []struct {
		cause error
		want  Kind
	}{{nil, Gone}, {errPeer, Broken}} {
		ctx, end := context.WithCancelCause(t.Context())
		end(c.cause)
		e := failedStatus(ctx, DecodeLeg, "d", &http.Response{StatusCode: http.StatusInternalServerError}, []byte("the peer is gone"))
		if e.Kind != c.want || c.want == Gone && !errors.Is(e, context.Canceled) {
			t.Errorf("ended by %v: %+v, want %s", c.cause, e, c.want)
		}
	}
}

func TestRetryAfter_IsWholeSecondsWithinAMinute(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"": 0, "0": 0, "1": time.Second, "59": 59 * time.Second, "60": time.Minute, "61": time.Minute, "86400": time.Minute, "-1": 0, "1.5": 0,
		"Wed, 21 Oct 2026 07:28:00 GMT": 0,
	} {
		if got := retryAfter(http.Header{"Retry-After": {text}}); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

// The breaker is told of what is the server's fault, and only of that: a client that left, a
// busy engine and a lack of descriptors here are nothing that it could be left out for.
func TestLegError_VerdictIsForTheServersFaults(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	for name, c := range map[string]struct {
		kind    Kind
		err     error
		neutral bool
	}{
		"refused":              {Refused, errEmpty, true},
		"busy":                 {Busy, errEmpty, true},
		"the client left":      {Gone, errEmpty, true},
		"ours":                 {Ours, errEmpty, true},
		"unready":              {Unready, errEmpty, true},
		"broken":               {Broken, errEmpty, false},
		"silent":               {Timeout, errSilent, false},
		"nothing listens":      {Unsent, refused, false},
		"no answer to the SYN": {Unsent, fmt.Errorf("dial: %w", late{}), true},
	} {
		e := &LegError{Leg: DecodeLeg, Server: "d", Kind: c.kind, Err: c.err}
		if e.breakerResult() == nil {
			t.Errorf("%s: the breaker is told that it went well", name)
		}
		if got := errors.Is(e.breakerResult(), breaker.ErrNeutral); got != c.neutral {
			t.Errorf("%s: neutral %v", name, got)
		}
	}
}

// An engine that has died says so in an answer or in an event; an error event is the engine's
// own fault, and no lost connection.
func TestLegError_WhatTheEngineSaid(t *testing.T) {
	const dead = `{"error":{"message":"EngineCore encountered an issue. See stack trace (above) for the root cause."}}`
	const quoted = `{"error":{"message":"1 validation error: input: EngineCore encountered an issue, EngineDeadError"}}`
	for name, c := range map[string]struct {
		e                 LegError
		fault, died, lost bool
	}{
		"a 500 of a dead engine":         {LegError{Kind: Broken, Status: 500, Body: []byte(dead)}, true, true, false},
		"a 500":                          {LegError{Kind: Broken, Status: 500, Body: []byte(`{}`)}, true, false, false},
		"a 502 that names the exception": {LegError{Kind: Broken, Status: 502, Body: []byte("vllm.v1.engine.exceptions.EngineDeadError")}, false, true, false},
		"an event of a dead engine":      {LegError{Kind: Broken, Err: &BrokenStreamError{Err: errErrorEvent, Event: []byte(dead)}}, true, true, false},
		"a 400 that quotes the request":  {LegError{Kind: Refused, Status: 400, Body: []byte(quoted)}, false, false, false},
		"a 400 of a dead engine":         {LegError{Kind: Refused, Status: 400, Body: []byte(dead)}, false, true, false},
		"an event that quotes it":        {LegError{Kind: Refused, Status: 400, Err: &BrokenStreamError{Err: errErrorEvent, Status: 400, Event: []byte(quoted)}}, true, false, false},
		"an error event":                 {LegError{Kind: Broken, Err: &BrokenStreamError{Err: errErrorEvent, Event: []byte(`{}`)}}, true, false, false},
		"a stream that ended early":      {LegError{Kind: Broken, Err: &BrokenStreamError{Err: errTruncated}}, false, false, true},
		"a connection that broke":        {LegError{Kind: Broken, Err: io.ErrUnexpectedEOF}, false, false, true},
		"a server that went down":        {LegError{Kind: Broken, Err: errServerDown}, false, false, false},
		"a server that keeps nothing":    {LegError{Kind: Broken, Err: errNothingKept}, false, false, false},
		"silence":                        {LegError{Kind: Timeout, Err: errSilent}, false, false, false},
	} {
		if fault, died, lost := c.e.engineFault(), c.e.engineDied(), c.e.lostConnection(); fault != c.fault || died != c.died || lost != c.lost {
			t.Errorf("%s: fault %v, died %v, lost %v", name, fault, died, lost)
		}
	}
	for status, want := range map[int]bool{0: true, 400: false, 422: false, 500: true} {
		if e := (&BrokenStreamError{Err: errErrorEvent, Status: status, Event: []byte(quoted)}); e.engineDied() != want {
			t.Errorf("an event with status %d: died %v", status, !want)
		}
	}
}

// What people read of a failure.
func TestErrors_SayWhereAndWhat(t *testing.T) {
	for want, err := range map[string]error{
		"prefill on p: status 502":                     &LegError{Leg: PrefillLeg, Server: "p", Status: 502, Err: errEmpty},
		"alone on d: the stream ended without content": &LegError{Leg: AggregatedLeg, Server: "d", Err: errEmpty},
		"no prefill and decode server make a pair":     &NoServerError{Role: pools.Prefill, NoPair: true},
		"no decode server can take the request":        &NoServerError{Role: pools.Decode},
		"stream broke: the stream ended early":         &BrokenStreamError{Message: "m", Err: errTruncated},
	} {
		if err.Error() != want {
			t.Errorf("%q, want %q", err.Error(), want)
		}
	}
	if !errors.Is(&LegError{Err: errSilent}, errSilent) || !errors.Is(&BrokenStreamError{Err: errSilent}, errSilent) {
		t.Error("the cause is not found in them")
	}
}
