package serving

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/loadtest/process"
)

// connectors are those besides NIXL's pull, which all other tests use, and SGLang's,
// which has a file of its own.
var connectors = []string{
	engine.ConnectorNIXLPush, engine.ConnectorMooncake, engine.ConnectorOffload, engine.ConnectorP2PNCCL,
	engine.ConnectorTRTLLM, engine.ConnectorStore, engine.ConnectorSidecar,
}

// with gives engines a connector; the store of all is an engine of its own.
func with(t *testing.T, connector string) func(*engine.Config) {
	kept := ""
	if connector == engine.ConnectorStore {
		kept = startTestEngine(t, engine.RoleBoth, func(cfg *engine.Config) { cfg.Connector = connector }).State().KVAddress
	}
	return func(cfg *engine.Config) { cfg.Connector, cfg.Store = connector, kept }
}

func TestConnectors_AnswersEqualOneEngine(t *testing.T) {
	t.Parallel()
	for _, connector := range connectors {
		t.Run(connector, func(t *testing.T) {
			c := newCluster(t, shape{prefill: 2, decode: 2, engine: with(t, connector)})
			bodies := []struct{ path, body string }{
				{"/v1/chat/completions", chatBody("")},
				{"/v1/chat/completions", chatBody(`,"stream":true`)},
				{"/v1/completions", `{"model":"test-model","max_tokens":9,"prompt":"` + longPrompt + `"}`},
			}
			for _, b := range bodies {
				got, want := c.post(b.path, b.body), reference(t, b.path, b.body)
				if got.status != 200 || got.err != nil || got.text() != want.text() || got.header.Get("X-Tandem-Prefill") == "" {
					t.Errorf("%s %.60s: %d %v %.300s", b.path, b.body, got.status, got.err, got.body)
				}
			}
			c.nothingIsLeft(len(bodies))
			if n := sum(c.decode, func(s engine.State) int { return s.Recomputed }); n != 0 {
				t.Errorf("%d prompts were computed again", n)
			}
			neverTwice(t, c)
		})
	}
}

func TestConnectors_OneBadServerCostsNoRequest(t *testing.T) {
	t.Parallel()
	for _, connector := range connectors {
		for role, faults := range map[string][]engine.Fault{"prefill": slices.Concat(faultsOfServers, faultsOfPrefill), "decode": faultsOfServers} {
			for i, fault := range faults {
				t.Run(fmt.Sprintf("%s/%s/%s%d%s", connector, role, fault.Kind, fault.Status, fault.Path), func(t *testing.T) {
					t.Parallel()
					c, other := withFault(t, role, fault, with(t, connector))
					c.answersAsAlone(i%2 == 0)
					eventually(t, "the other legs have ended", func() bool {
						return sum(other, func(s engine.State) int { return s.ServerLoad + s.Running + s.Waiting }) == 0
					})
					neverTwice(t, c)
					if !slices.Contains(faultsOfPrefill, fault) {
						c.breakersAreClosed(other)
					}
				})
			}
		}
	}
}

func TestConnectors_AClientThatLeavesFreesBothLegs(t *testing.T) {
	t.Parallel()
	for _, connector := range connectors {
		for _, role := range []string{"prefill", "decode"} {
			t.Run(connector+"/"+role, func(t *testing.T) {
				c := newCluster(t, shape{prefill: 1, decode: 1, engine: with(t, connector)})
				hangs := c.prefill[0]
				if role == "decode" {
					hangs = c.decode[0]
				}
				hangs.SetFault(engine.Fault{Kind: engine.FaultHangBeforeHeaders})
				for _, body := range []string{chatBody(""), chatBody(`,"stream":true`)} {
					conn := c.dialRequest(body)
					eventually(t, "the leg hangs", func() bool { return hangs.State().ServerLoad == 1 })
					_ = conn.Close()
					eventually(t, "both legs are cancelled", func() bool {
						return sum(slices.Concat(c.prefill, c.decode), func(s engine.State) int { return s.ServerLoad + s.Waiting }) == 0
					})
				}
				c.checkIdle(2)
			})
		}
	}
}

// A server that restarts within a probe's interval has another engine id.
func TestMooncake_ARestartedPrefillIsAskedAgain(t *testing.T) {
	free, err := process.FreeAddresses(2) // others must not get them while it is away
	if err != nil {
		t.Fatal(err)
	}
	mooncake := func(cfg *engine.Config) {
		if cfg.Connector = engine.ConnectorMooncake; cfg.Role == engine.RolePrefill {
			cfg.Listen, cfg.SideChannel = free[0], free[1]
		}
	}
	c := newCluster(t, shape{prefill: 1, decode: 1, engine: mooncake, config: func(cfg *config) {
		cfg.pd.FirstEventTimeout, cfg.pd.AnswerTimeout = 20*time.Second, 20*time.Second
	}})
	ask := func() {
		t.Helper()
		if got := c.post("/v1/chat/completions", chatBody("")); got.status != 200 {
			t.Fatalf("%d %s", got.status, got.body)
		}
	}
	ask()
	old := c.prefill[0].State()
	_ = c.prefill[0].Close()
	eventually(t, "it is down", func() bool { return c.metric("tandem_server_up") == 1 })
	again := startTestEngine(t, engine.RolePrefill, mooncake)
	eventually(t, "it is up", func() bool { return c.metric("tandem_server_up") == 2 })
	ask()
	if s := again.State(); s.HandoffsPulled != 1 || s.HandoffsRejected != 0 || s.EngineID == old.EngineID {
		t.Errorf("%d pulled, %d rejected", s.HandoffsPulled, s.HandoffsRejected)
	}
}

func TestMooncake_ABootstrapServerThatIsGoneIsPrefillsFault(t *testing.T) {
	c := newCluster(t, shape{prefill: 2, decode: 1, engine: with(t, engine.ConnectorMooncake), config: func(cfg *config) {
		faultTimeouts(cfg)
		cfg.servers[0].specs[0].KVAddress = "127.0.0.1:1"
	}})
	for range 4 {
		got := c.post("/v1/chat/completions", chatBody(""))
		if got.status != 200 || got.header.Get("X-Tandem-Prefill") != c.prefill[1].URL()[len("http://"):] {
			t.Errorf("%d from %q: %s", got.status, got.header.Get("X-Tandem-Prefill"), got.body)
		}
	}
	if n := len(requests(c.prefill[:1], "/v1/chat/completions")); n != 0 {
		t.Errorf("the first was asked %d times", n)
	}
}

func TestMooncake_RanksBehindOneAddress(t *testing.T) {
	ranks := func(cfg *engine.Config) { cfg.Connector, cfg.DataParallel = engine.ConnectorMooncake, 2 }
	p, d := startTestEngine(t, engine.RolePrefill, ranks), startTestEngine(t, engine.RoleDecode, ranks)
	c := newCluster(t, shape{config: func(cfg *config) {
		cfg.servers[0].add(serverEntry{URL: p.URL(), Connector: "mooncake", KVAddress: p.State().KVAddress})
		cfg.servers[1].add(serverEntry{URL: d.URL(), Connector: "mooncake"})
	}})
	eventually(t, "both are up", func() bool { return c.metric("tandem_server_up") == 2 })
	told, asked := make(map[string]bool), 0
	for ; len(told) < 2 && asked < 60; asked++ { // a rank is chosen by chance
		if got := c.post("/v1/chat/completions", chatBody("")); got.status != 200 {
			t.Fatalf("%d %s", got.status, got.body)
		}
		for _, r := range requests([]*engine.Engine{d}, "/v1/chat/completions") {
			told[gjson.Get(r.Body, "kv_transfer_params.remote_engine_id").String()] = true
		}
	}
	if s := p.State(); len(told) != 2 || s.HandoffsPulled != asked || s.HandoffsRejected != 0 {
		t.Errorf("engines %v, %d pulled, %v rejected", told, s.HandoffsPulled, s.HandoffsRejectedByReason)
	}
}

// An answer that is over with its first token is the context server's: generation has
// nothing to do.
func TestTRTLLM_AnAnswerOfOneTokenNeedsNoGeneration(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1, engine: with(t, engine.ConnectorTRTLLM)})
	first := reference(t, "/v1/chat/completions", chatBodyOf(1, "")).text()
	stop := fmt.Sprintf(`,"stop":[%q]`, first[:1])
	for _, extra := range []string{stop, stop + `,"stream":true`, stop + `,"stream":true,"stream_options":{"include_usage":true}`} {
		got, want := c.post("/v1/chat/completions", chatBody(extra)), reference(t, "/v1/chat/completions", chatBody(extra))
		if got.status != 200 || got.err != nil || got.text() != want.text() {
			t.Errorf("%d %v %s\nwant %s", got.status, got.err, got.body, want.body)
		}
		if gjson.Get(got.body, "choices.0.disaggregated_params").Exists() || gjson.Get(got.body, "prompt_token_ids.0").Exists() {
			t.Errorf("the client sees the hand-off: %s", got.body)
		}
		for _, events := range [][]string{got.events, want.events} {
			if len(events) == 0 {
				continue
			}
			usage := gjson.Get(events[len(events)-2], "usage.completion_tokens").Int()
			if asked := len(extra) > len(stop)+20; events[len(events)-1] != "[DONE]" || (usage == 1) != asked {
				t.Errorf("%q ended with %q", extra, events)
			}
		}
	}
	if n := len(requests(c.decode, "/v1/chat/completions")); n != 0 {
		t.Errorf("generation was asked %d times", n)
	}
	c.checkIdle(0)
}

// The sidecar's header comes from the registry alone.
func TestSidecar_AClientCannotNameAPrefillServer(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1, engine: with(t, engine.ConnectorSidecar)})
	for path, body := range map[string]string{
		"/v1/chat/completions": chatBody(""),
		"/v1/completions":      `{"model":"test-model","max_tokens":3,"prompt":"hi"}`, // too short for a pair
	} {
		if got := c.post(path, body, "X-Prefiller-Host-Port", "127.0.0.1:1"); got.status != 200 {
			t.Errorf("%d %s", got.status, got.body)
		}
	}
	if n := len(requests(c.prefill, "/v1/chat/completions")); n != 1 {
		t.Errorf("prefill was called %d times", n)
	}
	for _, r := range requests(c.decode, "/v1/completions") {
		if slices.Contains(r.HeaderNames, "X-Prefiller-Host-Port") {
			t.Error("a client's header reached the sidecar")
		}
	}
}

// The KV goes to where the work is: a server that holds nothing of a prompt pulls its
// beginning from one that does, when that one is not the better choice itself.
// With NIXL the tier is a second connector of the engines.
func TestOffload_ThePrefixComesFromAThirdServer(t *testing.T) {
	for _, connector := range []string{engine.ConnectorOffload, engine.ConnectorNIXL} {
		t.Run(connector, func(t *testing.T) {
			t.Parallel()
			prefixFromAThirdServer(t, connector)
		})
	}
}

func prefixFromAThirdServer(t *testing.T, connector string) {
	offload := func(cfg *engine.Config) {
		publishing(cfg)
		cfg.Connector, cfg.TimeScale = connector, patient // computing must take time
	}
	holder, decode := startTestEngine(t, engine.RolePrefill, offload), startTestEngine(t, engine.RoleDecode, offload)
	idle := startTestEngine(t, engine.RolePrefill, offload)
	engines := []*engine.Engine{holder, idle, decode}
	c := newCluster(t, shape{config: func(cfg *config) {
		for i, e := range engines {
			cfg.servers[i/2].add(serverEntry{URL: e.URL(), Connector: connector, KVAddress: e.State().KVAddress})
		}
		listening(func() []*engine.Engine { return engines })(cfg)
		cfg.kv.modes = []string{"engine"}
		cfg.cost.DecodeReuse = false
		believe(cfg, patient)
	}})
	eventually(t, "all are heard", func() bool { return c.metric("tandem_kv_connected") == 3 && c.metric("tandem_server_up") == 3 })
	tries := 0
	var source gjson.Result
	eventually(t, "a prefix is pulled", func() bool {
		tries++ // each with a prompt of its own: its tokens may not be known in time
		body := func(end string) string {
			return fmt.Sprintf(`{"model":%q,"max_tokens":5,"prompt":"%d %s"}`, testModel, tries, strings.Repeat(longPrompt, 8)+end)
		}
		askEngine(t, holder, "/v1/completions", body("first")) // as if before this gateway was there
		eventually(t, "it is known what the holder has", func() bool {
			return strings.Contains(c.get("/debug/servers").body, fmt.Sprintf(`"gpu_blocks": %d`, len(holder.Blocks())))
		})
		holder.SetFault(engine.Fault{Kind: engine.FaultStatus, Status: 503, Path: "/v1/completions"})
		defer holder.ClearFaults()
		got := c.post("/v1/completions", body("second"))
		if got.status != 200 || got.text() != reference(t, "/v1/completions", body("second")).text() {
			t.Fatalf("%d %s", got.status, got.body)
		}
		// A pair or decode alone, whichever is cheaper then: what computes it pulls it.
		computes := idle
		if got.header.Get("X-Tandem-Prefill") == "" {
			computes = decode
		}
		all := requests([]*engine.Engine{computes}, "/v1/completions")
		source = gjson.Get(all[len(all)-1].Body, "kv_transfer_params.remote_kv_source")
		return source.Exists() && computes.State().PrefixBlocksPulled >= 400
	})
	if source.Get("kv_request_id").String() == "" || fmt.Sprintf("%s:%d", source.Get("remote_host"), source.Get("remote_port").Int()) != holder.State().KVAddress {
		t.Errorf("the source is %s", source)
	}
}

// Generation servers that share a key with the router take no hand-off that is not signed with it.
func TestTRTLLM_HandoffsAreSigned(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte("sésame\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := newCluster(t, shape{prefill: 1, decode: 1,
		engine: func(cfg *engine.Config) { cfg.Connector, cfg.HandoffKey = engine.ConnectorTRTLLM, "sésame" },
		config: func(cfg *config) { cfg.engines.trtllmKey = file }})
	for _, extra := range []string{"", `,"stream":true`} {
		got := c.post("/v1/chat/completions", chatBody(extra))
		if got.status != 200 || got.err != nil || got.header.Get("X-Tandem-Prefill") == "" {
			t.Errorf("%d %v, prefilled on %q: %s", got.status, got.err, got.header.Get("X-Tandem-Prefill"), got.body)
		}
	}
	if n := c.metric("tandem_retries_total"); n != 0 {
		t.Errorf("%v legs were tried again", n)
	}
}

// A key that is replaced in its file signs the next hand-off.
func TestTRTLLM_TheKeyOfHandoffsIsTakenOverWhileServing(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "key")
	write(t, file, "old")
	c := newCluster(t, shape{prefill: 1, decode: 1,
		engine: func(cfg *engine.Config) { cfg.Connector, cfg.HandoffKey = engine.ConnectorTRTLLM, "new" },
		config: func(cfg *config) { cfg.engines.trtllmKey = file }})
	write(t, file, "new")
	eventually(t, "a hand-off is taken", func() bool {
		got := c.post("/v1/chat/completions", chatBody(""))
		return got.status == 200 && got.header.Get("X-Tandem-Prefill") != ""
	})
}

// A context that does not name its request has failed: generation could not fetch its KV.
func TestTRTLLM_AContextWithoutItsIDHasFailed(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 2, decode: 1, engine: with(t, engine.ConnectorTRTLLM)})
	c.prefill[0].SetFault(engine.Fault{Kind: engine.FaultDropHandoff})
	bad := strings.TrimPrefix(c.prefill[0].URL(), "http://")
	for i := range 6 {
		got := c.post("/v1/chat/completions", chatBody(fmt.Sprintf(`,"seed":%d`, i)))
		if got.status != 200 || got.header.Get("X-Tandem-Prefill") == bad {
			t.Errorf("%d, prefilled on %q: %s", got.status, got.header.Get("X-Tandem-Prefill"), got.body)
		}
	}
	if n := c.metric("tandem_retries_total", `leg="prefill"`, `reason="broken"`); n == 0 {
		t.Error("no prefill failed")
	}
}
