package serving

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/url"
	"time"
)

// wrongScheme is what to do about a server that does not answer as its URL says that it speaks, and does in the other
// way: "" where that is not it. All that is sent is a question for its health.
func wrongScheme(ctx context.Context, server string, patience time.Duration) string {
	at, err := url.Parse(server)
	if err != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	port := at.Port()
	if at.Scheme == "http" {
		if port == "" {
			port = "80"
		}
		dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // nothing is sent
		conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(at.Hostname(), port))
		if err != nil {
			return ""
		}
		_ = conn.Close()
		return "it speaks TLS: write https:// in front"
	}
	if port == "" {
		port = "443"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(at.Hostname(), port)+"/health", nil)
	if err != nil {
		return ""
	}
	plain := &http.Transport{DisableKeepAlives: true}
	resp, err := plain.RoundTrip(req)
	if err != nil {
		return ""
	}
	_ = resp.Body.Close()
	if resp.StatusCode == http.StatusBadRequest || resp.StatusCode/100 == 3 || resp.StatusCode == http.StatusUpgradeRequired {
		return "" // as servers answer that do speak TLS
	}
	return "it speaks plain text: write http:// in front"
}
