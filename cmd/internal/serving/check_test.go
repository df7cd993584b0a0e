package serving

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/cmd/internal/porttls"
	"github.com/tandem-gateway/tandem/gateway/access"
	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/loadtest/redisserver"
	"github.com/tandem-gateway/tandem/loadtest/testlog"
	"github.com/tandem-gateway/tandem/pools"
)

func TestCheck_ProbesTheServers(t *testing.T) {
	up := startTestEngine(t, engine.RoleBoth, nil)
	cfg := testConfig()
	cfg.servers[2].add(serverEntry{URL: up.URL()})
	var out strings.Builder
	if err := check(t.Context(), cfg, &out); err != nil || !strings.Contains(out.String(), testModel) || !strings.Contains(out.String(), "running 0") {
		t.Errorf("%v\n%s", err, out.String())
	}
	mistyped := cfg
	mistyped.pd.ttft = []string{testModel + "=2s", "tset-model=5s"}
	if err := errors.Join(mistyped.readModels(), check(t.Context(), mistyped, &out)); err == nil || !strings.Contains(err.Error(), "ttft-slo: no server has the model tset-model; there are "+testModel) {
		t.Error(err)
	}
	cfg.servers[0].add(serverEntry{URL: "http://127.0.0.1:1"})
	out.Reset()
	if err := check(t.Context(), cfg, &out); err == nil || !strings.Contains(out.String(), "DOWN") || !strings.Contains(out.String(), "refused") {
		t.Errorf("%v\n%s", err, out.String())
	}
}

// A row with fewer cells would part the table: the columns of the rows behind it would not be those of its head.
func TestCheck_KeepsColumnsBesideAServerThatIsDown(t *testing.T) {
	up := startTestEngine(t, engine.RoleBoth, nil)
	cfg := testConfig()
	cfg.servers[0].add(serverEntry{URL: "http://127.0.0.1:1"})
	cfg.servers[2].add(serverEntry{URL: up.URL()})
	var out strings.Builder
	if err := check(t.Context(), cfg, &out); err == nil {
		t.Error("a server that is down is no error")
	}
	head, rows, _ := strings.Cut(out.String(), "\n")
	models, load := strings.Index(head, "MODELS"), strings.Index(head, "LOAD")
	for row := range strings.Lines(rows) {
		for at, cell := range map[int]string{models: testModel, load: "dial tcp 127.0.0.1:1"} {
			if i := strings.Index(row, cell); i >= 0 && i != at {
				t.Errorf("%q is at %d, its head at %d\n%s", cell, i, at, out.String())
			}
		}
	}
}

// Thousands of servers are not asked at once: healthy ones would be said to be down.
func TestCheck_AsksAFewServersAtATime(t *testing.T) {
	t.Parallel()
	var asked, arrived atomic.Int64
	tooMany := make(chan struct{})
	once := sync.OnceFunc(func() { close(tooMany) })
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		arrived.Add(1)
		if asked.Add(1) > checkedAtOnce {
			once()
		}
		defer asked.Add(-1)
		select { // the time in which others would be asked as well
		case <-tooMany:
		case <-time.After(300 * time.Millisecond):
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer server.Close()
	cfg := testConfig()
	cfg.pools.ProbeTimeout = time.Minute
	specs := make([]pools.Spec, 2*checkedAtOnce)
	for i := range specs {
		specs[i] = pools.Spec{URL: server.URL, Role: pools.Decode}
	}
	if _, err := askServers(t.Context(), cfg, specs, io.Discard); err != nil || arrived.Load() < int64(len(specs)) {
		t.Errorf("%d of %d asked: %v", arrived.Load(), len(specs), err)
	}
	select {
	case <-tooMany:
		t.Errorf("more than %d are asked at once", checkedAtOnce)
	default:
	}
}

// A picker whose decode servers have no sidecar of llm-d makes no pairs, and that is said.
func TestCheck_NamesModelsWithoutASidecarForThePicker(t *testing.T) {
	t.Parallel()
	prefill, decode := startTestEngine(t, engine.RolePrefill, nil), startTestEngine(t, engine.RoleDecode, nil)
	const warning = "the picker sends no prompt to its prefill servers"
	for _, x := range []struct {
		picker, connector string
		warned            bool
	}{{"127.0.0.1:0", "nixl", true}, {"127.0.0.1:0", "llmd-sidecar", false}, {"", "nixl", false}} {
		_, printed := checked(t, func(cfg *config) {
			cfg.ports.picker = x.picker
			cfg.servers[0].add(serverEntry{URL: prefill.URL(), Connector: "nixl"})
			cfg.servers[1].add(serverEntry{URL: decode.URL(), Connector: x.connector})
		})
		if strings.Contains(printed, warning) != x.warned {
			t.Errorf("%+v:\n%s", x, printed)
		}
	}
}

// A Redis that is not there, or that lets nobody in, is found before replicas share nothing.
func TestCheck_AsksRedis(t *testing.T) {
	t.Parallel()
	r := redisserver.Start(t)
	up := startTestEngine(t, engine.RoleBoth, nil)
	for addr, want := range map[string]string{r.Addr(): "", "127.0.0.1:1": "redis: "} {
		fault, printed := checked(t, func(cfg *config) {
			cfg.servers[2].add(serverEntry{URL: up.URL()})
			cfg.redis.addrs = []string{addr}
		})
		if !strings.Contains(fault, want) || (want == "") != (fault == "") || (fault == "") != strings.Contains(printed, "Redis and all servers that it names answer.") {
			t.Errorf("%s: %q\n%s", addr, fault, printed)
		}
	}
}

// A Redis that answers, and refuses what replicas need, is found as well, and what it refuses is named. The user of the
// documentation is enough.
func TestCheck_NamesWhatRedisRefuses(t *testing.T) {
	t.Parallel()
	up := startTestEngine(t, engine.RoleBoth, nil)
	r := redisserver.Start(t)
	password := passwordFile(t, "secret")
	r.Do(documentedUser(t, "tandem", "secret")...)
	r.Do("ACL", "SETUSER", "mute", "on", ">secret", "~*", "&*", "+@all", "-publish")
	r.Do("ACL", "SETUSER", "deaf", "on", ">secret", "~*", "resetchannels", "+@all")
	r.Do("ACL", "SETUSER", "unscripted", "on", ">secret", "~*", "&*", "+@all", "-eval", "-evalsha")
	r.Do("ACL", "SETUSER", "elsewhere", "on", ">secret", "~other:*", "%R~*", "&*", "+@all")
	follower := redisserver.Start(t, "--replicaof", "127.0.0.1 1")
	for _, x := range []struct {
		server *redisserver.Server
		user   string
		want   []string
	}{
		{r, "tandem", nil},
		{r, "mute", []string{"messages cannot be sent and received (PUBLISH, SUBSCRIBE): NOPERM"}},
		{r, "deaf", []string{"messages cannot be sent and received (PUBLISH, SUBSCRIBE): NOPERM"}},
		{r, "unscripted", []string{"a script cannot be run (EVAL): NOPERM"}},
		{r, "elsewhere", []string{"a key cannot be set: NOPERM", "(EVAL)", "(MULTI, hashes)", "(sorted sets)", "(streams)"}},
		{follower, "", []string{"a key cannot be set: READONLY", "a script cannot be run (EVAL)"}},
	} {
		fault, printed := checked(t, func(cfg *config) {
			cfg.servers[2].add(serverEntry{URL: up.URL()})
			cfg.redis.addrs = []string{x.server.Addr()}
			if cfg.redis.user = x.user; x.user != "" {
				cfg.redis.passwordFile = password
			}
		})
		if (fault == "") != (x.want == nil) {
			t.Errorf("%q: %q\n%s", x.user, fault, printed)
		}
		for _, want := range x.want {
			if !strings.Contains(fault, want) {
				t.Errorf("%q: %q does not say %q", x.user, fault, want)
			}
		}
	}
	for _, key := range r.Client().Keys(t.Context(), "*").Val() {
		if r.Client().TTL(t.Context(), key).Val() == -1 {
			t.Errorf("%s never expires", key)
		}
	}
}

// checked is what check says of a configuration, by exit and by print.
func checked(t *testing.T, change func(*config)) (fault, printed string) {
	t.Helper()
	cfg := testConfig()
	change(&cfg)
	if err := cfg.validate(); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := check(t.Context(), cfg, &out); err != nil {
		return err.Error(), out.String()
	}
	return "", out.String()
}

// Files that serve would not come up with are found: the certificate of every port that may have one, and the secret of
// block hashes.
func TestCheck_ReadsTheFilesThatServeReads(t *testing.T) {
	up := startTestEngine(t, engine.RoleBoth, nil)
	broken := filepath.Join(t.TempDir(), "broken.pem")
	if err := os.WriteFile(broken, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	for port, tlsOf := range map[string]func(*config) *porttls.Config{
		"tls":     func(cfg *config) *porttls.Config { return &cfg.ports.clientTLS },
		"admin":   func(cfg *config) *porttls.Config { return &cfg.ports.adminTLS },
		"picker":  func(cfg *config) *porttls.Config { return &cfg.ports.pickerTLS },
		"scaler":  func(cfg *config) *porttls.Config { return &cfg.scaling.keda.tls },
		"decider": func(cfg *config) *porttls.Config { return &cfg.decider.tls },
	} {
		fault, _ := checked(t, func(cfg *config) {
			cfg.servers[2].add(serverEntry{URL: up.URL()})
			cfg.ports.picker, cfg.redis.addrs = "127.0.0.1:0", []string{"127.0.0.1:1"}
			*tlsOf(cfg) = porttls.Config{Port: port, Cert: broken, Key: broken, ClientCA: broken}
		})
		if !strings.Contains(fault, port+"-cert: ") {
			t.Errorf("%s: %q", port, fault)
		}
	}
	fault, _ := checked(t, func(cfg *config) {
		cfg.servers[2].add(serverEntry{URL: up.URL()})
		cfg.kv.secretFile = filepath.Join(t.TempDir(), "none")
	})
	if !strings.Contains(fault, "kv-secret-file: ") {
		t.Errorf("a file that is not there: %q", fault)
	}
}

func TestCheck_ExitsAsItSpeaks(t *testing.T) {
	t.Parallel()
	prefill, decode := startTestEngine(t, engine.RolePrefill, nil), startTestEngine(t, engine.RoleDecode, nil)
	other := startTestEngine(t, engine.RolePrefill, func(cfg *engine.Config) { cfg.Model = "other-model" })
	otherDecode := startTestEngine(t, engine.RoleDecode, func(cfg *engine.Config) { cfg.Model = "other-model" })
	coarse := startTestEngine(t, engine.RolePrefill, unlike)
	locked := startTestEngine(t, engine.RoleBoth, func(cfg *engine.Config) { cfg.APIKey = "an-engine-key" })
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte("not-its-key\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	add := func(role int, engines ...*engine.Engine) func(*config) {
		return func(cfg *config) {
			for _, e := range engines {
				cfg.servers[role].add(serverEntry{URL: e.URL()})
			}
		}
	}
	hold := func(cfg *config) { cfg.pd.hold.MaxWait = time.Second }
	for _, x := range []struct {
		name           string
		changes        []func(*config)
		fault, printed string
	}{
		{"all is well", []func(*config){add(0, prefill), add(1, decode)}, "", "is valid"},
		{"prefill servers only, and requests wait", []func(*config){add(0, prefill), hold}, "", "WARN model test-model has no decode server that takes requests: until one comes"},
		{"the only decode server drains", []func(*config){add(0, prefill), func(cfg *config) {
			cfg.servers[1].add(serverEntry{URL: decode.URL(), Drain: true})
		}}, "model test-model has no decode server that takes requests", ""},
		{"the only server drains", []func(*config){func(cfg *config) {
			cfg.servers[1].add(serverEntry{URL: decode.URL(), Drain: true})
		}}, "model test-model has no decode server that takes requests", ""},
		{"a model without decode", []func(*config){add(0, prefill, other), add(1, decode)}, "model other-model has no decode server", ""},
		{"a model without prefill", []func(*config){add(0, prefill), add(1, decode, otherDecode)}, "", "WARN model other-model has no prefill server"},
		{"decode servers only", []func(*config){add(1, decode)}, "", "WARN model test-model has no prefill server"},
		{"decode servers only, enforced, and requests wait", []func(*config){add(1, decode), hold, func(cfg *config) { cfg.pd.EnforceDisaggregation = true }}, "", "WARN model test-model has no prefill server, and its decode servers compute no prompts: until one comes"},
		{"a model without prefill, enforced", []func(*config){add(0, prefill), add(1, decode, otherDecode), func(cfg *config) { cfg.pd.EnforceDisaggregation = true }}, "compute no prompts", ""},
		{"no pair", []func(*config){add(0, coarse), add(1, decode)}, "block_tokens: 32 (prefill), 16 (decode)", ""},
		{"a key is wanted", []func(*config){add(2, locked)}, "it asks for a key, set engine-key-file", ""},
		{"another key is wanted", []func(*config){add(2, locked), func(cfg *config) { cfg.engines.key = key }}, "it does not take the key in " + key, ""},
		{"a name to look up", []func(*config){add(0, prefill), func(cfg *config) { cfg.servers[1].add(serverEntry{URL: "dns+http://decode:8000"}) }}, "", "WARN servers that are found while serving"},
	} {
		fault, printed := checked(t, func(cfg *config) {
			for _, change := range x.changes {
				change(cfg)
			}
		})
		if (fault == "") != (x.fault == "") || !strings.Contains(fault, x.fault) || !strings.Contains(printed, x.printed) {
			t.Errorf("%s: %s\n%s", x.name, fault, printed)
		}
		if said := strings.Contains(printed+fault, "valid"); said != (fault == "") {
			t.Errorf("%s: it said valid: %v, and exits with %q", x.name, said, fault)
		}
	}
}

func TestCheck_ConnectsToKVEvents(t *testing.T) {
	t.Parallel()
	e := startTestEngine(t, engine.RoleBoth, publishing)
	at := e.State()
	events, replay := local(at.EventsEndpoints[0]), local(at.ReplayEndpoints[0])
	for _, x := range []struct {
		name, events, replay string
		fault, printed       string
	}{
		{"both answer", events, replay, "", "received, replayed"},
		{"no engine", "tcp://127.0.0.1:1", "", "its KV events cannot be received: events tcp://127.0.0.1:1: nothing answers there", "NOT RECEIVED"},
		{"the API's port", strings.Replace(e.URL(), "http", "tcp", 1), "", "not the ZMQ socket that belongs there", "NOT RECEIVED"},
	} {
		fault, printed := checked(t, func(cfg *config) {
			if x.fault != "" {
				cfg.pools.ProbeTimeout /= 10 // nothing will come
			}
			cfg.servers[2].add(serverEntry{URL: e.URL(), Events: x.events, Replay: x.replay})
		})
		if (fault == "") != (x.fault == "") || !strings.Contains(fault, x.fault) || !strings.Contains(printed, x.printed) {
			t.Errorf("%s: %s\n%s", x.name, fault, printed)
		}
	}
}

func TestCheck_ReadsTokenizersAndTemplates(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good, template := write("tokenizer.json", byteTokenizer(t)), write("template.jinja", "{{ messages }}")
	up, silent := startTestEngine(t, engine.RoleBoth, publishing), startTestEngine(t, engine.RoleBoth, nil)
	for _, x := range []struct {
		name                string
		tokenizer, template string
		tokens              string
		fault, printed      string
	}{
		{"both can be read", good, template, "tokenizer", "", ""},
		{"no such tokenizer", filepath.Join(dir, "none.json"), "", "tokenizer", "tokens of test-model: tokenizer: open " + dir + "/none.json: no such file", ""},
		{"a tokenizer that is no JSON", write("broken.json", "{"), "", "tokenizer", "tokens of test-model: tokenizer " + dir + "/broken.json: unexpected end of JSON", ""},
		{"a template that does not parse", good, write("broken.jinja", "{% for %}"), "tokenizer", "tokens of test-model: chat template: ", ""},
		{"a mode without its tokenizer", "", "", "tokenizer", "tokens of test-model: mode tokenizer needs a tokenizer file", ""},
		{"another mode", good, "", "engine", "", "WARN model test-model: its tokenizer and chat-template are not used, as tokens is engine for it: set tokens to test-model=tokenizer"},
	} {
		fault, printed := checked(t, func(cfg *config) {
			cfg.servers[2].add(serverEntry{URL: up.URL(), Events: local(up.State().EventsEndpoints[0])})
			cfg.kv.modes = []string{x.tokens}
			if x.tokenizer != "" {
				cfg.kv.tokenizers = []string{testModel + "=" + x.tokenizer}
			}
			if x.template != "" {
				cfg.kv.templates = []string{testModel + "=" + x.template}
			}
		})
		if (fault == "") != (x.fault == "") || !strings.Contains(fault, x.fault) || !strings.Contains(printed, x.printed) || strings.Contains(printed, "WARN") != (x.printed != "") {
			t.Errorf("%s: %q\n%s", x.name, fault, printed)
		}
	}
	fault, printed := checked(t, func(cfg *config) {
		cfg.servers[2].add(serverEntry{URL: silent.URL()})
		cfg.kv.modes = []string{"tokenizer"}
	})
	if fault != "" {
		t.Errorf("a model without KV events needs no tokenizer: %q\n%s", fault, printed)
	}
}

// byteTokenizer is a tokenizer.json in which each byte is a token.
func byteTokenizer(t *testing.T) string {
	t.Helper()
	vocab, next := map[string]int{}, 256
	for b := range 256 { // as GPT-2 writes bytes: those that are not printed by letters from 256 on
		letter := rune(b)
		if b < '!' || b > '~' && b < 0xA1 || b == 0xAD {
			letter = rune(next)
			next++
		}
		vocab[string(letter)] = b
	}
	text, err := json.Marshal(map[string]any{
		"pre_tokenizer": map[string]any{"type": "ByteLevel", "use_regex": false},
		"model":         map[string]any{"type": "BPE", "vocab": vocab, "merges": []string{}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// What a server's configuration says of where its load is, and does not hold, costs no request: it is warned of.
func TestCheck_AsksForLoadWhereItIsSaidToBe(t *testing.T) {
	t.Parallel()
	up := startTestEngine(t, engine.RoleBoth, nil)
	serving := startTestEngine(t, engine.RoleBoth, func(cfg *engine.Config) { cfg.ORCA = "127.0.0.1:0" })
	for _, x := range []struct {
		name    string
		entry   serverEntry
		printed string
	}{
		{"its own metrics", serverEntry{URL: up.URL(), Metrics: up.URL() + "/metrics"}, ""},
		{"nothing is there", serverEntry{URL: up.URL(), Metrics: "http://127.0.0.1:1/metrics"}, "its metrics at http://127.0.0.1:1/metrics cannot be read: dial tcp 127.0.0.1:1: "},
		{"another path", serverEntry{URL: up.URL(), Metrics: up.URL() + "/statistics"}, "cannot be read: /statistics answered 404"},
		{"another page", serverEntry{URL: up.URL(), Metrics: up.URL() + "/version"}, "no load that is known is among its metrics at " + up.URL() + "/version"},
		{"load reports", serverEntry{URL: serving.URL(), ORCA: serving.State().ORCA}, ""},
		{"no load reports", serverEntry{URL: up.URL(), ORCA: "127.0.0.1:1"}, "no load report comes from its OpenRcaService at 127.0.0.1:1: "},
	} {
		fault, printed := checked(t, func(cfg *config) { cfg.servers[2].add(x.entry) })
		if fault != "" || !strings.Contains(printed, x.printed) || strings.Contains(printed, "WARN") != (x.printed != "") {
			t.Errorf("%s: %q\n%s", x.name, fault, printed)
		}
	}
}

func TestCheck_ReadsMetricsOnce(t *testing.T) {
	t.Parallel()
	up := startTestEngine(t, engine.RoleBoth, nil)
	var read atomic.Int64
	metrics := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		read.Add(1)
		_, _ = io.WriteString(w, "vllm:num_requests_running 7\n")
	}))
	defer metrics.Close()
	fault, printed := checked(t, func(cfg *config) {
		cfg.servers[2].add(serverEntry{URL: up.URL(), Metrics: metrics.URL + "/metrics"})
	})
	if n := read.Load(); n != 1 || fault != "" || !strings.Contains(printed, "running 7") {
		t.Errorf("read %d times: %q\n%s", n, fault, printed)
	}
}

// A setting for a model that no server has does nothing, and clients are refused what an alias of such a model stands for.
func TestCheck_NamesModelsThatNoServerHas(t *testing.T) {
	t.Parallel()
	up := startTestEngine(t, engine.RoleBoth, nil)
	file := filepath.Join(t.TempDir(), "tokenizer.json")
	if err := os.WriteFile(file, []byte(byteTokenizer(t)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		name           string
		change         func(*config)
		fault, printed string
	}{
		{"an alias", func(cfg *config) { cfg.gateway.aliases = []string{"chat=test-modle"} },
			"model-alias chat: no server has the model test-modle; there are test-model; did you mean test-model?", ""},
		{"an alias of two, neither of which is there", func(cfg *config) { cfg.gateway.aliases = []string{"chat=old=1|new=9"} },
			"model-alias chat: no server has the model old; there are test-model\nmodel-alias chat: no server has the model new; there are test-model", ""},
		{"an alias of two, one of which is there", func(cfg *config) { cfg.gateway.aliases = []string{"chat=test-model=1|new=9"} },
			"", "WARN model-alias chat: no server has the model new; there are test-model\n"},
		{"an alias of a model that is there", func(cfg *config) { cfg.gateway.aliases = []string{"chat=test-model"} }, "", ""},
		{"an alias of an adapter that can be loaded", func(cfg *config) {
			cfg.gateway.aliases, cfg.pools.adapters = []string{"chat=ada"}, []string{"ada=/ada"}
		}, "", ""},
		{"an adapter of a model that is there, or of any", func(cfg *config) { cfg.pools.adapters = []string{"law@test-model=/law", "ada=/ada"} }, "", ""},
		{"an adapter with the name of a model", func(cfg *config) { cfg.pools.adapters = []string{"test-model=/law"} },
			"adapter test-model: servers have a model of that name, which would never be asked for the adapter; give the adapter another name", ""},
		{"an adapter", func(cfg *config) { cfg.pools.adapters = []string{"law@test-modle=/law"} },
			"adapter law: no server has the model test-modle; there are ", ""},
		{"a way to tokens", func(cfg *config) { cfg.kv.modes = []string{"engine", "nope=learned", "test-model=engine"} },
			"tokens: no server has the model nope; there are test-model", ""},
		{"a tokenizer", func(cfg *config) { cfg.kv.modes, cfg.kv.tokenizers = []string{"tokenizer"}, []string{"nope=" + file} },
			"tokenizer: no server has the model nope; there are test-model", ""},
		{"two settings", func(cfg *config) {
			cfg.pd.ttft, cfg.kv.modes = []string{"first=2s"}, []string{"engine", "second=engine"}
		},
			"ttft-slo: no server has the model first; there are test-model\ntokens: no server has the model second; there are test-model", ""},
		{"a server that is down may have it", func(cfg *config) {
			cfg.gateway.aliases = []string{"chat=nope"}
			cfg.servers[0].add(serverEntry{URL: "http://127.0.0.1:1"})
		}, "server 127.0.0.1:1 does not answer: ", ""},
		{"one that is found may have it", func(cfg *config) {
			cfg.gateway.aliases = []string{"chat=nope"}
			cfg.servers[1].add(serverEntry{URL: "dns+http://decode:8000"})
		}, "", "WARN servers that are found while serving"},
	} {
		fault, printed := checked(t, func(cfg *config) {
			cfg.servers[2].add(serverEntry{URL: up.URL()})
			x.change(cfg)
		})
		if (fault == "") != (x.fault == "") || !strings.HasPrefix(fault, x.fault) || strings.Contains(fault, "model-alias") != strings.Contains(x.fault, "model-alias") ||
			!strings.Contains(printed, x.printed) || strings.Contains(printed, "WARN") != (x.printed != "") {
			t.Errorf("%s: %q\n%s", x.name, fault, printed)
		}
	}
}

// A key for models that no server has gets nothing but 404. Its models are names as clients send them: an alias is one.
func TestCheck_NamesModelsOfKeysThatNoServerHas(t *testing.T) {
	t.Parallel()
	up := startTestEngine(t, engine.RoleBoth, nil)
	ada := "key " + access.Hash("sk-ada")[:16] + " of tenant ada: no server has the model "
	for models, x := range map[string]struct{ fault, printed string }{
		"[nope]":                        {ada + "nope; there are chat, law, test-model", ""},
		"[test-modle]":                  {ada + "test-modle; there are chat, law, test-model; did you mean test-model?", ""},
		"[nope,other]":                  {ada + "nope; there are chat, law, test-model\n" + ada + "other; there are chat, law, test-model", ""},
		`["qwen*"]`:                     {ada + "qwen*; there are chat, law, test-model", ""},
		"[test-model,nope]":             {"", "WARN " + ada + "nope; there are chat, law, test-model\n"},
		`[test-model,chat,law,"test*"]`: {"", ""},
		"[chat]":                        {"", ""},
		"[law]":                         {"", ""},
		`["*"]`:                         {"", ""},
		"[]":                            {"", ""},
	} {
		fault, printed := checked(t, func(cfg *config) {
			cfg.servers[2].add(serverEntry{URL: up.URL()})
			cfg.gateway.aliases, cfg.pools.adapters = []string{"chat=test-model"}, []string{"law=/law"}
			withKeys(t, "sk-ada tenant=ada models="+models, "sk-bob tenant=bob")(cfg)
		})
		if fault != x.fault || !strings.Contains(printed, x.printed) || strings.Contains(printed, "WARN") != (x.printed != "") {
			t.Errorf("%s: %q\n%s", models, fault, printed)
		}
	}
}

// Of two engines with one address of events, what the one holds is believed of both.
func TestCheck_NamesServersWithOneAddressOfKVEvents(t *testing.T) {
	t.Parallel()
	first, second := startTestEngine(t, engine.RoleBoth, publishing), startTestEngine(t, engine.RoleBoth, publishing)
	at := func(e *engine.Engine) string { return local(e.State().EventsEndpoints[0]) }
	for own, warned := range map[string]bool{at(second): false, at(first): true} {
		fault, printed := checked(t, func(cfg *config) {
			cfg.servers[2].add(serverEntry{URL: first.URL(), Events: at(first)})
			cfg.servers[2].add(serverEntry{URL: second.URL(), Events: own})
		})
		want := ", at " + own + ": " + oneEventAddress
		if fault != "" || strings.Contains(printed, want) != warned || strings.Contains(printed, "WARN") != warned {
			t.Errorf("at %s: %q\n%s", own, fault, printed)
		}
	}
}

// One engine under two names is two servers, so that what it can take is counted twice; ranks of one are no two engines.
func TestCheck_NamesAnEngineUnderTwoNames(t *testing.T) {
	t.Parallel()
	first, second := startTestEngine(t, engine.RoleBoth, nil), startTestEngine(t, engine.RoleBoth, nil)
	named := strings.Replace(first.URL(), "127.0.0.1", "localhost", 1)
	zero, one := 0, 1
	for name, x := range map[string]struct {
		prefill, decode serverEntry
		warned          bool
	}{
		"two engines":         {serverEntry{URL: first.URL()}, serverEntry{URL: second.URL()}, false},
		"an address, a name":  {serverEntry{URL: first.URL()}, serverEntry{URL: named}, true},
		"two ranks":           {serverEntry{URL: first.URL(), Rank: &zero}, serverEntry{URL: named, Rank: &one}, false},
		"one rank":            {serverEntry{URL: first.URL(), Rank: &one}, serverEntry{URL: named, Rank: &one}, true},
		"all, and one of all": {serverEntry{URL: first.URL()}, serverEntry{URL: named, Rank: &one}, true},
	} {
		fault, printed := checked(t, func(cfg *config) {
			cfg.servers[0].add(x.prefill)
			cfg.servers[1].add(x.decode)
		})
		if fault != "" || strings.Contains(printed, oneEngine) != x.warned || strings.Contains(printed, "WARN") != x.warned {
			t.Errorf("%s: %q\n%s", name, fault, printed)
		}
	}
}

func TestServe_WarnsOfAnEngineThatWantsAKey(t *testing.T) {
	t.Parallel()
	locked := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/health" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	defer locked.Close()
	var log testlog.Buffer
	newCluster(t, shape{log: &log, config: func(cfg *config) { cfg.servers[2].add(serverEntry{URL: locked.URL}) }})
	warned := func() int { return strings.Count(log.String(), "engine-key-file") }
	eventually(t, "the setting is named", func() bool { return warned() > 0 && strings.Contains(log.String(), `"level":"WARN"`) })
	if n := warned(); n != 1 {
		t.Errorf("warned %d times", n)
	}
}
