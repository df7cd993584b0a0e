package council

import (
	"context"
	"crypto/subtle"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/tandem-gateway/tandem/pd/council/councilpb"
)

// How both sides know that the other lives.
const (
	beat         = 20 * time.Millisecond // of the decider: at least one message in
	followerPing = time.Second           // of gRPC, to a follower that says nothing
	followerLost = time.Second           // without an answer to it
	takeWithin   = time.Second           // a turn that is not taken is void
	maxTickets   = 8192                  // of one follower that wait
	maxMessage   = 1 << 20               // bytes: a prompt of a million tokens has 500 KB of hashes
)

// Order is what decides: it lets tickets of other replicas wait beside its own
// requests.
type Order interface {
	// Bind waits for a ticket's turn. The work that it puts on the turn's servers is
	// counted there until told is called: from then on the follower's own news tell of
	// it. The error is ErrTimeout, or any other after which the follower may bind the
	// request itself.
	Bind(ctx context.Context, t *councilpb.Ticket) (turn *councilpb.Turn, told func(), err error)
}

// News is what other replicas tell of what they have in flight.
type News interface {
	// Taken is how many turns a replica had taken when it last told its work, and
	// what is closed when anything new is heard.
	Taken(replica string) (count uint64, heard <-chan struct{})
}

// Server lets other replicas follow this one. It answers only while it decides, and
// those who know its token.
type Server struct {
	councilpb.UnimplementedDeciderServer
	election *Election
	order    Order
	news     News
	log      *slog.Logger
	metrics  *Metrics
}

// NewServer returns a server; GRPC makes it listen.
func NewServer(e *Election, order Order, news News, m *Metrics, log *slog.Logger) *Server {
	return &Server{election: e, order: order, news: news, metrics: m, log: log}
}

// GRPC returns a gRPC server with the limits that Server needs.
func (s *Server) GRPC(options ...grpc.ServerOption) *grpc.Server {
	g := grpc.NewServer(append(options,
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxConcurrentStreams(256),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: followerPing, Timeout: followerLost}))...)
	councilpb.RegisterDeciderServer(g, s)
	return g
}

// Decide serves one follower until its stream ends. A decider that has lost its
// office goes on for those who have not heard of the new one.
func (s *Server) Decide(stream grpc.BidiStreamingServer[councilpb.Ask, councilpb.Say]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	who, own, _ := s.election.Current()
	hello := first.GetHello()
	switch {
	case hello == nil:
		return status.Error(codes.InvalidArgument, "the first message is a hello")
	case !own || hello.Epoch != who.Epoch:
		return status.Error(codes.FailedPrecondition, "this replica does not decide")
	case subtle.ConstantTimeCompare([]byte(hello.Token), []byte(who.Token)) != 1:
		return status.Error(codes.Unauthenticated, "unknown token")
	}
	s.log.Info("follower joined", "replica", hello.Replica)
	s.metrics.followers.Inc()
	defer s.metrics.followers.Dec()

	ctx, cancel := context.WithCancel(stream.Context())
	f := &session{
		Server: s, replica: hello.Replica, say: make(chan *councilpb.Say, maxTickets),
		seats: make(map[uint64]*seat),
	}
	f.parts.Go(func() { f.speak(ctx, stream) })
	defer f.parts.Wait()
	defer cancel()
	for {
		ask, err := stream.Recv()
		if err != nil {
			s.log.Info("follower left", "replica", hello.Replica, "error", err.Error())
			return nil
		}
		f.take(ctx, ask)
	}
}
