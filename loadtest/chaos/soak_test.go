package chaos

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/process"
)

// oneGateway is a testbed of a gateway that a test answers for, on both of its ports.
func oneGateway(t *testing.T, answer http.HandlerFunc) *testbed {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	addr := strings.TrimPrefix(server.URL, "http://")
	return &testbed{components: []*component{{name: "gateway-0", role: "gateway", addr: addr, admin: addr}}}
}

// A soak that its user ends has not run for its time: it has no verdict.
func TestSoak_InterruptedHasNoVerdict(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	st := oneGateway(t, func(http.ResponseWriter, *http.Request) { interrupt() })
	_, _, err := st.soak(ctx, Load{RPS: 100, For: time.Hour, Prompt: 8, Output: 1}, time.Hour, io.Discard)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that it was interrupted", err)
	}
}

// What is not measured cannot be seen to grow.
func TestSoak_WantsEachGauge(t *testing.T) {
	const all = "go_memstats_next_gc_bytes 8e6\ngo_goroutines 50\nprocess_open_fds 20\n"
	one, err := sampleOf(time.Second, process.Metrics(all))
	if err != nil || len(one.values) != len(gauges) || one.values[1] != 50 {
		t.Errorf("%+v, %v", one, err)
	}
	if _, err := sampleOf(time.Second, process.Metrics(strings.ReplaceAll(all, "go_goroutines", "goroutines"))); err == nil || !strings.Contains(err.Error(), "go_goroutines") {
		t.Errorf("without go_goroutines: %v", err)
	}
}
