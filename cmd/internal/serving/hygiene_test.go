package serving

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/loadtest/process"
)

// served is a gateway as a process of its own.
type served struct {
	base, admin string
	client      *http.Client
	process     *process.Process
}

// serveProcess starts a binary's serve in front of two engines. shell is run before
// it in the same process; log takes its stderr.
func serveProcess(t *testing.T, shell string, log io.Writer, flags ...string) *served {
	t.Helper()
	prefill, decode := startTestEngine(t, engine.RolePrefill, nil), startTestEngine(t, engine.RoleDecode, nil)
	return serveProcessFor(t, prefill.URL(), decode.URL(), shell, log, flags...)
}

// serveProcessFor is serveProcess in front of given servers.
func serveProcessFor(t *testing.T, prefill, decode, shell string, log io.Writer, flags ...string) *served {
	t.Helper()
	binary := tandemBinary(t)
	addrs, err := process.FreeAddresses(2)
	if err != nil {
		t.Fatal(err)
	}
	command := shell + ` exec "$0" "$@"`
	args := append([]string{"-c", command, binary, "serve", "--prefill", prefill, "--decode", decode,
		"--listen", addrs[0], "--admin", addrs[1], "--probe-interval", "100ms"}, flags...)
	p, err := process.Start("gateway", log, nil, "/bin/sh", args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(20 * time.Second); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := p.Answers(ctx, "http://"+addrs[1]+"/readyz"); err != nil {
		t.Fatal(err)
	}
	return &served{base: "http://" + addrs[0], admin: "http://" + addrs[1], client: newTestClient(t), process: p}
}

// ask sends one request and returns its status, 0 if the connection failed.
func (s *served) ask(t *testing.T) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.base+"/v1/chat/completions", strings.NewReader(chatBody("")))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return 0
	}
	return readResponse(resp).status
}

// holdConnections opens as many connections to a gateway, beyond what it can accept, and sends the same on each. They
// are closed by release, or with the test.
func (s *served) holdConnections(t *testing.T, n int, sends string) (release func()) {
	t.Helper()
	var held []net.Conn
	release = func() {
		for _, conn := range held {
			_ = conn.Close()
		}
	}
	t.Cleanup(release)
	for range n { // beyond the limit they wait in the kernel's queue
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.base, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, conn)
		if _, err := io.WriteString(conn, sends); err != nil {
			t.Fatal(err)
		}
	}
	return release
}

// Connections whose clients send nothing keep nobody out, however many there are: those that have waited longest are
// closed, whatever came on them.
func TestHygiene_ConnectionsThatWaitMakeRoom(t *testing.T) {
	t.Parallel()
	const head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
	for name, sends := range map[string]string{"nothing": "", "half a head": head, "half a body": head + "Content-Length: 1000\r\n\r\n{"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serveProcess(t, "ulimit -n 64;", io.Discard)
			s.client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 20 * time.Second}
			s.holdConnections(t, 200, sends)
			for i := range 20 {
				if status := s.ask(t); status != http.StatusOK {
					t.Fatalf("request %d beside them: %d", i, status)
				}
			}
		})
	}
}

// Clients whose requests are served use up the descriptors. Nothing breaks: a client that has a connection is told to
// come again, no server is blamed, and when the clients have gone all is as before.
func TestHygiene_DescriptorsThatAreUsedUpComeBack(t *testing.T) {
	t.Parallel()
	prefill, decode := startTestEngine(t, engine.RolePrefill, nil), startTestEngine(t, engine.RoleDecode, nil)
	for _, e := range []*engine.Engine{prefill, decode} {
		e.SetFault(engine.Fault{Kind: engine.FaultHangBeforeHeaders, Path: "/v1/completions"})
	}
	s := serveProcessFor(t, prefill.URL(), decode.URL(), "ulimit -n 64;", io.Discard)
	if status := s.ask(t); status != 200 {
		t.Fatalf("at first: %d", status)
	}
	const hangs = `{"model":"test-model","prompt":"hi"}`
	release := s.holdConnections(t, 100, fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(hangs), hangs))
	// Our kept connection is served as long as a descriptor for an engine is left or
	// kept; afterwards it is told that the gateway has none.
	refused := 0
	for deadline := time.Now().Add(10 * time.Second); refused == 0 && time.Now().Before(deadline); {
		switch status := s.ask(t); status {
		case 200:
		case 503:
			refused++
		default:
			t.Fatalf("while descriptors are used up: %d", status)
		}
	}
	t.Logf("%d requests were told to come again", refused)
	release()
	eventually(t, "all is as before", func() bool { return s.ask(t) == 200 })
	metrics, err := s.client.Get(s.admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	counted := process.Metrics(readResponse(metrics).body)
	if n := counted.Sum("tandem_breaker_ejections_total"); n != 0 {
		t.Errorf("servers were held guilty %v times", n)
	}
	if n := counted.Sum("tandem_overloaded_requests_total", `cause="gateway"`); int(n) < refused {
		t.Errorf("%v of them are counted as the gateway's fault", n)
	}
}

// A disk that is full takes no log lines; requests do not notice.
func TestHygiene_ALogThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	s := serveProcess(t, "exec 2>/dev/full;", io.Discard, "--log-level", "debug")
	for i := range 20 {
		if status := s.ask(t); status != 200 {
			t.Fatalf("request %d: %d", i, status)
		}
	}
}

// Traces that no collector takes are dropped. No request waits for them.
func TestHygiene_ACollectorThatIsAwayOrHangs(t *testing.T) {
	release := make(chan struct{})
	hanging := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	defer hanging.Close()
	defer close(release)
	slowest := func(otlp string) (worst time.Duration) {
		c := newCluster(t, shape{prefill: 1, decode: 1, config: func(cfg *config) { cfg.telemetry.otlp = otlp }})
		for range 300 {
			start := time.Now()
			if got := c.post("/v1/completions", `{"model":"test-model","max_tokens":2,"prompt":"hello"}`); got.status != 200 {
				t.Fatalf("%s: %d %s", otlp, got.status, got.body)
			}
			worst = max(worst, time.Since(start))
		}
		start := time.Now()
		if err := c.stop(); err != nil {
			t.Errorf("%s: %v", otlp, err)
		}
		if took := time.Since(start); took > 8*time.Second { // a collector is given up after ten
			t.Errorf("%s: stopping took %v", otlp, took)
		}
		return worst
	}
	none := slowest("")
	for name, otlp := range map[string]string{"away": "http://127.0.0.1:1", "hangs": hanging.URL} {
		worst := slowest(otlp)
		t.Logf("collector %s: slowest request %v, without one %v", name, worst, none)
		if worst > 2*none+5*time.Second {
			t.Errorf("collector %s: a request took %v, without one %v", name, worst, none)
		}
	}
}
