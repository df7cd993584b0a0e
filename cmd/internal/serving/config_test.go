package serving

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/loadtest/testlog"
	"github.com/tandem-gateway/tandem/pools"
)

func writeConfig(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// configOf reads a file's text with flags over it.
func configOf(t *testing.T, content string, args ...string) (config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tandem.yaml")
	writeConfig(t, path, content)
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	given := defaultConfig()
	given.bind(flags)
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	return loadConfig(path, flags)
}

func TestConfig_ListsAreTheSameByFlagAndByFile(t *testing.T) {
	want := "[a:1 b:2] [learned m=engine]"
	for name, load := range map[string]func() (config, error){
		"flags": func() (config, error) {
			return configOf(t, "decode: http://x:1\n", "--redis", "a:1,b:2", "--tokens", "learned", "--tokens", "m=engine")
		},
		"flags over a file": func() (config, error) {
			return configOf(t, "decode: http://x:1\nredis: c:3\ntokens: [off]\n", "--redis", "a:1,b:2", "--tokens", "learned,m=engine")
		},
		"lists in the file": func() (config, error) {
			return configOf(t, "decode: http://x:1\nredis:\n- a:1\n- b:2\ntokens: [learned, m=engine]\n")
		},
		"text in the file": func() (config, error) {
			return configOf(t, "decode: http://x:1\nredis: a:1,b:2\ntokens: learned,m=engine\n")
		},
	} {
		cfg, err := load()
		if got := fmt.Sprint(cfg.redis.addrs, cfg.kv.modes); err != nil || got != want {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
}

const goodConfig = `# a comment
listen: "127.0.0.1:0"
expose-pair: true
prefill-timeout: 90s
retry-ratio: 0.1
prefill:
  - url: http://a:8000
    host: h1
    rack: r1
    zone: z1
    connector: mooncake
  - url: http://a:8000/
    rank: 1
    drain: true
decode:
  - http://c:8000
  - url: https://d:8000
    connector: nixl
both: http://e:1,http://f:2
`

func TestConfig_FileAndFlagsShareNamesAndFlagsWin(t *testing.T) {
	cfg, err := configOf(t, goodConfig, "--retry-ratio", "0.3", "--decode", "http://x:1,http://y:2")
	if err != nil {
		t.Fatal(err)
	}
	if cfg.ports.listen != "127.0.0.1:0" || !cfg.gateway.ExposePair || cfg.pd.PrefillTimeout != 90*time.Second || cfg.pd.RetryRatio != 0.3 {
		t.Errorf("%+v", cfg)
	}
	var ids []string
	for _, s := range cfg.specs() {
		ids = append(ids, s.Role.String()+" "+s.ID())
	}
	want := "prefill a:8000, prefill a:8000/dp1, decode x:1, decode y:2, both e:1, both f:2"
	if got := strings.Join(ids, ", "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	first := cfg.specs()[0]
	if first.Host != "h1" || first.Rack != "r1" || first.Zone != "z1" || first.Connector != "mooncake" || !cfg.specs()[1].Drain {
		t.Errorf("%+v", cfg.specs())
	}
}

func TestConfig_MistakesNameTheirLine(t *testing.T) {
	for _, x := range []struct{ name, content, want string }{
		{"unknown setting", "listen: x\nprefil: http://a:1\n", `tandem.yaml: line 2: unknown setting "prefil"; did you mean prefill?`},
		{"unknown key of a server", "decode:\n  - url: http://a:1\n    conector: nixl\n", `tandem.yaml: line 3: unknown label "conector" of a server; did you mean connector?`},
		{"wrong type", "max-body: many\ndecode: http://a:1\n", `line 1: max-body: "many" is not a whole number`},
		{"a list where one is wanted", "listen: [a, b]\ndecode: http://a:1\n", "line 1: listen: want a single value"},
		{"twice", "listen: a\nlisten: b\n", "tandem.yaml: line 2: listen is set in line 1 already"},
		{"not YAML", "listen: [a\n", "tandem.yaml: line 1: "},
		{"a label of another type", "decode:\n- url: http://a:1\n  rank: one\n", `tandem.yaml: line 3: rank: "one" is not a whole number`},
		{"a label that is neither", "decode:\n- url: http://a:1\n  drain: maybe\n", `tandem.yaml: line 3: drain: "maybe" is not true or false`},
		{"an item of another type", "redis: [a:1, [b]]\ndecode: http://a:1\n", "tandem.yaml: line 1: "},
		{"no value", "listen:\ndecode: http://a:1\n", "tandem.yaml: line 1: listen: has no value; leave the line out for the default"},
		{"no port", "both: http://a:99999\n", `server "http://a:99999": "99999" is not a valid port: want 1 to 65535`},
		{"a label twice", "decode:\n- url: http://a:1\n  url: http://b:1\n", "tandem.yaml: line 3: label url is given twice"},
		{"a server twice", "decode:\n- http://a:1\nprefill:\n- http://a:1\n", "tandem.yaml: line 4: server a:1 is named in line 2 already"},
		{"not settings", "- a\n- b\n", "line 1"},
		{"no servers", "listen: :1\n", "no servers"},
		{"no decode server, by name", "prefill: dns+http://a:1\ndecode: []\n", "tandem.yaml: line 2: decode names no server"},
		{"no decode server", "prefill: http://a:1\ndecode: []\n", "tandem.yaml: line 2: decode names no server, nor does both: every request would be refused"},
		{"bad URL", "listen: x:1\ndecode:\n- http://b:1\n- a:1\n", `tandem.yaml: line 4: server "a:1": add http:// in front: http://a:1`},
		{"bad connector", "decode:\n  - url: http://a:1\n    connector: pigeon\n", "pigeon"},
		{"out of range", "decode: http://a:1\nretry-ratio: 3\n", "tandem.yaml: line 2: retry-ratio: 3: "},
		{"an objective that is none", "objective: llama=speed\ndecode: http://a:1\n", `tandem.yaml: line 1: objective "llama=speed"`},
		{"the objective of a class that is none", "objective: class:bulk=latency\ndecode: http://a:1\n", "no class"},
		{"an SLO that is no time", "ttft-slo: [2s, llama=soon]\ndecode: http://a:1\n", `ttft-slo "llama=soon": want a duration`},
		{"an SLO below nothing", "itl-slo: -1s\ndecode: http://a:1\n", `itl-slo "-1s"`},
		{"two SLOs for all", "ttft-slo: [2s, 3s]\ndecode: http://a:1\n", "for all models already"},
		{"the SLO of a class", "ttft-slo: class:batch=3s\ndecode: http://a:1\n", "only an objective can be a class's"},
		{"the SLO of an alias", "itl-slo: chat=30ms\nmodel-alias: chat=llama\ndecode: http://a:1\n", "itl-slo: chat is an alias"},
		{"nothing to plan for", "scale-itl: llama=0s\ndecode: http://a:1\n", "must be positive"},
		{"bad level", "log-level: loud\ndecode: http://a:1\n", "log-level"},
		{"not a duration", "idle-timeout: 30\ndecode: http://a:1\n", `line 1: idle-timeout: "30" is not a time with its unit, such as 30s`},
	} {
		_, err := configOf(t, x.content)
		if err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v", x.name, err)
		}
		if err != nil && (strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "[1:") || strings.Count(err.Error(), "line ") > 2) {
			t.Errorf("%s: an error is one line and has one place: %v", x.name, err)
		}
	}
}

// Where servers are found while serving, or requests are held for those to come, a role may be empty.
func TestConfig_NoDecodeServerIsAllowedWhereSomeMayCome(t *testing.T) {
	for _, more := range []string{
		"decode: dns+http://b:1", "both: http://b:1", "kubernetes-pods: tandem/role", "registry: true\nredis: c:1", "nccl-listen: tcp://*:30001",
		"hold: 5s", "scale-prefill-min: 0\nscale-decode-min: 0",
	} {
		if _, err := configOf(t, "prefill: http://a:1\n"+more+"\n"); err != nil {
			t.Errorf("%s: %v", more, err)
		}
	}
}

// A reload that takes out the last prefill server is valid, and rarely meant.
func TestConfig_ReloadWarnsOfARoleThatIsEmptied(t *testing.T) {
	var log testlog.Buffer
	c := newCluster(t, shape{prefill: 1, decode: 1, log: &log})
	for _, want := range []string{"prefill", ""} { // once
		next, err := configOf(t, "decode: "+c.decode[0].URL()+"\n")
		if err != nil {
			t.Fatal(err)
		}
		log.Take()
		if err := c.node.reload(next); err != nil {
			t.Fatal(err)
		}
		if got := gjson.Get(log.String(), `..#(msg=="the configuration lists no server of a role any more").role`).String(); got != want {
			t.Errorf("role %q, want %q: %s", got, want, log.String())
		}
	}
}

// A file whose last decode server is taken out leaves the fleet as it is.
func TestConfig_ReloadRefusesAFileWithoutDecode(t *testing.T) {
	prefill, decode := startTestEngine(t, engine.RolePrefill, nil), startTestEngine(t, engine.RoleDecode, nil)
	var log testlog.Buffer
	c := newCluster(t, shape{log: &log, config: func(cfg *config) {
		cfg.servers[0].add(serverEntry{URL: prefill.URL()})
		cfg.servers[1].add(serverEntry{URL: decode.URL()})
	}})
	path := filepath.Join(t.TempDir(), "tandem.yaml")
	writeConfig(t, path, "prefill: "+prefill.URL()+"\ndecode: "+decode.URL()+"\n")
	stop := c.node.followConfig(t.Context(), path, contentHash(path), pflag.NewFlagSet("", pflag.ContinueOnError))
	defer stop()
	writeConfig(t, path, "prefill: "+prefill.URL()+"\ndecode: []\n")
	eventually(t, "the file is refused", func() bool { return strings.Contains(log.String(), "the old one stays") })
	if n := len(c.node.fleet.Servers()); n != 2 {
		t.Errorf("%d servers", n)
	}
}

// What a flag says is not the file's mistake.
func TestConfig_MistakesOfFlagsNameNoLine(t *testing.T) {
	_, err := configOf(t, "retry-ratio: 0.5\ndecode: http://a:1\n", "--retry-ratio", "3")
	if err == nil || strings.Contains(err.Error(), "line") || !strings.Contains(err.Error(), "retry-ratio") {
		t.Error(err)
	}
}

// Decode servers are planned for what requests are judged by, unless told otherwise.
func TestConfig_DecodeIsPlannedForTheSLOOfItsModel(t *testing.T) {
	for _, x := range []struct {
		content          string
		big, small, free time.Duration
	}{
		{"", 50 * time.Millisecond, 50 * time.Millisecond, 50 * time.Millisecond},
		{"itl-slo: [30ms, big=80ms, free=0s]\n", 80 * time.Millisecond, 30 * time.Millisecond, 50 * time.Millisecond},
		{"itl-slo: [30ms, big=80ms]\nscale-itl: big=60ms\n", 60 * time.Millisecond, 30 * time.Millisecond, 30 * time.Millisecond},
		{"itl-slo: [30ms, big=80ms]\nscale-itl: 40ms\n", 40 * time.Millisecond, 40 * time.Millisecond, 40 * time.Millisecond},
	} {
		cfg, err := configOf(t, x.content+"decode: http://a:1\n")
		if err != nil {
			t.Fatal(err)
		}
		for model, want := range map[string]time.Duration{"big": x.big, "small": x.small, "free": x.free} {
			if got := cfg.scaling.ITL.Of(model, model); got != want {
				t.Errorf("%q: %s is planned for %v, want %v", x.content, model, got, want)
			}
		}
	}
}

// An address to listen at that cannot be bound is a mistake of the configuration, by its key and before anything runs.
func TestConfig_PortsToListenAtAreInTheirRange(t *testing.T) {
	for _, x := range []struct{ setting, address, wrong string }{
		{"listen", ":99999", `"99999" is not a valid port: want 0 to 65535`},
		{"listen", "127.0.0.1:65536", `"65536" is not a valid port`},
		{"listen", "127.0.0.1:-1", `"-1" is not a valid port`},
		{"listen", "127.0.0.1", "want host:port"},
		{"listen", "tcp://127.0.0.1:8080", "want host:port"},
		{"listen", "127.0.0.1:65535", ""},
		{"listen", ":0", ""},
		{"listen", ":http", ""},
		{"admin", "127.0.0.1:70000", `"70000" is not a valid port`},
		{"picker", ":70000", `"70000" is not a valid port`},
		{"orca-listen", ":70000", `"70000" is not a valid port`},
		{"orca-listen", "70000", "want host:port"},
		{"decider-listen", "[::1]:70000", `"70000" is not a valid port`},
		{"scaler", ":70000", `"70000" is not a valid port`},
		{"nccl-listen", "tcp://*:70000", `"70000" is not a valid port`},
		{"nccl-listen", "tcp://*:30001", ""},
		{"nccl-listen", "tcp://127.0.0.1:*", ""},
	} {
		_, err := configOf(t, "decode: http://a:1\n"+x.setting+": \""+x.address+"\"\n")
		if (err == nil) != (x.wrong == "") {
			t.Errorf("%s %s: %v", x.setting, x.address, err)
			continue
		}
		if want := fmt.Sprintf("tandem.yaml: line 2: %s %q: %s", x.setting, x.address, x.wrong); err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// Two settings that would bind one port are a mistake of the configuration, found before anything is bound.
func TestConfig_TwoSettingsDoNotShareAPort(t *testing.T) {
	const redis = "--redis=127.0.0.1:6379"
	for _, x := range []struct {
		args  []string
		wrong string
	}{
		{[]string{"--admin=127.0.0.1:7001", "--scaler=127.0.0.1:7001"}, "admin 127.0.0.1:7001 and scaler 127.0.0.1:7001 are one port"},
		{[]string{"--admin=127.0.0.1:7001", "--scaler=:7001"}, "admin 127.0.0.1:7001 and scaler :7001 are one port"},
		{[]string{"--listen=0.0.0.0:7001", "--admin=127.0.0.1:7001"}, "listen 0.0.0.0:7001 and admin 127.0.0.1:7001 are one port"},
		{[]string{"--listen=[::]:7001", "--admin=10.0.0.1:7001"}, "listen [::]:7001 and admin 10.0.0.1:7001 are one port"},
		{[]string{"--listen=localhost:7001", "--admin=LOCALHOST:7001"}, "listen localhost:7001 and admin LOCALHOST:7001 are one port"},
		{[]string{"--listen=:http", "--admin=:80"}, "listen :http and admin :80 are one port"},
		{[]string{"--picker=:8080"}, "listen :8080 and picker :8080 are one port"},
		{[]string{"--picker=:7001", "--orca-listen=:7001"}, "picker :7001 and orca-listen :7001 are one port"},
		{[]string{"--scaler=:7001", "--decider-listen=:7001", redis}, "scaler :7001 and decider-listen :7001 are one port"},
		{[]string{"--admin=127.0.0.1:0", "--scaler=127.0.0.1:0", "--listen=:0"}, ""},
		{[]string{"--admin=127.0.0.1:7001", "--scaler=127.0.0.2:7001"}, ""},
		{[]string{"--admin=127.0.0.1:7001", "--scaler=127.0.0.1:7002"}, ""},
		{[]string{"--admin=0.0.0.0:7001", "--scaler=[::1]:7001"}, ""}, // an IPv4 wildcard takes no IPv6 address
	} {
		_, err := configOf(t, "decode: http://a:1\n", x.args...)
		if (err == nil) != (x.wrong == "") || err != nil && !strings.Contains(err.Error(), x.wrong) {
			t.Errorf("%v: %v, want %q", x.args, err, x.wrong)
		}
	}
}

// A setting that does nothing without another one is refused, as a registry without Redis is.
func TestConfig_SettingsThatNeedOthersAreRefusedWithoutThem(t *testing.T) {
	const redis, picker = "--redis=127.0.0.1:6379", "--picker=:9002"
	for _, x := range []struct {
		args  []string
		wrong string
	}{
		{[]string{"--registry"}, "registry needs redis"},
		{[]string{picker, "--picker-leader-only"}, "picker-leader-only needs redis"},
		{[]string{"--picker-leader-only", redis}, "picker-leader-only needs picker"},
		{[]string{picker, "--picker-leader-only", redis}, ""},
		{[]string{"--picker-plain"}, "picker-plain needs picker"},
		{[]string{picker, "--picker-plain"}, ""},
		{[]string{"--picker-cert=a", "--picker-key=b"}, "picker-cert needs picker"},
		{[]string{"--decider-listen=:7001"}, "decider-listen needs redis"},
		{[]string{"--decider-cert=a", "--decider-key=b", "--decider-client-ca=c"}, "decider-cert needs redis"},
		{[]string{"--decider-listen=:7001", redis}, ""},
		{[]string{"--decider-cert=a", "--decider-key=b", "--decider-client-ca=c", redis}, ""},
		{[]string{"--scale-victims"}, "scale-victims needs kubernetes-pods"},
		{[]string{"--scale-victims", "--kubernetes-pods=tandem/role"}, ""},
		{[]string{"--scale-victims", "--inference-pools=pool"}, ""},
	} {
		_, err := configOf(t, "decode: http://a:1\n", x.args...)
		if (err == nil) != (x.wrong == "") || err != nil && !strings.Contains(err.Error(), x.wrong) {
			t.Errorf("%v: %v, want %q", x.args, err, x.wrong)
		}
	}
}

// An adapter that is named like its base model could not be asked for.
func TestConfig_AnAdapterIsNotNamedLikeItsBase(t *testing.T) {
	if _, err := configOf(t, "decode: http://a:1\nadapter: llama@llama=/law\n"); err == nil || !strings.Contains(err.Error(), "adapter llama has the name of its base model") {
		t.Error(err)
	}
}

func FuzzConfigFile(f *testing.F) {
	f.Add([]byte(goodConfig))
	f.Add([]byte("decode:\n- {url: http://a:1, rank: -1}\n---\nboth: x\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		cfg := defaultConfig()
		known := pflag.NewFlagSet("", pflag.ContinueOnError)
		cfg.bind(known)
		if _, err := readFile(content, &cfg, known); err == nil {
			_ = cfg.validate() // either answer is right; a panic is not
		}
	})
}

func TestConfig_ReloadTakesServersOverAndABrokenFileChangesNothing(t *testing.T) {
	a, b := startTestEngine(t, engine.RoleBoth, nil), startTestEngine(t, engine.RoleBoth, nil)
	var log testlog.Buffer
	c := newCluster(t, shape{log: &log, config: func(cfg *config) { cfg.servers[2].add(serverEntry{URL: a.URL()}) }})
	path := filepath.Join(t.TempDir(), "tandem.yaml")
	file := func(urls ...string) string { return "both:\n- " + strings.Join(urls, "\n- ") + "\nmax-retries: 7\n" }
	writeConfig(t, path, file(a.URL()))

	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	stop := c.node.followConfig(t.Context(), path, contentHash(path), flags)
	defer stop()
	servers := func() []*pools.Server { return c.node.fleet.Servers() }

	writeConfig(t, path, file(a.URL(), b.URL()))
	eventually(t, "the new server is up", func() bool { return len(servers()) == 2 && servers()[1].Health().Up })
	eventually(t, "the log says what needs a restart", func() bool { return strings.Contains(log.String(), "max-retries") })
	writeConfig(t, path, "both: [\n")
	eventually(t, "the broken file is reported", func() bool { return strings.Contains(log.String(), "the old one stays") })
	if len(servers()) != 2 {
		t.Errorf("%d servers after a broken file", len(servers()))
	}
	// Editors and Kubernetes replace files.
	next := path + ".next"
	writeConfig(t, next, file(b.URL()))
	if err := os.Rename(next, path); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first server is gone", func() bool { return len(servers()) == 1 && servers()[0].URL == b.URL() })

	before := strings.Count(log.String(), "configuration reloaded")
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "SIGHUP reloads", func() bool { return strings.Count(log.String(), "configuration reloaded") > before })
}

// Metrics say whether the gateway runs with what its files say, since when, and how many settings wait for a restart.
func TestReload_MetricsSayWhetherTheFilesAreInUse(t *testing.T) {
	a, dir := startTestEngine(t, engine.RoleBoth, nil), t.TempDir()
	keys, path := filepath.Join(dir, "keys.yaml"), filepath.Join(dir, "tandem.yaml")
	keysFile(t, keys, "sk-ada tenant=ada")
	file := "both: " + a.URL() + "\nkeys-file: " + keys + "\n"
	writeConfig(t, path, file)
	c := newCluster(t, shape{config: func(cfg *config) {
		cfg.servers[2].add(serverEntry{URL: a.URL()})
		cfg.access.keysFile = keys
	}})
	stop := c.node.followConfig(t.Context(), path, contentHash(path), pflag.NewFlagSet("", pflag.ContinueOnError))
	defer stop()
	stopKeys := c.node.follow(t.Context(), "keys", keys, contentHash(keys), c.node.reloadKeys)
	defer stopKeys()
	successful := func(file string) float64 { return c.metric("tandem_file_reload_successful", `file="`+file+`"`) }
	at := func() float64 {
		return c.metric("tandem_file_reload_success_timestamp_seconds", `file="configuration"`)
	}
	if successful("configuration") != 1 || successful("keys") != 1 {
		t.Fatalf("configuration %v, keys %v at the start", successful("configuration"), successful("keys"))
	}
	first := at()
	if age := time.Since(time.UnixMilli(int64(1000 * first))); age < -time.Second || age > time.Minute {
		t.Errorf("the configuration was read %v ago", age)
	}
	writeConfig(t, path, "both: [\n")
	eventually(t, "metrics say that the configuration is broken", func() bool { return successful("configuration") == 0 })
	if at() != first || successful("keys") != 1 {
		t.Errorf("a broken configuration was in use at %v, after %v; keys: %v", at(), first, successful("keys"))
	}
	writeConfig(t, path, file+"max-retries: 7\nmax-wait: 47s\n")
	eventually(t, "the configuration is in use", func() bool { return successful("configuration") == 1 && at() > first })
	changed := c.metric("tandem_settings_need_restart")
	writeConfig(t, path, file)
	// The gateway of a test has settings that its file does not have.
	eventually(t, "two settings fewer wait for a restart", func() bool { return c.metric("tandem_settings_need_restart") == changed-2 })
	writeConfig(t, keys, "keys: [sk-bob]")
	eventually(t, "metrics say that the keys are broken", func() bool { return successful("keys") == 0 })
	if successful("configuration") != 1 {
		t.Error("broken keys count as a broken configuration")
	}
}

// The log of a reload names the servers that came, went or changed, and which settings of them did.
func TestConfig_ReloadSaysWhatChanged(t *testing.T) {
	a, b, d := startTestEngine(t, engine.RoleBoth, nil), startTestEngine(t, engine.RoleBoth, nil), startTestEngine(t, engine.RoleBoth, nil)
	var log testlog.Buffer
	c := newCluster(t, shape{log: &log, config: func(cfg *config) {
		cfg.servers[2].add(serverEntry{URL: a.URL()})
		cfg.servers[2].add(serverEntry{URL: b.URL()})
	}})
	id := func(e *engine.Engine) string { return strings.TrimPrefix(e.URL(), "http://") }
	moved := "decode:\n- {url: " + a.URL() + ", rack: r1, connector: sglang}\nboth:\n- " + d.URL() + "\n"
	for i, x := range []struct{ text, added, removed, changed string }{
		{"both:\n- {url: " + a.URL() + ", rack: r1, drain: true}\n- " + d.URL() + "\n", id(d), id(b), id(a) + ": rack, drain"},
		{moved, "", "", id(a) + ": role, connector, drain"},
		{moved + "- dns+http://localhost:1\n", "both dns+http://localhost:1", "", ""},
		{moved + "- dns+http://localhost:1\n", "", "", ""},
	} {
		next, err := configOf(t, x.text)
		if err != nil {
			t.Fatal(err)
		}
		log.Take()
		if err := c.node.reload(next); err != nil {
			t.Fatal(err)
		}
		said := gjson.Get(log.String(), `..#(msg=="configuration reloaded")`)
		added, removed, changed := said.Get("added.0").String(), said.Get("removed.0").String(), said.Get("changed.0").String()
		if added != x.added || removed != x.removed || changed != x.changed || said.Get("servers").Int() != 2 {
			t.Errorf("%d: %s", i, said)
		}
	}
}

// Of many servers the log of a reload names ten, and how many more there are.
func TestServerChanges_NameTen(t *testing.T) {
	var all []pools.Spec
	for i := range 13 {
		all = append(all, pools.Spec{URL: fmt.Sprintf("http://10.0.0.%d:1", i), Role: pools.Both})
	}
	for n, want := range map[int]int{10: 10, 11: 11, 13: 11} {
		added := changesOf(nil, all[:n]).fields()[1].([]string)
		if len(added) != want || n > 10 && added[10] != fmt.Sprintf("and %d more", n-10) {
			t.Errorf("of %d: %q", n, added)
		}
	}
	if same := changesOf(all, all).fields(); len(same) != 0 {
		t.Errorf("nothing changed: %v", same)
	}
}
