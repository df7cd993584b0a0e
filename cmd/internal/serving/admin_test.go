package serving

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"
)

// What a page of another site makes an operator's browser ask changes and shows nothing.
func TestAdmin_APageOfAnotherSiteIsRefused(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1, config: func(cfg *config) { cfg.access.adminNames = []string{"tandem.example.com"} }})
	address := c.node.ports.operator.Addr().String()
	_, port, _ := net.SplitHostPort(address)
	for _, x := range []struct {
		method, path, host string
		headers            []string
		want               int
	}{
		{"GET", "/debug/servers", "", nil, 200},
		{"GET", "/metrics", "localhost:" + port, nil, 200},
		{"GET", "/metrics", "tandem:" + port, nil, 200},
		{"GET", "/metrics", "[::1]:" + port, nil, 200},
		{"GET", "/metrics", "tandem-admin.tandem.svc.cluster.local", nil, 200},
		{"GET", "/metrics", "tandem-admin.tandem.svc:8081", nil, 200},
		{"GET", "/metrics", "Tandem.Example.com:8081", nil, 200},
		{"GET", "/debug/servers", "rebound.example.com:" + port, nil, 403},
		{"GET", "/metrics", "127.0.0.1.example.com", nil, 403},
		{"GET", "/metrics", "evil.svc.example.com", nil, 403},
		{"GET", "/readyz", "rebound.example.com", nil, 200},
		{"GET", "/debug/servers", "", []string{"Sec-Fetch-Site", "none"}, 200},
		{"GET", "/debug/servers", "", []string{"Sec-Fetch-Site", "same-origin", "Origin", "http://" + address}, 200},
		{"GET", "/debug/servers", "", []string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"GET", "/debug/servers", "", []string{"Sec-Fetch-Site", "same-site"}, 403},
		{"POST", "/drain/nobody", "", []string{"Origin", "http://evil.example.com"}, 403},
		{"POST", "/drain/nobody", "", []string{"Origin", "null"}, 403},
		{"POST", "/drain/nobody", "", []string{"Sec-Fetch-Site", "cross-site", "Origin", "http://" + address}, 403},
		{"POST", "/drain/nobody", "", []string{"Origin", "http://" + address}, 404},
		{"POST", "/drain/nobody", "", nil, 404},
	} {
		req, err := http.NewRequestWithContext(t.Context(), x.method, c.admin+x.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = x.host
		for i := 0; i < len(x.headers); i += 2 {
			req.Header.Set(x.headers[i], x.headers[i+1])
		}
		resp, err := c.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if got := readResponse(resp); got.status != x.want {
			t.Errorf("%s %s of %q with %q: %d %s, want %d", x.method, x.path, x.host, x.headers, got.status, got.body, x.want)
		}
	}
}

// A connection that stays open would keep asking a gateway that goes.
func TestAdmin_ADrainEndsKeptConnections(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 1, config: func(cfg *config) { cfg.drain.delay = 2 * time.Second }})
	conn, err := net.Dial("tcp", c.node.ports.operator.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	in := bufio.NewReader(conn)
	ask := func() (status int, closed bool) {
		_, _ = fmt.Fprint(conn, "GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			return 0, true
		}
		return readResponse(resp).status, resp.Close
	}
	if status, closed := ask(); closed || status != 200 {
		t.Fatalf("before: %d, closed %v", status, closed)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- c.stop() }()
	eventually(t, "it is closed when it drains", func() bool {
		_, closed := ask()
		return closed
	})
	if !c.node.draining.Load() || len(stopped) > 0 {
		t.Error("it was closed before the drain, or by its end")
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if c.node.ports.admin.IdleTimeout != adminIdle {
		t.Error("idle connections stay for ever")
	}
}
