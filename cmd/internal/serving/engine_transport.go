package serving

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"

	"github.com/tandem-gateway/tandem/pd/enginehttp"
)

// transport is the client side of all that engines are asked: legs, probes, scrapes,
// tokens. An authority of the operator's own is trusted beside the system's. Its errors, which end in
// logs and traces, quote nothing of an answer: it may be anything, as of another service that has
// the address now.
func (c *enginesConfig) transport() (http.RoundTripper, error) {
	transport := enginehttp.NewTransport(c.connect)
	if c.ca == "" {
		return transport, nil
	}
	text, err := os.ReadFile(c.ca)
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

// libraryLog takes what libraries say to the standard logger, as net/http does. It quotes what follows an
// answer.
type libraryLog struct{ log *slog.Logger }

func (l libraryLog) Write(p []byte) (int, error) {
	text, _, _ := strings.Cut(strings.TrimSpace(string(p)), " starting with ")
	l.log.Warn("a library reports", "text", text)
	return len(p), nil
}
