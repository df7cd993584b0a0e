package serving

import (
	"net"
	"slices"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/loadtest/redisserver"
	"github.com/tandem-gateway/tandem/pd"
)

// deciders are two replicas that bind late, one pair of engines behind them, of which
// the prefill server is kept busy until first is closed. The first replica decides.
func deciders(t *testing.T, change func(*config)) (a, b *cluster, first net.Conn) {
	t.Helper()
	r := redisserver.Start(t)
	shared := func(cfg *config) {
		cfg.redis.addrs = []string{r.Addr()}
		cfg.pd.binding = pd.Late
		cfg.decider.patience = 10 * time.Second // a busy machine is no death
		if change != nil {
			change(cfg)
		}
	}
	realTime := func(cfg *engine.Config) { cfg.TimeScale = 1 }
	a = newCluster(t, shape{prefill: 1, decode: 1, engine: realTime, config: shared})
	eventually(t, "a decides", a.node.sharing.decider.follower.Leads)
	b = newCluster(t, shape{config: func(cfg *config) {
		shared(cfg)
		cfg.servers[0].add(serverEntry{URL: a.prefill[0].URL()})
		cfg.servers[1].add(serverEntry{URL: a.decode[0].URL()})
	}})
	eventually(t, "b follows", func() bool { return b.metric("tandem_leader_followed") == 1 && b.metric("tandem_server_up") == 2 })
	a.prefill[0].SetFault(engine.Fault{Kind: engine.FaultHangBeforeHeaders, Count: 1})
	first = b.dialRequestAs("sk-high", promptOf(30, ""))
	eventually(t, "the first is in prefill", func() bool { return a.prefill[0].State().ServerLoad == 1 })
	return a, b, first
}

func TestDecider_WhoeverIsShortestGoesFirstOverAllReplicas(t *testing.T) {
	a, b, first := deciders(t, nil)
	at := []*cluster{b, a, b, a}
	// Each takes more than a server may have ahead of it when the next one goes.
	for i, thousands := range []int{24, 8, 18, 12} {
		conn := at[i].dialRequest(promptOf(thousands, ""))
		defer func() { _ = conn.Close() }()
		eventually(t, "it waits", func() bool {
			return a.metric("tandem_waiting_requests")+b.metric("tandem_waiting_requests") == float64(i+1)
		})
	}
	if n := a.prefill[0].State().ServerLoad; n != 1 {
		t.Errorf("%d requests in prefill while others wait", n)
	}
	_ = first.Close()
	eventually(t, "all went", func() bool { return len(requests(a.prefill, "/v1/chat/completions")) == 5 })
	var sizes []int
	for _, r := range requests(a.prefill, "/v1/chat/completions")[1:] {
		sizes = append(sizes, r.BodyBytes)
	}
	if !slices.IsSorted(sizes) {
		t.Errorf("prompts in the order of their going: %d bytes", sizes)
	}
	if turns := a.metric("tandem_leader_remote_requests_total"); turns != 2 && turns != 3 {
		t.Errorf("%v turns of the other replica, want those of the two that waited, and perhaps the first one's", turns)
	}
	eventually(t, "nothing is left on the books", func() bool {
		now := time.Now()
		for _, c := range []*cluster{a, b} {
			for _, s := range c.node.fleet.Servers() {
				if s.OwnInFlight(s.Role, now).Requests > 0 {
					return false
				}
			}
		}
		return true
	})
}

func TestDecider_OneThatDiesLosesNoWaitingRequest(t *testing.T) {
	t.Parallel()
	a, b, first := deciders(t, nil)
	const waiting = 20
	answers := make(chan int, waiting)
	for i := range waiting {
		go func() { answers <- b.post("/v1/chat/completions", promptOf(1+i%3, "")).status }()
	}
	eventually(t, "they wait", func() bool { return b.metric("tandem_waiting_requests") == waiting })
	began := time.Now()
	a.node.sharing.decider.grpc.Stop()
	eventually(t, "no request waits for it", func() bool { return b.metric("tandem_leader_fallbacks_total") == waiting })
	t.Logf("all were bound %v after the decider was gone", time.Since(began))
	_ = first.Close()
	for range waiting {
		if status := <-answers; status != 200 {
			t.Fatalf("status %d", status)
		}
	}
}
