package keda

import (
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/tandem-gateway/tandem/autoscale/keda/externalscaler"
)

// Server is a gRPC server that is KEDA's external scaler.
type Server struct {
	*grpc.Server
	end func()
}

// NewServer returns the server of published targets. It serves a listener until Stop.
func NewServer(t *PublishedTargets, options ...grpc.ServerOption) *Server {
	server, ended := grpc.NewServer(options...), make(chan struct{})
	externalscaler.RegisterExternalScalerServer(server, &scaler{targets: t, ended: ended})
	return &Server{server, sync.OnceFunc(func() { close(ended) })}
}

// stopWithin is how long calls may take to end.
const stopWithin = time.Second

// Stop ends all streams as KEDA wants it: when one fails, KEDA waits twice as long as the
// last time before it opens it anew, up to a minute, and forgets that only where one ends
// without an error. No push reaches it meanwhile.
func (s *Server) Stop() {
	s.end()
	late := time.AfterFunc(stopWithin, s.Server.Stop)
	defer late.Stop()
	s.GracefulStop()
}
