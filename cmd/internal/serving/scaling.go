package serving

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/tandem-gateway/tandem/autoscale/keda"
	"github.com/tandem-gateway/tandem/cmd/internal/porttls"
)

// scalerConfig is how KEDA reaches the wanted replicas over gRPC; JSON and gauges are
// on the admin port.
type scalerConfig struct {
	listen string
	tls    porttls.Config
}

// ScalerRoute is where the JSON for KEDA's metrics-api is.
const ScalerRoute = "GET /autoscale/v1/pool"

// scalerMaxAge is how old a decision may be that KEDA receives.
const scalerMaxAge = time.Minute

func (c *scalerConfig) bind(fs *pflag.FlagSet) {
	fs.StringVar(&c.listen, "scaler", c.listen, "`address` for KEDA's triggers external and external-push (gRPC); empty: none")
	c.tls.Bind(fs, "scaler", "KEDA, which is then asked for")
}

func (c *scalerConfig) validate() error {
	if c.listen != "" {
		if err := checkListen(c.listen); err != nil {
			return fmt.Errorf("scaler %q: %w", c.listen, err)
		}
	}
	return c.tls.Validate()
}

// options returns the gRPC server's: TLS where there is a certificate.
func (c *scalerConfig) options(log *slog.Logger) ([]grpc.ServerOption, error) {
	options := []grpc.ServerOption{grpc.MaxConcurrentStreams(1024)}
	conf, err := c.tls.Server(tls.RequireAndVerifyClientCert, log)
	if err != nil || conf == nil {
		return options, err
	}
	return append(options, grpc.Creds(credentials.NewTLS(conf))), nil
}

// scalerServer is KEDA's external scaler.
type scalerServer struct {
	listener net.Listener
	server   *keda.Server
}

// newScalerServer binds the address; nil without one.
func newScalerServer(cfg scalerConfig, targets *keda.PublishedTargets, log *slog.Logger) (*scalerServer, error) {
	if cfg.listen == "" {
		return nil, nil
	}
	options, err := cfg.options(log)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", cfg.listen)
	if err != nil {
		return nil, fmt.Errorf("listen for scaler: %w", err)
	}
	return &scalerServer{listener, keda.NewServer(targets, options...)}, nil
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
