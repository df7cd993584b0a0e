package http1

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
)

// tlsServer has a certificate, and a client's configuration that trusts it.
func tlsServer(t *testing.T, handler http.Handler) (*httptest.Server, *tls.Config) {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = true
	server.TLS = &tls.Config{NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	trusted := x509.NewCertPool()
	trusted.AddCert(server.Certificate())
	return server, &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS12}
}

// Requests go by TLS on one connection, as HTTP/1.1, though the server would rather speak another protocol.
func TestTLS_KeepsItsConnection(t *testing.T) {
	addresses := make(chan string, 1)
	server, trust := tlsServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		addresses <- r.RemoteAddr
		if r.TLS.NegotiatedProtocol != "http/1.1" {
			t.Errorf("it speaks %q", r.TLS.NegotiatedProtocol)
		}
		_, _ = w.Write(body)
		if len(body) > 5 {
			w.(http.Flusher).Flush() // in chunks
		}
	}))
	transport := &Transport{TLSClientConfig: func() *tls.Config { return trust }}
	closeIdle(t, transport)
	first := ""
	for _, body := range []string{"hello", strings.Repeat("a", 1<<20), "hello", strings.Repeat("b", 6000), "again"} {
		text, err := ask(t, transport, http.MethodPost, server.URL, body, nil)
		if err != nil || text != body {
			t.Fatalf("%d bytes of %d, %v", len(text), len(body), err)
		}
		if address := <-addresses; first == "" {
			first = address
		} else if address != first {
			t.Error("the connection was not used again")
		}
	}
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, http.NoBody)
	resp, err := transport.RoundTrip(req)
	if err != nil || resp.TLS == nil || !resp.TLS.HandshakeComplete || resp.ProtoMajor != 1 {
		t.Errorf("%v, %+v", err, resp)
	}
	<-addresses
	_ = resp.Body.Close()
}

// A server that nobody vouches for, or that has another's name, gets no request.
func TestTLS_AForeignServerGetsNothing(t *testing.T) {
	server, trust := tlsServer(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it was asked") }))
	other := trust.Clone()
	other.ServerName = "other.example"
	for name, cfg := range map[string]*tls.Config{"no authority": nil, "another name": other} {
		_, err := ask(t, &Transport{TLSClientConfig: func() *tls.Config { return cfg }}, http.MethodPost, server.URL, "a secret", nil)
		var certificate *tls.CertificateVerificationError
		if !errors.As(err, &certificate) {
			t.Errorf("%s: %v", name, err)
		}
	}
	plain := newEngine(t, func(_ *engine, _ int32, conn *net.TCPConn, in *bufio.Reader) {
		_, _ = in.ReadByte()
		_, _ = io.WriteString(conn, plainAnswer)
	})
	if _, err := ask(t, &Transport{TLSClientConfig: func() *tls.Config { return trust }}, http.MethodGet, strings.Replace(plain.url, "http", "https", 1), "", nil); err == nil {
		t.Error("a server without TLS was asked")
	}
}

// A server that says nothing is waited for no longer than the client waits.
func TestTLS_AHandshakeCanBeCancelled(t *testing.T) {
	ctx, leave := context.WithCancelCause(t.Context())
	e := newEngine(t, func(_ *engine, _ int32, _ *net.TCPConn, in *bufio.Reader) {
		_, _ = in.ReadByte()
		leave(errLeft)
		_, _ = io.Copy(io.Discard, in)
	})
	_, err := ask(t, new(Transport), http.MethodGet, strings.Replace(e.url, "http", "https", 1), "", func(r *http.Request) { *r = *r.WithContext(ctx) })
	if !errors.Is(err, errLeft) {
		t.Errorf("%v", err)
	}
}

// Conversations end over TLS as over sockets, with this client and with net/http: in order, cut, or with more
// than was asked for.
func TestTLS_Conversations(t *testing.T) {
	log.SetOutput(io.Discard) // net/http reports what follows an answer
	defer log.SetOutput(os.Stderr)
	certificate, trust := tlsServer(t, http.NotFoundHandler())
	cfg := &tls.Config{Certificates: certificate.TLS.Certificates, MinVersion: tls.VersionTLS12}
	for name, c := range map[string]struct {
		answer string
		end    string // in order, abruptly, or not at all
	}{
		"whole":                             {plainAnswer, ""},
		"whole, then its end":               {plainAnswer, "in order"},
		"whole, then cut":                   {plainAnswer, "abruptly"},
		"cut":                               {ok + "Content-Length: 5\r\n\r\nhel", "abruptly"},
		"cut in order":                      {ok + "Content-Length: 5\r\n\r\nhel", "in order"},
		"chunks that are cut":               {chunked + "5\r\nhello\r\n", "abruptly"},
		"chunks that are cut in order":      {chunked + "5\r\nhello\r\n", "in order"},
		"without an answer":                 {"", "in order"},
		"until the end":                     {ok + "\r\nhello", "in order"},
		"more in the same record":           {plainAnswer + "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nstray", ""},
		"more in the same record as chunks": {chunked + "2\r\nok\r\n0\r\n\r\n" + plainAnswer, ""},
		"more than a buffer":                {ok + "Content-Length: 20000\r\n\r\n" + strings.Repeat("a", 20_000) + plainAnswer, ""},
	} {
		got := map[string]outcome{}
		for _, client := range []string{"own", "net/http"} {
			var connections atomic.Int32
			e := newEngine(t, func(e *engine, number int32, conn *net.TCPConn, _ *bufio.Reader) {
				over := tls.Server(conn, cfg)
				in := bufio.NewReader(over)
				connections.Store(number)
				for first := true; e.take(in); first = false {
					if number > 1 || !first {
						_, _ = io.WriteString(over, plainAnswer)
						continue
					}
					_, _ = io.WriteString(over, c.answer)
					switch c.end {
					case "in order":
						_ = over.Close()
						return
					case "abruptly":
						return
					}
				}
			})
			var transport http.RoundTripper = &Transport{TLSClientConfig: func() *tls.Config { return trust }}
			if client != "own" {
				transport = &http.Transport{TLSClientConfig: trust, DisableCompression: true}
			}
			got[client] = converse(transport, http.MethodGet, strings.Replace(e.url, "http", "https", 1), &connections)
			transport.(interface{ CloseIdleConnections() }).CloseIdleConnections()
		}
		compare(t, script{name: name, unasked: strings.HasPrefix(name, "more")}, "over TLS", got)
	}
}
