package serving

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/cmd/internal/adminport"
	"github.com/tandem-gateway/tandem/cmd/internal/explain"
	"github.com/tandem-gateway/tandem/gateway"
	"github.com/tandem-gateway/tandem/gateway/live"
	"github.com/tandem-gateway/tandem/loadtest/redisserver"
)

// guardedReplicas are gateways in front of the same engines that share a Redis and a token of their
// admin ports, and know of each other.
func guardedReplicas(t *testing.T, names ...string) (replicas []*cluster, port func(*cluster) adminport.Port) {
	t.Helper()
	r := redisserver.Start(t)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("t0ken\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		engines := 1
		if len(replicas) > 0 {
			engines = 0 // the first one's
		}
		c := newCluster(t, shape{prefill: engines, decode: engines, config: func(cfg *config) {
			cfg.redis.addrs, cfg.redis.replica, cfg.access.adminTokenFile = []string{r.Addr()}, name, token
			if engines == 0 {
				cfg.servers[0].add(serverEntry{URL: replicas[0].prefill[0].URL()})
				cfg.servers[1].add(serverEntry{URL: replicas[0].decode[0].URL()})
			}
		}})
		replicas = append(replicas, c)
	}
	for i, c := range replicas {
		eventually(t, names[i]+" has its servers and knows the others", func() bool {
			return len(c.node.peers.Others()) == len(names)-1 && c.node.AwaitServers(t.Context(), 2) == nil
		})
	}
	return replicas, func(c *cluster) adminport.Port { return adminport.Port{Address: c.admin, TokenFile: token} }
}

// listedOf is which requests a list has, and which gateways decided on them.
func listedOf(list gateway.DecisionList) string {
	var all []string
	for _, d := range list.Decisions {
		all = append(all, d.RequestID+" "+d.Replica)
	}
	return strings.Join(all, ", ")
}

// Why a request went where it did any gateway says, whichever served it; without the token none does,
// and one that died is named where something may be missing.
func TestPeers_AnyGatewayAnswersForAll(t *testing.T) {
	replicas, port := guardedReplicas(t, "a", "b", "c")
	a, b, c := replicas[0], replicas[1], replicas[2]
	for i, r := range replicas {
		if got := r.post("/v1/chat/completions", chatBody(""), "X-Request-Id", fmt.Sprint("r", i)); got.status != 200 {
			t.Fatalf("status %d: %s", got.status, got.body)
		}
	}
	for _, r := range replicas {
		for i, by := range []string{"a", "b", "c"} {
			d, err := explain.Fetch(t.Context(), port(r), fmt.Sprint("r", i))
			if err != nil || d.Replica != by || len(d.Attempts) != 1 || len(d.Attempts[0].Alternatives) < 2 {
				t.Fatalf("r%d: %v %+v", i, err, d)
			}
		}
		list, err := explain.FetchAll(t.Context(), port(r), time.Hour, 10)
		if got := listedOf(list); err != nil || got != "r2 c, r1 b, r0 a" || len(list.Silent) > 0 || len(list.Decisions[0].Attempts[0].Alternatives) != 1 {
			t.Errorf("listed: %q, silent %v, %v", got, list.Silent, err)
		}
		if list, err := explain.FetchAll(t.Context(), port(r), time.Hour, 2); err != nil || listedOf(list) != "r2 c, r1 b" {
			t.Errorf("the newest two: %q, %v", listedOf(list), err)
		}
	}
	if got := a.get("/debug/decisions/r0?here"); got.status != 401 {
		t.Errorf("without the token: %d", got.status)
	}

	if err := c.stop(); err != nil {
		t.Fatal(err)
	}
	dead := fmt.Sprintf(`{"replica":"c","admin":%q}`, c.admin)
	if err := a.node.sharing.redis.HSet(t.Context(), "tandem:gateways", "c", dead).Err(); err != nil { // as if it had been killed
		t.Fatal(err)
	}
	eventually(t, "b knows of c still", func() bool { return len(b.node.peers.Others()) == 2 })
	_, err := explain.Fetch(t.Context(), port(b), "r2")
	if err == nil || !strings.Contains(err.Error(), "no answer of replica c") {
		t.Errorf("one that the dead gateway knows: %v", err)
	}
	list, err := explain.FetchAll(t.Context(), port(b), time.Hour, 10)
	if err != nil || listedOf(list) != "r1 b, r0 a" || !strings.Contains(list.Silent["c"], "refused") {
		t.Errorf("listed: %q, silent %v, %v", listedOf(list), list.Silent, err)
	}
}

// The live page of any gateway shows all of them: the work of each adds up, decisions name theirs, and
// a gateway that died is named with its reason while the page goes on. Links are those of all, too.
func TestPeers_TheLivePageIsOfAllGateways(t *testing.T) {
	replicas, port := guardedReplicas(t, "a", "b", "c")
	for i, r := range replicas {
		for range i + 1 {
			if got := r.post("/v1/chat/completions", chatBody(`,"stream":true`)); got.status != 200 {
				t.Fatalf("status %d: %s", got.status, got.body)
			}
		}
	}
	read := func(r *cluster) (s live.State) {
		if err := port(r).Get(t.Context(), "/ui/state", &s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	transfers := make([]uint64, len(replicas))
	for i, r := range replicas {
		var report live.Report
		if err := port(r).Get(t.Context(), "/ui/report", &report); err != nil {
			t.Fatal(err)
		}
		for _, p := range report.Links.Pairs {
			transfers[i] += p.Transfers
		}
	}
	all := transfers[0] + transfers[1] + transfers[2]
	b := replicas[1]
	eventually(t, "b shows the six answers of all", func() bool { return read(b).History.Lately.Answers == 6 })
	s := read(b)
	served, by := "", map[string]int{}
	for _, g := range s.Gateways {
		served += fmt.Sprint(g.Replica, g.Lately.Answers, g.Silent, " ")
	}
	for _, d := range s.Decisions {
		by[d.Gateway]++
	}
	if served != "a1 b2 c3 " || s.Gateway.Replica != "b" || by["a"] != 1 || by["b"] != 2 || by["c"] != 3 || len(s.Models) != 1 || s.Models[0].Answers != 6 {
		t.Errorf("served %s, decisions %v, models %+v", served, by, s.Models)
	}
	if len(s.Servers) != 2 || len(s.Links.Pairs) != 1 || s.Links.Pairs[0].Transfers != all {
		t.Errorf("servers %+v\nlinks %+v", s.Servers, s.Links)
	}
	var links live.LinkList
	if err := port(b).Get(t.Context(), "/debug/links", &links); err != nil || len(links.Pairs) != 1 || links.Pairs[0].Transfers != all || len(links.Silent) > 0 {
		t.Errorf("%v: links %+v", err, links)
	}
	if got := b.get("/ui/report"); got.status != 401 {
		t.Errorf("without the token: %d", got.status)
	}

	c := replicas[2]
	if err := c.stop(); err != nil {
		t.Fatal(err)
	}
	dead := fmt.Sprintf(`{"replica":"c","admin":%q}`, c.admin)
	if err := replicas[0].node.sharing.redis.HSet(t.Context(), "tandem:gateways", "c", dead).Err(); err != nil { // as if it had been killed
		t.Fatal(err)
	}
	eventually(t, "b says that c does not answer", func() bool {
		s = read(b)
		return len(s.Gateways) == 3 && strings.Contains(s.Gateways[2].Silent, "refused")
	})
	if s.History.Lately.Answers != 3 || s.Links.Pairs[0].Transfers != all-transfers[2] {
		t.Errorf("without c %+v, links %+v", s.History.Lately, s.Links.Pairs)
	}
}

// What cannot be listed is said.
func TestPeers_ListsAskForWhatThereCanBe(t *testing.T) {
	c := newCluster(t, shape{})
	for query, want := range map[string]string{
		"limit=0": "from 1 to 10000", "limit=10001": "from 1 to 10000", "limit=x": "from 1 to 10000", "alternatives=0": "from 1 to 64", "alternatives=65": "from 1 to 64",
		"limit=201&alternatives=2": "at most 200", "since=-1m": "duration", "since=1": "duration",
	} {
		if got := c.get("/debug/decisions?" + query); got.status != 400 || !strings.Contains(got.body, want) {
			t.Errorf("%s: %d %s", query, got.status, got.body)
		}
	}
	if got := c.get("/debug/decisions?limit=200&alternatives=64&since=10m"); got.status != 200 || !strings.Contains(got.body, `"decisions": []`) {
		t.Errorf("%d %s", got.status, got.body)
	}
}
