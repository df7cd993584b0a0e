package gateway

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace/noop"

	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/order"
	"github.com/tandem-gateway/tandem/pools"
)

// BenchmarkRequest is what a request costs the gateway that one server answers whole, from the bytes that
// a client sends to those that it gets: a chat of 4 KB, of 64 clients at once, bound by the decider. The
// engine answers from memory, so that its client is not in the figure; the two calls of each of ours are.
// It is the CPU of the process, in us a request: of rounds of 4,000 requests the least, as neighbours on a
// machine only add to it. So it shows a change of 2 %, which bench-proxy does not on a small machine.
// Budget (quiet, -cpu 1 -benchtime 24x, the process on one processor): 85 us.
func BenchmarkRequest(b *testing.B) {
	of := usual(b)
	of.tracer = noop.Tracer{}
	of.before = bindLate
	g := run(b, of, func(r *http.Request) (*http.Response, error) {
		_, _ = io.Copy(io.Discard, r.Body)
		_ = r.Body.Close()
		return &http.Response{
			StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, ContentLength: int64(len(wholeAnswer)), Body: io.NopCloser(strings.NewReader(wholeAnswer)),
		}, nil
	}, pools.Spec{URL: healthy(b), Role: pools.Both, Connector: "nixl"})
	defer g.decide()()
	request := g.raw(chatOf(270, ""))
	const clients, each = 64, 62
	least := time.Hour
	for b.Loop() {
		before := cpuTime(b)
		var asking sync.WaitGroup
		for range clients {
			conn := g.dial()
			asking.Go(func() { askOften(b, conn, request, each) })
		}
		asking.Wait()
		least = min(least, (cpuTime(b)-before)/(clients*each))
	}
	b.ReportMetric(float64(least.Nanoseconds())/1e3, "cpu-us/request")
}

// bindLate has a gateway's requests bound by a decider, which decide runs.
func bindLate(s *Server) {
	s.pd.Binder.Late = pd.NewDecider(s.pd.Binder.Chooser, order.DefaultConfig(), time.Hour, slog.New(slog.DiscardHandler))
}

// decide runs the gateway's decider until what it returns is called.
func (g *running) decide() (stop func()) {
	ctx, cancel := context.WithCancel(g.t.Context())
	var deciding sync.WaitGroup
	deciding.Go(func() { g.pd.Binder.Late.Run(ctx) })
	return func() {
		cancel()
		deciding.Wait()
	}
}

// wholeAnswer is what the engine of a benchmark answers.
const wholeAnswer = `{"id":"chatcmpl-1","object":"chat.completion","created":1790000000,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"Hello there."},"finish_reason":"stop"}],` +
	`"usage":{"prompt_tokens":1000,"completion_tokens":16,"total_tokens":1016}}`

// chatOf is a chat of so many times 15 bytes of text, and more members.
func chatOf(times int, more string) string {
	return `{"model":"m","messages":[{"role":"system","content":"You are helpful."},{"role":"user","content":"` + strings.Repeat("river of words ", times) + `"}],"max_tokens":16` + more + `}`
}

// raw is the bytes of a request with a chat for the gateway.
func (g *running) raw(chat string) []byte {
	return fmt.Appendf(nil, "POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", strings.TrimPrefix(g.base, "http://"), len(chat), chat)
}

// askOften sends a request so many times, and waits for each whole answer.
func askOften(b *testing.B, conn net.Conn, request []byte, times int) {
	defer func() { _ = conn.Close() }()
	room := make([]byte, 4<<10)
	for range times {
		if _, err := conn.Write(request); err != nil {
			b.Error(err)
			return
		}
		answer, err := readMessage(conn, room)
		if err != nil {
			b.Errorf("%v after %s", err, answer)
			return
		}
		if !bytes.HasPrefix(answer, []byte("HTTP/1.1 200")) {
			b.Errorf("%s", answer)
			return
		}
	}
}
