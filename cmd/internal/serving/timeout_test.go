package serving

import (
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/pd/enginehttp"
	"github.com/tandem-gateway/tandem/pools"
)

// Each timeout of a leg fires at its setting, ends the engine's connection, is told
// to the client as what it is, and counts against the server that was silent.
func TestTimeout_OfEachLeg(t *testing.T) {
	t.Parallel()
	const limit = 400 * time.Millisecond
	stream, whole := chatBodyOf(20, `,"stream":true`), chatBodyOf(20, "")
	for _, c := range []struct {
		name   string
		set    func(*config)
		role   string
		fault  engine.Fault
		body   string
		status int
		leg    pools.Role
	}{
		{"prefill", func(cfg *config) { cfg.pd.PrefillTimeout = limit }, "prefill",
			engine.Fault{Kind: engine.FaultHangBeforeHeaders}, whole, 504, pools.Prefill},
		{"prefill's body", func(cfg *config) { cfg.pd.PrefillTimeout = limit }, "prefill",
			engine.Fault{Kind: engine.FaultHangAfterHeaders}, whole, 504, pools.Prefill},
		{"first event", func(cfg *config) { cfg.pd.FirstEventTimeout = limit }, "decode",
			engine.Fault{Kind: engine.FaultHangBeforeHeaders}, stream, 504, pools.Decode},
		{"first event, after headers", func(cfg *config) { cfg.pd.FirstEventTimeout = limit }, "decode",
			engine.Fault{Kind: engine.FaultHangAfterHeaders}, stream, 504, pools.Decode},
		{"answer", func(cfg *config) { cfg.pd.AnswerTimeout = limit }, "decode",
			engine.Fault{Kind: engine.FaultHangAfterHeaders}, whole, 504, pools.Decode},
		{"idle", func(cfg *config) { cfg.pd.IdleTimeout = limit }, "decode",
			engine.Fault{Kind: engine.FaultSlow, Factor: 300}, stream, 200, pools.Decode}, // 2 s a token
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cl := newCluster(t, shape{prefill: 1, decode: 1, engine: func(cfg *engine.Config) { cfg.TimeScale = 1 }, config: func(cfg *config) {
				c.set(cfg)
				cfg.pd.MaxRetries = 0
				cfg.pools.Breaker.Consecutive = 1
				cfg.pools.Breaker.Ejection, cfg.pools.Breaker.MaxEjection = time.Minute, time.Minute
			}})
			silent := cl.prefill[0]
			if c.role == "decode" {
				silent = cl.decode[0]
			}
			silent.SetFault(c.fault)
			start := time.Now()
			got := cl.post("/v1/chat/completions", c.body)
			took := time.Since(start)
			t.Logf("%d after %v", got.status, took)
			switch {
			case got.status != c.status:
				t.Errorf("%d %s", got.status, got.body)
			case c.status == 200 && (got.err == nil || !strings.Contains(got.body, `"error"`)):
				t.Errorf("the stream ended as if it were whole: %s", got.body)
			case c.status != 200 && !gjson.Get(got.body, "error.code").Exists():
				t.Errorf("no error of OpenAI's form: %s", got.body)
			}
			// A slow stream takes some time for its first token, a busy machine for all.
			if slack := 10 * time.Second; took < limit*9/10 || c.name != "idle" && took > limit+slack {
				t.Errorf("took %v, the limit is %v", took, limit)
			}
			eventually(t, "the engine's connection is closed", func() bool { return silent.State().Running == 0 && silent.State().ServerLoad == 0 })
			eventually(t, "it is held against the server", func() bool {
				return cl.metric("tandem_breaker_ejections_total", `leg="`+c.leg.String()+`"`) >= 1
			})
		})
	}
}

// None of them cuts a stream that is healthy, however long it is.
func TestTimeout_NoneCutsAHealthyStream(t *testing.T) {
	t.Parallel()
	const limit = 2 * time.Second // a busy machine may pause for a part of it
	c := newCluster(t, shape{prefill: 1, decode: 1, engine: func(cfg *engine.Config) { cfg.TimeScale = 1 }, config: func(cfg *config) {
		cfg.pd.PrefillTimeout, cfg.pd.FirstEventTimeout, cfg.pd.IdleTimeout, cfg.pd.AnswerTimeout = limit, limit, limit, limit
		cfg.pd.HandoffAge = limit
		cfg.gateway.ReadTimeout, cfg.gateway.WriteTimeout, cfg.gateway.ConnIdle = limit, limit, limit
	}})
	start := time.Now()
	got := c.post("/v1/chat/completions", chatBodyOf(800, `,"stream":true,"ignore_eos":true`))
	took := time.Since(start)
	if got.status != 200 || got.err != nil || got.events[len(got.events)-1] != "[DONE]" || len(got.events) < 800 {
		t.Errorf("%d, %v after %d events", got.status, got.err, len(got.events))
	}
	if took < 2*limit {
		t.Errorf("the stream took only %v: the test proves nothing", took)
	}
}

// A host that drops packets is given up after the time to connect.
func TestTimeout_ToConnect(t *testing.T) {
	t.Parallel()
	const limit = 300 * time.Millisecond
	transport := enginehttp.NewTransport(limit)
	defer transport.CloseIdleConnections()
	start := time.Now()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+deafAddress(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := transport.RoundTrip(req)
	if err == nil {
		_ = resp.Body.Close()
		t.Fatal("it was answered")
	}
	if took := time.Since(start); took < limit*9/10 || took > limit+10*time.Second { // the system alone takes minutes
		t.Errorf("%v after %v, the limit is %v", err, took, limit)
	}
}

// deafAddress is one where connections are neither made nor refused: its queue of
// connections is full and none is accepted.
func deafAddress(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	addr := (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: name.(*syscall.SockaddrInet4).Port}).String()
	for range 16 { // until the queue is full: a machine that is only busy connects within the time
		conn, err := net.DialTimeout("tcp", addr, time.Second)
		if err != nil {
			return addr
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
	t.Fatal("the queue of connections is never full")
	return ""
}

// A request that does not arrive in time is refused, and its connection closed.
func TestTimeout_ForARequestToArrive(t *testing.T) {
	t.Parallel()
	const limit = 400 * time.Millisecond
	c := newCluster(t, shape{prefill: 1, decode: 1, config: func(cfg *config) { cfg.gateway.ReadTimeout = limit }})
	for name, sent := range map[string]string{
		"headers":            "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Le",
		"body":               "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{\"model\":",
		"end of a long body": "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n" + strings.Repeat(" ", 20_000),
	} {
		start := time.Now() // the gateway's time may run from when it has the connection
		conn, err := net.Dial("tcp", strings.TrimPrefix(c.base, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		if _, err := conn.Write([]byte(sent)); err != nil {
			t.Fatal(err)
		}
		if err := conn.SetReadDeadline(start.Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		answer := make([]byte, 4096)
		n, _ := conn.Read(answer) // a bare close is an answer too
		took := time.Since(start)
		if n > 0 && !strings.HasPrefix(string(answer[:n]), "HTTP/1.1 408") {
			t.Errorf("%s: %.100s", name, answer[:n])
		}
		if took < limit*9/10 || took > limit+8*time.Second {
			t.Errorf("%s: ended after %v", name, took)
		}
	}
}
