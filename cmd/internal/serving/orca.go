package serving

import (
	"errors"
	"fmt"
	"net"

	"google.golang.org/grpc"

	"github.com/tandem-gateway/tandem/gateway"
)

// orcaServer streams this gateway's load to proxies before it.
type orcaServer struct {
	listener net.Listener
	server   *grpc.Server
}

// newORCAServer binds the address; nil without one.
func newORCAServer(address string, s *gateway.Server) (*orcaServer, error) {
	if address == "" {
		return nil, nil
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for orca: %w", err)
	}
	server := grpc.NewServer(grpc.MaxConcurrentStreams(1024))
	s.RegisterLoadReports(server)
	return &orcaServer{listener: listener, server: server}, nil
}

func (o *orcaServer) serve() error {
	if err := o.server.Serve(o.listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve orca: %w", err)
	}
	return nil
}

// Close ends all streams: they would never end by themselves. Closing none is no error.
func (o *orcaServer) Close() error {
	if o == nil {
		return nil
	}
	o.server.Stop()
	if err := o.listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}
