package serving

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/loadtest/engine"
)

// What clients ask for shows on the admin port within seconds, as JSON and as gauges.
func TestPlan_AdminPortSaysWhatIsWanted(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 1, config: func(cfg *config) { cfg.scaling.Every = 50 * time.Millisecond }})
	pool := func(query string) (int, gjson.Result) {
		answer, err := c.client.Get(c.admin + "/autoscale/v1/pool?" + query)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, gjson.ParseBytes(body)
	}
	for range 5 {
		answer, err := c.client.Post(c.base+"/v1/completions", "application/json",
			strings.NewReader(fmt.Sprintf(`{"model":%q,"prompt":%q,"max_tokens":4}`, testModel, strings.Repeat("river ", 500))))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, answer.Body)
		_ = answer.Body.Close()
	}
	eventuallyIn(t, 40*time.Second, "a bin of demand is over and something is wanted", func() bool {
		code, status := pool("role=prefill&model=" + testModel)
		if code != http.StatusOK && code != http.StatusServiceUnavailable {
			t.Fatalf("%d %s", code, status.Raw)
		}
		return code == http.StatusOK
	})
	if _, status := pool("role=prefill&model=" + testModel); status.Get("replicas").Int() != 1 {
		t.Errorf("one server is enough for this: %s", status.Raw)
	}
	if code, status := pool("role=decode&model=" + testModel); code != http.StatusOK || status.Get("replicas").Int() != 1 {
		t.Errorf("decode: %d %s", code, status.Raw)
	}
	if code, _ := pool("role=decode&model=other"); code != http.StatusServiceUnavailable {
		t.Errorf("a model that is not served: %d", code)
	}
	answer, err := c.client.Get(c.admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		fmt.Sprintf("tandem_desired_replicas{model=%q,role=\"prefill\"} 1", testModel),
		fmt.Sprintf("tandem_desired_replicas{model=%q,role=\"decode\"} 1", testModel),
		fmt.Sprintf("tandem_pool_servers{model=%q,role=\"prefill\",state=\"ready\",variant=\"\"} 1", testModel),
	} {
		if !strings.Contains(string(text), line) {
			t.Errorf("/metrics lacks %s", line)
		}
	}
}

// What waits in the gateway's queue is told as an engine would have told it, for scalers
// that go by that; and objectives that no server can keep are reported as missed.
func TestPlan_ReportsWhatWaitsInTheGateway(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 1,
		engine: func(e *engine.Config) { e.TimeScale = 4 }, // a prompt of 3,500 tokens takes a quarter of a second
		config: func(cfg *config) {
			cfg.scaling.Every = 50 * time.Millisecond
			cfg.pd.queue.MaxWait = time.Minute // more than a busy machine needs for all
			cfg.pd.TTFT.All, cfg.pd.ITL.All = time.Millisecond, time.Minute
		}})
	gauge := func(name, labels string) string {
		for line := range strings.Lines(c.get("/metrics").body) {
			if rest, ok := strings.CutPrefix(line, fmt.Sprintf("%s{model=%q%s} ", name, testModel, labels)); ok {
				return strings.TrimSpace(rest)
			}
		}
		return "absent"
	}
	var asked sync.WaitGroup
	defer asked.Wait()
	for i := range 16 {
		asked.Go(func() {
			body := fmt.Sprintf(`{"model":%q,"stream":true,"prompt":%q,"max_tokens":4}`, testModel, strings.Repeat(fmt.Sprintf("river%d ", i), 3500))
			if a := c.post("/v1/completions", body); a.status != http.StatusOK {
				t.Errorf("%d %s", a.status, a.body)
			}
		})
	}
	eventually(t, "requests wait for prefill", func() bool {
		waiting, err := strconv.ParseFloat(gauge("tandem_pool_waiting_requests", `,role="prefill"`), 64)
		return err == nil && waiting >= 4
	})
	asked.Wait()
	eventuallyIn(t, 40*time.Second, "a bin with their ends is over", func() bool {
		return gauge("tandem_slo_attainment_ratio", `,slo="ttft"`) == "0" && gauge("tandem_slo_attainment_ratio", `,slo="itl"`) == "1"
	})
	if waiting := gauge("tandem_pool_waiting_requests", `,role="prefill"`); waiting != "0" {
		t.Errorf("%s wait when all are answered", waiting)
	}
	for _, state := range []string{"used", "capacity"} {
		eventually(t, "the KV of decode servers is told: "+state, func() bool { // it is absent while their load is stale
			return gauge("tandem_pool_kv_"+state+"_tokens", `,role="decode",variant=""`) != "absent"
		})
	}
}

// What decode servers are planned for without an objective is none: no answer is judged by it, and no alert burns.
func TestPlan_JudgesNoObjectiveThatIsNotSet(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 1, config: func(cfg *config) {
		cfg.scaling.Every = 50 * time.Millisecond
		cfg.pd.TTFT.All = time.Minute
	}})
	if a := c.post("/v1/completions", fmt.Sprintf(`{"model":%q,"stream":true,"prompt":"river","max_tokens":4}`, testModel)); a.status != http.StatusOK {
		t.Fatalf("%d %s", a.status, a.body)
	}
	judged := func(slo string) bool {
		return strings.Contains(c.get("/metrics").body, fmt.Sprintf("tandem_slo_attainment_ratio{model=%q,slo=%q}", testModel, slo))
	}
	eventuallyIn(t, 40*time.Second, "a bin with its end is over", func() bool { return judged("ttft") })
	if judged("itl") {
		t.Error("answers are judged by an objective that nobody has set")
	}
}

// With hardware to choose from each kind has its own number, and their sum is the pool's.
func TestPlan_ChoosesTheHardware(t *testing.T) {
	t.Parallel()
	capacity := writeCapacity(t)
	c := newCluster(t, shape{prefill: 1, decode: 1, config: func(cfg *config) {
		cfg.scaling.Every = 50 * time.Millisecond
		cfg.scaling.hardware = []string{"big=" + capacity + ",cost=3,gpus=4", "small=" + capacity}
		for i := range cfg.servers[:2] {
			cfg.servers[i].specs[0].Variant = "big"
		}
		if err := cfg.readModels(); err != nil {
			t.Fatal(err)
		}
	}})
	answer := c.post("/v1/completions", fmt.Sprintf(`{"model":%q,"prompt":%q,"max_tokens":4}`, testModel, strings.Repeat("river ", 500)))
	if answer.status != http.StatusOK {
		t.Fatalf("%d %s", answer.status, answer.body)
	}
	wanted := func(query string) int64 {
		a := c.get("/autoscale/v1/pool?model=" + testModel + query)
		if a.status != http.StatusOK {
			return -1
		}
		return gjson.Get(a.body, "replicas").Int()
	}
	// A third of the cost is a reason to change, but no server goes before the other is there.
	eventuallyIn(t, 40*time.Second, "a bin of demand is over and something is wanted", func() bool { return wanted("&role=decode") == 2 })
	for query, want := range map[string]int64{
		"&role=decode&variant=small": 1, "&role=decode&variant=big": 1, "&role=decode&variant=other": -1,
		"&role=prefill&variant=small": 1, "&role=prefill": 2,
	} {
		if got := wanted(query); got != want {
			t.Errorf("%s: %d, want %d", query, got, want)
		}
	}
	text := c.get("/metrics").body
	for _, line := range []string{
		fmt.Sprintf("tandem_desired_variant_replicas{model=%q,role=\"decode\",variant=\"small\"} 1", testModel),
		fmt.Sprintf("tandem_pool_servers{model=%q,role=\"decode\",state=\"ready\",variant=\"big\"} 1", testModel),
		fmt.Sprintf("tandem_capacity_price_per_hour{model=%q,variant=\"small\",what=\"prefill\"}", testModel),
		fmt.Sprintf("tandem_variant_backlog_seconds{model=%q,role=\"decode\",variant=\"big\"} 0", testModel),
		fmt.Sprintf("tandem_variant_demand_tokens_per_second{model=%q,role=\"prefill\",variant=\"big\"} ", testModel),
	} {
		if !strings.Contains(text, line) {
			t.Errorf("/metrics lacks %s", line)
		}
	}
}
