package serving

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/tandem-gateway/tandem/autoscale/keda"
	"github.com/tandem-gateway/tandem/autoscale/keda/externalscaler"
	"github.com/tandem-gateway/tandem/cmd/internal/porttls"
)

// selfSigned writes a certificate of this machine, its own authority, and its key.
func selfSigned(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	text, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(t.TempDir(), "tls.crt"), filepath.Join(t.TempDir(), "tls.key")
	for file, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: signed}, key: {Type: "PRIVATE KEY", Bytes: text}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

func TestScaler_AnswersKEDAWithTheRightCertificate(t *testing.T) {
	cert, key := selfSigned(t)
	c := newCluster(t, shape{prefill: 1, decode: 1, config: func(cfg *config) {
		cfg.scaling.keda = scalerConfig{listen: "127.0.0.1:0", tls: porttls.Config{Cert: cert, Key: key, ClientCA: cert}}
	}})
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	trusted := x509.NewCertPool()
	trusted.AddCert(pair.Leaf)
	ask := func(own ...tls.Certificate) (*externalscaler.IsActiveResponse, error) {
		conn, err := grpc.NewClient(c.node.ports.scaler.listener.Addr().String(),
			grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: trusted, Certificates: own})))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		return externalscaler.NewExternalScalerClient(conn).IsActive(t.Context(),
			&externalscaler.ScaledObjectRef{ScalerMetadata: map[string]string{"model": "m", "role": "decode"}})
	}
	if _, err := ask(); err == nil || strings.Contains(err.Error(), keda.ErrUnknown.Error()) {
		t.Errorf("without a certificate: %v", err)
	}
	if _, err := ask(pair); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), keda.ErrUnknown.Error()) {
		t.Errorf("before anything is decided: %v", err)
	}
	eventually(t, "KEDA is answered, and who asks the admin port for JSON", func() bool {
		// Again and again: the gateway publishes what it decides itself.
		c.node.targets.Publish(map[keda.Pool]keda.Target{{Model: "m", Role: "decode"}: {Replicas: 3, At: time.Now()}})
		got, err := ask(pair)
		return err == nil && got.Result && c.get("/autoscale/v1/pool?model=m&role=decode").status == http.StatusOK
	})
}

// The admin port lets in who has a certificate, or the token; kubelets have neither.
func TestAdmin_AsksForACertificateOrTheToken(t *testing.T) {
	cert, key := selfSigned(t)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := newCluster(t, shape{prefill: 1, decode: 1, config: func(cfg *config) {
		cfg.ports.adminTLS = porttls.Config{Port: "admin", Cert: cert, Key: key, ClientCA: cert}
		cfg.access.adminTokenFile = token
	}})
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	trusted := x509.NewCertPool()
	trusted.AddCert(pair.Leaf)
	ask := func(path, authorization string, own ...tls.Certificate) int {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted, Certificates: own}}
		defer transport.CloseIdleConnections()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+c.node.ports.operator.Addr().String()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if authorization != "" {
			req.Header.Set("Authorization", authorization)
		}
		resp, err := (&http.Client{Transport: transport, Timeout: testTimeout}).Do(req)
		if err != nil {
			return 0 // no connection
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	foreign, foreignKey := selfSigned(t)
	other, err := tls.LoadX509KeyPair(foreign, foreignKey)
	if err != nil {
		t.Fatal(err)
	}
	const pool = "/autoscale/v1/pool?model=m&role=decode"
	for _, of := range []struct {
		name, path, authorization string
		own                       []tls.Certificate
		want                      int
	}{
		{"neither", pool, "", nil, http.StatusUnauthorized},
		{"a certificate", "/metrics", "", []tls.Certificate{pair}, http.StatusOK},
		{"the token", "/metrics", "Bearer secret", nil, http.StatusOK},
		{"another token", pool, "Bearer Secret", nil, http.StatusUnauthorized},
		{"an empty token", pool, "Bearer ", nil, http.StatusUnauthorized},
		{"a certificate of an unknown authority", "/livez", "", []tls.Certificate{other}, 0},
		{"a kubelet", "/readyz", "", nil, http.StatusOK},
		{"metrics", "/metrics", "", nil, http.StatusUnauthorized},
	} {
		if got := ask(of.path, of.authorization, of.own...); got != of.want {
			t.Errorf("%s: %d, want %d", of.name, got, of.want)
		}
	}
}
