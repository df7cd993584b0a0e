package serving

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/cmd/internal/adminport"
	"github.com/tandem-gateway/tandem/cmd/internal/explain"
	"github.com/tandem-gateway/tandem/gateway"
	"github.com/tandem-gateway/tandem/gateway/access"
	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/loadtest/redisserver"
	"github.com/tandem-gateway/tandem/loadtest/testlog"
	"github.com/tandem-gateway/tandem/pd/api"
)

// keysFile writes a file of keys, each given as the key and what is set for it.
func keysFile(t *testing.T, path string, entries ...string) {
	t.Helper()
	var b strings.Builder
	b.WriteString("secret: 0123456789abcdef0123456789abcdef\nkeys:\n")
	for _, e := range entries {
		words := strings.Split(e, " ")
		fmt.Fprintf(&b, "  - sha256: %s\n", access.Hash(words[0]))
		for _, setting := range words[1:] {
			name, value, _ := strings.Cut(setting, "=")
			fmt.Fprintf(&b, "    %s: %s\n", name, value)
		}
	}
	next := path + ".next"
	writeConfig(t, next, b.String())
	if err := os.Rename(next, path); err != nil {
		t.Fatal(err)
	}
}

// withKeys makes the gateway ask for the keys given, as in keysFile.
func withKeys(t *testing.T, entries ...string) func(*config) {
	path := filepath.Join(t.TempDir(), "keys.yaml")
	keysFile(t, path, entries...)
	return func(cfg *config) { cfg.access.keysFile = path }
}

// A mistyped field is named with the one that was meant. What resembles no field may be a key in the wrong place.
func TestKeys_AMistypedFieldIsNamed(t *testing.T) {
	for setting, want := range map[string]string{
		"request-per-minute=3": `line 4: unknown field "request-per-minute"; did you mean requests-per-minute?`,
		"Tenants=ada":          `line 4: unknown field "Tenants"; did you mean tenant?`,
		"sk-canary=ada":        "line 4: unknown field; there are secret, keys, sha256, tenant, class, may-set, models, requests-per-minute, ",
		"colour=sk-canary":     "line 4: unknown field; there are secret, keys, sha256, ",
	} {
		cfg := testConfig()
		withKeys(t, "sk-ada "+setting+" tenant=ada")(&cfg)
		_, err := cfg.access.keys()
		if want := cfg.access.keysFile + ": " + want; err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v", setting, err)
		}
	}
}

const chatPath = "/v1/chat/completions"

func TestKeys_EveryPathOfTheAPIAsksForOne(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1, config: withKeys(t, "sk-ada tenant=ada")})
	get := func(path, key string) answer {
		req, _ := http.NewRequest(http.MethodGet, c.base+path, nil)
		req.Header.Set("Authorization", "Bearer "+key)
		resp, err := c.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		return readResponse(resp)
	}
	var paths []string
	for _, d := range api.Dialects() {
		if !d.Native { // closed here to every client
			paths = append(paths, d.Path)
		}
	}
	for _, path := range paths {
		for name, headers := range map[string][]string{"no key": nil, "an unknown key": {"Authorization", "Bearer sk-eve"}, "no scheme": {"Authorization", "sk-ada"}} {
			got := c.post(path, chatBody(""), headers...)
			if got.status != 401 || got.header.Get("X-Should-Retry") != "false" || got.header.Get("WWW-Authenticate") != "Bearer" || strings.Contains(got.body, "sk-") {
				t.Errorf("%s to %s: %d %v %s", name, path, got.status, got.header, got.body)
			}
			if code := gjson.Get(got.body, "error.code").String(); code != "invalid_api_key" && !strings.HasPrefix(path, "/v1/messages") {
				t.Errorf("%s to %s: %s", name, path, got.body)
			}
		}
	}
	for _, path := range []string{"/v1/models", "/v1/models/" + testModel} {
		if a, b := get(path, "sk-eve"), get(path, "sk-ada"); a.status != 401 || b.status != 200 {
			t.Errorf("%s: %d with an unknown key, %d with a good one", path, a.status, b.status)
		}
	}
	if got := c.raw("GET", c.base+"/health"); got.status != 200 {
		t.Errorf("/health without a key: %d", got.status)
	}
	for name, header := range map[string][2]string{"OpenAI's": {"Authorization", "bearer sk-ada"}, "Anthropic's": {"X-Api-Key", "sk-ada"}} {
		if got := c.post(chatPath, chatBody(""), header[0], header[1]); got.status != 200 {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
	}
	for _, r := range append(requests(c.prefill, chatPath), requests(c.decode, chatPath)...) {
		if slices.Contains(r.HeaderNames, "Authorization") || slices.Contains(r.HeaderNames, "X-Api-Key") {
			t.Errorf("an engine got the client's key: %v", r.HeaderNames)
		}
	}
}

func TestKeys_AreTakenOverWhileServingAndNeverShown(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "keys.yaml")
	keysFile(t, path, "sk-ada-canary tenant=ada")
	var log testlog.Buffer
	c := newCluster(t, shape{prefill: 1, decode: 1, log: &log, config: func(cfg *config) { cfg.access.keysFile = path }})
	stop := c.node.follow(t.Context(), "keys", path, contentHash(path), c.node.reloadKeys)
	defer stop()
	status := func(key string) int { return c.post(chatPath, chatBody(""), "Authorization", "Bearer "+key).status }
	if status("sk-ada-canary") != 200 || status("sk-bob-canary") != 401 {
		t.Fatal("the first file")
	}
	keysFile(t, path, "sk-bob-canary tenant=bob")
	eventually(t, "the second file is read", func() bool { return status("sk-bob-canary") == 200 && status("sk-ada-canary") == 401 })
	writeConfig(t, path, "keys: [sk-bob-canary]")
	eventually(t, "a broken file is reported", func() bool { return strings.Contains(log.String(), "the old one stays") })
	if status("sk-bob-canary") != 200 {
		t.Error("a broken file changed the keys")
	}
	for what, text := range map[string]string{"the log": log.String(), "metrics": c.get("/metrics").body} {
		if strings.Contains(text, "canary") || strings.Contains(text, access.Hash("sk-bob-canary")) {
			t.Errorf("%s tells of a key", what)
		}
	}
	eventually(t, "bob's requests are counted", func() bool {
		return c.metric("tandem_tenant_requests_total", `tenant="bob"`, `class="standard"`, `outcome="ok"`) >= 2
	})
}

// A file from which all keys have gone locks every client out, as by a template that was given none: that is warned of.
func TestKeys_ThatNoneIsLeftIsWarnedOf(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "keys.yaml")
	keysFile(t, path, "sk-ada tenant=ada")
	var log testlog.Buffer
	c := newCluster(t, shape{decode: 1, log: &log, config: func(cfg *config) { cfg.access.keysFile = path }})
	const warning = `"level":"WARN","msg":"the file of keys has none: every request is refused"`
	for _, keys := range [][]string{{"sk-bob tenant=bob"}, {}} {
		keysFile(t, path, keys...)
		if err := c.node.reloadKeys(); err != nil {
			t.Fatal(err)
		}
		if warned := strings.Contains(log.String(), warning); warned != (len(keys) == 0) {
			t.Errorf("with %d keys it is warned: %v", len(keys), warned)
		}
	}
	if got := c.post(chatPath, chatBody(""), "Authorization", "Bearer sk-bob"); got.status != 401 {
		t.Errorf("a key that has gone: %d %s", got.status, got.body)
	}
}

// A key of engines that is replaced in its file, as Kubernetes replaces a secret, is that of the next probe and of the next
// leg; of a file that is empty the key before it stays.
func TestEngineKey_IsTakenOverWhileServing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	keys, key := filepath.Join(dir, "keys.yaml"), filepath.Join(dir, "engines")
	keysFile(t, keys, "sk-ada tenant=ada")
	write(t, key, "canary-old\n")
	old := startTestEngine(t, engine.RoleBoth, func(cfg *engine.Config) { cfg.APIKey = "canary-old" })
	renewed := startTestEngine(t, engine.RoleBoth, func(cfg *engine.Config) { cfg.APIKey = "canary-new" })
	var log testlog.Buffer
	c := newCluster(t, shape{log: &log, config: func(cfg *config) {
		cfg.servers[2].add(serverEntry{URL: old.URL()})
		cfg.servers[2].add(serverEntry{URL: renewed.URL()})
		cfg.access.keysFile, cfg.engines.key = keys, key
	}})
	successful := func() float64 { return c.metric("tandem_file_reload_successful", `file="engine-key-file"`) }
	isUp := func(e *engine.Engine) bool {
		for _, s := range c.node.fleet.Servers() {
			if s.URL == e.URL() {
				return s.Health().Up
			}
		}
		return false
	}
	eventually(t, "the server with the old key is up", func() bool { return isUp(old) && !isUp(renewed) })
	write(t, key, "canary-new\n")
	eventually(t, "the server with the new key is up", func() bool { return isUp(renewed) && !isUp(old) })
	write(t, key, "")
	eventually(t, "metrics say that the file is empty", func() bool { return successful() == 0 })
	if got := c.post(chatPath, chatBody(""), "Authorization", "Bearer sk-ada"); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
	if strings.Contains(log.String(), "canary") {
		t.Error("the log tells of a key")
	}
}

// cachedTokens is what the prefill of an answer found cached.
func cachedTokens(a answer) int64 {
	return gjson.Get(a.body, "usage.prompt_tokens_details.cached_tokens").Int()
}

func TestKeys_TenantsNeitherShareKVNorHearOfIt(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"engine", "approximate"} {
		t.Run(mode, func(t *testing.T) {
			c := newPublishingCluster(t, 2, 1, mode, withKeys(t, "sk-ada tenant=ada", "sk-ada-2 tenant=ada", "sk-bob tenant=bob"))
			ask := func(key, extra string) answer {
				// So long that a server which holds it is the better one on a busy machine too.
				got := c.post(chatPath, promptOf(12, extra), "Authorization", "Bearer "+key)
				if got.status != 200 {
					t.Fatalf("%d %s", got.status, got.body)
				}
				return got
			}
			predicted := func(a answer) (most int64) {
				d := c.get("/debug/decisions/" + a.header.Get("X-Request-Id")).body
				for _, alternative := range gjson.Get(d, "attempts.0.alternatives").Array() {
					most = max(most, alternative.Get("prefill_cached").Int())
				}
				return most
			}
			home := ask("sk-ada", "").header.Get("X-Tandem-Prefill")
			if mode == "engine" {
				c.settle(home)
			}
			stolen := gjson.Get(requests(c.prefill, chatPath)[0].Body, "cache_salt").String()
			if len(stolen) != 32 {
				t.Fatalf("the engine got the salt %q", stolen)
			}
			for i, extra := range []string{"", `,"cache_salt":"` + stolen + `"`, `,"cache_salt":""`} {
				got := ask("sk-bob", extra)
				if i == 0 && (predicted(got) != 0 || cachedTokens(got) != 0) {
					t.Errorf("the equal prompt of another tenant: %d tokens believed held, %d were cached", predicted(got), cachedTokens(got))
				}
			}
			salts := make(map[string]int)
			for _, r := range requests(c.prefill, chatPath) {
				salts[gjson.Get(r.Body, "cache_salt").String()]++
			}
			if salts[stolen] != 1 || salts[""] != 0 || len(salts) != 2 {
				t.Errorf("one prefill of ada's and three of bob's had the salts %v", salts)
			}
			again := ask("sk-ada-2", "")
			if n := cachedTokens(again); n == 0 || predicted(again) == 0 || again.header.Get("X-Tandem-Prefill") != home {
				t.Errorf("another key of the tenant: %d cached, %d believed held, on %s", n, predicted(again), again.header.Get("X-Tandem-Prefill"))
			}
		})
	}
}

func TestKeys_ModelsAndRequestsAreBounded(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1, config: withKeys(t,
		"sk-other tenant=a models=[other]", "sk-small tenant=a max-samples=2 max-output-tokens=10")})
	got := c.post(chatPath, chatBody(""), "Authorization", "Bearer sk-other")
	if got.status != 404 || gjson.Get(got.body, "error.code").String() != "model_not_found" || got.header.Get("X-Should-Retry") != "false" {
		t.Errorf("a model of others: %d %s", got.status, got.body)
	}
	short := `{"model":"test-model","ignore_eos":true,"messages":[{"role":"user","content":"hi"}]`
	for extra, want := range map[string]int{`,"n":3}`: 400, `,"n":2,"max_tokens":3}`: 200, `,"max_tokens":11}`: 400, `,"logit_bias":[]}`: 400, `}`: 200} {
		got := c.post(chatPath, short+extra, "Authorization", "Bearer sk-small")
		if got.status != want {
			t.Errorf("%s: %d %s", extra, got.status, got.body)
		}
		if n := gjson.Get(got.body, "usage.completion_tokens").Int(); extra == "}" && n != 10 {
			t.Errorf("an answer without a bound had %d tokens", n)
		}
	}
}

func TestKeys_LimitsAreTheCallersOwn(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1, config: withKeys(t,
		"sk-few tenant=few requests-per-minute=3", "sk-prompt tenant=prompt prompt-tokens-per-minute=1500",
		"sk-output tenant=output output-tokens-per-minute=30", "sk-one tenant=one concurrent-requests=1", "sk-free tenant=free")})
	ask := func(key, extra string) answer {
		return c.post(chatPath, chatBody(extra), "Authorization", "Bearer "+key)
	}
	refused := func(a answer, kind string) {
		t.Helper()
		ms, _ := strconv.Atoi(a.header.Get("Retry-After-Ms"))
		s, _ := strconv.Atoi(a.header.Get("Retry-After"))
		if a.status != 429 || gjson.Get(a.body, "error.code").String() != "rate_limit_exceeded" || gjson.Get(a.body, "error.type").String() != kind ||
			ms < 1 || s != (ms+999)/1000 || a.header.Get("X-Should-Retry") != "" {
			t.Errorf("%d %v %s", a.status, a.header, a.body)
		}
	}
	for i := range 3 {
		got := ask("sk-few", "")
		if got.status != 200 || got.header.Get("X-Ratelimit-Limit-Requests") != "3" || got.header.Get("X-Ratelimit-Remaining-Requests") != strconv.Itoa(2-i) {
			t.Errorf("request %d: %d %v", i, got.status, got.header)
		}
		if reset, err := time.ParseDuration(got.header.Get("X-Ratelimit-Reset-Requests")); err != nil || reset <= 0 || reset > time.Minute {
			t.Errorf("reset %q", got.header.Get("X-Ratelimit-Reset-Requests"))
		}
	}
	refused(ask("sk-few", ""), "requests")

	asked := time.Now()
	got := ask("sk-prompt", "") // some 625 tokens by estimate
	told, more := gjson.Get(got.body, "usage.prompt_tokens").Int(), int64(25*time.Since(asked).Seconds())
	if left, _ := strconv.ParseInt(got.header.Get("X-Ratelimit-Remaining-Tokens"), 10, 64); got.status != 200 || left < 1500-told || left > 1500-told+60+more {
		t.Errorf("%d prompt tokens: %d, %v left", told, got.status, got.header.Get("X-Ratelimit-Remaining-Tokens"))
	}
	large := c.post(chatPath, strings.Replace(chatBody(""), "Two riders", strings.Repeat("more words ", 2000), 1), "Authorization", "Bearer sk-prompt")
	if large.status != 429 || large.header.Get("X-Should-Retry") != "false" || large.header.Get("Retry-After") != "" {
		t.Errorf("a prompt beyond the limit itself: %d %v", large.status, large.header)
	}

	for _, extra := range []string{`,"stream":true`, ""} {
		if got := ask("sk-output", extra); got.status != 200 { // 24 tokens each, of 30
			t.Errorf("%d %s", got.status, got.body)
		}
	}
	eventually(t, "answers beyond the limit are charged", func() bool { return c.metric("tandem_tenant_tokens_total", `kind="output"`, `tenant="output"`) == 48 })
	refused(ask("sk-output", ""), "tokens")

	c.decode[0].SetFault(engine.Fault{Kind: engine.FaultHangBeforeHeaders})
	conn := c.dialRequestAs("sk-one", chatBody(""))
	eventually(t, "a request is in flight", func() bool { return c.decode[0].State().ServerLoad > 0 })
	refused(ask("sk-one", ""), "requests")
	_ = conn.Close()
	c.decode[0].ClearFaults()
	eventually(t, "its place is free again", func() bool { return ask("sk-one", "").status == 200 })

	for range 10 {
		if got := ask("sk-free", ""); got.status != 200 || got.header.Get("X-Ratelimit-Limit-Requests") != "" {
			t.Errorf("a key without limits: %d %v", got.status, got.header)
		}
	}
	if got := c.metric("tandem_limited_requests_total", `tenant="few"`, `limit="requests"`); got != 1 {
		t.Errorf("counted %v", got)
	}
}

// What the service could not serve is not charged to the caller.
func TestKeys_CapacityIsNotTheCallersQuota(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1, config: withKeys(t, "sk-free tenant=free",
		"sk-few tenant=few requests-per-minute=2 prompt-tokens-per-minute=100000 may-set=[deadline]")})
	// While no request is served a late one is let through now and then.
	if got := c.post(chatPath, chatBody(""), "Authorization", "Bearer sk-free"); got.status != 200 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	for range 5 {
		got := c.post(chatPath, chatBody(""), "Authorization", "Bearer sk-few", "X-Tandem-Deadline-Ms", "1")
		if got.status != 503 || gjson.Get(got.body, "error.code").String() != "deadline_unreachable" || got.header.Get("Retry-After") == "" ||
			got.header.Get("X-Ratelimit-Remaining-Requests") != "2" || got.header.Get("X-Ratelimit-Remaining-Tokens") != "100000" {
			t.Errorf("%d %v %s", got.status, got.header, got.body)
		}
	}
	if n := len(requests(c.prefill, chatPath)); n != 1 {
		t.Errorf("%d of them reached an engine", n-1)
	}
	if got := c.post(chatPath, chatBody(""), "Authorization", "Bearer sk-few", "X-Tandem-Deadline-Ms", "soon"); got.status != 400 || gjson.Get(got.body, "error.param").String() != access.DeadlineHeader {
		t.Errorf("%d %s", got.status, got.body)
	}
}

func TestAdmin_AsksForItsToken(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	writeConfig(t, token, "let-me-in\n")
	c := newCluster(t, shape{prefill: 1, decode: 1, config: func(cfg *config) { cfg.access.adminTokenFile = token }})
	got := c.post(chatPath, chatBody(""))
	for path, want := range map[string]int{"/livez": 200, "/readyz": 200, "/metrics": 401, "/debug/servers": 401, "/debug/decisions/x": 401, "/debug/kv": 401, "/": 401} {
		if got := c.get(path); got.status != want {
			t.Errorf("%s without the token: %d", path, got.status)
		}
	}
	if _, err := explain.Fetch(t.Context(), adminport.Port{Address: c.admin, TokenFile: token}, got.header.Get("X-Request-Id")); err != nil {
		t.Error(err)
	}
	mistyped := filepath.Join(t.TempDir(), "token")
	write(t, mistyped, "let-me-inn\n")
	for port, want := range map[adminport.Port]string{
		{Address: c.admin, TokenFile: mistyped}: c.admin + " does not take the token in " + mistyped,
		{Address: c.admin}:                      c.admin + " asks for a token: name the file that holds it with --admin-token-file",
		{Address: c.base, TokenFile: token}:     c.base + " is not the admin port but serves clients",
	} {
		if _, err := explain.Fetch(t.Context(), port, got.header.Get("X-Request-Id")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", port, err)
		}
	}
}

// A token that is replaced in its file is asked for from then on, of operators and of other gateways; of a file that is
// empty the token before it stays.
func TestAdminToken_IsTakenOverWhileServing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	token, old := filepath.Join(dir, "token"), filepath.Join(dir, "old")
	write(t, token, "canary-old\n")
	write(t, old, "canary-old\n")
	server := redisserver.Start(t)
	var log testlog.Buffer
	start := func(name string) *cluster {
		return newCluster(t, shape{prefill: 1, decode: 1, log: &log, config: func(cfg *config) {
			cfg.access.adminTokenFile, cfg.redis.addrs, cfg.redis.replica = token, []string{server.Addr()}, name
		}})
	}
	a, b := start("a"), start("b")
	takes := func(c *cluster, file string) bool {
		var servers []gateway.ServerStatus
		return adminport.Port{Address: c.admin, TokenFile: file}.Get(t.Context(), "/debug/servers", &servers) == nil
	}
	eventually(t, "they find each other", func() bool { return len(a.node.peers.Others()) == 1 && len(b.node.peers.Others()) == 1 })
	write(t, token, "canary-new\n")
	for name, c := range map[string]*cluster{"a": a, "b": b} {
		eventually(t, name+" takes the new token and not the old one", func() bool { return takes(c, token) && !takes(c, old) })
	}
	for _, answer := range a.node.peers.Ask(t.Context(), "/debug/servers") {
		if answer.Err != nil {
			t.Errorf("b does not answer a: %v", answer.Err)
		}
	}
	write(t, old, "canary-new\n")
	write(t, token, "")
	eventually(t, "the log says that the file is empty", func() bool { return strings.Count(log.String(), "the old one stays") == 2 })
	if !takes(a, old) {
		t.Error("an empty file changed the token")
	}
	if strings.Contains(log.String(), "canary") {
		t.Error("the log tells of a token")
	}
}
