package serving

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/cmd/internal/adminport"
	"github.com/tandem-gateway/tandem/cmd/internal/explain"
	"github.com/tandem-gateway/tandem/cmd/internal/top"
	"github.com/tandem-gateway/tandem/gateway/live"
	"github.com/tandem-gateway/tandem/loadtest/engine"
)

// A client that leaves before its first token is no failure: explain, top and the live page say that it left.
func TestLeft_AClientThatLeavesBeforeTheFirstTokenIsNoFailure(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct{ prefill, decode int }{"prefill": {1, 1}, "alone": {0, 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, shape{prefill: x.prefill, decode: x.decode})
			asked := append(c.prefill, c.decode...)[0]
			asked.SetFault(engine.Fault{Kind: engine.FaultHangBeforeHeaders})
			for i, extra := range []string{"", `,"stream":true`} {
				conn := c.dialRequest(chatBody(extra))
				eventually(t, "the engine is asked", func() bool { return asked.State().ServerLoad == 1 })
				_ = conn.Close()
				eventually(t, "it left", func() bool { return c.metric("tandem_requests_total", `outcome="client_gone"`) == float64(i+1) })
			}
			state := c.raw(http.MethodGet, c.admin+"/ui/state").body
			if got := gjson.Get(state, "decisions.#.outcome").String(); got != `["client left","client left"]` {
				t.Errorf("the page says %s", got)
			}
			var drawn live.State
			if err := json.Unmarshal([]byte(state), &drawn); err != nil {
				t.Fatal(err)
			}
			view := strings.Join(top.Draw(&drawn, top.Size{}, false), "\n")
			if !strings.Contains(view, " 0 failed;") || strings.Count(view, " client left ") != 2 {
				t.Errorf("top says\n%s", view)
			}
			list, err := explain.FetchAll(t.Context(), adminport.Port{Address: c.admin}, time.Hour, 10)
			if err != nil || len(list.Decisions) != 2 {
				t.Fatalf("%v %+v", err, list)
			}
			for _, d := range list.Decisions {
				_, text := c.explained(d.RequestID)
				if n := strings.Count(strings.Join(strings.Fields(text), " "), ": client left"); n != 2 || strings.Contains(text, "canceled") {
					t.Errorf("of the request and its attempt %d say it:\n%s", n, text)
				}
			}
		})
	}
}
