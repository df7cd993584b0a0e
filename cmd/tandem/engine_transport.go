package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/textproto"
	"os"
	"strings"

	"github.com/tandem-gateway/tandem/pd"
)

// engineTransport is the client side of all that engines are asked: legs, probes, scrapes,
// tokens. An authority of the operator's own is trusted beside the system's.
func (c *config) engineTransport() (http.RoundTripper, error) {
	transport := pd.NewTransport(c.connect)
	if c.engineCA == "" {
		return discreet{transport}, nil
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
	return discreet{transport}, nil
}

// discreet keeps what an engine answered that is no HTTP out of errors, which end in logs
// and traces: net/http quotes it, and it may be anything, as of another service that has
// the address now.
type discreet struct{ http.RoundTripper }

var errNotHTTP = errors.New("the answer is not valid HTTP")

func (d discreet) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := d.RoundTripper.RoundTrip(req)
	if err != nil && quotesAnswer(err) {
		err = errNotHTTP
	}
	return resp, err
}

// quotesAnswer reports an error with bytes of an answer in it.
func quotesAnswer(err error) bool {
	var line textproto.ProtocolError
	var network net.Error
	text := err.Error()
	return errors.As(err, &line) || strings.Contains(text, "malformed") || strings.Contains(text, `"`) && !errors.As(err, &network)
}
