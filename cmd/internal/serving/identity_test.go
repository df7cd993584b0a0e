package serving

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/pools/load"
)

// unsaid takes the connectors out of the configuration.
func unsaid(cfg *config) {
	for i := range cfg.servers {
		for j := range cfg.servers[i].specs {
			cfg.servers[i].specs[j].Connector = ""
		}
	}
}

func TestIdentity_TheConnectorIsWhatTheEngineReports(t *testing.T) {
	t.Parallel()
	for engines, want := range map[string]string{
		engine.ConnectorNIXL: "nixl", engine.ConnectorNIXLPush: "nixl", engine.ConnectorMooncake: "mooncake",
		engine.ConnectorP2PNCCL: "p2p-nccl", engine.ConnectorStore: "store", engine.ConnectorSGLang: "sglang",
		engine.ConnectorTRTLLM: "trtllm",
	} {
		t.Run(engines, func(t *testing.T) {
			c := newCluster(t, shape{prefill: 1, decode: 1, engine: with(t, engines), config: func(cfg *config) {
				unsaid(cfg)
				if engines == engine.ConnectorSGLang {
					cfg.servers[0].specs[0].KVAddress = "" // its bootstrap port is told too
				}
			}})
			for _, s := range c.node.fleet.Servers() {
				if got := s.Connector(); got != want {
					t.Errorf("%s has connector %s, want %s: %+v", s.ID(), got, want, s.Identity())
				}
			}
			got := c.post("/v1/chat/completions", chatBody(""))
			if want := reference(t, "/v1/chat/completions", chatBody("")); got.status != 200 || got.text() != want.text() {
				t.Errorf("%d %.300s", got.status, got.body)
			}
			c.nothingIsLeft(1)
		})
	}
}

// An SGLang server without disaggregation takes requests whole, and no server hands KV to it.
func TestIdentity_AnEngineWithoutConnectorTakesRequestsWhole(t *testing.T) {
	whole := startTestEngine(t, engine.RoleBoth, sglangEngine)
	c := newCluster(t, shape{config: func(cfg *config) { cfg.servers[2].add(serverEntry{URL: whole.URL()}) }})
	eventually(t, "it is up", func() bool { return c.metric("tandem_server_up") == 1 })
	if got := c.post("/v1/chat/completions", chatBody("")); got.status != 200 || got.header.Get("X-Tandem-Prefill") != "" {
		t.Errorf("%d %.300s", got.status, got.body)
	}
	if got := c.node.fleet.Servers()[0].Connector(); got != "aggregated" {
		t.Errorf("its connector is %s", got)
	}
}

func TestIdentity_AnEngineThatContradictsTheConfigurationIsLogged(t *testing.T) {
	var log bytes.Buffer
	decode := startTestEngine(t, engine.RoleDecode, sglangEngine)
	c := newCluster(t, shape{log: &log, config: func(cfg *config) {
		cfg.servers[0].add(serverEntry{URL: decode.URL(), Connector: "nixl"})
	}})
	eventually(t, "it is up", func() bool { return c.metric("tandem_server_up") == 1 })
	if err := c.stop(); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		`"msg":"the engine reports another connector than is configured","server":"` + decode.URL()[len("http://"):] + `","configured":"nixl","engine":"sglang"`,
		`"configured":"prefill","engine":"decode"`,
	} {
		if n := strings.Count(log.String(), line); n != 1 {
			t.Errorf("%d lines with %s in\n%s", n, line, log.String())
		}
	}
}

// Where no label tells, what the engines say of themselves keeps apart what does not fit.
func TestIdentity_WhatTheKVDependsOnIsReported(t *testing.T) {
	t.Parallel()
	for _, engines := range []string{engine.ConnectorNIXL, engine.ConnectorSGLang} {
		for name, change := range map[string]func(*engine.Config){
			"version":    func(cfg *engine.Config) { cfg.Version = "0.30.0" },
			"block size": func(cfg *engine.Config) { cfg.BlockSize *= 2 },
			"KV type":    func(cfg *engine.Config) { cfg.KVType = "fp8_e5m2" },
		} {
			t.Run(engines+"/"+name, func(t *testing.T) {
				first := true // of two prefill servers, and the decode server
				c := newCluster(t, shape{prefill: 2, decode: 1, engine: func(cfg *engine.Config) {
					cfg.Connector = engines
					if first {
						change(cfg)
					}
					first = false
				}})
				for range 8 {
					got := c.post("/v1/chat/completions", chatBody(""))
					if from := got.header.Get("X-Tandem-Prefill"); got.status != 200 || from != c.prefill[1].URL()[len("http://"):] {
						t.Errorf("%d from %q", got.status, from)
					}
				}
			})
		}
	}
}

// The gateway reads the load of every engine under the engine's own names: what it shows
// is what the engine is doing.
func TestLoad_OfEveryEngine(t *testing.T) {
	t.Parallel()
	for _, names := range engine.Expositions() {
		t.Run(names, func(t *testing.T) {
			e := startBusyEngine(t, func(cfg *engine.Config) { cfg.Exposition = names })
			c := newCluster(t, shape{config: func(cfg *config) { cfg.servers[2].add(serverEntry{URL: e.URL()}) }})
			var seen gjson.Result
			eventually(t, "the load is known", func() bool { // what is old is not shown: a look of a busy machine may be late
				seen = gjson.Get(c.get("/debug/servers").body, "0.engine")
				return seen.Get(string(load.Running)).Exists() && seen.Get(string(load.KVUsed)).Exists()
			})
			state := e.State()
			for reading, want := range map[load.Reading]float64{
				load.Running: 2, load.Waiting: 1,
				load.KVUsed: float64(state.KVBlocksUsed) / float64(state.KVBlocksTotal),
			} {
				if got := seen.Get(string(reading)); !got.Exists() || math.Abs(got.Float()-want) > 0.01 {
					t.Errorf("%s is %s, want %v in %s", reading, got, want, seen)
				}
			}
			capacity := seen.Get(string(load.KVTokens))
			if names == engine.ExpositionVLLMOld {
				return // which tells no more
			}
			if want := state.KVBlocksTotal * 16; math.Abs(capacity.Float()-float64(want)) > 16 {
				t.Errorf("a capacity of %s tokens, want %d", capacity, want)
			}
			if names == engine.ExpositionSGLang && seen.Get(string(load.WaitingTokens)).Int() < 100 {
				t.Errorf("tokens are not counted: %s", seen)
			}
		})
	}
}

// An engine with an OpenRcaService tells its load without being asked, and before the
// next scrape.
func TestLoad_ReportsOutOfBand(t *testing.T) {
	e := startBusyEngine(t, func(cfg *engine.Config) { cfg.ORCA = "127.0.0.1:0" })
	e.SetFault(engine.Fault{Kind: engine.FaultStatus, Status: 503, Path: "/metrics"})
	c := newCluster(t, shape{config: func(cfg *config) {
		cfg.servers[2].add(serverEntry{URL: e.URL(), ORCA: e.State().ORCA})
	}})
	eventually(t, "its reports are the load, in tokens too", func() bool {
		l := c.node.fleet.Servers()[0].Load()
		return l.Running.Value == 2 && l.Waiting.Value == 1 && l.WaitingTokens.Value > 100
	})
	if n := c.metric("tandem_orca_reports_total", `outcome="read"`); n < 1 {
		t.Errorf("%v reports were read", n)
	}
}

// startBusyEngine starts an engine whose batch of two is full, and one request waits.
func startBusyEngine(t *testing.T, change func(*engine.Config)) *engine.Engine {
	t.Helper()
	e := startTestEngine(t, engine.RoleBoth, func(cfg *engine.Config) {
		cfg.TimeScale, cfg.MaxSeqs = 1, 2
		change(cfg)
	})
	asks := &cluster{t: t, base: e.URL()}
	for range 3 {
		conn := asks.dialRequest(chatBodyOf(20000, `,"stream":true,"ignore_eos":true`))
		t.Cleanup(func() { _ = conn.Close() })
	}
	eventually(t, "two run and one waits", func() bool { s := e.State(); return s.Running == 2 && s.Waiting == 1 })
	return e
}
