package serving

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/autoscale/keda"
	"github.com/tandem-gateway/tandem/gateway"
	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/pd/scalefromzero"
	"github.com/tandem-gateway/tandem/pools"
)

// toZero is a cluster whose servers may go to zero, and have gone: what the gateway
// has decided about its models is older.
func toZero(t *testing.T, change func(*config), engines ...func(*engine.Config)) (c *cluster, servers []pools.Spec) {
	t.Helper()
	setUp := func(cfg *engine.Config) {
		for _, each := range engines {
			each(cfg)
		}
	}
	c = newCluster(t, shape{prefill: 1, decode: 1, engine: setUp, config: func(cfg *config) {
		cfg.pd.hold.MaxWait = time.Minute
		cfg.scaling.Planner.Prefill.Min, cfg.scaling.Planner.Decode.Min = 0, 0
		cfg.scaling.Every = 200 * time.Millisecond
		if change != nil {
			change(cfg)
		}
	}})
	eventually(t, "the gateway has decided about the model", func() bool {
		_, err := c.node.targets.Read(keda.Pool{Model: testModel, Role: "prefill"}, time.Now())
		return err == nil // a bin of demand is over
	})
	servers = c.node.cfg.specs()
	c.sets(nil)
	return c, servers
}

// sets makes servers the fleet.
func (c *cluster) sets(servers []pools.Spec) {
	c.t.Helper()
	if err := c.node.discovery.sources.Set("configuration", servers); err != nil {
		c.t.Fatal(err)
	}
}

const heldBody = `{"model":"` + testModel + `","prompt":"of the sea","max_tokens":4%s}`

// later sends a request that will be held.
func (c *cluster) later(body string, headers ...string) <-chan answer {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), http.MethodPost, c.base+"/v1/completions", strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	done := make(chan answer, 1)
	go func() {
		resp, err := c.client.Do(req)
		if err != nil {
			done <- answer{err: err}
			return
		}
		done <- readResponse(resp)
	}()
	return done
}

// Servers are scaled to zero. Requests are held, KEDA is told at once that both roles
// must have a server, and when they are there the requests are answered. A server that
// starts does not make the gateway unready.
func TestHold_RequestWaitsForServersFromZero(t *testing.T) {
	t.Parallel()
	const patience = 2 * time.Second // which a busy machine may need to bind a request
	c, servers := toZero(t, func(cfg *config) { cfg.pd.queue.MaxWait = patience })
	ready := func(when string) {
		if got := c.get("/readyz"); got.status != http.StatusOK {
			t.Errorf("not ready %s, so no request would come: %s", when, got.body)
		}
	}
	ready("at zero")
	sent := time.Now()
	whole, streamed := c.later(fmt.Sprintf(heldBody, "")), c.later(fmt.Sprintf(heldBody, `,"stream":true`))
	for _, role := range []string{"prefill", "decode"} {
		eventually(t, role+" is wanted for held requests", func() bool {
			r, err := c.node.targets.Read(keda.Pool{Model: testModel, Role: role}, time.Now())
			return err == nil && r.Replicas == 1 && r.WaitingForCapacity == 2
		})
	}
	starting := []pools.Spec{servers[0], servers[1]}
	starting[1].URL = "http://127.0.0.1:9" // nothing listens there yet
	c.sets(starting)
	eventually(t, "one of two servers is up, for longer than a request may wait in the queue", func() bool {
		up := 0
		for _, s := range c.node.fleet.Servers() {
			if s.Health().Up {
				up++
			}
		}
		return up == 1 && time.Since(sent) > patience
	})
	ready("while servers start")
	select {
	case a := <-whole:
		t.Fatalf("not held: %+v", a)
	case a := <-streamed:
		t.Fatalf("not held: %+v", a)
	default:
	}
	c.sets(servers)
	for _, got := range []<-chan answer{whole, streamed} {
		if a := <-got; a.err != nil || a.status != http.StatusOK {
			t.Errorf("%+v", a)
		}
	}
	remembered := c.get("/debug/decisions?here").body
	if served := gjson.Get(remembered, `decisions.#(outcome=="served")#`).Array(); len(served) != 2 || gjson.Get(remembered, "decisions.#").Int() != 2 {
		t.Errorf("of two requests that waited and were served is remembered: %s", remembered)
	}
}

// The servers go before anything was decided about their model since the gateway started, which is every 15 s: it is
// known all the same, and its requests wait. They were refused.
func TestHold_RequestWaitsForServersThatWentBeforeTheFirstDecision(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 1, config: func(cfg *config) {
		cfg.pd.hold.MaxWait = time.Minute
		cfg.scaling.Planner.Prefill.Min, cfg.scaling.Planner.Decode.Min = 0, 0
		cfg.scaling.Every = time.Hour
	}})
	eventually(t, "the gateway knows the model", func() bool {
		_, known := c.node.planner.Base(testModel)
		return known
	})
	servers := c.node.cfg.specs()
	c.sets(nil)
	held := c.later(fmt.Sprintf(heldBody, ""))
	eventually(t, "the request is held", func() bool {
		c.node.planner.PlanNow()
		r, err := c.node.targets.Read(keda.Pool{Model: testModel, Role: "prefill"}, time.Now())
		return err == nil && r.WaitingForCapacity == 1
	})
	c.sets(servers)
	if a := <-held; a.err != nil || a.status != http.StatusOK {
		t.Errorf("%+v", a)
	}
}

// SDKs and user interfaces list the models before they ask one: those whose servers are
// started for a request are among them, under their own names and as aliases.
func TestHold_ModelsAreListedAtZero(t *testing.T) {
	t.Parallel()
	c, _ := toZero(t, func(cfg *config) {
		cfg.gateway.Aliases = []gateway.Alias{{Name: "nickname", Targets: []gateway.Target{{Model: testModel, Weight: 1}}}}
	})
	eventually(t, "there is no server", func() bool { return len(c.node.fleet.Servers()) == 0 })
	list := c.raw(http.MethodGet, c.base+"/v1/models")
	if got := gjson.Get(list.body, "data.#.id").String(); list.status != http.StatusOK || got != `["nickname","`+testModel+`"]` {
		t.Errorf("%d %s lists %s", list.status, list.body, got)
	}
	for name, want := range map[string]int{testModel: http.StatusOK, "nickname": http.StatusOK, "never-heard-of": http.StatusNotFound} {
		if got := c.raw(http.MethodGet, c.base+"/v1/models/"+name); got.status != want || want == http.StatusOK && gjson.Get(got.body, "id").String() != name {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
	}
}

// An adapter's servers are those of its base model: one that they had, or may be told to
// load, brings them back as the base model does, and is listed meanwhile.
func TestHold_AdapterBringsItsBaseModelBack(t *testing.T) {
	t.Parallel()
	for _, from := range []struct {
		name    string
		change  func(*config)
		engines func(*engine.Config)
	}{
		{"that the servers had", nil, func(cfg *engine.Config) { cfg.Adapters = []string{"ada"} }},
		{"of the directory", withAdapters("ada"), func(*engine.Config) {}},
	} {
		t.Run(from.name, func(t *testing.T) {
			t.Parallel()
			c, servers := toZero(t, from.change, from.engines)
			eventually(t, "there is no server", func() bool { return len(c.node.fleet.Servers()) == 0 })
			if got := c.raw(http.MethodGet, c.base+"/v1/models/ada"); gjson.Get(got.body, "parent").String() != testModel {
				t.Errorf("%d %s", got.status, got.body)
			}
			held := c.later(`{"model":"ada","prompt":"of the sea","max_tokens":4}`)
			eventually(t, "the base model's servers are wanted for it", func() bool {
				r, err := c.node.targets.Read(keda.Pool{Model: testModel, Role: "decode"}, time.Now())
				return err == nil && r.Replicas == 1 && r.WaitingForCapacity == 1
			})
			c.sets(servers)
			if a := <-held; a.status != http.StatusOK {
				t.Errorf("%d %s", a.status, a.body)
			}
		})
	}
}

// The base model's servers come back without the adapter: it is not waited for as long as
// for servers.
func TestHold_AdapterThatDoesNotComeBackIsNotServed(t *testing.T) {
	t.Parallel()
	c, _ := toZero(t, nil, func(cfg *engine.Config) { cfg.Adapters = []string{"ada"} })
	held := c.later(`{"model":"ada","prompt":"of the sea","max_tokens":4}`)
	eventually(t, "a request is held", func() bool { return c.metric("tandem_waiting_requests") == 1 })
	plain := startTestEngine(t, engine.RoleBoth, nil)
	c.sets([]pools.Spec{{URL: plain.State().URL, Role: pools.Both, Connector: "nixl"}})
	if a := <-held; a.status != http.StatusNotFound || gjson.Get(a.body, "error.code").String() != "model_not_found" {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// One model's servers are gone, those of another are not.
func TestHold_BesideAModelThatIsServed(t *testing.T) {
	t.Parallel()
	c, servers := toZero(t, nil)
	other := startTestEngine(t, engine.RoleBoth, func(cfg *engine.Config) { cfg.Model = "another" })
	both := pools.Spec{URL: other.State().URL, Role: pools.Both, Connector: servers[0].Connector}
	c.sets([]pools.Spec{both})
	eventually(t, "the other model is served", func() bool { return c.askFor("another").status == http.StatusOK })
	held := c.later(fmt.Sprintf(heldBody, ""))
	eventually(t, "a request is held", func() bool { return c.metric("tandem_waiting_requests") == 1 })
	c.sets(append(servers, both))
	if a := <-held; a.status != http.StatusOK {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// A request is held no longer than its deadline, and not for a client that has left.
func TestHold_EndsWithTheDeadlineAndTheClient(t *testing.T) {
	t.Parallel()
	c, _ := toZero(t, nil)
	if a := <-c.later(fmt.Sprintf(heldBody, ""), "X-Tandem-Deadline-Ms", "100"); a.status != http.StatusServiceUnavailable || gjson.Get(a.body, "error.code").String() != "deadline_unreachable" {
		t.Errorf("%d %s", a.status, a.body)
	}
	conn := c.dialRequest(chatBody(""))
	eventually(t, "a request is held", func() bool { return c.metric("tandem_waiting_requests") == 1 })
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "none is", func() bool { return c.metric("tandem_waiting_requests") == 0 })
}

// What no server has ever served is not held, nor more than there is room for, in number
// and in bytes: those that are held count in the queue's bounds.
func TestHold_OnlyWhatMayBeServedAgain(t *testing.T) {
	t.Parallel()
	c, _ := toZero(t, func(cfg *config) {
		cfg.pd.hold.MaxWaiting, cfg.pd.queue.MaxBytes = 2, 8192
	})
	if got := c.post("/v1/completions", `{"model":"never-heard-of","prompt":"of the sea","max_tokens":4}`); got.status != http.StatusNotFound {
		t.Errorf("never heard of: %d %s", got.status, got.body)
	}
	refused := func(why, body string) {
		t.Helper()
		got := c.post("/v1/completions", body)
		if got.status != http.StatusServiceUnavailable || got.header.Get("Retry-After") == "" {
			t.Errorf("%s: %d %s", why, got.status, got.body)
		}
	}
	first := c.dialRequest(chatBody(fmt.Sprintf(`,"user":%q`, strings.Repeat("x", 3000))))
	eventually(t, "one is held", func() bool { return c.metric("tandem_waiting_requests") == 1 })
	refused("too many bytes", fmt.Sprintf(heldBody, fmt.Sprintf(`,"user":%q`, strings.Repeat("x", 4000))))
	second := c.dialRequest(chatBody(""))
	eventually(t, "two are held", func() bool { return c.metric("tandem_waiting_requests") == 2 })
	refused("one too many", fmt.Sprintf(heldBody, ""))
	if err := errors.Join(first.Close(), second.Close()); err != nil {
		t.Error(err)
	}
}

// Where both roles may go to zero, holding is the default: no server would answer the
// request that brings the servers back.
func TestHold_IsTheDefaultWhereServersMayGoToZero(t *testing.T) {
	const servers = "prefill: http://a:1\ndecode: http://b:1\ncold-start: 100s\n"
	const zero = servers + "scale-prefill-min: 0\nscale-decode-min: 0\n"
	for _, c := range []struct {
		file string
		want time.Duration
	}{
		{servers, 0},
		{zero, 5 * time.Minute},
		{zero + "hold: 7s\n", 7 * time.Second},
	} {
		cfg, err := configOf(t, c.file)
		if err != nil || cfg.pd.hold != (scalefromzero.Config{MaxWait: c.want, MaxWaiting: 1024}) {
			t.Errorf("%s: %+v, %v", c.file, cfg.pd.hold, err)
		}
	}
}
