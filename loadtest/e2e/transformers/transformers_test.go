package transformers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

var apis = map[string]map[string]any{
	"/v1/chat/completions": {"messages": []any{
		map[string]any{"role": "system", "content": "be brief"}, map[string]any{"role": "user", "content": "tell me of the river and the bridge"},
	}, "max_tokens": 24},
	"/v1/completions": {"prompt": "the river and the bridge", "max_tokens": 24},
	"/v1/responses":   {"input": "tell me of the river and the bridge", "max_output_tokens": 24},
}

// with is a greedy request of an API, with more fields.
func with(path string, more map[string]any) map[string]any {
	body := map[string]any{"model": model, "temperature": 0}
	maps.Copy(body, apis[path])
	maps.Copy(body, more)
	return body
}

// TestTransformersServe: what clients get through the gateway is what the server says to them itself.
func TestTransformersServe(t *testing.T) {
	e := startEngine(t)
	g := startGateway(t, e)
	for path := range apis {
		for name, more := range map[string]map[string]any{
			"whole": {"stream": false}, "without stream": {}, "streamed": {"stream": true},
			"with its usage": {"stream": true, "stream_options": map[string]any{"include_usage": true}},
			"stopped":        {"stop": []string{" "}},
		} {
			t.Run(path+" "+name, func(t *testing.T) {
				if path == "/v1/responses" && name == "stopped" {
					more = map[string]any{"instructions": "be brief", "stream": false}
				}
				got, err := ask(t.Context(), g.url, path, with(path, more), nil)
				if err != nil {
					t.Fatal(err)
				}
				// What it streams unasked is a whole answer to clients, and is held against its own whole one:
				// at a limit of tokens its streams drop half a character, of which a whole answer has a sign.
				stream := more["stream"] == true
				more := maps.Clone(more)
				more["stream"] = stream
				own, err := ask(t.Context(), e.url, path, with(path, more), nil)
				if err != nil {
					t.Fatal(err)
				}
				if own.status != 200 || own.text == "" || own.output == 0 || own.finish == "" {
					t.Fatalf("the server itself says %+v", own)
				}
				if got.status != 200 || got.failed != "" || got.text != own.text || got.finish != own.finish || strings.HasPrefix(got.contentType, "text/event-stream") != stream {
					t.Errorf("got %+v, want %+v", got, own)
				}
				// Usage comes in a stream where it was asked for; the server sends it in any case.
				if !stream || name == "with its usage" || path == "/v1/responses" {
					if got.prompt != own.prompt || got.output != own.output {
						t.Errorf("usage %d and %d, want %d and %d", got.prompt, got.output, own.prompt, own.output)
					}
				}
				if stream && path != "/v1/responses" && !got.marked {
					t.Error("the stream has no end")
				}
			})
		}
	}
	t.Run("errors", func(t *testing.T) { checkErrors(t, g) })
	t.Run("cancelled", func(t *testing.T) { checkCancelled(t, g) })
}

// checkErrors: clients get errors that they can read.
func checkErrors(t *testing.T, g gateway) {
	chat := "/v1/chat/completions"
	for name, c := range map[string]struct {
		path   string
		more   map[string]any
		status int
		says   string
	}{
		"a model that it has not":       {chat, map[string]any{"model": "other/model"}, 404, "does not exist"},
		"a field that it does not know": {chat, map[string]any{"nonsense": 1}, 422, "nonsense"},
		"the same, streamed":            {chat, map[string]any{"nonsense": 1, "stream": true}, 422, "nonsense"},
		"ids where it takes text":       {"/v1/completions", map[string]any{"prompt": []int{5, 6, 7}}, 400, "must be a string"},
		"an API that it has not":        {"/v1/messages", map[string]any{"messages": []any{map[string]any{"role": "user", "content": "hi"}}, "max_tokens": 4}, 404, "Not Found"},
	} {
		got, err := ask(t.Context(), g.url, c.path, with(c.path, c.more), nil)
		if err != nil || got.status != c.status || !strings.Contains(got.failed, c.says) {
			t.Errorf("%s: %d %s, want %d with %q (%v)", name, got.status, got.body, c.status, c.says, err)
		}
	}
}

// checkCancelled: a client that leaves ends its generation, which the server does one after the other.
func checkCancelled(t *testing.T, g gateway) {
	const long = 4000
	path := "/v1/completions"
	measured := func(ctx context.Context, tokens int, seen func()) (time.Duration, error) {
		start := time.Now()
		_, err := ask(ctx, g.url, path, with(path, map[string]any{"stream": true, "max_tokens": tokens}), seen)
		return time.Since(start), err
	}
	whole, err := measured(t.Context(), long/4, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	if _, err := measured(ctx, long, leave); !errors.Is(err, context.Canceled) {
		t.Fatalf("the client that left got %v", err)
	}
	next, err := measured(t.Context(), 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d tokens take %v; after one who left behind the first of %d, a token took %v", long/4, whole, long, next)
	if next > 2*whole {
		t.Errorf("the next answer waited %v", next)
	}
	process.WaitFor(t, nil, "no request to be in flight", process.ReadyWithin, func() error {
		var servers []struct {
			InFlight map[string]struct{ Requests int } `json:"in_flight"`
		}
		if err := process.JSON(g.admin+"/debug/servers", &servers); err != nil {
			return err
		}
		for _, s := range servers {
			if n := s.InFlight["decode"].Requests; n > 0 {
				return fmt.Errorf("%d are", n)
			}
		}
		return nil
	})
}

// TestTransformersServe_Killed: a stream whose server is killed ends with an error, and not as if it were
// whole; with no server left requests are refused at once.
func TestTransformersServe_Killed(t *testing.T) {
	only := startEngine(t)
	g := startGateway(t, only)
	path := "/v1/chat/completions"
	events := 0
	got, err := ask(t.Context(), g.url, path, with(path, map[string]any{"stream": true, "max_tokens": 4000}), func() {
		if events++; events == 5 {
			only.process.Kill(t)
		}
	})
	if err == nil && got.failed == "" || got.finish != "" || got.text == "" {
		t.Errorf("%v, %q, finish %q after %d events", err, got.failed, got.finish, events)
	}
	after, err := ask(t.Context(), g.url, path, with(path, nil), nil)
	if err != nil || after.status != 503 || after.failed == "" {
		t.Errorf("with no server left: %d %s (%v)", after.status, after.body, err)
	}
}
