package serving

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/cmd/internal/porttls"
	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/loadtest/testlog"
)

// encrypted lets clients of a cluster speak TLS, with a certificate that they trust.
func encrypted(t *testing.T, cfg *config) (trust *tls.Config) {
	cert, key := selfSigned(t)
	cfg.ports.clientTLS.Cert, cfg.ports.clientTLS.Key = cert, key
	return &tls.Config{RootCAs: poolOf(t, cert), MinVersion: tls.VersionTLS12}
}

func poolOf(t *testing.T, files ...string) *x509.CertPool {
	t.Helper()
	pool := x509.NewCertPool()
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil || !pool.AppendCertsFromPEM(text) {
			t.Fatalf("%s: %v", file, err)
		}
	}
	return pool
}

// encryptedCluster is a cluster whose clients speak TLS.
func encryptedCluster(t *testing.T, s shape) (*cluster, *tls.Config) {
	var trust *tls.Config
	change := s.config
	s.config = func(cfg *config) {
		trust = encrypted(t, cfg)
		if change != nil {
			change(cfg)
		}
	}
	c := newCluster(t, s)
	c.base = strings.Replace(c.base, "http://", "https://", 1)
	c.client.Transport.(*http.Transport).TLSClientConfig = trust
	return c, trust
}

func (c *cluster) dialTLS(trust *tls.Config) (net.Conn, error) {
	return tls.Dial("tcp", c.node.ports.clients.Addr().String(), trust)
}

func TestEdge_RawMessagesUnderTLS(t *testing.T) {
	c, trust := encryptedCluster(t, shape{prefill: 1, decode: 1, config: func(cfg *config) { cfg.gateway.MaxBody = edgeMaxBody }})
	playEdge(t, c, func() (net.Conn, error) { return c.dialTLS(trust) })
}

func TestTLS_OldVersionsAndPlainTextAreRefused(t *testing.T) {
	c, trust := encryptedCluster(t, shape{prefill: 1, decode: 1})
	for _, version := range []uint16{tls.VersionTLS10, tls.VersionTLS11} {
		old := trust.Clone()
		old.MinVersion, old.MaxVersion = version, version
		if conn, err := c.dialTLS(old); err == nil {
			_ = conn.Close()
			t.Errorf("%s was accepted", tls.VersionName(version))
		}
	}
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		known := trust.Clone()
		known.MaxVersion, known.MinVersion = version, version
		conn, err := c.dialTLS(known)
		if err != nil {
			t.Fatalf("%s: %v", tls.VersionName(version), err)
		}
		_ = conn.Close()
	}
	h2 := trust.Clone()
	h2.NextProtos = []string{"h2", "http/1.1"}
	conn, err := c.dialTLS(h2)
	if err != nil {
		t.Fatal(err)
	}
	if got := conn.(*tls.Conn).ConnectionState().NegotiatedProtocol; got != "http/1.1" {
		t.Errorf("negotiated %q", got)
	}
	_ = conn.Close()
	plain, err := net.Dial("tcp", c.node.ports.clients.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = plain.Close() }()
	_ = plain.SetDeadline(time.Now().Add(30 * time.Second))
	_, _ = io.WriteString(plain, sized(""))
	if text, _ := io.ReadAll(plain); strings.Contains(string(text), "200 OK") {
		t.Errorf("plain text got %q", text)
	}
	if n := len(requests(c.decode, chatPath)); n != 0 {
		t.Errorf("%d requests reached decode", n)
	}
}

func TestTLS_AClientThatLeavesIsSeen(t *testing.T) {
	for what, leave := range map[string]func(*tls.Conn) error{
		"with its goodbye":  (*tls.Conn).Close,
		"without":           func(c *tls.Conn) error { return c.NetConn().Close() },
		"its sending alone": func(c *tls.Conn) error { return errors.Join(c.CloseWrite(), c.NetConn().(*net.TCPConn).CloseWrite()) },
	} {
		t.Run(what, func(t *testing.T) {
			c, trust := encryptedCluster(t, shape{prefill: 1, decode: 1, engine: func(cfg *engine.Config) { cfg.TimeScale = 1 }})
			c.prefill[0].SetFault(engine.Fault{Kind: engine.FaultHangBeforeHeaders})
			conn, err := c.dialTLS(trust)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			body := chatBody(`,"stream":true`)
			_, _ = fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			eventually(t, "prefill is at work", func() bool { return len(requests(c.prefill, chatPath)) == 1 })
			if err := leave(conn.(*tls.Conn)); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the client's leaving is counted", func() bool { return c.metric("tandem_requests_total", `outcome="client_gone"`) == 1 })
			eventually(t, "nothing is in flight", func() bool { return c.metric("tandem_in_flight_requests") == 0 })
		})
	}
}

// A certificate is renewed in place: new connections get it, those that are open stay, and
// a half-written one is not taken.
func TestTLS_TheCertificateIsReadAgain(t *testing.T) {
	var files porttls.Config
	c, trust := encryptedCluster(t, shape{prefill: 1, decode: 1, config: func(cfg *config) { files = cfg.ports.clientTLS }})
	kept, err := c.dialTLS(trust)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = kept.Close() }()
	ends := func() time.Time {
		return time.Unix(int64(c.metric("tandem_certificate_expiry_timestamp_seconds", `file="tls-cert"`)), 0)
	}
	if left := time.Until(ends()); left < 50*time.Minute || left > 70*time.Minute { // selfSigned's is an hour
		t.Errorf("metrics say that the first certificate ends in %v", left)
	}
	fresh := files
	fresh.Cert, fresh.Key = selfSigned(t)
	trust.RootCAs = poolOf(t, files.Cert, fresh.Cert)
	serial := func() string {
		conn, err := c.dialTLS(trust)
		if err != nil {
			return err.Error()
		}
		defer func() { _ = conn.Close() }()
		return string(conn.(*tls.Conn).ConnectionState().PeerCertificates[0].Raw)
	}
	old := serial()
	if got := c.metric("tandem_file_reload_successful", `file="tls-cert"`); got != 1 {
		t.Errorf("metrics say %v of the first certificate, want 1", got)
	}
	replace := func(to, from string) {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	replace(files.Cert, fresh.Cert)
	if got := serial(); got != old {
		t.Errorf("with the key of the old one: %.100q", got)
	}
	if got := c.metric("tandem_file_reload_successful", `file="tls-cert"`); got != 0 {
		t.Errorf("metrics say %v of a certificate with another one's key, want 0", got)
	}
	replace(files.Key, fresh.Key)
	if got := serial(); got == old || len(got) < 100 {
		t.Errorf("still the old one, or %.100q", got)
	}
	if got := c.metric("tandem_file_reload_successful", `file="tls-cert"`); got != 1 {
		t.Errorf("metrics say %v of the new certificate, want 1", got)
	}
	_ = kept.SetDeadline(time.Now().Add(30 * time.Second))
	buf := make([]byte, 12)
	_, _ = io.WriteString(kept, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
	if _, err := io.ReadFull(kept, buf); err != nil || string(buf) != "HTTP/1.1 200" {
		t.Errorf("the connection that was open: %q, %v", buf, err)
	}
}

// Engines behind https: legs, probes, scrapes and the tokenizer's calls all go by TLS.
func TestTLS_EnginesOfAnOwnAuthority(t *testing.T) {
	cert, key := selfSigned(t)
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan string, 10_000)
	encrypt := func(e *engine.Engine) string {
		to, err := url.Parse(e.State().URL)
		if err != nil {
			t.Fatal(err)
		}
		proxy := httputil.NewSingleHostReverseProxy(to)
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			select {
			case asked <- r.URL.Path:
			default:
			}
			proxy.ServeHTTP(w, r)
		}))
		s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
		s.StartTLS()
		t.Cleanup(s.Close)
		return s.URL
	}
	prefill, decode := startTestEngine(t, engine.RolePrefill, publishing), startTestEngine(t, engine.RoleDecode, publishing)
	cfg := testConfig()
	cfg.kv.modes = []string{"engine"}
	cfg.engines.ca.File = cert
	cfg.servers[0].add(serverEntry{URL: encrypt(prefill), Connector: "nixl"})
	cfg.servers[1].add(serverEntry{URL: encrypt(decode), Connector: "nixl"})
	for i, e := range []*engine.Engine{prefill, decode} { // what a server holds is known only of those that publish
		state, spec := e.State(), &cfg.servers[i].specs[0]
		spec.Events, spec.Replay = local(state.EventsEndpoints[0]), local(state.ReplayEndpoints[0])
	}
	c := &cluster{t: t, client: newTestClient(t)}
	c.run(cfg, nil)
	eventually(t, "both servers are up", func() bool { return c.metric("tandem_server_up") == 2 })
	if got := c.post(chatPath, chatBody("")); got.status != 200 || len(requests([]*engine.Engine{prefill}, chatPath)) != 1 {
		t.Errorf("%d %s", got.status, got.body)
	}
	seen := map[string]bool{}
	for _, path := range []string{chatPath, "/metrics", "/v1/models", "/v1/chat/completions/render"} {
		eventually(t, path+" was asked by TLS", func() bool {
			for len(asked) > 0 {
				seen[<-asked] = true
			}
			return seen[path]
		})
	}
	other, _ := selfSigned(t) // of the same name
	for what, authority := range map[string]string{"without the authority": "", "with another": other} {
		var out strings.Builder
		cfg.engines.ca.File = authority
		if err := check(t.Context(), cfg, &out); err == nil || !strings.Contains(out.String(), "certificate signed by unknown authority") {
			t.Errorf("%s: %v\n%s", what, err, out.String())
		}
	}
	var out strings.Builder
	cfg.engines.ca.File = cert
	if err := check(t.Context(), cfg, &out); err != nil {
		t.Errorf("with it: %v\n%s", err, out.String())
	}
}

// An authority of engines that is replaced in its file is that of the next connection, and metrics say so. While the file
// is broken the old one stays.
func TestTLS_TheAuthorityOfEnginesIsReadAgain(t *testing.T) {
	t.Parallel()
	var shown atomic.Pointer[tls.Certificate]
	renew := func() (authority string) {
		cert, key := selfSigned(t)
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		shown.Store(&pair)
		text, err := os.ReadFile(cert)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	ca := filepath.Join(t.TempDir(), "ca.crt")
	write(t, ca, renew())
	e := startTestEngine(t, engine.RoleBoth, nil)
	to, err := url.Parse(e.State().URL)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(httputil.NewSingleHostReverseProxy(to))
	s.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return &tls.Config{Certificates: []tls.Certificate{*shown.Load()}, MinVersion: tls.VersionTLS12}, nil
	}}
	s.Config.SetKeepAlivesEnabled(false) // each request shows what is trusted
	s.Config.ErrorLog = stdlog.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	var log testlog.Buffer
	c := newCluster(t, shape{log: &log, config: func(cfg *config) {
		cfg.engines.ca.File = ca
		cfg.servers[2].add(serverEntry{URL: s.URL})
	}})
	up := func(n float64) func() bool { return func() bool { return c.metric("tandem_server_up") == n } }
	read := func() float64 { return c.metric("tandem_file_reload_successful", `file="engine-ca"`) }
	eventually(t, "the engine is up", up(1))
	next := renew()
	eventually(t, "an engine of another authority is down", up(0))
	write(t, ca, "half")
	eventually(t, "a broken file is counted and said", func() bool { return read() == 0 && strings.Contains(log.String(), "a file of authorities is broken") })
	write(t, ca, next)
	eventually(t, "the new authority is trusted", up(1))
	if got := c.post(chatPath, chatBody("")); got.status != 200 || read() != 1 {
		t.Errorf("%d %s, read: %v", got.status, got.body, read())
	}
}

func TestTLS_BrokenSettingsAreRefusedAtStart(t *testing.T) {
	cert, key := selfSigned(t)
	for want, change := range map[string]func(*config){
		"tls-cert and tls-key come together": func(cfg *config) { cfg.ports.clientTLS = porttls.Config{Port: "tls", Cert: cert} },
		"tls-cert: ":                         func(cfg *config) { cfg.ports.clientTLS = porttls.Config{Port: "tls", Cert: cert, Key: cert} },
		"engine-ca: no certificate in it":    func(cfg *config) { cfg.engines.ca.File = key },
		"engine-ca: open ":                   func(cfg *config) { cfg.engines.ca.File = cert + ".none" },
	} {
		cfg := testConfig()
		cfg.servers[1].add(serverEntry{URL: "http://127.0.0.1:1"})
		change(&cfg)
		err := cfg.validate()
		if err == nil {
			_, err = newNode(t.Context(), cfg, newTestLog(io.Discard))
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
