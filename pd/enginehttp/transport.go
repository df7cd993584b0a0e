package enginehttp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/tandem-gateway/tandem/pd/enginehttp/http1"
)

// Transport is the HTTP/1.1 client side of all engine legs and probes. Of a request that gets no
// answer it says whether a living engine may have read it.
type Transport struct{ http1.Transport }

// NewTransport returns a transport that never follows a proxy of the environment, and drops idle
// connections before uvicorn does (5 s), since a POST on a connection that the engine is closing
// cannot be repeated safely.
func NewTransport(connect time.Duration) *Transport {
	dialer := &net.Dialer{Timeout: connect, KeepAlive: 15 * time.Second}
	return &Transport{http1.Transport{
		DialContext:    dialer.DialContext,
		MaxIdle:        4096,
		MaxIdlePerHost: 512,
		IdleTimeout:    4 * time.Second,
	}}
}

// ErrUnread says that a connection was lost and that no engine which lived then has read the
// whole request: it cannot be what the engine died of.
var ErrUnread = errors.New("the request was not read")

// RoundTrip sends a request. Its error is ErrUnread, with what happened, where no byte of an
// answer came and the connection was reset. A process that has read all that was sent to it closes
// its connections in order when it ends, and what reads as the end of the connection (EOF) is not
// known to be unread. A kernel answers with a reset where a process ended with some of the request
// unread, or before it came (Linux: tcp_close in net/ipv4/tcp.c).
//
// A kept connection that its engine has closed is not used: a new one is made, which says more.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.Transport.RoundTrip(r)
	if err == nil {
		return resp, nil
	}
	var failed *http1.Error
	reset := errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
	if reset && errors.As(err, &failed) && !failed.Answered && context.Cause(r.Context()) == nil {
		err = fmt.Errorf("%w: %w", ErrUnread, err)
	}
	return nil, err
}
