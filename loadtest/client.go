package loadtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/tidwall/gjson"
)

const (
	connectTimeout = 5 * time.Second
	inquiryTimeout = 10 * time.Second
	// idleTimeout is below the keep-alive times of common servers, so that a
	// connection which the server is just closing is rarely used again.
	idleTimeout = 4 * time.Second
	// maxAnswer bounds an answer that is not streamed, in bytes.
	maxAnswer = 64 << 20
	// maxErrorBody is how much of a refusal is read for its message, in bytes.
	maxErrorBody = 64 << 10
)

// A client sends single requests and judges their answers. It never retries, and
// follows no redirects: each would hide what the endpoint did.
type client struct {
	http     *http.Client
	base     string // URL without a slash at its end
	endpoint Endpoint
	stream   bool
	keepText bool
	header   http.Header
	timeout  time.Duration
}

func newClient(cfg Config) *client {
	dialer := &net.Dialer{Timeout: connectTimeout}
	if !cfg.AllowRemote {
		dialer.Control = refuseRemote
	}
	return &client{
		http: &http.Client{
			Transport: &http.Transport{
				Proxy:               nil, // a proxy's faults are not the endpoint's
				DialContext:         dialer.DialContext,
				MaxIdleConnsPerHost: cfg.MaxInFlight,
				IdleConnTimeout:     idleTimeout,
				DisableCompression:  true,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		base:     strings.TrimRight(cfg.URL, "/"),
		endpoint: cfg.Endpoint,
		stream:   cfg.Stream,
		keepText: cfg.Turns > 1,
		header:   cfg.Header,
		timeout:  cfg.Timeout,
	}
}

// refuseRemote is the dialer's last look at an address that a name resolved to.
func refuseRemote(_, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("dial %s: %w", address, err)
	}
	if !to.Addr().Unmap().IsLoopback() {
		return fmt.Errorf("%s is not on this machine; --allow-remote permits it", address)
	}
	return nil
}

func (c *client) close() { c.http.CloseIdleConnections() }

// firstModel returns the first of GET /v1/models.
func (c *client) firstModel(ctx context.Context) (string, error) {
	answer, err := c.inquire(ctx, http.MethodGet, "/v1/models", nil)
	if err != nil {
		return "", fmt.Errorf("ask for the model: %w", err)
	}
	model := gjson.GetBytes(answer, "data.0.id").String()
	if model == "" {
		return "", errors.New("ask for the model: GET /v1/models names none; give --model")
	}
	return model, nil
}

// inquire does one request that is no part of the load and returns the body of a
// 200.
func (c *client) inquire(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, min(c.timeout, inquiryTimeout))
	defer cancel()
	req, err := c.newRequest(ctx, method, path, body)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxEvent))
	if err != nil {
		return nil, err
	}
	switch resp.StatusCode {
	case http.StatusOK:
		return answer, nil
	case http.StatusUnauthorized:
		return nil, fmt.Errorf("%s %s answered %s: give the key as --header 'Authorization: Bearer KEY'", method, path, resp.Status)
	}
	return nil, fmt.Errorf("%s %s answered %s", method, path, resp.Status)
}

func (c *client) newRequest(ctx context.Context, method, path string, body []byte) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for name, values := range c.header {
		req.Header[name] = values
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return req, nil
}

// ask sends one body and waits for the end of its answer. It returns an outcome
// in every case.
func (c *client) ask(ctx context.Context, body []byte) *outcome {
	limited, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	o := &outcome{sent: time.Now(), keepText: c.keepText}
	if err := c.exchange(limited, body, o); err != nil {
		o.kind, o.detail = kindOf(ctx, err), detailOf(err)
	}
	o.took = time.Since(o.sent)
	return o
}

func (c *client) exchange(ctx context.Context, body []byte, o *outcome) error {
	req, err := c.newRequest(ctx, http.MethodPost, c.endpoint.path(), body)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	o.requestID = resp.Header.Get("X-Request-Id")
	if resp.StatusCode != http.StatusOK {
		return refusal(resp)
	}
	if !c.stream {
		return readWhole(resp.Body, o)
	}
	if kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type")); err != nil || kind != "text/event-stream" {
		return failuref(Malformed, "content type %q of a stream", resp.Header.Get("Content-Type"))
	}
	return readStream(resp.Body, o)
}

// refusal turns a status other than 200 into a failure with the server's words.
func refusal(resp *http.Response) error {
	// A body that breaks off does not change what the status says.
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	message := gjson.GetBytes(body, "error.message").String()
	if message == "" {
		message = string(bytes.TrimSpace(body))
	}
	return failuref(statusKind(resp.StatusCode), "%.200s", message)
}

// readStream takes in a stream up to its end. Nothing but its end may follow
// [DONE]; o.e2e is the time of [DONE].
func readStream(body io.Reader, o *outcome) error {
	events := newEventReader(body)
	done := false
	for {
		ev, err := events.next()
		now := time.Now()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		switch {
		case done:
			return failuref(Malformed, "an event after [DONE]: %.80q", ev.data)
		case string(ev.data) == "[DONE]":
			done = true
			o.e2e = now.Sub(o.sent)
		case ev.name == "error":
			return failuref(ErrorEvent, "%.200s", ev.data)
		default:
			if err := o.addChunk(ev.data, now); err != nil {
				return err
			}
		}
	}
	if err := o.complete(); err != nil {
		return err
	}
	if !done {
		return failuref(Truncated, "the stream ended without [DONE] after %d content events", o.events)
	}
	return nil
}

// readWhole takes in an answer that is not streamed. It has no TTFT and no ITL.
func readWhole(body io.Reader, o *outcome) error {
	data, err := io.ReadAll(io.LimitReader(body, maxAnswer+1))
	if err != nil {
		return err
	}
	if len(data) > maxAnswer {
		return failuref(Malformed, "an answer of more than %d bytes", maxAnswer)
	}
	now := time.Now()
	if err := o.addChunk(data, now); err != nil {
		return err
	}
	o.e2e, o.ttft = now.Sub(o.sent), 0
	return o.complete()
}
