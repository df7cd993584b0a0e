package serving

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/cmd/internal/porttls"
	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/loadtest/redisserver"
	"github.com/tandem-gateway/tandem/pd"
)

// authority vouches for replicas. Its files are as a mounted secret's: one certificate for
// all of them.
type authority struct {
	t    *testing.T
	key  *ecdsa.PrivateKey
	own  *x509.Certificate
	port porttls.Config
}

func newAuthority(t *testing.T) *authority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	a := &authority{t: t, key: key, port: porttls.Config{
		Port: "decider", Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"), ClientCA: filepath.Join(dir, "ca.crt"),
	}}
	a.own = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.write(a.port.ClientCA, "CERTIFICATE", a.sign(a.own))
	text, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	a.write(a.port.Key, "PRIVATE KEY", text)
	return a
}

// issue writes a certificate for a host name, or for this machine's address where it is "".
func (a *authority) issue(serial int64, name string) {
	c := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "replica"}, NotBefore: a.own.NotBefore, NotAfter: a.own.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if name != "" {
		c.DNSNames = []string{name}
	} else {
		c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	}
	a.write(a.port.Cert, "CERTIFICATE", a.sign(c))
}

func (a *authority) sign(c *x509.Certificate) []byte {
	der, err := x509.CreateCertificate(rand.Reader, c, a.own, &a.key.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	return der
}

func (a *authority) write(file, kind string, der []byte) {
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
}

// Replicas follow one that shows a certificate of their authority, by host name or by
// address, and only with one of their own. Those that may not follow bind by themselves.
func TestDecider_ReplicasMeetByTLSWithCertificates(t *testing.T) {
	t.Parallel()
	for kind, name := range map[string]string{"host name": "tandem.example", "address": ""} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			meetByTLS(t, name)
		})
	}
}

func meetByTLS(t *testing.T, name string) {
	t.Helper()
	const patience = 10 * time.Second // a busy machine is no death
	r, trusted, foreign := redisserver.Start(t), newAuthority(t), newAuthority(t)
	trusted.issue(2, name)
	foreign.issue(2, name)
	first := newCluster(t, shape{prefill: 1, decode: 1, config: func(cfg *config) {
		cfg.redis.addrs, cfg.pd.binding, cfg.decider.tls, cfg.decider.patience = []string{r.Addr()}, pd.Late, trusted.port, patience
	}})
	eventually(t, "the first decides", first.node.sharing.decider.follower.Leads)
	replica := func(port porttls.Config) *cluster {
		return newCluster(t, shape{config: func(cfg *config) {
			cfg.redis.addrs, cfg.pd.binding, cfg.decider.tls, cfg.decider.patience = []string{r.Addr()}, pd.Late, port, patience
			cfg.servers[0].add(serverEntry{URL: first.prefill[0].URL()})
			cfg.servers[1].add(serverEntry{URL: first.decode[0].URL()})
		}})
	}
	follows := func(c *cluster) bool { return c.metric("tandem_leader_followed") == 1 }
	second := replica(trusted.port)
	eventually(t, "the second follows", func() bool { return follows(second) && second.metric("tandem_server_up") == 2 })
	// While one is in prefill another one waits with the leader, unless the time has passed by which the
	// first was to end: then, as nobody waits, it is bound at once.
	askTwice := func(c *cluster) (turns float64) {
		t.Helper()
		first.prefill[0].SetFault(engine.Fault{Kind: engine.FaultHangBeforeHeaders, Count: 1})
		hung := c.dialRequest(promptOf(30, ""))
		eventually(t, "one is in prefill", func() bool { return first.prefill[0].State().ServerLoad == 1 })
		answered := make(chan answer, 1)
		go func() { answered <- c.post("/v1/chat/completions", promptOf(1, "")) }()
		eventually(t, "another one waits, or is answered", func() bool {
			return c.metric("tandem_waiting_requests") == 1 || len(answered) == 1
		})
		_ = hung.Close()
		if got := <-answered; got.status != 200 {
			t.Errorf("%d %s", got.status, got.body)
		}
		eventually(t, "the first is gone", func() bool { return first.prefill[0].State().ServerLoad == 0 })
		return first.metric("tandem_leader_remote_requests_total")
	}
	turns := 0.0
	for try := 0; turns == 0; try++ {
		if try == 10 {
			t.Fatal("the second had no turn")
		}
		turns = askTwice(second)
	}

	strangers := []*cluster{replica(foreign.port), replica(porttls.Config{Port: "decider"})}
	for _, c := range strangers {
		eventually(t, "a stranger has its servers and knows which replica decides", func() bool {
			leader, _, _ := c.node.sharing.decider.election.Current()
			return c.metric("tandem_server_up") == 2 && leader.Replica != ""
		})
		if got := c.post("/v1/chat/completions", chatBody("")); got.status != 200 || follows(c) {
			t.Errorf("a stranger: %d, follows %v", got.status, follows(c))
		}
	}
	if n := first.metric("tandem_leader_remote_requests_total"); n != turns {
		t.Errorf("%v turns and %v before: strangers were served", n, turns)
	}

	trusted.issue(3, name)
	eventually(t, "a renewed certificate is shown", func() bool { return trusted.shownBy(first, name) == 3 })
	third := replica(trusted.port)
	eventually(t, "and followed", func() bool { return follows(third) })
}

// shownBy is the serial number of the certificate that a replica shows to others.
func (a *authority) shownBy(c *cluster, name string) int64 {
	peer, err := a.port.Peer(newTestLog(io.Discard))
	if err != nil {
		a.t.Fatal(err)
	}
	conf := peer()
	if name != conf.ServerName {
		a.t.Fatalf("it asks for %q", conf.ServerName)
	}
	conf.NextProtos = []string{"h2"}
	conn, err := tls.Dial("tcp", c.node.sharing.decider.listener.Addr().String(), conf)
	if err != nil {
		a.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	return conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
}

// Replicas whose renewed certificate has another host name meet by that one.
func TestDecider_ARenewedCertificateMayHaveAnotherName(t *testing.T) {
	trusted := newAuthority(t)
	trusted.issue(2, "old.example")
	served, err := trusted.port.Server(tls.RequireAndVerifyClientCert, newTestLog(io.Discard))
	if err != nil {
		t.Fatal(err)
	}
	peer, err := trusted.port.Peer(newTestLog(io.Discard))
	if err != nil {
		t.Fatal(err)
	}
	meet := func() (asked string, shown *x509.Certificate) {
		t.Helper()
		conf := peer()
		asked = conf.ServerName
		if asked == "" {
			conf.ServerName = "127.0.0.1" // as gRPC does by the address that is dialled
		}
		near, far := net.Pipe()
		defer func() { _, _ = near.Close(), far.Close() }()
		server, client := tls.Server(near, served), tls.Client(far, conf)
		failed := make(chan error, 1)
		go func() { failed <- server.Handshake() }()
		if err := client.Handshake(); err != nil {
			t.Fatal(err)
		}
		if err := <-failed; err != nil {
			t.Fatal(err)
		}
		if got := server.ConnectionState().PeerCertificates[0]; !got.Equal(client.ConnectionState().PeerCertificates[0]) {
			t.Errorf("the client showed the certificate of %v", got.DNSNames)
		}
		return asked, client.ConnectionState().PeerCertificates[0]
	}
	for i, name := range []string{"old.example", "new.example", ""} {
		trusted.issue(int64(2+i), name)
		if asked, shown := meet(); asked != name || shown.SerialNumber.Int64() != int64(2+i) {
			t.Errorf("asked for %q, shown number %v of %v", asked, shown.SerialNumber, shown.DNSNames)
		}
		if name != "" {
			trusted.write(trusted.port.Cert, "CERTIFICATE", []byte("broken"))
			if asked, shown := meet(); asked != name || shown.SerialNumber.Int64() != int64(2+i) {
				t.Errorf("while it is broken, asked for %q, shown number %v", asked, shown.SerialNumber)
			}
		}
	}
}

func TestDeciderConfig_MistakesAreNamed(t *testing.T) {
	for want, port := range map[string]porttls.Config{
		"decider-cert needs decider-client-ca: replicas check each other":                  {Port: "decider", Cert: "a", Key: "b"},
		"decider-cert and decider-key come together":                                       {Port: "decider", Cert: "a", ClientCA: "c"},
		"decider-client-ca needs decider-cert: a client shows its certificate only in TLS": {Port: "decider", ClientCA: "c"},
	} {
		cfg := defaultConfig().decider
		cfg.tls = port
		if err := cfg.validate(); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
