package serving

import (
	"crypto/tls"
	"log/slog"
	"net/http"
	"strings"

	"github.com/tandem-gateway/tandem/cmd/internal/porttls"
	"github.com/tandem-gateway/tandem/pd/enginehttp"
)

// transport is the client side of all that engines are asked: legs, probes, scrapes,
// tokens. An authority of the operator's own is trusted beside the system's. Its errors, which end in
// logs and traces, quote nothing of an answer: it may be anything, as of another service that has
// the address now.
func (c *enginesConfig) transport(log *slog.Logger) (http.RoundTripper, error) {
	transport := enginehttp.NewTransport(c.connect)
	if c.ca.File == "" {
		return transport, nil
	}
	file := c.ca
	file.Setting, file.System = "engine-ca", true
	trusted, err := porttls.ReadAuthorities(file, log)
	if err != nil {
		return nil, err
	}
	transport.TLSClientConfig = func() *tls.Config {
		return &tls.Config{RootCAs: trusted.Current(), MinVersion: tls.VersionTLS12}
	}
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
