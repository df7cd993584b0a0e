package porttls

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// issue writes an authority, and a certificate of it for this machine with its key.
func issue(t *testing.T, c *Config) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	write := func(file, kind string, der []byte, err error) {
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	from, to := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	authority := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: from, NotAfter: to, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	own := &x509.Certificate{SerialNumber: big.NewInt(2), NotBefore: from, NotAfter: to, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, authority, authority, &key.PublicKey, key)
	write(c.ClientCA, "CERTIFICATE", der, err)
	der, err = x509.CreateCertificate(rand.Reader, own, authority, &key.PublicKey, key)
	write(c.Cert, "CERTIFICATE", der, err)
	der, err = x509.MarshalPKCS8PrivateKey(key)
	write(c.Key, "PRIVATE KEY", der, err)
}

// Both sides of a port take an authority that is replaced in its file with the next connection. While the file is broken
// the old one stays, and whoever watches is told.
func TestAuthorities_AreReadAgain(t *testing.T) {
	var read []error
	files := func(dir string) Config {
		return Config{Port: "x", Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"), ClientCA: filepath.Join(dir, "ca.crt")}
	}
	served, asking := files(t.TempDir()), files(t.TempDir())
	served.OnReadCA = func(err error) { read = append(read, err) }
	copyTo := func(to, from Config) {
		for a, b := range map[string]string{to.Cert: from.Cert, to.Key: from.Key, to.ClientCA: from.ClientCA} {
			text, err := os.ReadFile(b)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(a, text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	issue(t, &served)
	copyTo(asking, served)
	log := slog.New(slog.DiscardHandler)
	server, err := served.Server(tls.RequireAndVerifyClientCert, log)
	if err != nil {
		t.Fatal(err)
	}
	client, err := asking.Peer(log)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", server)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	meet := func() error {
		accepted := make(chan error, 1)
		go func() {
			conn, err := listener.Accept()
			if err == nil {
				err = conn.(*tls.Conn).HandshakeContext(t.Context())
				_ = conn.Close()
			}
			accepted <- err
		}()
		conn, err := tls.Dial("tcp", listener.Addr().String(), client())
		if err == nil {
			_, err = conn.Read(make([]byte, 1)) // the server checks after the client
			if errors.Is(err, io.EOF) {
				err = nil
			}
			_ = conn.Close()
		}
		return errors.Join(err, <-accepted)
	}
	if err := meet(); err != nil {
		t.Fatalf("at the start: %v", err)
	}
	other := files(t.TempDir())
	issue(t, &other)
	copyTo(served, other)
	if err := meet(); err == nil {
		t.Error("a client of the old authority meets a server of the new one")
	}
	copyTo(asking, other)
	if err := meet(); err != nil {
		t.Errorf("both have the new one: %v", err)
	}
	if err := os.WriteFile(served.ClientCA, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := meet(); err != nil {
		t.Errorf("the file is broken: %v", err)
	}
	if len(read) != 3 || read[0] != nil || read[1] != nil || read[2] == nil {
		t.Errorf("the readings came to %v", read)
	}
}
