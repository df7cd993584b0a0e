package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority is a certificate authority of one test, whose certificates are files.
type Authority struct {
	File string // the authority's own certificate
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// newAuthority makes an authority that keeps its files in dir.
func newAuthority(t testing.TB, dir string) *Authority {
	t.Helper()
	a := &Authority{dir: dir, key: newKey(t), cert: template("test authority")}
	a.cert.IsCA, a.cert.BasicConstraintsValid = true, true
	a.cert.KeyUsage |= x509.KeyUsageCertSign
	a.File = filepath.Join(dir, "ca.crt")
	a.write(t, "ca", a.cert, a.key)
	text, err := os.ReadFile(a.File)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	if a.cert, err = x509.ParseCertificate(block.Bytes); err != nil { // with what signing added
		t.Fatal(err)
	}
	return a
}

// Issue makes a certificate for a name, which also serves on this machine, and
// returns the files of certificate and key.
func (a *Authority) Issue(t testing.TB, file, name string, hosts ...string) (cert, key string) {
	t.Helper()
	c := template(name)
	c.DNSNames = append([]string{"localhost"}, hosts...)
	c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	return a.write(t, file, c, newKey(t))
}

func template(name string) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, big.NewInt(1<<62)) // crypto/rand does not fail
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// write signs a certificate and writes it and its key.
func (a *Authority) write(t testing.TB, file string, c *x509.Certificate, key *ecdsa.PrivateKey) (certFile, keyFile string) {
	t.Helper()
	signed, err := x509.CreateCertificate(rand.Reader, c, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(a.dir, file+".crt"), filepath.Join(a.dir, file+".key")
	for name, block := range map[string]*pem.Block{
		certFile: {Type: "CERTIFICATE", Bytes: signed},
		keyFile:  {Type: "EC PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile
}
