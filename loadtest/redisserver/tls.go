package redisserver

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
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Files of a server that speaks TLS: the authority that vouches for it, and a
// certificate with its key, for the server and for its clients alike.
type Files struct{ CA, Cert, Key string }

// StartTLS runs redis-server as Start does, but it speaks TLS only and wants to see a
// certificate of its clients.
func StartTLS(t *testing.T, args ...string) (*Server, Files) {
	t.Helper()
	dir := t.TempDir()
	files := Files{filepath.Join(dir, "ca.pem"), filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")}
	s := &Server{t: t, tls: certify(t, files), files: files}
	s.args = append([]string{"--tls-auth-clients", "yes",
		"--tls-ca-cert-file", files.CA, "--tls-cert-file", files.Cert, "--tls-key-file", files.Key}, args...)
	s.start()
	return s, files
}

// Recertify restarts it with a certificate of another authority, in the same files.
func (s *Server) Recertify() {
	s.t.Helper()
	s.tls = certify(s.t, s.files)
	s.Restart()
}

// certify makes an authority of its own and a certificate for 127.0.0.1.
func certify(t testing.TB, files Files) *tls.Config {
	t.Helper()
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	server := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "redis"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: authority.NotBefore, NotAfter: authority.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature,
	}
	authorityDER, err := x509.CreateCertificate(rand.Reader, authority, authority, &key.PublicKey, key)
	must(err)
	serverDER, err := x509.CreateCertificate(rand.Reader, server, authority, &key.PublicKey, key)
	must(err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	must(err)

	write := func(file, kind string, der []byte) []byte {
		text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
		must(os.WriteFile(file, text, 0o600))
		return text
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(write(files.CA, "CERTIFICATE", authorityDER))
	own, err := tls.X509KeyPair(write(files.Cert, "CERTIFICATE", serverDER), write(files.Key, "PRIVATE KEY", keyDER))
	must(err)
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, Certificates: []tls.Certificate{own}, ServerName: "127.0.0.1"}
}
