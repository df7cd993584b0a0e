package serving

import (
	"bufio"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/pd"
)

// admission is a cluster that binds late, with keys, whose only prefill server has a
// prompt of so many thousand tokens that it does not answer until first is closed. What is
// believed of its speed makes waits so long that what a busy machine adds is little.
func admission(t *testing.T, ahead int, change func(*config)) (c *cluster, first net.Conn) {
	t.Helper()
	realTime := func(cfg *engine.Config) { cfg.TimeScale = 1 }
	keys := withKeys(t, "sk-low tenant=low class=batch may-set=[deadline]", "sk-high tenant=high class=interactive",
		"sk-ada tenant=ada", "sk-bob tenant=bob")
	c = newCluster(t, shape{prefill: 1, decode: 1, engine: realTime, config: func(cfg *config) {
		keys(cfg)
		believe(cfg, patient)
		cfg.pd.binding, cfg.pd.queue.MaxWait = pd.Late, 5*time.Minute
		if change != nil {
			change(cfg)
		}
	}})
	c.prefill[0].SetFault(engine.Fault{Kind: engine.FaultHangBeforeHeaders, Count: 1})
	first = c.dialRequestAs("sk-high", promptOf(ahead, ""))
	t.Cleanup(func() { _ = first.Close() })
	eventually(t, "the first is in prefill", func() bool { return c.prefill[0].State().ServerLoad == 1 })
	return c, first
}

// ask sends a request with a prompt of so many thousand tokens. Its client leaves at the
// end of the test.
func (c *cluster) ask(key string, thousands int, headers ...string) <-chan answer {
	c.t.Helper()
	req, err := http.NewRequest(http.MethodPost, c.base+chatPath, strings.NewReader(promptOf(thousands, "")))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+key)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	conn, err := net.Dial("tcp", req.URL.Host)
	if err != nil {
		c.t.Fatal(err)
	}
	answered, ended := make(chan answer, 1), make(chan struct{})
	c.t.Cleanup(func() {
		_ = conn.Close()
		<-ended
	})
	if err := req.Write(conn); err != nil {
		c.t.Fatal(err)
	}
	go func() {
		defer close(ended)
		if resp, err := http.ReadResponse(bufio.NewReader(conn), req); err == nil {
			answered <- readResponse(resp)
		}
	}()
	return answered
}

// askAndWait is ask, for one that is to wait as the nth.
func (c *cluster) askAndWait(n float64, key string, thousands int, headers ...string) <-chan answer {
	c.t.Helper()
	answered := c.ask(key, thousands, headers...)
	eventually(c.t, "it waits", func() bool { return c.metric("tandem_waiting_requests") == n })
	return answered
}

// refusedForCapacity checks what a client gets that is refused for lack of capacity.
func refusedForCapacity(t *testing.T, name string, got answer, code string) {
	t.Helper()
	if got.status != 503 || gjson.Get(got.body, "error.code").String() != code || got.header.Get("Retry-After") == "" ||
		got.header.Get("Retry-After-Ms") == "" || got.header.Get("X-Should-Retry") != "" {
		t.Errorf("%s: %d %v %s", name, got.status, got.header, got.body)
	}
}

func TestAdmission_WhatCannotBeInTimeIsRefusedAtOnce(t *testing.T) {
	c, _ := admission(t, 100, nil) // some 20 s
	start := time.Now()
	got := <-c.ask("sk-low", 10, "X-Tandem-Deadline-Ms", "12000")
	refusedForCapacity(t, "less time than the prefill ahead takes", got, "deadline_unreachable")
	if took := time.Since(start); took > 8*time.Second {
		t.Errorf("it was told after %v of 12 s", took)
	}
	c.askAndWait(1, "sk-low", 10, "X-Tandem-Deadline-Ms", "240000")
}

// Low ones wait, as many as may. A higher class takes the place of the newest. Which bound refused is counted.
func TestAdmission_AHigherClassTakesThePlaceOfWhoWaitsForServers(t *testing.T) {
	bounds := map[string]func(*config){
		"max_waiting": func(cfg *config) { cfg.pd.queue.MaxWaiting = 3 },
		"max_held": func(cfg *config) {
			cfg.pd.queue.MaxBytes = int64(len(promptOf(60, "")) + 3*len(promptOf(6, "")) + 1000)
		},
	}
	for name, bound := range bounds {
		t.Run(name, func(t *testing.T) {
			c, first := admission(t, 60, bound)
			displaceNewest(t, c)
			if of, all := c.metric("tandem_overloaded_requests_total", `cause="`+name+`"`), c.metric("tandem_overloaded_requests_total"); of != 1 || all != 1 {
				t.Errorf("counted by cause: %v of %v", of, all)
			}
			_ = first.Close()
			eventually(t, "the rest went", func() bool { return c.metric("tandem_waiting_requests") == 0 })
			c.checkIdle(1)
		})
	}
}

// displaceNewest fills three places with requests of the lowest class, of 6,000 tokens.
func displaceNewest(t *testing.T, c *cluster) {
	t.Helper()
	var low []<-chan answer
	for i := range 3 {
		low = append(low, c.askAndWait(float64(i+1), "sk-low", 6))
	}
	refusedForCapacity(t, "a fourth", <-c.ask("sk-low", 6), "overloaded")
	high := c.ask("sk-high", 6)
	refusedForCapacity(t, "the newest", <-low[2], "overloaded")
	eventually(t, "it is counted", func() bool { return c.metric("tandem_displaced_requests_total") == 1 })
	select {
	case got := <-high:
		t.Errorf("the high one: %d %s", got.status, got.body)
	case got := <-low[0]:
		t.Errorf("the oldest: %d %s", got.status, got.body)
	default:
	}
	eventually(t, "the high one waits in its place", func() bool { return c.metric("tandem_waiting_requests") == 3 })
}

// With several replicas each bounds what it holds itself; the one that decides forgets
// that another displaces.
func TestAdmission_AFollowersRequestsAreDisplacedToo(t *testing.T) {
	keys := withKeys(t, "sk-low tenant=low class=batch", "sk-high tenant=high class=interactive")
	a, b, first := deciders(t, func(cfg *config) {
		keys(cfg)
		cfg.pd.queue.MaxWaiting = 3
	})
	displaceNewest(t, b)
	_ = first.Close()
	eventually(t, "the rest went", func() bool { return len(requests(a.prefill, chatPath)) == 4 })
	b.checkIdle(1)
}

// A higher class that takes the time which one of a lower class was promised.
func TestAdmission_WhatWouldBeLateForAHigherClassIsRefusedAtOnce(t *testing.T) {
	c, _ := admission(t, 100, nil)
	low := c.askAndWait(1, "sk-low", 30, "X-Tandem-Deadline-Ms", "48000")
	start := time.Now()
	for n := 2.0; len(low) == 0 && n < 6; n++ {
		c.ask("sk-high", 100)
		eventually(t, "it waits, or the low one does not", func() bool { return len(low) == 1 || c.metric("tandem_waiting_requests") == n })
	}
	refusedForCapacity(t, "the low one", <-low, "overloaded")
	if took := time.Since(start); took > 40*time.Second {
		t.Errorf("it was told after %v of 48 s", took)
	}
	if n := c.metric("tandem_displaced_requests_total"); n != 1 {
		t.Errorf("%v displaced", n)
	}
}

// One tenant cannot keep another out: the one with more waiting gives a place to the one with less.
func TestAdmission_ATenantOverItsShareGivesWay(t *testing.T) {
	c, _ := admission(t, 60, func(cfg *config) { cfg.pd.queue.MaxWaiting = 4 })
	var ada []<-chan answer
	for i := range 4 {
		ada = append(ada, c.askAndWait(float64(i+1), "sk-ada", 6))
	}
	bob := make([]<-chan answer, 2)
	for i, name := range []string{"ada's newest", "ada's next"} {
		bob[i] = c.ask("sk-bob", 6)
		refusedForCapacity(t, name, <-ada[3-i], "overloaded")
		// Past the queue and not yet at the servers, it takes no other's place.
		eventually(t, "it waits in that place", func() bool { return c.metric("tandem_waiting_requests") == 4 })
	}
	refusedForCapacity(t, "bob's third", <-c.ask("sk-bob", 6), "overloaded")
	if len(ada[0])+len(ada[1])+len(bob[0])+len(bob[1]) > 0 {
		t.Error("one of the others was answered")
	}
}
