package serving

import (
	"bufio"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/loadtest/engine"
)

// newPod has a prefill server, and a pod of four decode ranks at ports of their own. A
// group makes them step together.
func newPod(t *testing.T, group string, change func(*config)) (*cluster, *engine.Engine) {
	pod := startTestEngine(t, engine.RoleDecode, func(cfg *engine.Config) {
		cfg.DataParallel, cfg.RankPorts, cfg.Lockstep, cfg.TimeScale = 4, true, group != "", 0.2
	})
	c := newCluster(t, shape{prefill: 1, config: func(cfg *config) {
		for rank := range 4 {
			cfg.servers[1].add(serverEntry{URL: pod.RankURL(rank), Group: group})
		}
		cfg.pd.MaxRetries, cfg.pd.ContinueStreams = 2, false // what a rank takes with it is to be seen
		if change != nil {
			change(cfg)
		}
	}})
	eventually(t, "all are up", func() bool { return c.metric("tandem_server_up") >= 5 })
	return c, pod
}

// openStreams opens long streams until each of the ranks has one, and returns them by
// rank.
func (c *cluster) openStreams() map[string][]*http.Response {
	c.t.Helper()
	streams := make(map[string][]*http.Response)
	for n := 0; len(streams) < 4; n++ {
		conn := c.dialRequest(chatBodyOf(20000, `,"stream":true,"ignore_eos":true`))
		c.t.Cleanup(func() { _ = conn.Close() })
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			c.t.Fatal(err)
		}
		rank := resp.Header.Get("X-Tandem-Decode")
		if resp.StatusCode != 200 || n > 40 {
			c.t.Fatalf("stream %d: %d from %q", n, resp.StatusCode, rank)
		}
		streams[rank] = append(streams[rank], resp)
	}
	return streams
}

// brokenStream reads a stream to its end, which must be an error event.
func brokenStream(t *testing.T, resp *http.Response) {
	t.Helper()
	done := make(chan answer, 1)
	go func() { done <- readResponse(resp) }()
	select {
	case got := <-done:
		if last := got.events[len(got.events)-1]; !gjson.Get(last, "error").Exists() {
			t.Errorf("a stream ended with %q", last)
		}
	case <-time.After(30 * time.Second):
		t.Error("a stream hangs")
	}
}

func TestRanks_OneThatDiesIsOutAlone(t *testing.T) {
	c, pod := newPod(t, "", nil)
	streams := c.openStreams()
	pod.SetFault(engine.Fault{Kind: engine.FaultRankDies, Rank: new(2)})
	dead := strings.TrimPrefix(pod.RankURL(2), "http://")
	for _, resp := range streams[dead] {
		brokenStream(t, resp)
	}
	delete(streams, dead)
	for range 12 {
		got := c.post("/v1/chat/completions", chatBody(""))
		if got.status != 200 || got.header.Get("X-Tandem-Decode") == dead {
			t.Errorf("%d from %s", got.status, got.header.Get("X-Tandem-Decode"))
		}
	}
	for rank, all := range streams {
		lines := bufio.NewScanner(all[0].Body)
		for range 50 {
			if !lines.Scan() {
				t.Fatalf("the stream of %s ended with that of another rank: %v", rank, lines.Err())
			}
		}
	}
	eventually(t, "all others are up", func() bool { return c.metric("tandem_server_up") == 4 })
}

// The ranks of a group hang when one dies, with good health: nothing but the group says
// that their streams are lost.
func TestGroup_LosingOneRankEndsAllItsStreams(t *testing.T) {
	t.Parallel()
	c, pod := newPod(t, "pod-1", nil)
	streams := c.openStreams()
	pod.SetFault(engine.Fault{Kind: engine.FaultRankDies, Rank: new(2)})
	for _, all := range streams {
		for _, resp := range all {
			brokenStream(t, resp)
		}
	}
	eventually(t, "nothing of the streams is left", func() bool {
		return c.metric("tandem_in_flight_requests") == 0 && sum([]*engine.Engine{pod, c.prefill[0]}, func(s engine.State) int {
			return s.Running + s.Waiting + s.HandoffsOpen + s.ServerLoad
		}) == 0
	})
	if got := c.post("/v1/chat/completions", chatBody("")); got.status != 503 {
		t.Errorf("with a rank down the group took a request: %d %s", got.status, got.body)
	}
	pod.ClearFaults()
	eventually(t, "the group is back", func() bool { return c.post("/v1/chat/completions", chatBody("")).status == 200 })
}

// What has not begun goes elsewhere, and prefill's KV for it is freed or used.
func TestGroup_RequestsThatWaitGoElsewhere(t *testing.T) {
	t.Parallel()
	var other *engine.Engine
	c, pod := newPod(t, "pod-1", func(cfg *config) {
		other = startTestEngine(t, engine.RoleDecode, nil)
		cfg.servers[1].add(serverEntry{URL: other.URL()})
	})
	eventually(t, "all are up", func() bool { return c.metric("tandem_server_up") == 6 })
	pod.SetFault(engine.Fault{Kind: engine.FaultRankDies, Rank: new(0)})
	for range 20 {
		if got := c.post("/v1/chat/completions", chatBody("")); got.status != 200 {
			t.Errorf("%d %s", got.status, got.body)
		}
	}
	// What decode does not fetch is freed by the engine's lease of half a minute.
	eventuallyIn(t, time.Minute, "prefill holds nothing", func() bool { return c.prefill[0].State().HandoffsOpen == 0 })
}

func TestGroup_DrainsTogether(t *testing.T) {
	t.Parallel()
	c, _ := newPod(t, "pod-1", func(cfg *config) { cfg.servers[1].specs[3].Drain = true })
	if got := c.post("/v1/chat/completions", chatBody("")); got.status != 503 {
		t.Errorf("%d from %s while one of the group drains", got.status, got.header.Get("X-Tandem-Decode"))
	}
}
