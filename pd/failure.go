package pd

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tidwall/gjson"
	"go.opentelemetry.io/otel/trace"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pd/decision"
	"github.com/tandem-gateway/tandem/pd/enginehttp"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/breaker"
)

// Leg names one use of a server by one request. Decode alone is another leg than
// decode with a hand-off: a server may fail at one and do the other.
type Leg string

const (
	PrefillLeg    Leg = "prefill"
	DecodeLeg     Leg = "decode"
	AggregatedLeg Leg = "alone" // as other replicas call it
)

// Kind is what a failed leg says, and so what is done about it.
type Kind string

const (
	Refused Kind = "refused" // the request is at fault: the client gets the engine's answer
	Busy    Kind = "busy"    // load: another server, no verdict on this one
	Unsent  Kind = "unsent"  // no connection: the engine never saw it
	Broken  Kind = "broken"  // the engine failed, or the way to it
	Timeout Kind = "timeout" // the engine did not answer in time
	Gone    Kind = "gone"    // the client left
	Unready Kind = "unready" // the server could not be made ready, and was not asked
	Ours    Kind = "ours"    // the gateway is out of descriptors or memory, or panicked: nothing of the server
)

// KindOf is what a status other than 200 of an engine says.
func KindOf(status int) Kind {
	switch {
	case status == http.StatusRequestTimeout || status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable:
		return Busy
	case status >= 400 && status < 500:
		return Refused
	}
	return Broken
}

// LegError is a leg that failed before its first content event.
type LegError struct {
	Leg    Leg
	Server string
	Kind   Kind
	Status int // of the engine's answer, 0 without one
	Body   []byte
	// RetryAfter is how long a busy engine asked to be left alone, 0 if it did not say.
	RetryAfter time.Duration
	Err        error

	span trace.SpanContext // of the leg; its zero value: it is not traced
}

func (e *LegError) Error() string {
	if e.Status != 0 && e.Status != http.StatusOK {
		return fmt.Sprintf("%s on %s: status %d", e.Leg, e.Server, e.Status)
	}
	return fmt.Sprintf("%s on %s: %v", e.Leg, e.Server, e.Err)
}

func (e *LegError) Unwrap() error { return e.Err }

var (
	errSilent     = errors.New("no content in time") // the first, or the next
	errServerDown = errors.New("the server went down")
	errErrorEvent = errors.New("the engine sent an error event")
	errTruncated  = errors.New("the stream ended early")
	errEmpty      = errors.New("the stream ended without content")
	errNoAnswer   = errors.New("what the engine sent is no answer")
)

// outcomeOf is what is remembered of a request, or of an attempt at it, that an error ended.
func outcomeOf(err error) string {
	if errors.Is(err, context.Canceled) {
		return decision.ClientLeft
	}
	return err.Error()
}

// NoServerError says that no server of a role can take the request.
type NoServerError struct {
	Role   pools.Role
	NoPair bool // there are some, but none that makes a pair with a decode server
	Unsaid bool // none is known to have the model, and one has not said yet which it has
}

func (e *NoServerError) Error() string {
	switch {
	case e.NoPair:
		return "no prefill and decode server make a pair"
	case e.Unsaid:
		return "no server is known to have the model, and not all have said which they have"
	}
	return "no " + e.Role.String() + " server can take the request"
}

// BrokenStreamError ends a stream after its first content event.
type BrokenStreamError struct {
	Message string // for the client
	Err     error
	Status  int    // that the engine's error event carries, 0 if none
	Event   []byte // the event's data
}

// failedByEngine is a stream that ended with an engine's error event. The client gets the
// engine's words where they are about the request, as with an answer of that status; others may
// name servers, or repeat what is not the client's.
func failedByEngine(words string, event []byte) *BrokenStreamError {
	e := &BrokenStreamError{Message: "the engine failed", Err: errErrorEvent, Status: api.ErrorStatus(event), Event: bytes.Clone(event)}
	if e.Status >= 400 && e.Status < 500 {
		e.Message = words
	}
	return e
}

func (e *BrokenStreamError) Error() string { return fmt.Sprintf("stream broke: %v", e.Err) }
func (e *BrokenStreamError) Unwrap() error { return e.Err }

// failedSend judges a leg that got no answer.
func failedSend(ctx context.Context, leg Leg, server string, err error) *LegError {
	e := &LegError{Leg: leg, Server: server, Kind: Broken, Err: err}
	cause := context.Cause(ctx)
	var dial *net.OpError
	var event *BrokenStreamError
	switch {
	case errors.As(err, &event) && event.Status >= 400 && event.Status < 500 && event.Status != http.StatusRequestTimeout && event.Status != http.StatusTooManyRequests:
		e.Kind, e.Status, e.Body = Refused, event.Status, event.Event
	case errors.Is(cause, errServerDown):
		e.Err = cause
	case errors.Is(cause, errSilent):
		e.Kind, e.Err = Timeout, cause
	case ctx.Err() != nil:
		e.Kind, e.Err = Gone, context.Cause(ctx)
	case errors.Is(err, enginehttp.ErrAnswersHeld), errors.Is(err, api.ErrEventsHeld), errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE):
		e.Kind = Ours
	case errors.As(err, &dial) && dial.Op == "dial":
		e.Kind = Unsent
	}
	return e
}

// failedStatus judges an answer that is no success. Where the client has left it says nothing of the server: engines
// whose legs wait for each other blame the peer that was cut off, which may be known here before the leg is ended.
func failedStatus(ctx context.Context, leg Leg, server string, resp *http.Response, body []byte) *LegError {
	if cause := context.Cause(ctx); errors.Is(cause, context.Canceled) {
		return &LegError{Leg: leg, Server: server, Kind: Gone, Err: cause}
	}
	e := &LegError{Leg: leg, Server: server, Status: resp.StatusCode, Body: body}
	if connector.PrefillUnread(e.Status, body) {
		e.Status = http.StatusBadGateway
	}
	if e.Kind = KindOf(e.Status); e.Kind == Busy {
		e.RetryAfter = retryAfter(resp.Header)
	}
	e.Err = fmt.Errorf("status %d", e.Status)
	return e
}

// failedInAnswer judges an answer with status 200 of which the engine says that it failed, or that is none of its
// API: as one with the status that it names.
func failedInAnswer(ctx context.Context, leg Leg, server string, resp *http.Response, answer *api.Answer) *LegError {
	status, said := answer.Failure()
	switch {
	case status != 0:
		return failedStatus(ctx, leg, server, &http.Response{StatusCode: status, Header: resp.Header}, said)
	case !answer.IsAnswer():
		return &LegError{Leg: leg, Server: server, Kind: Broken, Status: resp.StatusCode, Err: errNoAnswer}
	}
	return nil
}

// maxRetryAfter bounds what an engine may ask clients to wait.
const maxRetryAfter = time.Minute

// retryAfter reads the seconds of Retry-After; a date is not worth a clock.
func retryAfter(h http.Header) time.Duration {
	seconds, err := strconv.Atoi(h.Get("Retry-After"))
	if err != nil || seconds < 0 {
		return 0
	}
	return min(time.Duration(seconds)*time.Second, maxRetryAfter)
}

// engineFault reports whether the engine itself said that it failed: by a 500, or by
// an error event as the first of a stream. A failed KV load looks like that (vLLM
// kv_load_failure_policy=fail).
func (e *LegError) engineFault() bool {
	var event *BrokenStreamError
	return e.Status == http.StatusInternalServerError || errors.As(e.Err, &event) && errors.Is(event.Err, errErrorEvent)
}

// refusesTokenIDs reports whether the engine said that it refuses to be asked for token ids.
func (e *LegError) refusesTokenIDs() bool {
	return e.Kind == Refused && bytes.Contains(e.Body, []byte(api.TokenIDsField))
}

// engineMessage is what the engine said of its failure: a body or an event.
func (e *LegError) engineMessage() []byte {
	var event *BrokenStreamError
	if errors.As(e.Err, &event) {
		return event.Event
	}
	return e.Body
}

// lostConnection reports whether the connection broke under the request, which is
// how the death of a server shows.
func (e *LegError) lostConnection() bool {
	var event *BrokenStreamError
	inEvent := errors.As(e.Err, &event) && errors.Is(event.Err, errErrorEvent)
	return e.Kind == Broken && e.Status == 0 && !inEvent && !errors.Is(e.Err, errServerDown) && !errors.Is(e.Err, errPromptMismatch) && !errors.Is(e.Err, errForeignHost) && !errors.Is(e.Err, errNothingKept)
}

// foundNobody reports whether there was no connection to the server, by a word that came at once: it is down until a
// probe succeeds, as where a connection is refused, or its host is gone.
func (e *LegError) foundNobody() bool { return e.Kind == Unsent && !isTimeout(e.Err) }

// mayBeRead reports whether an engine that lived may have read the request of a leg that failed:
// only then can the engine have died of it.
func (e *LegError) mayBeRead() bool { return !errors.Is(e.Err, enginehttp.ErrUnread) }

// engineDied reports whether the engine said that it is dead: vLLM's API server answers
// with EngineDeadError whatever its EngineCore was serving, and then ends
// (vllm/v1/engine/exceptions.py).
func (e *LegError) engineDied() bool { return saysEngineDied(e.Kind, e.engineMessage()) }

func (e *BrokenStreamError) engineDied() bool { return saysEngineDied(KindOf(e.Status), e.Event) }

// mayBeOfRequest reports whether the request may be what its engine failed at, on any server: an engine that lives said
// that it failed.
func (e *LegError) mayBeOfRequest() bool { return e.engineFault() && !e.engineDied() }

func (e *BrokenStreamError) mayBeOfRequest() bool {
	return errors.Is(e.Err, errErrorEvent) && !e.engineDied()
}

// lostConnection reports whether the stream broke as it does when its server dies.
func (e *BrokenStreamError) lostConnection() bool {
	return !errors.Is(e.Err, errErrorEvent) && !errors.Is(e.Err, errServerDown) && !e.ours()
}

// ours reports whether the stream broke for want of the gateway's own memory.
func (e *BrokenStreamError) ours() bool { return errors.Is(e.Err, api.ErrEventsHeld) }

// mayBeRead is LegError's: the leg behind prefill's token may have failed before its engine read it.
func (e *BrokenStreamError) mayBeRead() bool {
	var behind *LegError
	return !errors.As(e.Err, &behind) || behind.Kind != Unsent && behind.mayBeRead()
}

// saysEngineDied reports whether an engine said in an answer of some kind that it is dead. What refuses a request may
// quote it, and with it these words, but behind others; vLLM before 0.32 says 400 of its own death as well.
func saysEngineDied(kind Kind, said []byte) bool {
	const issue = "EngineCore encountered an issue"
	if kind == Refused {
		return strings.HasPrefix(cmp.Or(gjson.GetBytes(said, "error.message").Str, gjson.GetBytes(said, "message").Str), issue)
	}
	return bytes.Contains(said, []byte(issue)) || bytes.Contains(said, []byte("EngineDeadError"))
}

// isTimeout reports whether an error says only that something took too long.
func isTimeout(err error) bool {
	var late net.Error
	return errors.As(err, &late) && late.Timeout()
}

// breakerResult is what the breaker of the server counts.
func (e *LegError) breakerResult() error {
	switch e.Kind {
	case Refused, Busy, Gone, Ours, Unready:
		return fmt.Errorf("%w: %s", breaker.ErrNeutral, e.Kind)
	case Unsent:
		if isTimeout(e.Err) { // uncertain: probes settle it
			return fmt.Errorf("%w: %s", breaker.ErrNeutral, e.Kind)
		}
	}
	return e
}
