package leader

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/tandem-gateway/tandem/loadtest/redisserver"
	"github.com/tandem-gateway/tandem/loadtest/testlog"
	"github.com/tandem-gateway/tandem/pd/leader/leaderpb"
	"github.com/tandem-gateway/tandem/pools/election"
)

// replica is one gateway's part in deciding. Its order grants a turn whenever grant
// is given one.
type replica struct {
	t        testing.TB
	name     string
	election *Election
	follower *Follower
	grpc     *grpc.Server
	grant    chan string // decode server of the next turn
	refuse   chan error  // why the next gets none
	left     atomic.Int64
	taken    atomic.Uint64
	scraped  *prometheus.Registry

	mu       sync.Mutex // guards the rest
	released int        // turns whose work is off the books
	counts   map[string]uint64
	reports  []string
	more     chan struct{}
	stop     context.CancelFunc
	done     sync.WaitGroup
}

// patience with a leader on a busy machine.
const patience = 20 * time.Second

func startReplica(t testing.TB, r *redisserver.Server, name string, patience time.Duration) *replica {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	scraped := prometheus.NewRegistry()
	m := NewMetrics(scraped)
	x := &replica{t: t, name: name, grant: make(chan string), refuse: make(chan error), scraped: scraped, counts: map[string]uint64{}, more: make(chan struct{})}
	x.election = NewElection(r.Client(), "test:", name, listener.Addr().String(), log)
	x.follower = NewFollower(x.election, name, counts(func() uint64 { return x.taken.Add(1) }), insecure.NewCredentials(), m, log)
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

func (x *replica) Bind(ctx context.Context, t *leaderpb.RemoteRequest) (*Bound, error) {
	select {
	case decode := <-x.grant:
		return &Bound{Turn: &leaderpb.Turn{Id: t.Id, Decode: decode}, FirstStep: time.Minute, Release: func() {
			x.mu.Lock()
			defer x.mu.Unlock()
			x.released++
		}}, nil
	case err := <-x.refuse:
		return nil, err
	case <-ctx.Done():
		x.left.Add(1)
		return nil, ctx.Err()
	}
}

func (x *replica) ReportedDecisions(name string) (uint64, <-chan struct{}) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.counts[name], x.more
}

// counts is the work of a replica that reports none by its stream.
type counts func() uint64

func (c counts) CountDecision() uint64                           { return c() }
func (c counts) Stream(ctx context.Context, _ func([]byte) bool) { <-ctx.Done() }

func (x *replica) Receive(name string, report []byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.reports = append(x.reports, name+": "+string(report))
}

func (x *replica) Lost(name string) { x.Receive(name, []byte("lost")) }

// received is what followers reported, and that they were lost.
func (x *replica) received() []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.reports)
}

// receive makes the report of another replica arrive.
func (x *replica) receive(name string, taken uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.counts[name] = taken
	close(x.more)
	x.more = make(chan struct{})
}

// metric is what is scraped of a gauge or a counter; -1: nothing.
func (x *replica) metric(name string) float64 {
	families, err := x.scraped.Gather()
	if err != nil {
		x.t.Error(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			m := f.GetMetric()[0]
			return m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return -1
}

func (x *replica) releasedTurns() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.released
}

func (x *replica) decides() bool {
	_, own, _ := x.election.Current()
	return own
}

// eventually waits for a fact.
func eventually(t testing.TB, what string, fact func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if fact() {
			return
		}
	}
	t.Fatal("not in time: " + what)
}

// pair returns a leader and one that follows it.
func pair(t testing.TB) (first, second *replica) {
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
	if n := leader.releasedTurns(); n != 0 {
		t.Fatal("the work was given up before the follower's reports include it")
	}
	leader.receive("second", follower.taken.Load())
	eventually(t, "the work is left to the reports", func() bool { return leader.releasedTurns() == 1 })
}

func TestFollower_ATurnThatNobodyTakesIsVoid(t *testing.T) {
	leader, follower := pair(t)
	go func() { _, _, _ = follower.follower.Bind(t.Context(), &leaderpb.RemoteRequest{Model: "m"}) }()
	leader.grant <- "d1"
	eventually(t, "the work is given up", func() bool { return leader.releasedTurns() == 1 })
}

// oneTurn is an order that gives each request a turn, and reports that say nothing.
type oneTurn struct {
	ttft  time.Duration
	asked time.Time
	held  time.Duration
}

func (o *oneTurn) Bind(context.Context, *leaderpb.RemoteRequest) (*Bound, error) {
	o.asked = time.Now()
	return &Bound{Turn: &leaderpb.Turn{}, FirstStep: o.ttft, Release: func() { o.held = time.Since(o.asked) }}, nil
}

func (o *oneTurn) Receive(string, []byte) {}

func (o *oneTurn) Lost(string) {}

func (o *oneTurn) ReportedDecisions(string) (uint64, <-chan struct{}) { return 0, nil }

// While Redis does not answer, no report says that a follower's prefill is over. Its work is
// counted for as long as it is predicted to take: a second for each would make idle servers
// look busy, and prompts would be computed where they stall streams.
func TestSession_WorkThatIsNeverReportedEndsWithItsPrefill(t *testing.T) {
	for _, c := range []struct {
		ttft, held time.Duration
		taken      bool
	}{
		{300 * time.Millisecond, 300 * time.Millisecond, true},
		{3 * time.Second, 3 * time.Second, true},
		{time.Millisecond, reportWithin, true}, // a report may still be on its way
		{300 * time.Millisecond, takeWithin, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			o := &oneTurn{ttft: c.ttft}
			s := NewServer(nil, o, o, NewMetrics(prometheus.NewRegistry()), nil)
			f := &session{Server: s, queued: make(chan *leaderpb.ToFollower, 1)}
			r := &remoteRequest{taken: make(chan uint64, 1)}
			if c.taken {
				r.taken <- 1
			}
			f.serve(t.Context(), &leaderpb.RemoteRequest{}, r)
			if o.held != c.held {
				t.Errorf("taken %v, first token predicted after %v: counted for %v, want %v", c.taken, c.ttft, o.held, c.held)
			}
		})
	}
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

// openStream opens a stream to a leader's server, on a connection of its own.
func openStream(t *testing.T, address string) grpc.BidiStreamingClient[leaderpb.ToLeader, leaderpb.ToFollower] {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	stream, err := leaderpb.NewDeciderClient(conn).Decide(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

func TestServer_RefusesWhoDoesNotKnowTheToken(t *testing.T) {
	leader, _ := pair(t)
	record, _, _ := leader.election.Current()
	for code, hello := range map[codes.Code]*leaderpb.Hello{
		codes.InvalidArgument: nil, codes.Unauthenticated: {Token: "guess", Epoch: record.Epoch}, codes.FailedPrecondition: {Token: record.Token, Epoch: record.Epoch - 1},
	} {
		stream := openStream(t, record.Address)
		m := &leaderpb.ToLeader{}
		if hello != nil {
			m.What = &leaderpb.ToLeader_Hello{Hello: hello}
		}
		if err := stream.Send(m); err != nil {
			t.Fatal(err)
		}
		if got, err := stream.Recv(); status.Code(err) != code {
			t.Errorf("%v was answered %v, %v; want %s", hello, got, err, code)
		}
	}
}

// A replica whose Redis refuses the election says so once, and once that the election goes on.
func TestElection_OneThatCannotBeHeldIsLoggedOnce(t *testing.T) {
	r := redisserver.Start(t)
	var log testlog.Buffer
	e := NewElection(r.Client(), "test:", "a", "127.0.0.1:1", slog.New(slog.NewTextHandler(&log, nil)))
	r.Do("ACL", "SETUSER", "default", "-eval", "-evalsha")
	for range 3 {
		e.ask(t.Context())
	}
	if said := log.Take(); strings.Count(said, "level=WARN") != 1 || !strings.Contains(said, "cannot ask which replica leads") || !strings.Contains(said, "NOPERM") {
		t.Errorf("of an election that is refused three times the log says %q", said)
	}
	r.Do("ACL", "SETUSER", "default", "+eval", "+evalsha")
	for range 3 {
		e.ask(t.Context())
	}
	if said := log.Take(); strings.Count(said, "election goes on") != 1 || !strings.Contains(said, "leader elected") {
		t.Errorf("of one that is held again the log says %q", said)
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
		t.Fatal("no replica took over from one that resigned")
	}
}

// A request that the leader cannot serve in time is given up; any other that it refuses may be
// bound by its own replica.
func TestFollower_LearnsWhyItsRequestGotNoTurn(t *testing.T) {
	leader, follower := pair(t)
	for refusal, want := range map[error]error{ErrTimeout: ErrTimeout, errors.New("no server"): ErrNoLeader} {
		go func() { leader.refuse <- refusal }()
		turn, taken, err := follower.follower.Bind(t.Context(), &leaderpb.RemoteRequest{Model: "m"})
		if !errors.Is(err, want) || turn != nil || taken != nil {
			t.Errorf("refused with %v it is told %v", refusal, err)
		}
	}
}

// Requests whose clients leave wait no more at the leader, however many leave at once.
func TestFollower_WhoLeavesWaitsNoMoreAtTheLeader(t *testing.T) {
	leader, follower := pair(t)
	ctx, leave := context.WithCancel(t.Context())
	const n = 20
	var bound sync.WaitGroup
	for range n {
		bound.Go(func() { _, _, _ = follower.follower.Bind(ctx, &leaderpb.RemoteRequest{Model: "m"}) })
	}
	eventually(t, "all wait", func() bool {
		follower.follower.mu.Lock()
		defer follower.follower.mu.Unlock()
		return len(follower.follower.waiting) == n
	})
	leave()
	bound.Wait()
	eventually(t, "the leader forgets them", func() bool { return leader.left.Load() == n })
	follower.follower.mu.Lock()
	defer follower.follower.mu.Unlock()
	if len(follower.follower.waiting) != 0 {
		t.Errorf("%d still wait", len(follower.follower.waiting))
	}
}

// A turn that comes for a request that has left is reported as taken at once: its work is not
// there.
func TestFollower_ATurnOfOneThatLeftIsTakenAtOnce(t *testing.T) {
	_, follower := pair(t)
	follower.follower.deliver(&leaderpb.ToFollower{What: &leaderpb.ToFollower_Turn{Turn: &leaderpb.Turn{Id: 77}}})
	if n := follower.taken.Load(); n != 1 {
		t.Errorf("%d turns are counted as taken", n)
	}
	follower.follower.deliver(&leaderpb.ToFollower{}) // a beat
	if n := follower.taken.Load(); n != 1 {
		t.Errorf("after a beat %d turns are counted as taken", n)
	}
}

// A follower sends no more requests than a leader takes.
func TestFollower_SendsNoMoreThanMayWait(t *testing.T) {
	f := NewFollower(nil, "follower", nil, insecure.NewCredentials(), NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
	f.begin()
	for range maxRequests {
		if _, ok := f.enqueue(&leaderpb.RemoteRequest{}, nil); !ok {
			t.Fatalf("%d wait, and no more may", len(f.waiting))
		}
		<-f.send
	}
	if _, ok := f.enqueue(&leaderpb.RemoteRequest{}, nil); ok || len(f.waiting) != maxRequests {
		t.Errorf("%d wait", len(f.waiting))
	}
}

// Which replica leads and which follow is scraped, and how many turns were given.
func TestMetrics_WhoFollowsAndHowManyTurnsThereWere(t *testing.T) {
	leader, follower := pair(t)
	go func() { leader.grant <- "d1" }()
	if _, _, err := follower.follower.Bind(t.Context(), &leaderpb.RemoteRequest{Model: "m"}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][2]float64{
		"tandem_leader_followed": {0, 1}, "tandem_leader_followers": {1, 0}, "tandem_leader_remote_requests_total": {1, 0}, "tandem_leader_fallbacks_total": {0, 0},
	} {
		if got := [2]float64{leader.metric(name), follower.metric(name)}; got != want {
			t.Errorf("%s is %v at the leader and its follower, want %v", name, got, want)
		}
	}
	leader.grpc.Stop()
	eventually(t, "no leader is followed", func() bool {
		return follower.metric("tandem_leader_followed") == 0 && leader.metric("tandem_leader_followers") == 0
	})
}

// says is the work of a replica that reports what it is given.
type says chan string

func (s says) CountDecision() uint64 { return 1 }

func (s says) Stream(ctx context.Context, send func([]byte) bool) {
	for {
		select {
		case report := <-s:
			send([]byte(report))
		case <-ctx.Done():
			return
		}
	}
}

// What a follower reports of its work gets to the leader by its stream, and that the stream has ended.
func TestFollower_ReportsItsWorkToTheLeader(t *testing.T) {
	r := redisserver.Start(t)
	leader := startReplica(t, r, "first", patience)
	eventually(t, "the first decides", leader.decides)
	log := slog.New(slog.DiscardHandler)
	work := make(says)
	ctx, stop := context.WithCancel(t.Context())
	e := NewElection(r.Client(), "test:", "second", "127.0.0.1:1", log)
	f := NewFollower(e, "second", work, insecure.NewCredentials(), NewMetrics(prometheus.NewRegistry()), log)
	f.Patience = patience
	var runs sync.WaitGroup
	runs.Go(func() { e.Run(ctx) })
	runs.Go(func() { f.Run(ctx) })
	work <- "much"
	work <- "nothing"
	eventually(t, "the leader knows", func() bool { return slices.Equal(leader.received(), []string{"second: much", "second: nothing"}) })
	stop()
	runs.Wait()
	eventually(t, "it is lost", func() bool { return len(leader.received()) == 3 && leader.received()[2] == "second: lost" })
}

// A request's id may come again once the first of it is over, and no sooner: then it is refused,
// each time it comes.
func TestServer_AnIDWaitsOnce(t *testing.T) {
	leader, _ := pair(t)
	record, _, _ := leader.election.Current()
	stream := openStream(t, record.Address)
	send := func(m *leaderpb.ToLeader) {
		t.Helper()
		if err := stream.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	send(&leaderpb.ToLeader{What: &leaderpb.ToLeader_Hello{Hello: &leaderpb.Hello{Replica: "raw", Token: record.Token, Epoch: record.Epoch}}})
	ask := func() {
		send(&leaderpb.ToLeader{What: &leaderpb.ToLeader_Request{Request: &leaderpb.RemoteRequest{Id: 5, Model: "m"}}})
	}
	refused := func() leaderpb.Refused_Reason {
		t.Helper()
		for {
			m, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if r := m.GetRefused(); r != nil {
				return r.Reason
			}
		}
	}
	ask()
	for range 20 {
		if ask(); refused() != leaderpb.Refused_UNABLE {
			t.Fatal("an id that waits is taken again")
		}
	}
	leader.refuse <- ErrTimeout
	if got := refused(); got != leaderpb.Refused_TIMEOUT {
		t.Fatalf("it is refused for %v", got)
	}
	go func() { leader.refuse <- ErrTimeout }()
	for deadline := time.Now().Add(30 * time.Second); ; {
		if ask(); refused() == leaderpb.Refused_TIMEOUT {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("an id that is over is never taken again")
		}
	}
}

// A turn that comes at the moment when its client leaves is reported as taken: nothing of it is in
// flight.
func TestFollower_ATurnThatCameAsItsClientLeftIsTaken(t *testing.T) {
	taken := 0
	count := func() uint64 { taken++; return uint64(taken) }
	f := NewFollower(nil, "follower", counts(count), insecure.NewCredentials(), NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
	f.begin()
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, _, err := f.Bind(ctx, &leaderpb.RemoteRequest{Model: "m"})
		left <- err
	}()
	eventually(t, "it waits", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.waiting) == 1
	})
	f.mu.Lock()
	clear(f.waiting) // as where its turn is delivered
	f.mu.Unlock()
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) || taken != 1 {
		t.Errorf("%v, %d turns are reported as taken", err, taken)
	}
}

// One of two replicas leads, and the other follows; a replica without a follower does neither.
func TestFollower_OneLeads(t *testing.T) {
	first, second := pair(t)
	if !first.follower.Leads() || first.follower.Follows() || second.follower.Leads() || !second.follower.Follows() {
		t.Errorf("the first leads: %v, the second leads: %v", first.follower.Leads(), second.follower.Leads())
	}
	var none *Follower
	if none.Leads() || none.Follows() {
		t.Error("nobody leads or follows")
	}
}

// A leader that stops in order gives its office back, so that the next one has it at once.
func TestElection_AStoppedLeaderResigns(t *testing.T) {
	r := redisserver.Start(t)
	first := startReplica(t, r, "first", patience)
	eventually(t, "the first decides", first.decides)
	first.end()
	next := NewElection(r.Client(), "test:", "next", "127.0.0.1:1", slog.New(slog.DiscardHandler))
	next.ask(t.Context())
	if record, own, _ := next.Current(); !own {
		t.Errorf("%+v leads", record)
	}
}

// following is a follower with a leader that a test plays.
func following(t *testing.T) (f *Follower, send chan *leaderpb.ToLeader, silences func() uint64) {
	t.Helper()
	m := NewMetrics(prometheus.NewRegistry())
	f = NewFollower(nil, "a", counts(func() uint64 { return 7 }), nil, m, nil)
	return f, f.begin(), func() uint64 {
		var written dto.Metric
		if err := m.silence.Write(&written); err != nil {
			t.Fatal(err)
		}
		return written.GetHistogram().GetSampleCount()
	}
}

// An answer goes to the request that waits for it, once; one that nobody waits for is taken.
func TestFollower_AnAnswerIsDeliveredOnce(t *testing.T) {
	f, send, _ := following(t)
	answer := make(chan *leaderpb.ToFollower, 1)
	request := &leaderpb.RemoteRequest{Model: "m"}
	if to, ok := f.enqueue(request, answer); !ok || to != send {
		t.Fatal("it is not sent")
	}
	if m := <-send; m.GetRequest() != request || request.Id == 0 {
		t.Errorf("the leader gets %v", m)
	}
	turn := &leaderpb.ToFollower{What: &leaderpb.ToFollower_Turn{Turn: &leaderpb.Turn{Id: request.Id, Decode: "d"}}}
	f.deliver(&leaderpb.ToFollower{}) // says nothing
	f.deliver(turn)
	if m := <-answer; m != turn || len(f.waiting) != 0 {
		t.Errorf("%v, and %d wait", m, len(f.waiting))
	}
	f.deliver(turn)
	if m := <-send; m.GetTaken().GetId() != request.Id || m.GetTaken().GetCount() != 7 || len(answer) != 0 {
		t.Errorf("for one that nobody waits for the leader gets %v", m)
	}
}

// Where the leader takes no more messages a request does not wait for it.
func TestFollower_ALeaderThatTakesNoMore(t *testing.T) {
	f, send, _ := following(t)
	for len(send) < cap(send) {
		send <- &leaderpb.ToLeader{}
	}
	if _, ok := f.enqueue(&leaderpb.RemoteRequest{}, make(chan *leaderpb.ToFollower, 1)); ok || len(f.waiting) != 0 {
		t.Errorf("it is sent: %v, and %d wait", ok, len(f.waiting))
	}
}

// When a leader is lost those that wait are told, and its silence counts; where none waits nobody
// has noticed it.
func TestFollower_ALostLeaderIsCountedWhereSomeoneWaits(t *testing.T) {
	f, _, silences := following(t)
	f.end(time.Second)
	if silences() != 0 || testutil.ToFloat64(f.metrics.fallbacks) != 0 || testutil.ToFloat64(f.metrics.follows) != 0 || f.Follows() {
		t.Errorf("nobody waits: %d silences, %v fall back", silences(), testutil.ToFloat64(f.metrics.fallbacks))
	}
	if _, ok := f.enqueue(&leaderpb.RemoteRequest{}, nil); ok {
		t.Error("it is sent to no leader")
	}
	f.begin()
	answers := []chan *leaderpb.ToFollower{make(chan *leaderpb.ToFollower, 1), make(chan *leaderpb.ToFollower, 1)}
	for _, answer := range answers {
		f.enqueue(&leaderpb.RemoteRequest{}, answer)
	}
	f.end(time.Second)
	if silences() != 1 || testutil.ToFloat64(f.metrics.fallbacks) != 2 {
		t.Errorf("two wait: %d silences, %v fall back", silences(), testutil.ToFloat64(f.metrics.fallbacks))
	}
	for i, answer := range answers {
		if m, open := <-answer; open {
			t.Errorf("%d is told %v", i, m)
		}
	}
}

// A leader that is given up for a moment, as on a loaded machine, is one line of the log; one that is gone for longer
// is another, and its return too.
func TestFollower_LogsALeaderThatComesBackOnce(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var text testlog.Buffer
	log, m := slog.New(slog.NewTextHandler(&text, nil)), NewMetrics(prometheus.NewRegistry())
	leads, follows := NewElection(nil, "test:", "first", "", log), NewElection(nil, "test:", "second", "", log)
	record := election.Record{Replica: "first", Address: listener.Addr().String(), Token: leads.token, Epoch: 7}
	leads.set(record)
	follows.set(record)
	text.Take()
	x := &replica{t: t, counts: map[string]uint64{}, more: make(chan struct{})}
	server := NewServer(leads, x, x, m, log)
	var serving sync.WaitGroup
	defer serving.Wait()
	serve := func() *grpc.Server {
		g := server.GRPC()
		serving.Go(func() { _ = g.Serve(listener) })
		return g
	}
	g := serve()
	f := NewFollower(follows, "second", counts(func() uint64 { return 0 }), insecure.NewCredentials(), m, log)
	f.Patience = patience
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	serving.Go(func() { f.Run(ctx) })
	restart := func(between func()) {
		eventually(t, "it follows", f.Follows)
		g.Stop()
		eventually(t, "it follows no more", func() bool { return !f.Follows() })
		between()
		if listener, err = net.Listen("tcp", record.Address); err != nil {
			t.Fatal(err)
		}
		g = serve()
		eventually(t, "it follows again", f.Follows)
	}
	defer func() { g.Stop() }()
	for range 3 {
		restart(func() {})
	}
	if got := text.Take(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "following the leader") {
		t.Errorf("of a leader that was lost for a moment, three times:\n%s", got)
	}
	restart(func() {
		eventually(t, "it is logged that it is gone", func() bool { return strings.Contains(text.String(), "not followed any more") })
	})
	eventually(t, "it is logged that it is back", func() bool { return strings.Contains(text.String(), "following the leader") })
	if got := text.Take(); strings.Count(got, "\n") != 2 || !strings.Contains(got, "following the leader") {
		t.Errorf("of a leader that was gone for longer:\n%s", got)
	}
}

// The leader is killed and started anew under its name before its record expires: its new process listens elsewhere.
func TestFollower_FollowsALeaderThatWasStartedAnewUnderItsName(t *testing.T) {
	r := redisserver.Start(t)
	killed := NewElection(r.Client(), "test:", "first", "127.0.0.1:1", slog.New(slog.DiscardHandler))
	killed.ask(t.Context())
	first, second := startReplica(t, r, "first", patience), startReplica(t, r, "second", patience)
	eventually(t, "one of them follows the other", func() bool { return first.follower.Follows() || second.follower.Follows() })
}
