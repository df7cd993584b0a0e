package serving

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/textproto"
	"os"
	"strings"

	"github.com/tandem-gateway/tandem/pd/enginehttp"
)

// transport is the client side of all that engines are asked: legs, probes, scrapes,
// tokens. An authority of the operator's own is trusted beside the system's.
func (c *enginesConfig) transport() (http.RoundTripper, error) {
	transport := enginehttp.NewTransport(c.connect)
	if c.ca == "" {
		return redactingTransport{transport}, nil
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
	return redactingTransport{transport}, nil
}

// redactingTransport keeps what an engine answered that is no HTTP out of errors, which end in logs
// and traces: net/http quotes it, and it may be anything, as of another service that has
// the address now.
type redactingTransport struct{ http.RoundTripper }

var errNotHTTP = errors.New("the answer is not valid HTTP")

func (d redactingTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := d.RoundTripper.RoundTrip(req)
	if err != nil {
		if ended := context.Cause(req.Context()); quotesAnswer(err) && (ended == nil || !errors.Is(err, ended)) {
			err = errNotHTTP
		}
		return nil, err
	}
	resp.Body = redactingBody{resp.Body}
	return resp, nil
}

// quotesAnswer reports an error with bytes of an answer in it. What is wrong with a
// certificate quotes names alone, which operators need.
func quotesAnswer(err error) bool {
	var line textproto.ProtocolError
	var network net.Error
	var certificate *tls.CertificateVerificationError
	if errors.As(err, &certificate) {
		return false
	}
	text := err.Error()
	return errors.As(err, &line) || strings.Contains(text, "malformed") || strings.Contains(text, `"`) && !errors.As(err, &network)
}

// redactingBody is the same for what follows a head: of all that is read there net/http
// quotes trailers alone.
type redactingBody struct{ io.ReadCloser }

func (b redactingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	var line textproto.ProtocolError
	if errors.As(err, &line) {
		err = errNotHTTP
	}
	return n, err
}

// libraryLog takes what net/http says to the standard logger. It quotes what an engine sends
// after its answer, such as the rest of a longer one.
type libraryLog struct{ log *slog.Logger }

func (l libraryLog) Write(p []byte) (int, error) {
	text, _, _ := strings.Cut(strings.TrimSpace(string(p)), " starting with ")
	l.log.Warn("a library reports", "text", text)
	return len(p), nil
}
