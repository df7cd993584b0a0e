package picker

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"sync/atomic"
	"time"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"github.com/tandem-gateway/tandem/gateway"
)

// Config is how requests are picked for; its zero value suits every proxy.
type Config struct {
	// Fallbacks is how many other servers are named behind the one that is chosen, for proxies
	// that try the next where one fails. Others take a list for no address at all: Envoy's clusters
	// of type ORIGINAL_DST, as in llm-d's standalone chart.
	Fallbacks int
	// EngineKey is the key that engines ask for now, sent where clients have keys of this gateway; where
	// they have none, or it is nil or "", what they send passes.
	EngineKey func() string
}

// Validate reports what is wrong with the configuration, nil if nothing.
func (c Config) Validate() error {
	if c.Fallbacks < 0 {
		return errors.New("picker-fallbacks must not be negative")
	}
	return nil
}

// Server is the picker's port.
type Server struct {
	grpc     *grpc.Server
	draining atomic.Bool
	open     *openStreams
}

// New returns a server that is not listening yet. ready says whether requests are of use to it, as
// health checks do; encrypted is nil for plain text.
func New(cfg Config, g *gateway.Server, ready func() bool, encrypted *tls.Config, log *slog.Logger) *Server {
	p := &processor{cfg: cfg, gateway: g, log: log}
	s := &Server{grpc: grpc.NewServer(serverOptions(g.MaxBody(), encrypted)...), open: &p.open}
	extproc.RegisterExternalProcessorServer(s.grpc, p)
	grpc_health_v1.RegisterHealthServer(s.grpc, &healthChecks{ready: func() bool { return !s.draining.Load() && ready() }})
	return s
}

// How a proxy and the picker know of each other that they live while nothing passes between them.
const (
	shortestPing = 10 * time.Millisecond // between two pings of a proxy; gRPC's own five minutes end connections that say less
	pingAfter    = 20 * time.Second      // of silence, to the proxy
	lostAfter    = 20 * time.Second      // without an answer to it: its requests are over
)

// aroundBody is the most that a message has beside the bytes of a body, all of its headers in it.
const aroundBody = 1 << 20

// serverOptions are gRPC's where bodies have at most so many bytes. One of that length may come in one
// message: that it is too long is the gateway's to say.
func serverOptions(maxBody int, encrypted *tls.Config) []grpc.ServerOption {
	options := []grpc.ServerOption{
		grpc.MaxConcurrentStreams(math.MaxUint32), grpc.MaxRecvMsgSize(maxBody + aroundBody), grpc.ForceServerCodecV2(newCodec()),
		// A proxy has a connection or two for each of its threads. Wide windows let a long prompt come
		// without waiting for the picker in between.
		grpc.WriteBufferSize(256 << 10), grpc.ReadBufferSize(256 << 10),
		grpc.StaticStreamWindowSize(1 << 20), grpc.StaticConnWindowSize(16 << 20), experimental.BufferPool(newFramePool()),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: shortestPing, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter, Timeout: lostAfter}),
	}
	if encrypted != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(encrypted)))
	}
	return options
}

// Serve answers on the listener until Shutdown.
func (s *Server) Serve(ln net.Listener) error {
	if err := s.grpc.Serve(ln); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve the picker: %w", err)
	}
	return nil
}

// Drain makes health checks say that no more requests should come.
func (s *Server) Drain() { s.draining.Store(true) }

// maxSilence is how long nothing may come of requests that have begun while the picker drains: as long as packets that
// were lost take to be sent again, a few times over.
const maxSilence = 5 * time.Second

// Shutdown takes no new request and waits for those under way, until the context ends. What is
// left then is cut off: Envoy goes on with those that have their server. Requests that stop coming have no answer to
// lose, nor have health checks: where nothing else is open they are not waited for.
func (s *Server) Shutdown(ctx context.Context) {
	s.Drain()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.grpc.GracefulStop()
	}()
	select {
	case <-ended:
		return
	case <-s.silent(ctx, ended):
	}
	s.grpc.Stop()
	<-ended
}

// silent is closed when nothing has come of any request for so long while none is answered, or the context has ended.
func (s *Server) silent(ctx context.Context, ended <-chan struct{}) <-chan struct{} {
	silent := make(chan struct{})
	last := time.Now()
	go func() {
		defer close(silent)
		look := time.NewTicker(maxSilence / 20)
		defer look.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ended:
				return
			case now := <-look.C:
				if heard := s.open.last(now); heard.After(last) {
					last = heard
				}
				if now.Sub(last) > maxSilence {
					return
				}
			}
		}
	}()
	return silent
}
