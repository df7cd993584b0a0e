package health

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/tandem-gateway/tandem/pools"
)

// maxProbeBody bounds what is read of a probe's answer, in bytes. A vLLM with
// many adapters exposes some hundred kilobytes of metrics.
const maxProbeBody = 8 << 20

// engine is one server as it is asked about itself.
type engine struct {
	server    *pools.Server
	transport http.RoundTripper
	limit     time.Duration // of a question and its answer, in time in which this process runs; 0: it has none
}

// question is what a page is asked for by, without its URL.
var question, _ = http.NewRequest(http.MethodGet, "", nil) //nolint:noctx // each copy has one

// get returns what there is at a path of the engine, or at a URL (see pools.Server.PageURL). Any answer is a
// sign of life.
func (e engine) get(ctx context.Context, page string) ([]byte, error) {
	var body bytes.Buffer
	err := e.read(ctx, page, &body)
	return body.Bytes(), err
}

// read is get into a buffer. Redirections are not followed.
func (e engine) read(ctx context.Context, page string, into *bytes.Buffer) error {
	if e.limit <= 0 {
		return e.readAll(ctx, page, into)
	}
	return withinOwnTime(ctx, e.limit, func(ctx context.Context) error { return e.readAll(ctx, page, into) })
}

// readAll is read without a time limit.
func (e engine) readAll(ctx context.Context, page string, into *bytes.Buffer) error {
	at, err := e.server.PageURL(page)
	if err != nil {
		return err
	}
	req := question.WithContext(ctx) // a copy
	req.URL, req.Host, req.Header = at, at.Host, make(http.Header)
	resp, err := e.transport.RoundTrip(req)
	if err != nil {
		return err
	}
	e.server.RecordAlive(time.Now())
	defer func() { _ = resp.Body.Close() }()
	if n := resp.ContentLength; n > 0 {
		into.Grow(int(min(n, maxProbeBody)) + bytes.MinRead) // which is the room that ReadFrom wants
	}
	if _, err := into.ReadFrom(io.LimitReader(resp.Body, maxProbeBody)); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return statusError{at.Path, resp.StatusCode}
	}
	return nil
}

// page returns the JSON that the engine has at a path. Having none there, or something
// else, is an answer too, and its zero value.
func page[T any](ctx context.Context, e engine, path string) (answer T, err error) {
	body, err := e.get(ctx, path)
	switch {
	case absent(err):
		return answer, nil
	case err != nil:
		return answer, err
	}
	if read := *new(T); json.Unmarshal(body, &read) == nil {
		answer = read
	}
	return answer, nil
}

// absent reports an engine that has nothing at the address that was asked.
func absent(err error) bool {
	var status statusError
	return errors.As(err, &status) && status.code >= http.StatusBadRequest && status.code < http.StatusInternalServerError
}

// statusError is an answer other than 200.
type statusError struct {
	path string
	code int
}

func (e statusError) Error() string {
	if e.code == http.StatusLoopDetected {
		return "it is this gateway itself, or one with the same servers: take it out of the list of servers"
	}
	return fmt.Sprintf("%s answered %d", e.path, e.code)
}

// IsLoop reports whether a probe failed because it came to the gateway that sent it, or to one with the same servers.
func IsLoop(err error) bool {
	var status statusError
	return errors.As(err, &status) && status.code == http.StatusLoopDetected
}

// AsksForKey reports whether a probe failed because the engine refuses requests without a key,
// or not with the key that it was shown.
func AsksForKey(err error) bool {
	var status statusError
	return errors.As(err, &status) && (status.code == http.StatusUnauthorized || status.code == http.StatusForbidden)
}

// outOfDescriptors reports a shortage of our own, which shows nothing about the server.
func outOfDescriptors(err error) bool {
	var name *net.DNSError // it keeps only the text of what it was caused by
	if errors.As(err, &name) {
		return strings.HasSuffix(name.Err, syscall.EMFILE.Error()) || strings.HasSuffix(name.Err, syscall.ENFILE.Error())
	}
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

func isTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}

// reason is short and carries no address: it is shown to people and kept
// while it stays the same, so that a down server is logged once.
func reason(err error) string {
	if isLate(err) {
		return "probe timed out"
	}
	return pools.RootCause(err).Error()
}
