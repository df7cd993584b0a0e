package loadtest

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"
)

// A memoryListener hands out connections that are pipes in memory, so that a real
// HTTP server and client run under the clock of testing/synctest.
type memoryListener struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (l *memoryListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *memoryListener) Close() error   { close(l.closed); return nil }
func (l *memoryListener) Addr() net.Addr { return &net.TCPAddr{} }

func (l *memoryListener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case l.conns <- far:
		return near, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// memoryClient serves handler in memory and returns a client of it. Call stop
// before the end of the synctest bubble.
func memoryClient(cfg Config, handler http.HandlerFunc) (c *client, stop func()) {
	l := &memoryListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	server := &http.Server{Handler: handler}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(l) // ends by Shutdown
	}()
	c = newClient(cfg)
	c.http.Transport.(*http.Transport).DialContext = l.dial
	return c, func() {
		c.close()
		_ = server.Shutdown(context.Background()) // waits for handlers that sleep on
		<-served
	}
}

// chatChunk is one event of a streamed chat completion.
func chatChunk(content string) string {
	return fmt.Sprintf(`data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":%q},"finish_reason":null}]}`+"\n\n", content)
}

const (
	roleChunk   = `data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}` + "\n\n"
	finishChunk = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}` + "\n\n"
	stopChunk   = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	doneEvent   = "data: [DONE]\n\n"
)

func usageChunk(prompt, cached, completion int) string {
	return fmt.Sprintf(`data: {"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}}`+"\n\n", prompt, completion, cached)
}

// say writes parts of a stream, each at once.
func say(w http.ResponseWriter, parts ...string) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	for _, part := range parts {
		fmt.Fprint(w, part)
		_ = http.NewResponseController(w).Flush()
	}
}

// streamTokens answers with n tokens: the first after ttft, the others itl apart.
func streamTokens(n int, ttft, itl time.Duration) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		say(w, roleChunk)
		time.Sleep(ttft)
		for i := range n {
			if i > 0 {
				time.Sleep(itl)
			}
			say(w, chatChunk(fmt.Sprint(" t", i)))
		}
		say(w, finishChunk, usageChunk(100, 64, n), doneEvent)
	}
}

// testConfig is a small valid run.
func testConfig() Config {
	cfg := DefaultConfig()
	cfg.Model = "m"
	cfg.WordsPerToken = 1
	cfg.PromptTokens, cfg.OutputTokens = FixedLength(8), FixedLength(4)
	return cfg
}
