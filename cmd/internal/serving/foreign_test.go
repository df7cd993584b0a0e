package serving

import (
	"net"
	"os"
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/loadtest/testlog"
)

// elsewhere is a host that no engine has: multicast, to which connections fail at once (RFC
// 6676).
const elsewhere = "233.252.0.77"

func TestForeign_AHandoffThatNamesAnotherHostIsCountedAndWarnedOf(t *testing.T) {
	t.Parallel()
	var log testlog.Buffer
	c := newCluster(t, shape{prefill: 1, decode: 1, log: &log, engine: naming(elsewhere)})
	const asked = 3
	for range asked {
		got := c.post("/v1/chat/completions", chatBody(""))
		if got.status != 200 || strings.Contains(got.body+got.header.Get("X-Tandem-Error"), elsewhere) {
			t.Fatalf("%d: %s", got.status, got.body)
		}
	}
	if n := c.metric("tandem_handoffs_external_total", c.prefill[0].URL()[len("http://"):]); n != asked {
		t.Errorf("%v counted", n)
	}
	if n := strings.Count(log.String(), `"host":"`+elsewhere+`"`); n != 1 || !strings.Contains(log.String(), `"withheld":false`) {
		t.Errorf("warned %d times: %s", n, log.String())
	}
	for _, r := range requests(c.decode, "/v1/chat/completions") {
		if !strings.Contains(r.Body, elsewhere) {
			t.Errorf("decode was not given the hand-off: %s", r.Body)
		}
	}
}

func TestForeign_StrictHandoffsAreWithheld(t *testing.T) {
	t.Parallel()
	for what, host := range map[string]string{
		"another host": elsewhere, "a name that cannot be looked up": "nowhere.invalid", "two hosts for ZMQ": "127.0.0.1:1;" + elsewhere,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			withholds(t, host)
		})
	}
}

func withholds(t *testing.T, host string) {
	t.Helper()
	c := newCluster(t, shape{prefill: 1, decode: 1, engine: naming(host), config: strict})
	for range 10 {
		if got := c.post("/v1/chat/completions", chatBody("")); got.status != 200 {
			t.Fatalf("%d: %s", got.status, got.body)
		}
	}
	for _, r := range requests(c.decode, "/v1/chat/completions") {
		if strings.Contains(r.Body, "remote_host") {
			t.Errorf("decode was given the hand-off: %s", r.Body)
		}
	}
	if n := c.prefill[0].State().PrefillsDone; n != 5 {
		t.Errorf("%d prompts were computed for nothing", n)
	}
	if c.metric("tandem_handoffs_external_total") != 5 || c.metric("tandem_handoffs_stranded_total") != 5 || c.metric("tandem_breaker_ejections_total") != 0 {
		t.Errorf("%v foreign, %v stranded, %v ejections", c.metric("tandem_handoffs_external_total"), c.metric("tandem_handoffs_stranded_total"), c.metric("tandem_breaker_ejections_total"))
	}
}

// The prefill is made again on another server: its hand-off is used.
func TestForeign_AWithheldHandoffIsMadeElsewhere(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 1, config: func(cfg *config) {
		strict(cfg)
		cfg.pd.EnforceDisaggregation = true
		cfg.pd.MaxRetries = 0 // what is withheld costs no retry
		bad := startTestEngine(t, engine.RolePrefill, naming(elsewhere))
		cfg.servers[0].add(serverEntry{URL: bad.URL()})
	}})
	eventually(t, "both prefill servers are up", func() bool { return c.metric("tandem_server_up") == 3 })
	for range 8 {
		if got := c.post("/v1/chat/completions", chatBody("")); got.status != 200 || got.header.Get("X-Tandem-Prefill") == "" {
			t.Fatalf("%d: %s", got.status, got.body)
		}
	}
	if c.metric("tandem_handoffs_external_total") == 0 {
		t.Error("the server that names another host was not asked")
	}
}

// A server that is configured by a name, whose engine names an address, or the other way round.
func TestForeign_AnAddressOfTheServersNameIsItsOwn(t *testing.T) {
	t.Parallel()
	type spelling struct{ server, host string }
	spellings := []spelling{{"localhost", "127.0.0.1"}, {"127.0.0.1", "localhost"}}
	if name, err := os.Hostname(); err == nil { // looked up for real, where the machine knows its own name
		found, _ := net.DefaultResolver.LookupNetIP(t.Context(), "ip4", name)
		for _, ip := range found {
			spellings = append(spellings, spelling{name, ip.Unmap().String()})
		}
	}
	interfaces, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range interfaces {
		if ip, _, err := net.ParseCIDR(a.String()); err == nil && ip.To4() != nil && !ip.IsLoopback() {
			spellings = append(spellings, spelling{"127.0.0.1", ip.String()}, spelling{ip.String(), "localhost"})
			break
		}
	}
	for _, x := range spellings {
		listens := func(cfg *engine.Config) { cfg.Listen, cfg.AdvertiseHost = "0.0.0.0:0", x.host }
		c := newCluster(t, shape{prefill: 1, decode: 1, engine: listens, config: func(cfg *config) {
			strict(cfg)
			for i := range cfg.servers[:2] {
				spec := &cfg.servers[i].specs[0]
				spec.URL = strings.Replace(spec.URL, "127.0.0.1", x.server, 1)
			}
		}})
		for range 3 {
			if got := c.post("/v1/chat/completions", chatBody("")); got.status != 200 || got.header.Get("X-Tandem-Prefill") == "" {
				t.Fatalf("a server at %s that names %s: %d: %s", x.server, x.host, got.status, got.body)
			}
		}
		if n := c.metric("tandem_handoffs_external_total"); n != 0 {
			t.Errorf("a server at %s that names %s: %v are foreign", x.server, x.host, n)
		}
	}
}

func TestForeign_CheckSaysWhichHostsAreExpected(t *testing.T) {
	t.Parallel()
	prefill, decode := startTestEngine(t, engine.RolePrefill, nil), startTestEngine(t, engine.RoleDecode, nil)
	for _, strictly := range []bool{false, true} {
		fault, printed := checked(t, func(cfg *config) {
			cfg.pd.StrictHandoffs = strictly
			cfg.servers[0].add(serverEntry{URL: prefill.URL(), KVAddress: "192.0.2.8:7777"})
			cfg.servers[1].add(serverEntry{URL: decode.URL()})
		})
		setting := map[bool]string{false: "counted and warned of (strict-handoffs is off)", true: "withheld from decode (strict-handoffs is on)"}[strictly]
		_, hosts, found := strings.Cut(printed, "Hosts from which hand-offs are expected; others are "+setting+"\n")
		if fault != "" || !found {
			t.Fatalf("%s\n%s", fault, printed)
		}
		line, _, _ := strings.Cut(hosts, "\n")
		if id := prefill.URL()[len("http://"):]; strings.Join(strings.Fields(line), " ") != id+" 127.0.0.1, 192.0.2.8" {
			t.Errorf("it says %q", line)
		}
		if strings.Contains(hosts, decode.URL()[len("http://"):]) {
			t.Errorf("a decode server makes no hand-offs: %s", hosts)
		}
	}
}

func naming(host string) func(*engine.Config) {
	return func(cfg *engine.Config) { cfg.AdvertiseHost = host }
}

func strict(cfg *config) { cfg.pd.StrictHandoffs = true }
