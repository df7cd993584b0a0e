package pd

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/tandem-gateway/tandem/kvstate/tokens"
	"github.com/tandem-gateway/tandem/loadtest/redisserver"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/leader"
	"github.com/tandem-gateway/tandem/pd/leader/leaderpb"
	"github.com/tandem-gateway/tandem/pd/order"
	"github.com/tandem-gateway/tandem/pd/queue"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/replicas"
)

// turns is a leader whose order gives every request the servers that stand here.
type turns struct {
	noReports

	mu              sync.Mutex // guards the rest
	prefill, decode string
	refusal         error // of every request, instead of a turn
	never           bool  // does it come
	given           int
}

func (o *turns) Bind(ctx context.Context, r *leaderpb.RemoteRequest) (*leader.Bound, error) {
	o.mu.Lock()
	o.given++
	never := o.never
	o.mu.Unlock()
	if never {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.refusal != nil {
		return nil, o.refusal
	}
	return &leader.Bound{Turn: &leaderpb.Turn{Id: r.Id, Prefill: o.prefill, Decode: o.decode}, Release: func() {}}, nil
}

// noWork is the work of a follower that has none to report.
type noWork struct{}

func (noWork) CountDecision() uint64 { return 1 }

func (noWork) Stream(ctx context.Context, _ func([]byte) bool) { <-ctx.Done() }

// noReports is leader.Reports of replicas that report nothing.
type noReports struct{}

func (noReports) ReportedDecisions(string) (uint64, <-chan struct{}) { return 0, nil }
func (noReports) Receive(string, []byte)                             {}
func (noReports) Lost(string)                                        {}

func (o *turns) give(prefill, decode string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.prefill, o.decode, o.given = prefill, decode, 0
}

func (o *turns) refuse(with error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.refusal, o.never = with, with == nil
}

// follow returns a follower of another replica, which decides by an order.
func follow(t *testing.T, by interface {
	leader.Order
	leader.Reports
}, work leader.Work) *leader.Follower {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	log, metrics := slog.New(slog.DiscardHandler), leader.NewMetrics(prometheus.NewRegistry())
	ctx, stop := context.WithCancel(context.Background())
	var parts sync.WaitGroup
	redis := redisserver.Start(t).Client()
	leads := leader.NewElection(redis, "test:", "leader", listener.Addr().String(), log)
	serves := leader.NewServer(leads, by, by, metrics, log).GRPC()
	t.Cleanup(func() {
		stop()
		serves.Stop()
		parts.Wait()
	})
	parts.Go(func() { _ = serves.Serve(listener) })
	await := func(is func() bool) {
		t.Helper()
		for range looks {
			if is() {
				return
			}
			time.Sleep(time.Millisecond)
		}
		t.Fatal("it does not lead or follow")
	}
	lead(ctx, leads, await)
	// Its record is for good: one that is renewed ends where the process is stopped for two seconds, and then the
	// follower may be the next to lead.
	record, _, _ := leads.Current()
	if err := redis.HSet(ctx, "test:decider", "replica", record.Replica, "address", record.Address, "token", record.Token, "epoch", record.Epoch).Err(); err != nil {
		t.Fatal(err)
	}
	own := leader.NewElection(redis, "test:", "follower", "", log)
	f := leader.NewFollower(own, "follower", work, insecure.NewCredentials(), metrics, log)
	f.Patience = time.Hour
	parts.Go(func() { own.Run(ctx) })
	parts.Go(func() { f.Run(ctx) })
	await(f.Follows)
	return f
}

// lead wins an election and stands in it no more. It leads still: no other is known to it.
func lead(ctx context.Context, e *leader.Election, await func(is func() bool)) {
	ctx, stop := context.WithCancel(ctx)
	var runs sync.WaitGroup
	defer runs.Wait()
	defer stop()
	runs.Go(func() { e.Run(ctx) })
	await(func() bool { _, own, _ := e.Current(); return own })
}

// The servers of a turn are those that the leader has chosen. Where one of them is not there any
// more, or takes nothing, the request is bound here at once, and not lost.
func TestBinder_TakesTheServersOfItsTurnOrItsOwn(t *testing.T) {
	by := &turns{}
	f := newEngineFleet(t, fleetShape{prefill: 2, decode: 2})
	f.Binder.Late = NewDecider(f.Binder.Chooser, order.DefaultConfig(), time.Minute, f.Log) // no request waits for its turns
	f.Binder.Leader = follow(t, by, noWork{})
	req := f.asks(api.Chat, more(api.Chat, false))
	for i := range 12 {
		p, d := f.server(f.prefill[i/2%2]).ID(), f.server(f.decode[i%2]).ID()
		by.give(p, d)
		if got := f.served(req); got.Prefill != p || got.Decode != d || by.given != 1 {
			t.Fatalf("of %d turns on %s and %s it went to %s and %s", by.given, p, d, got.Prefill, got.Decode)
		}
	}
	resting := f.server(f.decode[1])
	resting.MarkBusy(time.Hour)
	for name, turn := range map[string][2]string{
		"a prefill that is gone":     {"gone:1", f.server(f.decode[0]).ID()},
		"a decode that is gone":      {f.server(f.prefill[0]).ID(), "gone:1"},
		"a decode that takes no leg": {f.server(f.prefill[0]).ID(), resting.ID()},
	} {
		by.give(turn[0], turn[1])
		if got := f.served(req); got.Decode != f.server(f.decode[0]).ID() || by.given != 1 {
			t.Errorf("%s: of %d turns, it went to %s and %s", name, by.given, got.Prefill, got.Decode)
		}
	}
	f.nothingIsLeft()
}

// Why a request gets no turn is its client's to know: its own limit, where the leader says that
// it cannot be kept or does not say in time; and where the client left, nothing else.
func TestBinder_SaysWhyARequestGotNoTurn(t *testing.T) {
	by := &turns{}
	f := newEngineFleet(t, fleetShape{decode: 1})
	f.Binder.Late = NewDecider(f.Binder.Chooser, order.DefaultConfig(), time.Minute, f.Log)
	f.Binder.Leader = follow(t, by, noWork{})
	left, leave := context.WithCancel(t.Context())
	leave()
	for name, c := range map[string]struct {
		refusal error
		ctx     context.Context
		left    time.Duration // until its deadline; 0: it has none
		want    error
		back    time.Duration // in which it is to come back
	}{
		"the longest wait would be exceeded": {&leader.Timeout{Return: 12 * time.Second}, t.Context(), time.Hour, queue.ErrTimeout, 12 * time.Second},
		"it will miss its deadline":          {&leader.Timeout{Return: 1500 * time.Millisecond}, t.Context(), 30 * time.Second, queue.ErrDeadline, 1500 * time.Millisecond},
		"nobody knows when there is room":    {leader.ErrTimeout, t.Context(), time.Hour, queue.ErrTimeout, 0},
		"there is room in hours":             {&leader.Timeout{Return: 5 * time.Hour}, t.Context(), time.Hour, queue.ErrTimeout, time.Minute},
		"its deadline is over":               {nil, t.Context(), 100 * time.Millisecond, queue.ErrDeadline, 0},
		"its client leaves":                  {nil, left, 0, context.Canceled, 0},
		"the leader fails":                   {errUnknownAPI, t.Context(), 0, nil, 0},
	} {
		by.refuse(c.refusal)
		st := &requestState{client: f.asks(api.Chat, more(api.Chat, false)), entry: enter(t, f.Queue), arrived: time.Now()}
		f.reset(st)
		if c.left > 0 {
			st.client.Deadline = st.arrived.Add(c.left)
		}
		ctx, cancel := f.Binder.Late.limit(&st.bind).Context(c.ctx)
		b, err := f.Binder.follow(ctx, &st.bind)
		cancel()
		if c.want == nil {
			c.want = errBindNow
		}
		if !errors.Is(err, c.want) || b != nil {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if back := queue.ReturnIn(err); back != c.back {
			t.Errorf("%s: it is to come back in %v, want %v", name, back, c.back)
		}
	}
}

// A replica that decides says to those that follow when there is room for a request that would wait for too long.
func TestRemoteRequests_SayWhenThereIsRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestFleet(t, 1, testPrompt(14_000))
		f.await(t, f.up)
		f.Binder.Config.EnforceDisaggregation = true
		f.occupy(t, testModel, 15*time.Second)
		d := NewDecider(f.Binder.Chooser, order.DefaultConfig(), 12*time.Second, f.Log)
		ctx, stop := context.WithCancel(t.Context())
		var runs sync.WaitGroup
		defer runs.Wait()
		defer stop()
		runs.Go(func() { d.Run(ctx) })
		synctest.Wait()
		_, err := d.RemoteRequests().Bind(ctx, &leaderpb.RemoteRequest{Model: testModel, Base: testModel, Api: api.Chat.Name, PromptTokens: 14_000})
		var timeout *leader.Timeout
		if !errors.As(err, &timeout) || timeout.Return != 3*time.Second {
			t.Errorf("it is told %v, %+v", err, timeout)
		}
	})
}

// The leader keeps the work of a turn on its books until the follower's server has answered, and no
// longer, also where Redis answers neither: who comes right behind finds the server free that holds
// its prompt.
func TestBinder_AFollowersWorkEndsAtTheLeaderWithItsAnswer(t *testing.T) {
	prompt := testPrompt(100_000)
	leads, f := newTestFleet(t, 2, prompt), newTestFleet(t, 2, prompt)
	decider := NewDecider(leads.Binder.Chooser, order.DefaultConfig(), time.Minute, f.Log)
	f.Binder.Late = NewDecider(f.Binder.Chooser, order.DefaultConfig(), time.Minute, f.Log) // no request waits for its turns
	ctx, stop := context.WithCancel(t.Context())
	var runs sync.WaitGroup
	runs.Go(func() { decider.Run(ctx) })
	defer runs.Wait()
	defer stop()
	f.Binder.Leader = follow(t, struct {
		leader.Order
		leader.Reports
	}{decider.RemoteRequests(), replicas.NewExchange(leads.Fleet, nil, "", "leader", f.Log)}, replicas.NewExchange(f.Fleet, nil, "", "follower", f.Log))
	inFlight := func(id string, role pools.Role) int {
		i := slices.IndexFunc(leads.Fleet.Servers(), func(s *pools.Server) bool { return s.ID() == id })
		return leads.Fleet.Servers()[i].InFlight(role, time.Now()).Requests
	}
	holder := f.Fleet.Servers()[0].ID()
	for n := range 3 {
		st := f.arrives(prompt, time.Now())
		st.bind.entry = enter(t, f.Queue)
		b, err := f.Binder.Bind(ctx, &st.bind)
		if err != nil {
			t.Fatal(err)
		}
		if b.chosen.Prefill != holder {
			t.Errorf("prompt %d is computed by %q, and held by %s", n, b.chosen.Prefill, holder)
		}
		decode, answered := b.chosen.Decode, time.Now()
		b.prefill.Release()
		f.await(t, func() bool { return inFlight(holder, pools.Prefill) == 0 && inFlight(decode, pools.Decode) == 1 })
		b.decode.Release()
		f.await(t, func() bool { return inFlight(decode, pools.Decode) == 0 })
		if took, predicted := time.Since(answered), b.chosen.Terms.FirstStep(); took > predicted/2 && n == 0 {
			t.Errorf("the leader knows after %v, of a prefill of %v", took, predicted)
		}
	}
	f.holdsNothing(t)
}

// What another replica must know of a request reaches it: all that the choice of its servers depends on.
func TestRemoteRequest_SaysAllThatTheChoiceDependsOn(t *testing.T) {
	prompt := testPrompt(160)
	f := newTestFleet(t, 2, prompt)
	now := time.Now()
	own := &f.arrives(prompt, now.Add(-3*time.Second)).bind
	servers := f.Fleet.Servers()
	servers[3].MarkBusy(time.Hour)
	own.req.Session = 7
	own.req.Class, own.req.Tenant, own.req.TTFT, own.req.ITL, own.req.Deadline = 2, "ada", 7*time.Second, 30*time.Millisecond, now.Add(time.Minute)
	own.tried.mustAggregate, own.firstFromPrefill, own.pieces, own.certain = true, true, 1, 150
	own.begun = &begunPrefill{prefill: "p", decode: "d", tokens: 99}
	f.Binder.sessions.Observe(own.session(), cost.Home{Prefill: "hp", Decode: "hd"}, now)
	own.prefix.tokens.Salt = "salt"
	own.req.proxied = true
	own.req.Subset = pools.NewSubset([]string{servers[0].ID(), servers[2].ID(), servers[3].ID()})
	there := newRemoteRequest(f.Binder.remoteRequest(own), now)
	if there == nil {
		t.Fatal("its API is not known")
	}
	if r := there.req; r.Class != 2 || r.Tenant != "ada" || r.TTFT != 7*time.Second || r.ITL != 30*time.Millisecond || r.Model != testModel || r.Dialect != api.Chat ||
		r.PromptTokens != 160 || r.OutputTokens != 300 || !r.Aggregated || !r.proxied || r.Deadline.Sub(now) > time.Minute || r.Deadline.Sub(now) < 50*time.Second {
		t.Errorf("the request is %+v", r)
	}
	if waited := now.Sub(there.arrived); waited < 3*time.Second || waited > 30*time.Second {
		t.Errorf("it has waited for %v", waited)
	}
	if !there.remote || !there.firstFromPrefill || !there.tried.mustAggregate || there.certain != 150 || *there.begun != *own.begun || there.home != (cost.Home{Prefill: "hp", Decode: "hd"}) {
		t.Errorf("it is %+v", there)
	}
	for i, s := range servers {
		for _, leg := range []Leg{PrefillLeg, DecodeLeg, AggregatedLeg} {
			if got := there.tried.has(leg, s); got != (i == 1 || i == 3) {
				t.Errorf("%s leaves out %s: %v", s.ID(), leg, got)
			}
		}
	}
	p := there.prefix
	if !p.known || p.length != 160 || p.tokens.Salt != "salt" || !p.tokens.Complete || len(p.chains) != 1 || len(p.chains[0].Hashes) != 10 || p.chains[0].BlockTokens != 16 {
		t.Errorf("of its prompt is known %+v", p)
	}
	own.prefix = &prefix{model: testModel, known: true, tokens: tokens.Tokens{Chunks: []tokens.Chunk{5, 6}}}
	own.req.Deadline, own.begun, own.pieces = time.Time{}, nil, 0
	there = newRemoteRequest(f.Binder.remoteRequest(own), now)
	if p := there.prefix; !p.known || len(p.tokens.Chunks) != 2 || p.tokens.Chunks[1] != 6 || !there.req.Deadline.IsZero() || there.begun != nil || there.certain != 0 {
		t.Errorf("known by its text: %+v, %+v", p, there)
	}
	own.prefix = nil
	if there = newRemoteRequest(f.Binder.remoteRequest(own), now); there.prefix.known {
		t.Error("of a prompt of which nothing is known something is")
	}
	if newRemoteRequest(&leaderpb.RemoteRequest{Api: "tomorrow"}, now) != nil {
		t.Error("a request for an API that is not known is one")
	}
	if bound, err := (remoteRequests{}).Bind(t.Context(), &leaderpb.RemoteRequest{Api: "tomorrow"}); bound != nil || !errors.Is(err, errUnknownAPI) {
		t.Errorf("a request for an API that is not known is bound: %+v, %v", bound, err)
	}
}

// A request that a proxy sends gets no turn on a pair whose legs the gateway would have to send: its
// replica would not take the turn, and serve it elsewhere than the leader notes.
func TestRemoteRequests_AProxySendsNoPair(t *testing.T) {
	f := newEngineFleet(t, fleetShape{prefill: 1, decode: 1})
	d := NewDecider(f.Binder.Chooser, order.DefaultConfig(), time.Minute, f.Log)
	ctx, stop := context.WithCancel(t.Context())
	var runs sync.WaitGroup
	runs.Go(func() { d.Run(ctx) })
	defer runs.Wait()
	defer stop()
	for _, proxied := range []bool{false, true} {
		req := f.asks(api.Chat, more(api.Chat, false))
		req.proxied = proxied
		own := &bindRequest{req: req, base: req.Model, arrived: time.Now()}
		bound, err := d.RemoteRequests().Bind(ctx, f.Binder.remoteRequest(own))
		if err != nil {
			t.Fatal(err)
		}
		bound.Release()
		if pair := bound.Turn.Prefill != ""; pair == proxied {
			t.Errorf("sent by a proxy: %v, its turn is %v", proxied, bound.Turn)
		}
	}
	f.nothingIsLeft()
}

// A request waits for an unresponsive server of the role that is missing, where it has not failed on it.
func TestMayLive_NotWhereTheRequestHasFailed(t *testing.T) {
	for leg, of := range map[Leg]pools.Role{PrefillLeg: pools.Prefill, DecodeLeg: pools.Decode, AggregatedLeg: pools.Decode} {
		f := newTestFleet(t, 1, testPrompt(100))
		now := time.Now()
		for _, s := range f.Fleet.Servers() {
			s.ProbeLate(now.Add(time.Second))
			if s.State() != pools.Unresponsive {
				t.Fatalf("%s is %v", s.ID(), s.State())
			}
		}
		r := &f.arrives(testPrompt(100), now).bind
		for _, role := range []pools.Role{pools.Prefill, pools.Decode} {
			if !f.Binder.mayLive(r, &NoServerError{Role: role}) {
				t.Errorf("no %s server may live", role)
			}
		}
		for _, s := range f.Fleet.Servers() {
			r.tried.exclude(leg, s.ID())
		}
		for _, role := range []pools.Role{pools.Prefill, pools.Decode} {
			if got := f.Binder.mayLive(r, &NoServerError{Role: role}); got == (role == of) {
				t.Errorf("failed at %s on all: a %s server may live %v", leg, role, got)
			}
		}
	}
}

// A wait for unresponsive servers leaves nothing in the request's context, however it ends.
func TestBinder_AWaitLeavesNothingInTheContext(t *testing.T) {
	for _, recovers := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			f := newProbedFleet(t, 1, testPrompt(100), 10_000*time.Hour) // each hour one probe in sixty would answer in the minute
			f.Binder.Config.UnresponsiveWait = time.Minute
			synctest.Wait() // the first probes have ended: what they hear is a sign of life
			decode := f.Fleet.Servers()[1]
			decode.ProbeLate(time.Now().Add(time.Second))
			if recovers {
				time.AfterFunc(time.Second, func() { decode.RecordAlive(time.Now()) })
			}
			st := f.arrives(testPrompt(100), time.Now())
			st.bind.entry = enter(t, f.Queue)
			b, err := f.Binder.Bind(watch(t.Context()), &st.bind)
			b.release()
			if (err == nil) != recovers {
				t.Errorf("it recovers %v: %v", recovers, err)
			}
		})
	}
}
