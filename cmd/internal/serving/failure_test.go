package serving

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/breaker"
)

// faultTimeouts make hanging legs end within a test.
func faultTimeouts(cfg *config) {
	cfg.pd.PrefillTimeout = 2 * time.Second // a healthy server needs some on a machine that is busy with other tests
	cfg.pd.FirstEventTimeout = 2 * time.Second
	cfg.pd.AnswerTimeout = 2 * time.Second
	cfg.pd.IdleTimeout = 2 * time.Second
	cfg.pools.ProbeInterval = 5 * time.Second // probes must not rescue a request
}

// faultsOfServers are those of a server of either role before the first byte, with any connector.
var faultsOfServers = []engine.Fault{
	{Kind: engine.FaultRefuse},
	{Kind: engine.FaultRefuse, Path: "/v1/chat/completions"}, // reads, then resets
	{Kind: engine.FaultStatus, Status: 500},
	{Kind: engine.FaultStatus, Status: 503},
	{Kind: engine.FaultHangBeforeHeaders},
	{Kind: engine.FaultHangAfterHeaders},
	{Kind: engine.FaultEmptyStream},
	{Kind: engine.FaultGarbageSSE},
}

// faultsOfPrefill are those of hand-offs: prefill answers well and holds nothing, or names what it does not hold.
var faultsOfPrefill = []engine.Fault{{Kind: engine.FaultDropHandoff}, {Kind: engine.FaultWrongHandoff}}

// withFault is a cluster of two servers of each role, of which the first of one has a fault. other are those of the
// other role.
func withFault(t *testing.T, role string, fault engine.Fault, engines func(*engine.Config)) (c *cluster, other []*engine.Engine) {
	t.Helper()
	c = newCluster(t, shape{prefill: 2, decode: 2, engine: engines, config: faultTimeouts})
	bad, other := c.prefill[0], c.decode
	if role == "decode" {
		bad, other = c.decode[0], c.prefill
	}
	bad.SetFault(fault)
	return c, other
}

// answersAsAlone sends the same chat four times, and wants the answer that one engine gives alone.
func (c *cluster) answersAsAlone(stream bool) {
	c.t.Helper()
	body := chatBody(fmt.Sprintf(`,"stream":%v`, stream))
	want := reference(c.t, "/v1/chat/completions", body).text()
	for i := range 4 {
		got := c.post("/v1/chat/completions", body)
		if got.status != 200 || got.err != nil || got.text() != want {
			c.t.Fatalf("request %d: status %d, %v: %.300s", i, got.status, got.err, got.body)
		}
	}
}

// With one healthy alternative, no fault of one server before the first byte
// costs the client an error, and the answer is the right one.
func TestFailure_OneBadServerCostsNoRequest(t *testing.T) {
	t.Parallel()
	ofBoth := slices.Concat(faultsOfServers, []engine.Fault{
		{Kind: engine.FaultStatus, Status: 502}, {Kind: engine.FaultStatus, Status: 429}, {Kind: engine.FaultDieAfterTokens, Tokens: 0},
	})
	for role, faults := range map[string][]engine.Fault{"prefill": slices.Concat(ofBoth, faultsOfPrefill), "decode": ofBoth} {
		for _, fault := range faults {
			for _, stream := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s%d%s/stream=%v", role, fault.Kind, fault.Status, fault.Path, stream), func(t *testing.T) {
					t.Parallel()
					c, _ := withFault(t, role, fault, nil)
					c.answersAsAlone(stream)
					neverTwice(t, c)
				})
			}
		}
	}
}

// neverTwice checks that no attempt reached one server twice on one leg, and
// that no hand-off was used twice: ids are minted per attempt.
func neverTwice(t *testing.T, c *cluster) {
	t.Helper()
	for _, e := range append(c.prefill, c.decode...) {
		seen := make(map[string]bool)
		for _, r := range e.State().Requests {
			if seen[r.RequestID] {
				t.Errorf("one server got the attempt %s twice", r.RequestID)
			}
			seen[r.RequestID] = true
		}
		if n := e.State().HandoffsRejectedByReason["already_pulled"]; n != 0 {
			t.Errorf("%d hand-offs were used twice", n)
		}
	}
}

// What the engine says of the request goes to the client as it is: no other server is
// asked, and none is held guilty. What says that the server is busy is another's turn.
func TestFailure_TheRequestsFaultIsTheEnginesAnswer(t *testing.T) {
	t.Parallel()
	for _, role := range []string{"prefill", "decode"} {
		for status, refused := range map[int]bool{400: true, 401: true, 403: true, 404: true, 413: true, 422: true, 408: false, 429: false, 503: false} {
			t.Run(fmt.Sprintf("%s/%d", role, status), func(t *testing.T) {
				t.Parallel()
				c := newCluster(t, shape{prefill: 2, decode: 2})
				engines := map[string][]*engine.Engine{"prefill": c.prefill, "decode": c.decode}[role]
				if refused {
					for _, e := range engines { // else one that is well may be chosen
						e.SetFault(engine.Fault{Kind: engine.FaultStatus, Status: status, Path: "/v1/chat/completions"})
					}
				} else {
					engines[0].SetFault(engine.Fault{Kind: engine.FaultStatus, Status: status, Path: "/v1/chat/completions"})
				}
				want, asked := status, 1
				if !refused {
					want = 200
				}
				got := c.post("/v1/chat/completions", chatBody(""))
				if got.status != want || refused && !gjson.Get(got.body, "error.message").Exists() {
					t.Errorf("%d %s", got.status, got.body)
				}
				if n := len(requests(engines, "/v1/chat/completions")); refused && n != asked {
					t.Errorf("%d servers were asked", n)
				}
				if n := c.metric("tandem_retries_total"); refused && n != 0 {
					t.Errorf("%v retries", n)
				}
				c.breakersAreClosed(engines)
			})
		}
	}
}

// An engine that ends a stream with an error has failed: the stream is continued, or the
// client is told, and the server is held guilty.
func TestFailure_AnErrorInAStream(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 2, config: func(cfg *config) { cfg.pd.RetryFloor = 1000 }})
	want := reference(t, "/v1/chat/completions", chatBody(`,"stream":true`))
	draw := rand.New(rand.NewPCG(1, 2)) // which of the two is used next is no matter of this test
	for tries := 0; c.metric("tandem_continuations_total", `outcome="continued"`) == 0; tries++ {
		if tries == 50 {
			t.Fatal("no stream was continued")
		}
		for _, e := range c.decode {
			e.ClearFaults()
		}
		c.decode[draw.IntN(2)].SetFault(engine.Fault{Kind: engine.FaultErrorAfterTokens, Tokens: 4, Count: 1})
		got := c.post("/v1/chat/completions", chatBody(`,"stream":true`))
		if got.err != nil || got.text() != want.text() {
			t.Errorf("%v %s", got.err, got.body)
		}
	}
	for _, e := range c.decode {
		e.SetFault(engine.Fault{Kind: engine.FaultErrorAfterTokens, Tokens: 4})
	}
	got := c.post("/v1/chat/completions", chatBody(`,"stream":true,"seed":7`))
	last := got.events[len(got.events)-1]
	if got.status != 200 || !gjson.Get(last, "error.message").Exists() || strings.Contains(got.body, "[DONE]") {
		t.Errorf("%d %q", got.status, got.events)
	}
	if n := c.metric("tandem_streams_broken_total"); n < 2 {
		t.Errorf("%v streams broke", n)
	}
}

func TestFailure_NoPrefillServerMeansDecodeAlone(t *testing.T) {
	c := newCluster(t, shape{prefill: 2, decode: 1, config: faultTimeouts})
	for _, e := range c.prefill {
		e.SetFault(engine.Fault{Kind: engine.FaultRefuse})
	}
	for range 5 {
		if got := c.post("/v1/chat/completions", chatBody("")); got.status != 200 || got.header.Get("X-Tandem-Prefill") != "" {
			t.Fatalf("%d, prefill %q: %s", got.status, got.header.Get("X-Tandem-Prefill"), got.body)
		}
	}
	if fallback, none := c.metric("tandem_aggregated_requests_total", `reason="fallback"`), c.metric("tandem_aggregated_requests_total", `reason="no_prefill"`); fallback < 1 || none < 1 || fallback+none != 5 {
		t.Errorf("%v fallbacks, %v without a prefill server", fallback, none)
	}
}

// Where disaggregation is enforced, a prompt that no pair can serve is refused at once,
// and the client told when to come again.
func TestFailure_EnforcedDisaggregationRefusesWhatNoPairCanServe(t *testing.T) {
	c := newCluster(t, shape{prefill: 2, decode: 1, config: func(cfg *config) {
		cfg.pd.EnforceDisaggregation = true
		cfg.cost.PairsFirst = false // decode alone is the cheaper one for a short prompt
	}})
	short := `{"model":"test-model","max_tokens":2,"messages":[{"role":"user","content":"hi"}]}`
	for _, body := range []string{short, chatBody(""), chatBody(`,"stream":true`)} {
		if got := c.post("/v1/chat/completions", body); got.status != 200 || got.header.Get("X-Tandem-Prefill") == "" {
			t.Errorf("%d, prefill %q: %s", got.status, got.header.Get("X-Tandem-Prefill"), got.body)
		}
	}
	if got := c.post("/v1/chat/completions", chatBody(`,"n":2`)); got.status != 200 {
		t.Errorf("several samples, which no pair can serve: %d %s", got.status, got.body)
	}
	c.prefill[0].SetFault(engine.Fault{Kind: engine.FaultWrongHandoff}) // a failed transfer means another pair
	for range 4 {
		if got := c.post("/v1/chat/completions", chatBody("")); got.status != 200 || got.header.Get("X-Tandem-Prefill") == "" {
			t.Errorf("%d, prefill %q: %s", got.status, got.header.Get("X-Tandem-Prefill"), got.body)
		}
	}
	for _, e := range c.prefill {
		e.SetFault(engine.Fault{Kind: engine.FaultRefuse})
	}
	eventually(t, "both are down", func() bool { return c.metric("tandem_server_up") == 1 })
	alone := c.decode[0].State().AggregatedDone
	fastest := time.Minute
	for range 10 {
		start := time.Now()
		got := c.post("/v1/chat/completions", chatBody(""))
		fastest = min(fastest, time.Since(start))
		if got.status != 503 || got.header.Get("Retry-After") == "" || gjson.Get(got.body, "error.code").String() == "" {
			t.Errorf("%d %v %s", got.status, got.header, got.body)
		}
	}
	if fastest > 500*time.Millisecond { // no request waits for servers
		t.Errorf("a refusal took %v", fastest)
	}
	if n := c.decode[0].State().AggregatedDone - alone; n != 0 {
		t.Errorf("decode computed %d prompts", n)
	}
}

// A prefill server whose KV connector is not set up answers well, and all of its work is
// done again by decode: it is left out.
func TestFailure_APrefillThatNeverHandsOverIsLeftOut(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1})
	c.prefill[0].SetFault(engine.Fault{Kind: engine.FaultDropHandoff})
	for range 10 {
		if got := c.post("/v1/chat/completions", chatBody("")); got.status != 200 {
			t.Fatalf("%d: %s", got.status, got.body)
		}
	}
	if n := c.prefill[0].State().PrefillsDone; n != 5 {
		t.Errorf("%d prompts were computed for nothing", n)
	}
	c.prefill[0].SetFault(engine.Fault{Kind: engine.FaultRefuse}) // it is started anew
	eventually(t, "it is down", func() bool { return c.metric("tandem_server_up") == 1 })
	c.prefill[0].ClearFaults()
	eventually(t, "it is asked again", func() bool {
		return c.post("/v1/chat/completions", chatBody("")).header.Get("X-Tandem-Prefill") != ""
	})
}

func TestFailure_ARefusedDecodeLeavesTheHandoffToAnother(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 2, config: faultTimeouts})
	c.decode[0].SetFault(engine.Fault{Kind: engine.FaultRefuse})
	for range 4 {
		if got := c.post("/v1/chat/completions", chatBody("")); got.status != 200 {
			t.Fatalf("%d: %s", got.status, got.body)
		}
	}
	if s := c.prefill[0].State(); s.PrefillsDone != 4 || s.HandoffsPulled != 4 {
		t.Errorf("%d prefills and %d pulled hand-offs for 4 requests", s.PrefillsDone, s.HandoffsPulled)
	}
	if s := c.decode[1].State(); s.Recomputed != 0 || s.AggregatedDone != 0 {
		t.Errorf("%d prompts computed again, %d alone", s.Recomputed, s.AggregatedDone)
	}
}

func TestFailure_AHandoffPastItsAgeIsNotUsed(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 2, config: func(cfg *config) {
		faultTimeouts(cfg)
		cfg.pd.HandoffAge = time.Nanosecond
	}})
	c.decode[0].SetFault(engine.Fault{Kind: engine.FaultRefuse})
	var retried bool
	for range 6 { // until the refused server is chosen first
		if got := c.post("/v1/chat/completions", chatBody("")); got.status != 200 {
			t.Fatalf("%d: %s", got.status, got.body)
		}
		retried = retried || c.metric("tandem_retries_total", `reason="unsent"`) > 0
	}
	if s := c.prefill[0].State(); retried && s.HandoffsPulled >= s.PrefillsDone {
		t.Errorf("%d prefills, %d pulled: an old hand-off was used", s.PrefillsDone, s.HandoffsPulled)
	}
}

func TestFailure_AKVLoadThatFailsIsDecodedAlone(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1, config: faultTimeouts, engine: func(cfg *engine.Config) { cfg.LoadFailure = engine.LoadFailureFail }})
	c.prefill[0].SetFault(engine.Fault{Kind: engine.FaultWrongHandoff})
	for _, body := range []string{chatBody(""), chatBody(`,"stream":true`)} {
		got := c.post("/v1/chat/completions", body)
		if got.status != 200 || got.text() != reference(t, "/v1/chat/completions", body).text() {
			t.Errorf("%d: %.300s", got.status, got.body)
		}
	}
	// The second may avoid the pair: the fault is charged to the link.
	if s := c.decode[0].State(); s.LoadFailures < 1 || s.AggregatedDone < 2 {
		t.Errorf("%d load failures, %d decoded alone", s.LoadFailures, s.AggregatedDone)
	}
	eventually(t, "a probe request clears decode", func() bool { return c.metric("tandem_probe_requests_total", `leg="decode"`, `outcome="passed"`) > 0 })
	if state := c.node.fleet.Servers()[1].Breaker(pools.Decode, time.Now()); state != breaker.Closed {
		t.Errorf("decode's breaker is %s for what the pair did", state)
	}
}

func TestFailure_ARecomputeIsSeenAndKeepsDecodesNumber(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1})
	body := chatBody(`,"stream":true,"stream_options":{"include_usage":true}`)
	c.post("/v1/chat/completions", body) // decode tells cached tokens: now absence means none
	c.prefill[0].SetFault(engine.Fault{Kind: engine.FaultWrongHandoff})
	other := strings.ReplaceAll(body, "bicycle", "tandem")
	if got := c.post("/v1/chat/completions", other); got.status != 200 {
		t.Fatalf("%d: %s", got.status, got.body)
	}
	if n := c.decode[0].State().Recomputed; n != 1 {
		t.Fatalf("the engine computed %d prompts again", n)
	}
	eventually(t, "the gateway saw it", func() bool { return c.metric("tandem_silent_recomputes_total") == 1 })
	c.prefill[0].ClearFaults()
	c.prefill[0].SetFault(engine.Fault{Kind: engine.FaultDropHandoff})
	if got := c.post("/v1/chat/completions", chatBody("")); got.status != 200 {
		t.Fatalf("%d: %s", got.status, got.body)
	}
	if got := c.metric("tandem_handoffs_missing_total"); got != 1 {
		t.Errorf("%v prefills without a hand-off", got)
	}
}

func TestFailure_AForcedToolIsNoVerdictOnPrefill(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1, engine: func(cfg *engine.Config) { cfg.ForcedToolPrefillFails = true }})
	forced := chatBody(`,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{}}}}],"tool_choice":"required"`)
	for range 10 {
		got := c.post("/v1/chat/completions", forced)
		if got.status != 200 || gjson.Get(got.body, "choices.0.message.tool_calls.0.function.name").String() != "f" {
			t.Fatalf("%d: %s", got.status, got.body)
		}
	}
	if state := c.node.fleet.Servers()[0].Breaker(pools.Prefill, time.Now()); state != breaker.Closed {
		t.Errorf("prefill's breaker is %s", state)
	}
	if got := c.post("/v1/chat/completions", chatBody("")); got.header.Get("X-Tandem-Prefill") == "" {
		t.Error("prefill is not used any more")
	}
}

// After the first byte a stream that breaks never ends cleanly: SDKs would take
// that for success.
func TestFailure_AStreamThatBreaksNeverEndsCleanly(t *testing.T) {
	t.Parallel()
	for _, api := range apis {
		if strings.Contains(api.name, "token ids") {
			continue
		}
		t.Run(api.name, func(t *testing.T) {
			c := newCluster(t, shape{prefill: 1, decode: 2})
			for _, e := range c.decode {
				e.SetFault(engine.Fault{Kind: engine.FaultDieAfterTokens, Tokens: 5})
			}
			body := streamed(api.body)
			got := c.post(api.path, body)
			want := reference(t, api.path, body)
			if got.status != 200 || got.text() == "" || !strings.HasPrefix(want.text(), got.text()) {
				t.Errorf("status %d, %q", got.status, got.text())
			}
			last := gjson.Parse(got.events[len(got.events)-1])
			if !last.Get("error.message").Exists() && last.Get("type").String() != "error" {
				t.Errorf("ends with %s", last.Raw)
			}
			if strings.Contains(got.body, "[DONE]") || got.err == nil {
				t.Errorf("ends cleanly: %v", got.err)
			}
			eventually(t, "it is counted", func() bool { return c.metric("tandem_requests_total", `outcome="broken_stream"`) == 1 })
			if n := c.metric("tandem_retries_total"); n != 0 {
				t.Errorf("%v retries after the first byte", n)
			}
		})
	}
}

func TestFailure_AStreamThatStandsStillIsEnded(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 1, config: faultTimeouts, engine: func(cfg *engine.Config) { cfg.TimeScale = 1 }})
	c.decode[0].SetFault(engine.Fault{Kind: engine.FaultSlow, Factor: 200}) // more than a second a token
	got := c.post("/v1/completions", `{"model":"test-model","stream":true,"max_tokens":50,"prompt":"hello"}`)
	if got.status == 200 && (got.err == nil || strings.Contains(got.body, "[DONE]")) {
		t.Errorf("ended with %d, %v: %s", got.status, got.err, got.body)
	}
}

func TestFailure_RetriesHaveABudget(t *testing.T) {
	c := newCluster(t, shape{prefill: 2, decode: 2, config: func(cfg *config) {
		cfg.pd.RetryFloor = 5
		cfg.pools.Breaker.Consecutive = 1 << 20 // breakers would end the retries first
		cfg.pools.Breaker.MinRequests = 1 << 20
	}})
	engines := append(c.prefill, c.decode...)
	for _, e := range engines {
		e.SetFault(engine.Fault{Kind: engine.FaultStatus, Status: 502})
	}
	const n = 100
	began := time.Now()
	for range n {
		if got := c.post("/v1/chat/completions", chatBody("")); got.status != 502 || gjson.Get(got.body, "error.code").String() != "engine_error" {
			t.Fatalf("%d: %s", got.status, got.body)
		}
	}
	attempts := sum(engines, func(s engine.State) int { return s.RequestsByPath["/v1/chat/completions"] })
	tens := 1 + int(time.Since(began)/(10*time.Second)) // of seconds, of which each has five
	if attempts > n*12/10+5*tens {
		t.Errorf("%d legs for %d requests", attempts, n)
	}
	if c.metric("tandem_retry_budget_exhausted_total") == 0 {
		t.Error("the budget was never spent")
	}
}

// A query of death must not go through the fleet server by server.
func TestFailure_ARequestThatKillsTwoServersIsQuarantined(t *testing.T) {
	c := newCluster(t, shape{prefill: 4, decode: 1, engine: func(cfg *engine.Config) { cfg.TimeScale = 1 }, config: func(cfg *config) {
		cfg.pools.ProbeInterval = time.Minute // nothing but the requests themselves tells of deaths
	}})
	for _, e := range c.prefill {
		e.SetFault(engine.Fault{Kind: engine.FaultHangBeforeHeaders})
	}
	killed := make(chan map[*engine.Engine]bool)
	stop := make(chan struct{})
	go func() { // whichever prefill has the request dies, as long as there is one
		dead := make(map[*engine.Engine]bool)
		for {
			select {
			case <-stop:
				killed <- dead
				return
			default:
			}
			for _, e := range c.prefill {
				if !dead[e] && len(requests([]*engine.Engine{e}, "/v1/chat/completions")) > 0 {
					// A process that dies closes its listener with its connections.
					e.SetFault(engine.Fault{Kind: engine.FaultRefuse})
					_ = e.Close()
					dead[e] = true
				}
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	body := chatBody("")
	got := c.post("/v1/chat/completions", body)
	close(stop)
	dead := <-killed
	if len(dead) != 2 {
		t.Errorf("%d servers died of it", len(dead))
	}
	if got.status != 422 || gjson.Get(got.body, "error.code").String() != "request_quarantined" {
		t.Errorf("%d %s", got.status, got.body)
	}
	for _, e := range c.prefill {
		if !dead[e] {
			e.ClearFaults()
		}
	}
	if again := c.post("/v1/chat/completions", body); again.status != 422 {
		t.Errorf("the same request again: %d", again.status)
	}
	if other := c.post("/v1/chat/completions", chatBody(`,"user":"another"`)); other.status != 200 {
		t.Errorf("another request: %d %s", other.status, other.body)
	}
	if n := c.metric("tandem_quarantined_requests"); n != 1 {
		t.Errorf("%v requests are in quarantine", n)
	}
	if list := c.get("/debug/suspects"); gjson.Get(list.body, "0.servers.#").Int() != 2 || strings.Contains(list.body, "bicycle") {
		t.Errorf("%s", list.body)
	}
}

// A process that is stopped keeps its connections: only probes tell. What it has not
// answered by then goes elsewhere, long before any timeout.
func TestFailure_AServerThatIsSilentGivesUpItsRequests(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 2, decode: 2, config: func(cfg *config) {
		cfg.pools.ProbeInterval = 50 * time.Millisecond
		cfg.pd.RetryFloor = 1000 // on a busy machine many are sent before one is seen to hang
	}})
	for _, silent := range []*engine.Engine{c.prefill[0], c.decode[0]} {
		silent.SetFault(engine.Fault{Kind: engine.FaultHangBeforeHeaders})
		answers := make(chan answer, 1000)
		asked := 0
		eventually(t, "requests hang", func() bool {
			// No more at once than a busy machine lets in.
			for _, body := range []string{chatBody(""), chatBody(`,"stream":true`)} {
				if asked-len(answers) < 20 && asked < cap(answers) {
					asked++
					go func() { answers <- c.post("/v1/chat/completions", body) }()
				}
			}
			return silent.State().ServerLoad > 0
		})
		silent.SetFault(engine.Fault{Kind: engine.FaultUnhealthy})
		for range asked {
			if got := <-answers; got.status != 200 || got.err != nil {
				t.Errorf("%d, %v: %.200s", got.status, got.err, got.body)
			}
		}
		silent.ClearFaults()
		eventually(t, "it is back", func() bool { return c.metric("tandem_server_up") == 4 })
	}
}

func TestFailure_ABusyServerIsLeftAlone(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 2})
	c.decode[0].SetFault(engine.Fault{Kind: engine.FaultStatus, Status: 503})
	began := time.Now()
	for range 12 {
		if got := c.post("/v1/chat/completions", chatBody("")); got.status != 200 {
			t.Fatalf("%d %s", got.status, got.body)
		}
	}
	pauses := 1 + int(time.Since(began)/time.Second) // in each it may be asked once
	if n := len(requests(c.decode[:1], "/v1/chat/completions")); n > pauses {
		t.Errorf("%d of 12 requests reached the busy server in %d pauses", n, pauses)
	}
	if state := c.node.fleet.Servers()[1].Breaker(pools.Decode, time.Now()); state != breaker.Closed {
		t.Errorf("its breaker is %s", state)
	}
}

func TestFailure_StreamsThatBreakEjectTheServer(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1})
	c.decode[0].SetFault(engine.Fault{Kind: engine.FaultDieAfterTokens, Tokens: 3})
	eventually(t, "it is ejected", func() bool {
		c.post("/v1/chat/completions", chatBody(`,"stream":true`))
		return c.metric("tandem_breaker_ejections_total", `leg="decode"`) >= 1
	})
}

func TestFailure_AFailedTransferIsChargedToItsLink(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1, engine: func(cfg *engine.Config) { cfg.LoadFailure = engine.LoadFailureFail }})
	transfer := func(id string) float64 {
		c.post("/v1/chat/completions", chatBody(""), "X-Request-Id", id)
		for _, a := range gjson.Get(c.get("/debug/decisions/"+id).body, "attempts.0.alternatives").Array() {
			if a.Get("prefill").String() != "" {
				return a.Get("transfer_ms").Float()
			}
		}
		t.Fatal("no pair was priced")
		return 0
	}
	before := transfer("before")
	for range 5 { // as many failures would open a breaker
		c.prefill[0].SetFault(engine.Fault{Kind: engine.FaultWrongHandoff, Count: 1})
		transfer("during")
	}
	if after := transfer("after"); after < 1.5*before {
		t.Errorf("a transfer is priced %.2f ms, before its failures %.2f", after, before)
	}
	if state := c.node.fleet.Servers()[1].Breaker(pools.Decode, time.Now()); state != breaker.Closed {
		t.Errorf("decode's breaker is %s", state)
	}
}

func TestFailure_RanksBehindOneAddressAreServersOfTheirOwn(t *testing.T) {
	e := startTestEngine(t, engine.RoleBoth, func(cfg *engine.Config) { cfg.DataParallel = 2 })
	zero, one := 0, 1
	c := newCluster(t, shape{config: func(cfg *config) {
		cfg.servers[0].add(serverEntry{URL: e.URL(), Rank: &zero})
		cfg.servers[1].add(serverEntry{URL: e.URL(), Rank: &one})
	}})
	eventually(t, "both ranks are up", func() bool { return c.metric("tandem_server_up") == 2 })
	got := c.post("/v1/chat/completions", chatBody(""))
	if got.status != 200 || !strings.HasSuffix(got.header.Get("X-Tandem-Prefill"), "/dp0") || !strings.HasSuffix(got.header.Get("X-Tandem-Decode"), "/dp1") {
		t.Errorf("%d %v", got.status, got.header)
	}
	for _, r := range e.State().Requests {
		if !slices.Contains(r.HeaderNames, "X-Data-Parallel-Rank") {
			t.Errorf("a leg named no rank: %v", r.HeaderNames)
		}
	}
	if s := e.State(); s.HandoffsPulled != 1 || s.Recomputed != 0 {
		t.Errorf("%d hand-offs pulled, %d recomputed", s.HandoffsPulled, s.Recomputed)
	}
}

// An engine stands still at its first transfer, or while it compiles, and a probe request does not
// come back. With no other server to ask, its requests wait for it: seen with vLLM on two CPUs,
// whose first hand-off over NIXL took eleven seconds and was given up after six.
func TestFailure_TheOnlyServerThatStandsStillIsWaitedFor(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 1,
		engine: func(cfg *engine.Config) { cfg.TimeScale = 1 },
		config: func(cfg *config) { cfg.pools.Breaker.Probe = 200 * time.Millisecond }})
	c.decode[0].SetFault(engine.Fault{Kind: engine.FaultSlow, Factor: 400}) // a step of some four seconds
	got := c.post("/v1/chat/completions", chatBodyOf(2, ""))
	if got.status != 200 || got.err != nil {
		t.Errorf("%d, %v: %s", got.status, got.err, got.body)
	}
	if failed := c.metric("tandem_probe_requests_total", `leg="decode"`, `outcome="failed"`); failed == 0 {
		t.Error("no probe request failed meanwhile")
	}
}
