package loadtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"syscall"
)

// Kind names how a request ended; the empty kind is a whole answer. The kinds
// are the keys of Report.Errors.
type Kind string

// The kinds of failure. A status other than 200 is "http_" and its number.
const (
	OK          Kind = ""
	Refused     Kind = "refused"      // nothing listens there
	Reset       Kind = "reset"        // the connection was cut before the answer was whole
	Timeout     Kind = "timeout"      // Config.Timeout passed, or the connection could not be made in time
	Transport   Kind = "transport"    // any other failure of the connection or of HTTP itself
	ErrorEvent  Kind = "error_event"  // the answer carries an error object
	Truncated   Kind = "truncated"    // a clean end without finish_reason or without [DONE]
	Malformed   Kind = "malformed"    // not server-sent events, not JSON, not a completion
	BadFinish   Kind = "bad_finish"   // finish_reason "error" or "abort"
	Empty       Kind = "empty"        // a whole answer without any content, though tokens were made
	ClientBound Kind = "client_bound" // not sent: MaxInFlight requests were open already
	Interrupted Kind = "interrupted"  // the run was ended by its user; counted apart, not a failure
)

func statusKind(status int) Kind { return Kind(fmt.Sprintf("http_%d", status)) }

// A failure is an error that knows its kind.
type failure struct {
	kind   Kind
	detail string
}

func (f *failure) Error() string { return string(f.kind) + ": " + f.detail }

func failuref(kind Kind, format string, args ...any) error {
	return &failure{kind: kind, detail: fmt.Sprintf(format, args...)}
}

// closedIdle is the text of the error by which net/http reports that the server cut a
// kept connection while a request was being written to it. It has no exported
// value (net/http/transport.go: errServerClosedIdle).
const closedIdle = "server closed idle connection"

// kindOf classifies an error of a request of the run under ctx. The request's own
// deadline is a timeout; the end of the run's ctx is an interruption.
func kindOf(ctx context.Context, err error) Kind {
	var known *failure
	if errors.As(err, &known) {
		return known.kind
	}
	var network net.Error
	switch {
	case ctx.Err() != nil:
		return Interrupted
	case errors.Is(err, syscall.ECONNREFUSED):
		return Refused
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		strings.HasSuffix(err.Error(), closedIdle):
		return Reset
	case errors.As(err, &network) && network.Timeout():
		return Timeout
	}
	return Transport
}

// detailOf returns what an error adds to its kind: method and URL are the same for
// all requests of a run.
func detailOf(err error) string {
	var known *failure
	var request *url.Error
	switch {
	case errors.As(err, &known):
		return known.detail
	case errors.As(err, &request):
		return request.Err.Error()
	}
	return err.Error()
}
