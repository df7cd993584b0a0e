package zmqsub

import (
	"context"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-gateway/tandem/loadtest/engine"
)

// TestHub_FeedsHoldNoThreads: with hundreds of ranks that publish KV events and push their loads, who waits for them
// holds no thread of the system; each had one, and with it a processor until the runtime took it away.
func TestHub_FeedsHoldNoThreads(t *testing.T) {
	const feeds = 48
	ix, hub := newIndex(t), newHub(t, quick())
	port := strconv.Itoa(freePorts(t, 1))
	endpoint := "tcp://127.0.0.1:" + port
	startEngine(t, func(cfg *engine.Config) { cfg.EventsEndpoint = "tcp://*:" + port })

	before := threads(t)
	ctx, end := context.WithCancel(t.Context())
	var loads sync.WaitGroup
	defer loads.Wait()
	defer end()
	for i := range feeds {
		_, sub := subscribe(t, hub, ix, "s"+strconv.Itoa(i), Feed{Events: endpoint})
		connected(t, sub)
		listened, err := hub.ListenLoads(Feed{Events: endpoint})
		if err != nil {
			t.Fatal(err)
		}
		loads.Go(func() { listened.Run(ctx, func([]byte) {}) })
	}
	if more := threads(t) - before; more > feeds/2 {
		t.Errorf("%d threads more for %d feeds of KV events and as many of loads", more, feeds)
	}
}

// threads of this process.
func threads(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "\nThreads:")
	line, _, _ := strings.Cut(after, "\n")
	n, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
