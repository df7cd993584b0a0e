package serving

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/breaker"
)

// slowCluster has engines that take real time, so that a client can leave in the
// middle of things: a prefill of some hundred milliseconds, a token every few.
func slowCluster(t *testing.T, fault engine.Fault) *cluster {
	c := newCluster(t, shape{prefill: 1, decode: 1, engine: func(cfg *engine.Config) { cfg.TimeScale = 1 }})
	if fault.Kind != "" {
		c.prefill[0].SetFault(fault)
	}
	return c
}

// dialRequest sends a request on a connection of its own.
func (c *cluster) dialRequest(body string) net.Conn {
	c.t.Helper()
	return c.dialRequestAs("", body)
}

// dialRequestAs is the same with a key.
func (c *cluster) dialRequestAs(key, body string) net.Conn {
	c.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(c.base, "http://"))
	if err != nil {
		c.t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(testTimeout))
	_, _ = fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", key, len(body), body)
	return conn
}

// The goal is 50 ms. A busy machine may need longer, so the fastest of some tries counts,
// and it is tried until one is fast.
func TestCancel_AClientThatLeavesDuringPrefillIsSeenAtOnce(t *testing.T) {
	const atOnce = 250 * time.Millisecond
	c := slowCluster(t, engine.Fault{Kind: engine.FaultHangBeforeHeaders})
	left := 0
	for _, extra := range []string{"", `,"stream":true`} {
		soonest := time.Minute
		for tries := 0; tries < 5 || soonest > atOnce && tries < 50; tries++ {
			soonest = min(soonest, c.leavesPrefill(chatBody(extra)))
			left++
		}
		t.Logf("prefill's connection was closed %v after the client left, at best", soonest)
		if soonest > atOnce {
			t.Errorf("took %v at best", soonest)
		}
	}
	if n := len(requests(c.decode, "/v1/chat/completions")); n != 0 {
		t.Errorf("decode was asked %d times", n)
	}
	c.checkIdle(left)
}

// leavesPrefill lets a client leave while prefill has its request, and returns after how
// long that was cancelled.
func (c *cluster) leavesPrefill(body string) time.Duration {
	c.t.Helper()
	conn := c.dialRequest(body)
	eventually(c.t, "prefill runs", func() bool { return c.prefill[0].State().ServerLoad == 1 })
	left := time.Now()
	_ = conn.Close()
	eventually(c.t, "prefill is cancelled", func() bool { return c.prefill[0].State().ServerLoad == 0 })
	return time.Since(left)
}

// A request that is pipelined behind the first must not hide that the client left.
func TestCancel_APipelinedRequestDoesNotHideIt(t *testing.T) {
	c := slowCluster(t, engine.Fault{Kind: engine.FaultHangBeforeHeaders})
	conn := c.dialRequest(chatBody(""))
	_, _ = fmt.Fprint(conn, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
	eventually(t, "prefill runs", func() bool { return c.prefill[0].State().ServerLoad == 1 })
	_ = conn.Close()
	eventually(t, "prefill is cancelled", func() bool { return c.prefill[0].State().ServerLoad == 0 })
}

func TestCancel_AClientThatLeavesAStreamEndsDecode(t *testing.T) {
	t.Parallel()
	for _, connector := range engine.Connectors() {
		t.Run(connector, func(t *testing.T) {
			t.Parallel()
			engines := with(t, connector)
			c := newCluster(t, shape{prefill: 1, decode: 1, engine: func(cfg *engine.Config) { engines(cfg); cfg.TimeScale = 1 }})
			conn := c.dialRequest(chatBodyOf(2000, `,"stream":true,"ignore_eos":true`))
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(resp.Body)
			for range 10 {
				lines.Scan()
			}
			_ = conn.Close()
			eventually(t, "decode is cancelled", func() bool { s := c.decode[0].State(); return s.Aborted == 1 && s.Running == 0 })
			c.checkIdle(1)
		})
	}
}

// leavingBetween lets the client leave when prefill has answered and decode is not yet
// sent: its answer is held back until the gateway has seen that.
type leavingBetween struct {
	next    http.RoundTripper
	prefill string // host
	leave   func()
}

func (l leavingBetween) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := l.next.RoundTrip(req)
	if err != nil || req.URL.Host != l.prefill {
		return resp, err
	}
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil {
		return nil, err
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	l.leave()
	<-req.Context().Done()
	return resp, nil
}

// The third of the four moments: prefill is done, decode is not sent. Decode is never
// asked, the hand-off is counted as stranded, and prefill's lease frees it. Connectors
// whose legs run together have no such moment.
func TestCancel_BetweenPrefillAndDecode(t *testing.T) {
	t.Parallel()
	for _, connector := range []string{engine.ConnectorNIXL, engine.ConnectorNIXLPush, engine.ConnectorP2PNCCL, engine.ConnectorTRTLLM, engine.ConnectorStore} {
		t.Run(connector, func(t *testing.T) {
			engines := with(t, connector)
			c := newCluster(t, shape{prefill: 1, decode: 1, engine: func(cfg *engine.Config) { engines(cfg); cfg.Lease = 200 * time.Millisecond }})
			between := leavingBetween{next: c.node.orchestrator.Transport, prefill: strings.TrimPrefix(c.prefill[0].URL(), "http://")}
			client := make(chan net.Conn, 1)
			between.leave = func() { _ = (<-client).Close() }
			c.node.orchestrator.Transport = between
			for i, body := range []string{chatBody(""), chatBody(`,"stream":true`)} {
				client <- c.dialRequest(body)
				eventually(t, "it left", func() bool { return c.metric("tandem_requests_total", `outcome="client_gone"`) == float64(i+1) })
			}
			c.checkIdle(2)
			if s := c.prefill[0].State(); s.PrefillsDone != 2 {
				t.Errorf("%d prefills done", s.PrefillsDone)
			}
			if n := len(requests(c.decode, "/v1/chat/completions")); n != 0 {
				t.Errorf("decode was asked %d times", n)
			}
			if n := c.metric("tandem_handoffs_stranded_total"); n != 2 {
				t.Errorf("%v stranded hand-offs", n)
			}
			eventually(t, "prefill frees what decode does not fetch", func() bool { return c.prefill[0].State().HandoffsOpen == 0 })
		})
	}
}

func TestCancel_WhileItWaitsInTheQueue(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1, config: func(cfg *config) { cfg.pd.queue.MaxInFlight = 1 }})
	c.prefill[0].SetFault(engine.Fault{Kind: engine.FaultHangBeforeHeaders})
	first := c.dialRequest(chatBody(""))
	defer func() { _ = first.Close() }()
	eventually(t, "the first is in prefill", func() bool { return c.prefill[0].State().ServerLoad == 1 })
	second := c.dialRequest(chatBody(""))
	eventually(t, "the second waits", func() bool { return c.metric("tandem_waiting_requests") == 1 })
	_ = second.Close()
	eventually(t, "no request waits", func() bool { return c.metric("tandem_waiting_requests") == 0 })
	if n := c.prefill[0].State().ServerLoad; n != 1 {
		t.Errorf("%d prefills", n)
	}
}

// checkIdle checks that nothing is left of any request: no claim, no request in
// flight, no breaker hurt; and that as many clients as given were counted gone.
func (c *cluster) checkIdle(gone int) {
	c.t.Helper()
	eventually(c.t, "nothing is in flight", func() bool { return c.metric("tandem_in_flight_requests") == 0 })
	for _, s := range c.node.fleet.Servers() {
		for _, leg := range []pools.Role{pools.Prefill, pools.Decode} {
			if own := s.InFlight(leg, time.Now()); own != (pools.InFlight{}) {
				c.t.Errorf("%s: a lease leaked: %+v", s.ID(), own)
			}
			if state := s.Breaker(leg, time.Now()); state != breaker.Closed {
				c.t.Errorf("%s: clients that left opened the breaker: %s", s.ID(), state)
			}
		}
	}
	eventually(c.t, "clients that left are counted", func() bool {
		return c.metric("tandem_requests_total", `outcome="client_gone"`) >= float64(gone)
	})
}

// make cancels asks for 10,000.
var cancels = flag.Int("cancels", 500, "requests that TestCancel_ManyAtRandomLeaveNothing cancels")

func TestCancel_ManyAtRandomLeaveNothing(t *testing.T) {
	c := newCluster(t, shape{prefill: 2, decode: 2, engine: func(cfg *engine.Config) { cfg.TimeScale, cfg.Lease = 0.1, 2*time.Second }})
	if got := c.post("/v1/chat/completions", chatBody("")); got.status != 200 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	c.client.CloseIdleConnections()
	const atOnce = 25
	descriptors := openDescriptors(t)
	var clients sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for i := range *cancels {
		slots <- struct{}{}
		clients.Go(func() {
			defer func() { <-slots }()
			extra := `,"ignore_eos":true`
			if i%3 > 0 {
				extra += `,"stream":true`
			}
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			soon := func() { time.AfterFunc(rand.N(60*time.Millisecond), leave) }
			if i%5 == 0 {
				soon() // if need be before it has asked
			} else {
				ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { soon() }})
			}
			req, _ := http.NewRequestWithContext(ctx, http.MethodPost, c.base+"/v1/chat/completions", strings.NewReader(chatBodyOf(200, extra)))
			resp, err := c.client.Do(req)
			if err == nil {
				readResponse(resp)
			}
		})
	}
	clients.Wait()
	c.client.CloseIdleConnections()
	c.checkIdle(*cancels / 5)
	engines := append(c.prefill, c.decode...)
	eventually(t, "no engine has work", func() bool {
		return sum(engines, func(s engine.State) int { return s.Running + s.Waiting + s.ServerLoad }) == 0
	})
	eventually(t, "all hand-offs are pulled or expired", func() bool {
		return sum(c.prefill, func(s engine.State) int { return s.HandoffsOpen }) == 0
	})
	if out, queued := c.metric("tandem_breaker_ejections_total"), c.metric("tandem_waiting_requests"); out+queued != 0 {
		t.Errorf("%v ejections, %v requests wait", out, queued)
	}
	// Both legs of those at work at once may leave an idle connection, both of whose ends are here.
	eventually(t, "descriptors are closed", func() bool { return openDescriptors(t) <= descriptors+4*atOnce })
	// Idle connections of both HTTP sides stay for a while; nothing of a request may.
	eventually(t, "goroutines of requests end", func() bool {
		stacks := make([]byte, 4<<20)
		all := string(stacks[:runtime.Stack(stacks, true)])
		for _, idle := range []string{"(*Server).Serve(", "(*listener).Accept(", "connections.Accept", "(*clientConn).serve(", "(*clientConn).awaitRequest(", "(*clientConn).Read(", "(*clientWatch).follow(", "startClientWatch"} { // no request's
			all = strings.ReplaceAll(all, "tandem/gateway."+idle, "")
		}
		all = strings.ReplaceAll(all, "tandem/pd.(*Decider).Run(", "")
		return !strings.Contains(all, "tandem/gateway.") && !strings.Contains(all, "tandem/pd.")
	})
	if got := c.post("/v1/chat/completions", chatBody("")); got.status != 200 {
		t.Errorf("afterwards: %d %s", got.status, got.body)
	}
}

// openDescriptors is how many this process has.
func openDescriptors(t *testing.T) int {
	t.Helper()
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(open)
}

// chatBodyOf is chatBody with another bound on the answer.
func chatBodyOf(maxTokens int, extra string) string {
	return strings.Replace(chatBody(extra), `"max_tokens":24`, fmt.Sprintf(`"max_tokens":%d`, maxTokens), 1)
}

func TestDrain_StreamsFinishAndNewConnectionsAreRefused(t *testing.T) {
	t.Parallel()
	const tokens = 500 // of 6 ms each: the stream outlives what is looked at meanwhile
	c := newCluster(t, shape{prefill: 1, decode: 1,
		engine: func(cfg *engine.Config) { cfg.TimeScale = 1 },
		config: func(cfg *config) { cfg.drain.timeout = time.Minute },
	})
	conn := c.dialRequest(chatBodyOf(tokens, `,"stream":true,"ignore_eos":true`))
	defer func() { _ = conn.Close() }()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	drained := make(chan error, 1)
	go func() { drained <- c.stop() }()
	eventually(t, "the listener is closed", func() bool {
		probe, err := net.Dial("tcp", strings.TrimPrefix(c.base, "http://"))
		if err == nil {
			_ = probe.Close()
		}
		return err != nil
	})
	if ready := c.get("/readyz"); ready.status != 503 || !strings.Contains(ready.body, "draining") {
		t.Errorf("readyz while draining: %d %s", ready.status, ready.body)
	}
	got := readResponse(resp)
	if got.err != nil || len(got.events) < tokens || got.events[len(got.events)-1] != "[DONE]" {
		t.Errorf("%d events, %v", len(got.events), got.err)
	}
	if err := <-drained; err != nil {
		t.Errorf("drained with: %v", err)
	}
}

// What has not ended when the gateway must is told so: no stream ends as if it were whole.
func TestDrain_WhatOutlivesItsTimeoutEndsWithAnError(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 1,
		engine: func(cfg *engine.Config) { cfg.TimeScale = 1 },
		config: func(cfg *config) { cfg.drain.timeout = 4 * time.Second },
	})
	read := func(conn net.Conn) answer {
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return answer{err: err}
		}
		return readResponse(resp)
	}
	streaming := c.dialRequest(chatBodyOf(20000, `,"ignore_eos":true,"stream":true`))
	defer func() { _ = streaming.Close() }()
	eventually(t, "the stream has begun", func() bool { return c.metric("tandem_decode_first_event_seconds_count") == 1 })
	waiting := c.dialRequest(chatBodyOf(20000, `,"ignore_eos":true`))
	defer func() { _ = waiting.Close() }()
	streamed, whole := make(chan answer, 1), make(chan answer, 1)
	go func() { streamed <- read(streaming) }()
	go func() { whole <- read(waiting) }()
	eventually(t, "both run", func() bool { return c.decode[0].State().Running == 2 })
	if err := c.stop(); err != nil {
		t.Errorf("stopped with %v", err)
	}
	if got := <-streamed; got.status != 200 || got.err == nil || strings.Contains(got.body, "[DONE]") || !strings.Contains(got.body, "shutting down") {
		t.Errorf("the stream ended with %d, %v: %.300s", got.status, got.err, got.body[max(0, len(got.body)-300):])
	}
	if got := <-whole; got.status != 503 || got.header.Get("Retry-After") == "" {
		t.Errorf("the answer that was not streamed: %d, %v %s", got.status, got.err, got.body)
	}
}

func TestDrain_ConnectionsToTheAdminPortThatAreOnlyOpenDoNotDelayIt(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1})
	for _, said := range []string{"", "GET /met", "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(c.admin, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		_, _ = fmt.Fprint(conn, said)
	}
	eventually(t, "they are accepted", func() bool { return c.get("/livez").status == 200 })
	start := time.Now()
	if err := c.stop(); err != nil {
		t.Errorf("stopped with: %v", err)
	}
	if took := time.Since(start); took > 4*time.Second { // net/http alone waits 5 s for the silent one
		t.Errorf("the drain took %v", took)
	}
}
