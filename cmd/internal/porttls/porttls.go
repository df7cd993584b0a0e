// Package porttls is the TLS of a port that this process listens at: its certificate, read
// again when it changes, and whose certificates it accepts.
package porttls

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"log/slog"
	"math/big"
	"time"

	"github.com/spf13/pflag"
)

// Config is the certificate of a port, and whose certificates it accepts. Its zero value is
// plain text.
type Config struct {
	Port     string // as flags name it
	Cert     string // file; empty: plain text
	Key      string // file
	ClientCA string // file; empty: no certificate is asked for
	// OnRead receives what each reading of the certificate came to, nil where it is in use, and OnReadCA the same of the
	// authority; they must not block. nil: nobody asks.
	OnRead, OnReadCA func(error)
}

// Bind names the settings of a port that certain clients may use.
func (c *Config) Bind(fs *pflag.FlagSet, port, whose string) {
	c.BindOwn(fs, port)
	fs.StringVar(&c.ClientCA, port+"-client-ca", c.ClientCA, "`file` with the authority of the certificate of "+whose+"; read again when it has changed")
}

// BindOwn names the settings of a port that asks no client for a certificate.
func (c *Config) BindOwn(fs *pflag.FlagSet, port string) {
	c.Port = port
	fs.StringVar(&c.Cert, port+"-cert", c.Cert, "`file` with its certificate, read again when it has changed; empty: plain text")
	fs.StringVar(&c.Key, port+"-key", c.Key, "`file` with the certificate's key")
}

// Validate reports files that do not come together.
func (c *Config) Validate() error {
	if (c.Cert == "") != (c.Key == "") {
		return fmt.Errorf("%[1]s-cert and %[1]s-key come together", c.Port)
	}
	if c.ClientCA != "" && c.Cert == "" {
		return fmt.Errorf("%[1]s-client-ca needs %[1]s-cert: a client shows its certificate only in TLS", c.Port)
	}
	return nil
}

// Server returns the server's side of TLS, nil for plain text. How clients without a
// certificate fare is for demand to say, where there is an authority.
func (c *Config) Server(demand tls.ClientAuthType, log *slog.Logger) (*tls.Config, error) {
	if c.Cert == "" {
		return nil, nil
	}
	own, err := newCertificate(c, log)
	if err != nil {
		return nil, err
	}
	show := func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return own.current(), nil }
	conf := &tls.Config{GetCertificate: show, MinVersion: tls.VersionTLS12}
	if c.ClientCA == "" {
		return conf, nil
	}
	authority, err := c.authority(log)
	if err != nil {
		return nil, err
	}
	conf.ClientAuth, conf.ClientCAs = demand, authority.Current()
	conf.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		now := conf.Clone() // with what the port has added to it
		now.ClientCAs = authority.Current()
		return now, nil
	}
	return conf, nil
}

// selfSigned is how long a certificate that is signed here holds.
const selfSigned = 10 * 365 * 24 * time.Hour

// SelfSigned returns the server's side of TLS with a certificate of its own, made now: it encrypts,
// and proves nothing to a client.
func (c *Config) SelfSigned() (*tls.Config, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("%s: make a key: %w", c.Port, err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{Organization: []string{"tandem"}},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(selfSigned),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("%s: sign a certificate: %w", c.Port, err)
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{certificate}, PrivateKey: key}}, MinVersion: tls.VersionTLS12}, nil
}

// authority reads whose certificates are accepted.
func (c *Config) authority(log *slog.Logger) (*Authorities, error) {
	return ReadAuthorities(AuthorityFile{Setting: c.Port + "-client-ca", File: c.ClientCA, OnRead: c.OnReadCA}, log)
}

// Peer returns the client's side of TLS towards other replicas' ports, as it is for one more connection; nil for plain
// text. They show a certificate of the same authority with the same name as the own one, or with their address where
// that names no host.
func (c *Config) Peer(log *slog.Logger) (func() *tls.Config, error) {
	if c.Cert == "" {
		return nil, nil
	}
	quiet := slog.New(slog.DiscardHandler) // the server's side reports what is read
	own, err := newCertificate(&Config{Port: c.Port, Cert: c.Cert, Key: c.Key}, quiet)
	if err != nil {
		return nil, err
	}
	authority, err := c.authority(log)
	if err != nil {
		return nil, err
	}
	return func() *tls.Config {
		pair := own.current()
		name := ""
		if names := pair.Leaf.DNSNames; len(names) > 0 {
			name = names[0]
		}
		return &tls.Config{
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return pair, nil },
			ServerName:           name,
			RootCAs:              authority.Current(),
			MinVersion:           tls.VersionTLS12,
		}
	}, nil
}
