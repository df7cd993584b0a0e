package gateway

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/gateway/access"
	"github.com/tandem-gateway/tandem/pd/queue"
	"github.com/tandem-gateway/tandem/pools"
)

func post(t *testing.T, base, body string) (int, string, error) {
	t.Helper()
	return postAs(t, "", base, body)
}

// postAs is post with a key.
func postAs(t *testing.T, key, base, body string) (int, string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+"/v1/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

// nothingHeld checks that a request left no place taken.
func nothingHeld(t *testing.T, queue *queue.Queue, server *pools.Server) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		_, inFlight := queue.Len()
		if inFlight == 0 && server.InFlight(pools.Decode, time.Now()) == (pools.InFlight{}) && server.InFlight(pools.Prefill, time.Now()) == (pools.InFlight{}) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d in flight, decode %+v", inFlight, server.InFlight(pools.Decode, time.Now()))
		}
	}
}

func TestPanic_InARequestKillsOnlyThatRequest(t *testing.T) {
	both := pools.Spec{URL: healthy(t), Role: pools.Both, Connector: "nixl"}
	base, queue, server := serveWith(t, func(*http.Request) (*http.Response, error) { panic("in a leg") }, both)
	status, body, err := post(t, base, `{"model":"m","prompt":"hi"}`)
	if status != 500 || err != nil || strings.Contains(body, "in a leg") {
		t.Errorf("%d %s, %v", status, body, err)
	}
	nothingHeld(t, queue, server)
	if status, _, _ := post(t, base, `{`); status != 400 {
		t.Errorf("afterwards: %d", status)
	}
}

// A prefill leg that runs beside its decode leg has a goroutine of its own, where nothing
// above recovers either.
func TestPanic_InALegBesideAnotherKillsOnlyThatRequest(t *testing.T) {
	prefill, decode := healthy(t), healthy(t)
	base, queue, server := serveWith(t, func(r *http.Request) (*http.Response, error) {
		if strings.HasSuffix(prefill, r.URL.Host) {
			panic("in a leg")
		}
		<-r.Context().Done()
		return nil, r.Context().Err()
	}, pools.Spec{URL: prefill, Role: pools.Prefill, Connector: "sglang"}, pools.Spec{URL: decode, Role: pools.Decode, Connector: "sglang"})
	status, body, err := post(t, base, `{"model":"m","prompt":"hi"}`)
	if status < 500 || err != nil || strings.Contains(body, "in a leg") {
		t.Errorf("%d %s, %v", status, body, err)
	}
	nothingHeld(t, queue, server)
	if status, _, _ := post(t, base, `{`); status != 400 {
		t.Errorf("afterwards: %d", status)
	}
}

// panicking is a body that gives one event and then panics.
type panicking struct{ event io.Reader }

func (p panicking) Read(b []byte) (int, error) {
	if n, err := p.event.Read(b); err == nil {
		return n, nil
	}
	panic("in a stream")
}

func (panicking) Close() error { return nil }

// A panic where the HTTP server reads a stream would end the process: nothing
// above recovers there.
func TestPanic_InAStreamCutsOnlyThatStream(t *testing.T) {
	base, queue, server := serveWith(t, func(*http.Request) (*http.Response, error) {
		return &http.Response{
			StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}},
			Body: panicking{strings.NewReader(`data: {"choices":[{"text":"Hi"}]}` + "\n\n")},
		}, nil
	}, pools.Spec{URL: healthy(t), Role: pools.Both, Connector: "nixl"})
	status, body, err := post(t, base, `{"model":"m","prompt":"hi","stream":true}`)
	if status != 200 || err == nil || !strings.Contains(body, "Hi") {
		t.Errorf("%d %q, %v", status, body, err)
	}
	nothingHeld(t, queue, server)
	if status, _, _ := post(t, base, `{`); status != 400 {
		t.Errorf("afterwards: %d", status)
	}
}

// closing is a body that is whole and panics when it is closed.
type closing struct{ io.Reader }

func (closing) Close() error { panic("at a stream's end") }

// What a stream holds is given back though its end panics: its place in the queue, the
// server's lease, and the slot of its key, which has but one.
func TestPanic_AtAStreamsEndLeaksNothing(t *testing.T) {
	const key = "sk-one-at-a-time"
	keys, err := access.ReadKeys([]byte("secret: 0123456789abcdef0123456789abcdef\nkeys:\n  - sha256: "+access.Hash(key)+"\n    tenant: ada\n    concurrent-requests: 1\n"), access.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	a := access.New(access.DefaultConfig(), nil)
	a.Apply(keys)
	base, queue, server := serveBehind(t, a, func(*http.Request) (*http.Response, error) {
		return &http.Response{
			StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}},
			Body: closing{strings.NewReader(`data: {"choices":[{"text":"Hi"}]}` + "\n\ndata: [DONE]\n\n")},
		}, nil
	}, pools.Spec{URL: healthy(t), Role: pools.Both, Connector: "nixl"})
	if status, body, _ := postAs(t, key, base, `{"model":"m","prompt":"hi","stream":true}`); status != 200 || !strings.Contains(body, "Hi") {
		t.Fatalf("%d %s", status, body)
	}
	nothingHeld(t, queue, server)
	// The slot is given back behind the answer's last byte.
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		status, body, _ := postAs(t, key, base, `{"model":"m","prompt":"hi","stream":true}`)
		if status == 200 && strings.Contains(body, "Hi") {
			break
		}
		if status != 429 || time.Now().After(deadline) {
			t.Fatalf("another of the key: %d %s", status, body)
		}
	}
}
