package serving

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"
)

// An engine that lists very many models makes no page quadratic: what is known of one
// server is bounded, and each name is looked at once.
func TestEdge_AnEngineThatListsVeryManyModels(t *testing.T) {
	const listed, known = 20_000, 4096
	data := make([]map[string]any, listed)
	for i := range data {
		data[i] = map[string]any{"id": fmt.Sprintf("model-%05d", i), "object": "model", "owned_by": "other"}
	}
	data[0]["id"] = testModel
	data[1]["id"] = strings.Repeat("x", 100_000)
	list, err := json.Marshal(map[string]any{"object": "list", "data": data})
	if err != nil {
		t.Fatal(err)
	}
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/health":
		case "/v1/models":
			_, _ = w.Write(list)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(engine.Close)
	c := newCluster(t, shape{prefill: 1, decode: 1, config: func(cfg *config) { cfg.servers[2].add(serverEntry{URL: engine.URL}) }})
	eventually(t, "the engine's list is known", func() bool { return len(c.node.fleet.Models()) == known })
	start := time.Now()
	page := c.raw(http.MethodGet, c.base+"/v1/models")
	if n := len(gjson.Get(page.body, "data").Array()); page.status != 200 || n != known || strings.Contains(page.body, "xxxxx") {
		t.Errorf("/v1/models: %d with %d models", page.status, n)
	}
	if got := c.get("/metrics"); got.status != 200 || strings.Count(got.body, "tandem_pool_panic{") != 2*known {
		t.Errorf("/metrics: %d with %d pools", got.status, strings.Count(got.body, "tandem_pool_panic{"))
	}
	for range 20 {
		if got := c.post(chatPath, strings.Replace(chatBody(""), testModel, "nobody's", 1)); got.status != 404 {
			t.Errorf("an unknown model: %d", got.status)
		}
	}
	if took := time.Since(start); took > 20*time.Second { // under a second where nothing is quadratic
		t.Errorf("the pages took %v", took)
	}
}
