package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/tandem-gateway/tandem/autoscale/keda"
)

// scalerConfig is how KEDA reaches the wanted replicas over gRPC; JSON and gauges are
// on the admin port.
type scalerConfig struct {
	listen    string
	cert, key string // files; empty: plain text
	clientCA  string // file; empty: no certificate is asked for
}

// scalerMaxAge is how old a decision may be that KEDA is told of.
const scalerMaxAge = time.Minute

func (c *scalerConfig) bind(fs *pflag.FlagSet) {
	fs.StringVar(&c.listen, "scaler", c.listen, "`address` for KEDA's triggers external and external-push (gRPC); empty: none")
	fs.StringVar(&c.cert, "scaler-cert", c.cert, "`file` with its certificate; empty: plain text")
	fs.StringVar(&c.key, "scaler-key", c.key, "`file` with the certificate's key")
	fs.StringVar(&c.clientCA, "scaler-client-ca", c.clientCA, "`file` with the authority of KEDA's certificate, which is then asked for")
}

func (c *scalerConfig) validate() error {
	if (c.cert == "") != (c.key == "") {
		return errors.New("scaler-cert and scaler-key come together")
	}
	if c.clientCA != "" && c.cert == "" {
		return errors.New("scaler-client-ca needs scaler-cert: a client shows its certificate only in TLS")
	}
	return nil
}

// options returns the gRPC server's: TLS where there is a certificate.
func (c *scalerConfig) options() ([]grpc.ServerOption, error) {
	bounded := grpc.MaxConcurrentStreams(1024)
	if c.cert == "" {
		return []grpc.ServerOption{bounded}, nil
	}
	own, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		return nil, fmt.Errorf("scaler-cert: %w", err)
	}
	conf := &tls.Config{Certificates: []tls.Certificate{own}, MinVersion: tls.VersionTLS12}
	if c.clientCA != "" {
		text, err := os.ReadFile(c.clientCA)
		if err != nil {
			return nil, fmt.Errorf("scaler-client-ca: %w", err)
		}
		conf.ClientCAs, conf.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
		if !conf.ClientCAs.AppendCertsFromPEM(text) {
			return nil, errors.New("scaler-client-ca: no certificate in it")
		}
	}
	return []grpc.ServerOption{bounded, grpc.Creds(credentials.NewTLS(conf))}, nil
}

// scalerServer is KEDA's external scaler.
type scalerServer struct {
	listener net.Listener
	server   *grpc.Server
}

// newScalerServer binds the address; nil without one.
func newScalerServer(cfg scalerConfig, board *keda.Board) (*scalerServer, error) {
	if cfg.listen == "" {
		return nil, nil
	}
	options, err := cfg.options()
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", cfg.listen)
	if err != nil {
		return nil, fmt.Errorf("listen for scaler: %w", err)
	}
	server := grpc.NewServer(options...)
	keda.Register(server, board)
	return &scalerServer{listener, server}, nil
}

func (s *scalerServer) serve() error {
	if err := s.server.Serve(s.listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve scaler: %w", err)
	}
	return nil
}

// Close ends all streams, and does nothing for none.
func (s *scalerServer) Close() error {
	if s == nil {
		return nil
	}
	s.server.Stop()
	if err := s.listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// withScaling adds the JSON that KEDA's metrics-api reads to the admin port.
func withScaling(admin http.Handler, board *keda.Board) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", admin)
	mux.Handle(scalerPath, board.Handler())
	return mux
}
