package leader

import (
	"context"
	"crypto/subtle"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/tandem-gateway/tandem/pd/leader/leaderpb"
)

// How both sides know that the other lives.
const (
	beat         = 20 * time.Millisecond // of the leader: at least one message in
	followerPing = time.Second           // of gRPC, to a follower that says nothing
	followerLost = time.Second           // without an answer to it
	takeWithin   = time.Second           // a turn that is not taken is void
	reportWithin = 50 * time.Millisecond // what a follower's report takes at most while Redis is well
	maxRequests  = 8192                  // of one follower that wait
	maxMessage   = 1 << 20               // bytes: a prompt of a million tokens has 500 KB of hashes
)

// Order is what decides: it lets requests of other replicas wait beside its own.
type Order interface {
	// Bind waits for a request's turn. The error is ErrTimeout, a Timeout where it is known when there is room, or any other after which the
	// follower may bind the request itself.
	Bind(ctx context.Context, r *leaderpb.RemoteRequest) (*Bound, error)
}

// Bound is a request whose turn has come. Its work is counted on the turn's servers until it is
// released.
type Bound struct {
	Turn      *leaderpb.Turn
	FirstStep time.Duration // predicted: its prefill is over by then
	Release   func()
}

// Reports are what other replicas report of what they have in flight.
type Reports interface {
	// ReportedDecisions is how many turns a replica had taken when it last reported its work, and
	// what is closed when anything new is received.
	ReportedDecisions(replica string) (count uint64, received <-chan struct{})
	// Receive takes in what a follower reports over its stream: sooner than by way of Redis, and also
	// while that does not answer.
	Receive(replica string, report []byte)
	// Lost says that its stream has ended.
	Lost(replica string)
}

// Server lets other replicas follow this one. It answers only while it leads, and only followers
// that know its token.
type Server struct {
	leaderpb.UnimplementedDeciderServer
	election *Election
	order    Order
	reports  Reports
	log      *slog.Logger
	metrics  *Metrics
}

// NewServer returns a server; GRPC makes it listen.
func NewServer(e *Election, order Order, reports Reports, m *Metrics, log *slog.Logger) *Server {
	return &Server{election: e, order: order, reports: reports, metrics: m, log: log}
}

// GRPC returns a gRPC server with the limits that Server needs.
func (s *Server) GRPC(options ...grpc.ServerOption) *grpc.Server {
	g := grpc.NewServer(append(options,
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxConcurrentStreams(256),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: followerPing, Timeout: followerLost}))...)
	leaderpb.RegisterDeciderServer(g, s)
	return g
}

// Decide serves one follower until its stream ends. A leader that has lost its
// election goes on for those that do not know the new one yet.
func (s *Server) Decide(stream grpc.BidiStreamingServer[leaderpb.ToLeader, leaderpb.ToFollower]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	leader, own, _ := s.election.Current()
	hello := first.GetHello()
	switch {
	case hello == nil:
		return status.Error(codes.InvalidArgument, "the first message is a hello")
	case !own || hello.Epoch != leader.Epoch:
		return status.Error(codes.FailedPrecondition, "this replica does not lead")
	case subtle.ConstantTimeCompare([]byte(hello.Token), []byte(leader.Token)) != 1:
		return status.Error(codes.Unauthenticated, "unknown token")
	}
	s.log.Debug("follower joined", "replica", hello.Replica) // it logs by itself whom it follows, and the gauge counts
	s.metrics.followers.Inc()
	defer s.metrics.followers.Dec()
	defer s.reports.Lost(hello.Replica)

	ctx, cancel := context.WithCancel(stream.Context())
	f := &session{
		Server: s, replica: hello.Replica, queued: make(chan *leaderpb.ToFollower, maxRequests),
		waiting: make(map[uint64]*remoteRequest),
	}
	f.parts.Go(func() { f.sendAll(ctx, stream) })
	defer f.parts.Wait()
	defer cancel()
	for {
		m, err := stream.Recv()
		if err != nil {
			s.log.Debug("follower left", "replica", hello.Replica, "error", err.Error())
			return nil
		}
		f.receive(ctx, m)
	}
}
