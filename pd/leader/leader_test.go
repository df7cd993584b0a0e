package leader

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/tandem-gateway/tandem/loadtest/redisserver"
	"github.com/tandem-gateway/tandem/pd/leader/leaderpb"
)

// replica is one gateway's part in deciding. Its order grants a turn whenever grant
// is given one.
type replica struct {
	t        *testing.T
	name     string
	election *Election
	follower *Follower
	grpc     *grpc.Server
	grant    chan string // decode server of the next turn
	taken    atomic.Uint64

	mu       sync.Mutex // guards the rest
	reported int        // turns whose work the followers' reports include
	counts   map[string]uint64
	more     chan struct{}
	stop     context.CancelFunc
	done     sync.WaitGroup
}

// patience with a leader on a busy machine.
const patience = 20 * time.Second

func startReplica(t *testing.T, r *redisserver.Server, name string, patience time.Duration) *replica {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	m := NewMetrics(prometheus.NewRegistry())
	x := &replica{t: t, name: name, grant: make(chan string), counts: map[string]uint64{}, more: make(chan struct{})}
	x.election = NewElection(r.Client(), "test:", name, listener.Addr().String(), log)
	x.follower = NewFollower(x.election, name, func() uint64 { return x.taken.Add(1) }, insecure.NewCredentials(), m, log)
	x.follower.Patience = patience
	x.grpc = NewServer(x.election, x, x, m, log).GRPC()
	var ctx context.Context
	ctx, x.stop = context.WithCancel(context.Background())
	x.done.Go(func() { _ = x.grpc.Serve(listener) })
	x.done.Go(func() { x.election.Run(ctx) })
	x.done.Go(func() { x.follower.Run(ctx) })
	t.Cleanup(x.end)
	return x
}

// end stops it in order; twice does nothing.
func (x *replica) end() {
	x.stop()
	x.grpc.Stop()
	x.done.Wait()
}

func (x *replica) Bind(ctx context.Context, t *leaderpb.RemoteRequest) (*leaderpb.Turn, func(), error) {
	select {
	case decode := <-x.grant:
		return &leaderpb.Turn{Id: t.Id, Decode: decode}, func() {
			x.mu.Lock()
			defer x.mu.Unlock()
			x.reported++
		}, nil
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
}

func (x *replica) ReportedDecisions(name string) (uint64, <-chan struct{}) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.counts[name], x.more
}

// receive makes the report of another replica arrive.
func (x *replica) receive(name string, taken uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.counts[name] = taken
	close(x.more)
	x.more = make(chan struct{})
}

func (x *replica) reportedTurns() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.reported
}

func (x *replica) decides() bool {
	_, own, _ := x.election.Current()
	return own
}

// eventually waits for a fact.
func eventually(t *testing.T, what string, fact func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if fact() {
			return
		}
	}
	t.Fatal("not in time: " + what)
}

// pair returns a leader and one that follows it.
func pair(t *testing.T) (first, second *replica) {
	r := redisserver.Start(t)
	first = startReplica(t, r, "first", patience)
	eventually(t, "the first decides", first.decides)
	second = startReplica(t, r, "second", patience)
	eventually(t, "the second follows", second.follower.Follows)
	return first, second
}

func TestFollower_GetsItsTurnAndTheWorkIsCountedUntilItReports(t *testing.T) {
	leader, follower := pair(t)
	request := &leaderpb.RemoteRequest{Model: "m", PromptTokens: 100}
	got := make(chan *leaderpb.Turn, 1)
	var taken func()
	go func() {
		turn, done, err := follower.follower.Bind(t.Context(), request)
		if err != nil {
			t.Error(err)
		}
		taken = done
		got <- turn
	}()
	leader.grant <- "d1"
	if turn := <-got; turn.GetDecode() != "d1" {
		t.Fatalf("turn %v", turn)
	}
	taken()
	leader.receive("second", 0) // a report from before the turn was taken
	if n := leader.reportedTurns(); n != 0 {
		t.Fatal("the work was given up before the follower's reports include it")
	}
	leader.receive("second", follower.taken.Load())
	eventually(t, "the work is left to the reports", func() bool { return leader.reportedTurns() == 1 })
}

func TestFollower_ATurnThatNobodyTakesIsVoid(t *testing.T) {
	leader, follower := pair(t)
	go func() { _, _, _ = follower.follower.Bind(t.Context(), &leaderpb.RemoteRequest{Model: "m"}) }()
	leader.grant <- "d1"
	eventually(t, "the work is given up", func() bool { return leader.reportedTurns() == 1 })
}

func TestFollower_AClientThatLeavesTakesItsRequestBack(t *testing.T) {
	leader, follower := pair(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, _, err := follower.follower.Bind(ctx, &leaderpb.RemoteRequest{Model: "m"})
		done <- err
	}()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	// Its place is free: the next turn is the next request's.
	got := make(chan *leaderpb.Turn, 1)
	next := &leaderpb.RemoteRequest{Model: "m"}
	go func() {
		turn, taken, err := follower.follower.Bind(t.Context(), next)
		if err != nil {
			t.Error(err)
			close(got)
			return
		}
		taken()
		got <- turn
	}()
	for {
		select {
		case leader.grant <- "d2": // the cancelled one may still have got one, in a race
		case turn := <-got:
			if turn.GetId() != next.Id {
				t.Fatalf("turn of %d for %d", turn.GetId(), next.Id)
			}
			return
		}
	}
}

func TestFollower_ALeaderThatDiesLetsAllBindAtOnceAndIsReplaced(t *testing.T) {
	leader, follower := pair(t)
	const waiting = 50
	errs := make(chan error, waiting)
	for range waiting {
		go func() {
			_, _, err := follower.follower.Bind(t.Context(), &leaderpb.RemoteRequest{Model: "m"})
			errs <- err
		}()
	}
	eventually(t, "all wait", func() bool {
		follower.follower.mu.Lock()
		defer follower.follower.mu.Unlock()
		return len(follower.follower.waiting) == waiting
	})
	began := time.Now()
	leader.grpc.Stop()
	for range waiting {
		if err := <-errs; !errors.Is(err, ErrNoLeader) {
			t.Fatal(err)
		}
	}
	t.Logf("all %d were free to go %s after the leader was gone", waiting, time.Since(began))
	leader.end()
	eventually(t, "the other decides", follower.decides)
}

func TestFollower_ASilentLeaderIsGivenUp(t *testing.T) {
	r := redisserver.Start(t)
	// Accepts connections, speaks a first word, and nothing more.
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	mute := grpc.NewServer()
	leaderpb.RegisterDeciderServer(mute, muteServer{})
	served := make(chan struct{})
	go func() { defer close(served); _ = mute.Serve(silent) }()
	defer func() { mute.Stop(); <-served }()
	e := NewElection(r.Client(), "test:", "mute", silent.Addr().String(), slog.New(slog.DiscardHandler))
	e.ask(t.Context())

	follower := startReplica(t, r, "follower", DefaultPatience)
	eventually(t, "it follows", follower.follower.Follows)
	began := time.Now()
	_, _, err = follower.follower.Bind(t.Context(), &leaderpb.RemoteRequest{Model: "m"})
	if !errors.Is(err, ErrNoLeader) {
		t.Fatal(err)
	}
	t.Logf("free to go after %s", time.Since(began))
}

type muteServer struct {
	leaderpb.UnimplementedDeciderServer
}

func (muteServer) Decide(stream grpc.BidiStreamingServer[leaderpb.ToLeader, leaderpb.ToFollower]) error {
	if err := stream.Send(&leaderpb.ToFollower{}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func TestServer_RefusesWhoDoesNotKnowTheToken(t *testing.T) {
	leader, _ := pair(t)
	who, _, _ := leader.election.Current()
	conn, err := grpc.NewClient(who.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	for _, hello := range []*leaderpb.Hello{nil, {Token: "guess", Epoch: who.Epoch}, {Token: who.Token, Epoch: who.Epoch - 1}} {
		stream, err := leaderpb.NewDeciderClient(conn).Decide(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		m := &leaderpb.ToLeader{}
		if hello != nil {
			m.What = &leaderpb.ToLeader_Hello{Hello: hello}
		}
		if err := stream.Send(m); err != nil {
			t.Fatal(err)
		}
		if got, err := stream.Recv(); err == nil {
			t.Fatalf("%v was answered %v", hello, got)
		}
	}
}

func TestElection_AnEmptiedRedisFindsOneLeaderOfAHigherEpoch(t *testing.T) {
	r := redisserver.Start(t)
	log := slog.New(slog.DiscardHandler)
	a := NewElection(r.Client(), "test:", "a", "127.0.0.1:1", log)
	b := NewElection(r.Client(), "test:", "b", "127.0.0.1:2", log)
	a.ask(t.Context())
	b.ask(t.Context())
	before, own, _ := b.Current()
	if own || before.Replica != "a" {
		t.Fatalf("%+v decides", before)
	}
	r.Do("FLUSHALL")
	b.ask(t.Context())
	a.ask(t.Context())
	after, own, _ := a.Current()
	if own || after.Replica != "b" || after.Epoch <= before.Epoch {
		t.Fatalf("%+v after %+v", after, before)
	}
	b.resign(t.Context())
	a.ask(t.Context())
	if _, own, _ := a.Current(); !own {
		t.Fatal("nobody took over from one that resigned")
	}
}
