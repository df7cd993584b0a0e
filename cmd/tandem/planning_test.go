package main

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"
)

// What clients ask for shows on the admin port within seconds, as JSON and as gauges.
func TestPlan_AdminPortSaysWhatIsWanted(t *testing.T) {
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
		fmt.Sprintf("tandem_pool_servers{model=%q,role=\"prefill\",state=\"ready\"} 1", testModel),
	} {
		if !strings.Contains(string(text), line) {
			t.Errorf("/metrics lacks %s", line)
		}
	}
}
