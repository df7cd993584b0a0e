package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/pflag"
)

// portTLS is the certificate of a port, and whose certificates it accepts. Its zero value is plain text.
type portTLS struct {
	port     string // as flags name it
	cert     string // file; empty: plain text
	key      string // file
	clientCA string // file; empty: no certificate is asked for
}

// bind names the settings of a port that is for somebody.
func (c *portTLS) bind(fs *pflag.FlagSet, port, whose string) {
	c.bindOwn(fs, port)
	fs.StringVar(&c.clientCA, port+"-client-ca", c.clientCA, "`file` with the authority of the certificate of "+whose)
}

// bindOwn names the settings of a port that asks nobody for a certificate.
func (c *portTLS) bindOwn(fs *pflag.FlagSet, port string) {
	c.port = port
	fs.StringVar(&c.cert, port+"-cert", c.cert, "`file` with its certificate, read again when it has changed; empty: plain text")
	fs.StringVar(&c.key, port+"-key", c.key, "`file` with the certificate's key")
}

func (c *portTLS) validate() error {
	if (c.cert == "") != (c.key == "") {
		return fmt.Errorf("%[1]s-cert and %[1]s-key come together", c.port)
	}
	if c.clientCA != "" && c.cert == "" {
		return fmt.Errorf("%[1]s-client-ca needs %[1]s-cert: a client shows its certificate only in TLS", c.port)
	}
	return nil
}

// config returns the server's side of TLS, nil for plain text. How clients without a
// certificate fare is for demand to say, where there is an authority.
func (c *portTLS) config(demand tls.ClientAuthType, log *slog.Logger) (*tls.Config, error) {
	if c.cert == "" {
		return nil, nil
	}
	own, err := newCertificate(c.port, c.cert, c.key, log)
	if err != nil {
		return nil, err
	}
	conf := &tls.Config{GetCertificate: own.current, MinVersion: tls.VersionTLS12}
	if c.clientCA == "" {
		return conf, nil
	}
	conf.ClientAuth = demand
	conf.ClientCAs, err = c.authority()
	return conf, err
}

// own reads the certificate.
func (c *portTLS) own() (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		return nil, fmt.Errorf("%s-cert: %w", c.port, err)
	}
	return &pair, nil
}

// authority reads whose certificates are accepted.
func (c *portTLS) authority() (*x509.CertPool, error) {
	text, err := os.ReadFile(c.clientCA)
	if err != nil {
		return nil, fmt.Errorf("%s-client-ca: %w", c.port, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, errors.New(c.port + "-client-ca: no certificate in it")
	}
	return pool, nil
}

// peer returns the client's side of TLS towards other replicas' ports, nil for plain text.
// They show a certificate of the same authority with the same name as the own one, or
// with their address where that names no host.
func (c *portTLS) peer() (*tls.Config, error) {
	if c.cert == "" {
		return nil, nil
	}
	own, err := c.own()
	if err != nil {
		return nil, err
	}
	conf := &tls.Config{
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c.own() },
		MinVersion:           tls.VersionTLS12,
	}
	if names := own.Leaf.DNSNames; len(names) > 0 {
		conf.ServerName = names[0]
	}
	conf.RootCAs, err = c.authority()
	return conf, err
}
