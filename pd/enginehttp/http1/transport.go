package http1

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"time"

	"github.com/tandem-gateway/tandem/pd/enginehttp/socket"
)

// Transport sends requests by HTTP/1.1. Its fields are set before the first request; it may be used by many
// goroutines, and must not be copied.
type Transport struct {
	// DialContext makes connections; nil: those of a net.Dialer.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
	// TLSClientConfig is for https, as it is for one more connection; nil: as crypto/tls has it.
	TLSClientConfig func() *tls.Config
	// DisableKeepAlives has each request on a connection of its own.
	DisableKeepAlives bool
	// MaxIdle and MaxIdlePerHost bound the connections that are kept unused; 0: there is no bound.
	MaxIdle, MaxIdlePerHost int
	// IdleTimeout is how long one is kept; 0: for ever.
	IdleTimeout time.Duration
	// MaxHead bounds the head of an answer with all that comes before it, and its trailers, in bytes;
	// 0: 64 KiB.
	MaxHead int

	idle idlePool
	loop socket.Loop // of bodies that are followed
}

// Error is a request that failed on a connection.
type Error struct {
	Err error
	// Reused says that the connection had served another request.
	Reused bool
	// Answered says that something of an answer had come.
	Answered bool

	nothingWritten bool
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

var (
	errNoHost       = errors.New("no host in the request's URL")
	errScheme       = errors.New("the URL's scheme is neither http nor https")
	errNoURL        = errors.New("no URL in the request")
	errTrailers     = errors.New("trailers of requests are not supported")
	errConnect      = errors.New("the method CONNECT is not supported")
	errUnanswered   = fmt.Errorf("the connection was closed without an answer: %w", io.ErrUnexpectedEOF)
	errBodyTooShort = errors.New("the request's body is shorter than announced")
	errBodyTooLong  = errors.New("the request's body is longer than announced")
)

// RoundTrip sends a request and returns when the head of its answer is there. The body of the answer is
// read by one goroutine; it may be closed by another, and must be read to its end or closed.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	to, err := target(r)
	if err != nil {
		closeBody(r)
		return nil, err
	}
	for {
		resp, err := t.attempt(r, to)
		if err == nil {
			return resp, nil
		}
		again, may := mayRepeat(r, err)
		if !may {
			return nil, err
		}
		r = again
	}
}

// attempt sends a request on one connection, kept or new. It closes the request's body in any case.
func (t *Transport) attempt(r *http.Request, to key) (*http.Response, error) {
	ctx := r.Context()
	if ctx.Err() != nil {
		closeBody(r)
		return nil, context.Cause(ctx)
	}
	o, err := newOutgoing(r, t.DisableKeepAlives)
	if err != nil {
		closeBody(r)
		return nil, err
	}
	trace := httptrace.ContextClientTrace(ctx)
	for {
		c, err := t.connection(ctx, to, r, trace, o)
		if err != nil {
			o.release()
			closeBody(r)
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return nil, err
		}
		answer := &body{exchange: exchange{t: t, c: c, ctx: ctx, trace: trace, watch: watchOf(ctx, c), asks: c.mayAsk(o, trace)}}
		resp, err := answer.run(r, o)
		if err == nil {
			return resp, nil
		}
		answer.watch.stop()
		c.abort()
		if errors.Is(err, socket.ErrUnasked) { // as of a kept connection that is not quiet
			continue
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, err
	}
}

// mayRepeat reports whether a request that failed may be sent again, and returns it with a body to send.
func mayRepeat(r *http.Request, err error) (again *http.Request, may bool) {
	var failed *Error
	if !errors.As(err, &failed) || !failed.Reused || failed.Answered || r.Context().Err() != nil {
		return nil, false
	}
	noBody := r.Body == nil || r.Body == http.NoBody
	if !failed.nothingWritten && !isReplayable(r) || !noBody && r.GetBody == nil {
		return nil, false
	}
	if noBody {
		return r, true
	}
	body, err := r.GetBody()
	if err != nil {
		return nil, false
	}
	copied := *r
	copied.Body = body
	return &copied, true
}

// isReplayable reports whether a server may get a request twice.
func isReplayable(r *http.Request) bool {
	switch r.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	_, keyed := r.Header["Idempotency-Key"]
	_, also := r.Header["X-Idempotency-Key"]
	return keyed || also
}

// CloseIdleConnections closes the connections that are kept, and those that become idle before the next
// request.
func (t *Transport) CloseIdleConnections() { t.idle.clear() }

// target is where a request goes.
func target(r *http.Request) (key, error) {
	switch {
	case r.URL == nil:
		return key{}, errNoURL
	case r.URL.Host == "":
		return key{}, errNoHost
	case r.Method == http.MethodConnect:
		return key{}, errConnect
	case len(r.Trailer) > 0:
		return key{}, errTrailers
	}
	to, port := key{address: r.URL.Host}, "80"
	switch r.URL.Scheme {
	case "http":
	case "https":
		to.tls, port = true, "443"
	default:
		return key{}, errScheme
	}
	if r.URL.Port() == "" {
		to.address = net.JoinHostPort(r.URL.Hostname(), port)
	}
	return to, nil
}

// closeBody closes the body of a request that is not sent.
func closeBody(r *http.Request) {
	if r.Body == nil {
		return
	}
	_ = r.Body.Close()
	if memory, is := r.Body.(*Body); is {
		memory.letGo()
	}
}
