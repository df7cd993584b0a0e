package serving

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// certificatesUntil writes a file of certificates that end then. Each is for a third of the time since the epoch.
func certificatesUntil(t *testing.T, file string, ends ...time.Time) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	var text []byte
	for _, end := range ends {
		template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: end.Add(-lifetime(end)), NotAfter: end}
		signed, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed})...)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// lifetime is for how long a test's certificate is that ends then.
func lifetime(end time.Time) time.Duration { return time.Duration(end.Unix()/3) * time.Second }

// Metrics have the end and the lifetime of the first certificate of a chain, and of the last of the authorities,
// as the files have them now. A file that is broken changes nothing.
func TestCertificateEnds_AreInMetrics(t *testing.T) {
	soon, late, later := time.Unix(2e9, 0), time.Unix(3e9, 0), time.Unix(4e9, 0)
	own, authorities := filepath.Join(t.TempDir(), "tls.crt"), filepath.Join(t.TempDir(), "ca.crt")
	certificatesUntil(t, own, late, soon)
	certificatesUntil(t, authorities, soon, late)
	cfg := testConfig()
	cfg.ports.adminTLS.Cert, cfg.ports.adminTLS.ClientCA, cfg.engines.ca.File, cfg.redis.certFile = own, authorities, authorities, own
	r := NewFileReloads()
	r.watchCertificates(&cfg)
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(r)
	check := func(when string, ends map[string]time.Time) {
		t.Helper()
		if n, err := testutil.GatherAndCount(registry, "tandem_certificate_expiry_timestamp_seconds"); err != nil || n != len(ends) {
			t.Errorf("%s: %d series, %v", when, n, err)
		}
		for file, want := range ends {
			if got := testutil.ToFloat64(r.certificates.at.WithLabelValues(file)); got != float64(want.Unix()) {
				t.Errorf("%s: %s ends at %.0f, want %d", when, file, got, want.Unix())
			}
			if got := testutil.ToFloat64(r.certificates.lifetime.WithLabelValues(file)); got != lifetime(want).Seconds() {
				t.Errorf("%s: %s is for %.0f s, want %v", when, file, got, lifetime(want))
			}
		}
	}
	check("at the start", map[string]time.Time{"admin-cert": soon, "admin-client-ca": late, "engine-ca": late, "redis-cert-file": soon})
	certificatesUntil(t, own, later)
	certificatesUntil(t, authorities, later)
	check("renewed", map[string]time.Time{"admin-cert": later, "admin-client-ca": later, "engine-ca": later, "redis-cert-file": later})
	if err := os.WriteFile(own, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	check("broken", map[string]time.Time{"admin-cert": later, "admin-client-ca": later, "engine-ca": later, "redis-cert-file": later})
}
