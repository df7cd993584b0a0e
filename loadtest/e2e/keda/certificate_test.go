package keda

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kedacore/keda/v2/pkg/scalers"
)

// TestClientCertificate: the JSON trigger reads with a certificate of the right authority,
// and with none or another's it is an error.
func TestClientCertificate(t *testing.T) {
	ours, foreign := newAuthority(t), newAuthority(t)
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cert, key := ours.issue(t)
	tandem := &scaler{grpc: freeAddress(t), admin: freeAddress(t)}
	tandem.args = []string{"--admin-cert", file("tls.crt", cert), "--admin-key", file("tls.key", key), "--admin-client-ca", file("ca.crt", ours.text)}
	tandem.start(t)
	if _, err := fmt.Fprintln(tandem.say, model, "decode 7"); err != nil {
		t.Fatal(err)
	}
	open := func(authority *authority) scalers.Scaler {
		config := triggers(t, "metrics-api.yaml", "http://tandem-admin.tandem.svc:8081", "https://"+tandem.admin)["decode"]
		config.TriggerMetadata["authMode"] = "tls"
		cert, key := authority.issue(t)
		config.AuthParams = map[string]string{"ca": ours.text, "cert": cert, "key": key}
		s, err := scalers.NewMetricsAPIScaler(config, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close(context.Background()) })
		return s
	}
	known := open(ours)
	eventually(t, "7 replicas", func() error {
		value, active, err := read(t, known)
		if err == nil && (value != 7 || !active) {
			err = fmt.Errorf("read %v, active %v", value, active)
		}
		return err
	})
	if value, _, err := read(t, open(foreign)); err == nil {
		t.Errorf("a certificate of an unknown authority read %v", value)
	}
	bare := triggers(t, "metrics-api.yaml", "http://tandem-admin.tandem.svc:8081", "https://"+tandem.admin)["decode"]
	bare.TriggerMetadata["unsafeSsl"] = "true"
	s, err := scalers.NewMetricsAPIScaler(bare, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	if value, _, err := read(t, s); err == nil {
		t.Errorf("without a certificate it read %v", value)
	}
}

// authority issues certificates for 127.0.0.1.
type authority struct {
	text string // PEM
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{key: newKey(t)}
	a.cert = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	a.text = a.sign(t, a.cert, a.key)
	return a
}

// issue returns a certificate for a server or a client, and its key, as PEM.
func (a *authority) issue(t *testing.T) (cert, key string) {
	t.Helper()
	own := newKey(t)
	cert = a.sign(t, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "holder"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, own)
	text, err := x509.MarshalPKCS8PrivateKey(own)
	if err != nil {
		t.Fatal(err)
	}
	return cert, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: text}))
}

func (a *authority) sign(t *testing.T, template *x509.Certificate, of *ecdsa.PrivateKey) string {
	t.Helper()
	signed, err := x509.CreateCertificate(rand.Reader, template, a.cert, &of.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed}))
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}
