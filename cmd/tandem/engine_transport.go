package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"

	"github.com/tandem-gateway/tandem/pd"
)

// engineTransport is the client side of all that engines are asked: legs, probes, scrapes,
// tokens. An authority of the operator's own is trusted beside the system's.
func (c *config) engineTransport() (*http.Transport, error) {
	transport := pd.NewTransport(c.connect)
	if c.engineCA == "" {
		return transport, nil
	}
	text, err := os.ReadFile(c.engineCA)
	if err != nil {
		return nil, fmt.Errorf("engine-ca: %w", err)
	}
	trusted, err := x509.SystemCertPool()
	if err != nil {
		trusted = x509.NewCertPool() // a system without authorities
	}
	if !trusted.AppendCertsFromPEM(text) {
		return nil, errors.New("engine-ca: no certificate in it")
	}
	transport.TLSClientConfig = &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS12}
	return transport, nil
}
