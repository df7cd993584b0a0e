package standby

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tandem-gateway/tandem/loadtest/redisserver"
	"github.com/tandem-gateway/tandem/pools"
)

func newTestRedis(t *testing.T) redis.UniversalClient {
	t.Helper()
	client := redis.NewUniversalClient(&redis.UniversalOptions{
		Addrs: []string{redisserver.Start(t).Addr()}, MaxRetries: -1, ContextTimeoutEnabled: true,
		DialTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second,
	})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !holds(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within 30 s: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// What a gateway of another version, or an operator by hand, left in the hash of the gateways that
// use servers must not end every round of the manager's.
func TestArbiter_AMalformedReportOfUseIsDropped(t *testing.T) {
	client := newTestRedis(t)
	ctx := t.Context()
	used := "test:" + usedKey
	client.HSet(ctx, used, "stranger", "garbage", "other", "99999999999999 a:1 b:1")

	fleet := pools.NewFleet(pools.Default(), slog.New(slog.DiscardHandler))
	t.Cleanup(fleet.Close)
	arbiter := NewArbiter(fleet, client, "test:", "me", slog.New(slog.DiscardHandler))
	eventually(t, "it manages", func() bool {
		arbiter.takeRound(ctx, nil)
		return arbiter.Manages()
	})
	if arbiter.othersDone("a:1", time.Time{}) || !arbiter.othersDone("c:1", time.Time{}) {
		t.Error("what the other uses was not received")
	}
	if left := client.HKeys(ctx, used).Val(); len(left) != 1 || left[0] != "other" {
		t.Errorf("left in Redis: %v", left)
	}
}

// A round that a busy machine or Redis does not answer in time costs nothing. Once Redis has
// been silent for long, a gateway that does not manage knows that there is none to ask.
func TestArbiter_OneMissedRoundIsNoLossOfRedis(t *testing.T) {
	client := newTestRedis(t)
	client.Set(t.Context(), "test:"+managerKey, "another", 0)
	fleet := pools.NewFleet(pools.Default(), slog.New(slog.DiscardHandler))
	t.Cleanup(fleet.Close)
	arbiter := NewArbiter(fleet, client, "test:", "me", slog.New(slog.DiscardHandler))
	eventually(t, "the manager is known", func() bool {
		arbiter.takeRound(t.Context(), nil)
		return arbiter.request("a:1") == nil
	})
	late, cancel := context.WithCancel(t.Context())
	cancel()
	arbiter.takeRound(late, nil)
	if err := arbiter.request("a:1"); err != nil {
		t.Errorf("after one round that was missed: %v", err)
	}
	eventually(t, "Redis is given up", func() bool {
		arbiter.takeRound(late, nil)
		return arbiter.request("a:1") != nil
	})
}

// gateway is one of several that share servers: two on the same GPUs, the second asleep, and
// one of its own.
type gateway struct {
	*Arbiter
	servers []*pools.Server
}

func newGateway(t *testing.T, client redis.UniversalClient, id string) gateway {
	t.Helper()
	fleet := pools.NewFleet(pools.Default(), slog.New(slog.DiscardHandler))
	t.Cleanup(fleet.Close)
	if err := fleet.Apply(append(sharing("http://10.0.0.1:1", "http://10.0.0.2:1"), pools.Spec{URL: "http://10.0.0.3:1", Role: pools.Decode})); err != nil {
		t.Fatal(err)
	}
	g := gateway{NewArbiter(fleet, client, "test:", id, slog.New(slog.DiscardHandler)), fleet.Servers()}
	for i, s := range g.servers {
		s.ProbePassed(s.Health(), []pools.Model{{ID: "m"}}, time.Now())
		s.GPUShare().Observe(i == 1, s.GPUShare().Version(), time.Now().Add(-time.Hour))
	}
	if got := g.shared(); len(got) != 2 || got[0] != g.servers[0] || got[1] != g.servers[1] {
		t.Fatalf("shared are %v", got)
	}
	return g
}

// takeAnswered takes a round that Redis answers in time.
func (g gateway) takeAnswered(t *testing.T) {
	t.Helper()
	eventually(t, "Redis answers", func() bool {
		before := g.lastAnswer()
		g.takeRound(t.Context(), g.shared())
		return g.lastAnswer().After(before)
	})
}

func (a *Arbiter) lastAnswer() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.answer
}

// due reports whether a server is to be woken, and takes it.
func due(s *pools.Server) bool {
	select {
	case <-s.WakeRequests().Due():
		return true
	default:
		return false
	}
}

// One of two gateways manages. The other sends nothing to what sleeps there, reports what it
// uses, and has awake what it asks for.
func TestArbiter_TheManagerAndTheOther(t *testing.T) {
	client := newTestRedis(t)
	manager, other := newGateway(t, client, "a"), newGateway(t, client, "b")
	manager.takeAnswered(t)
	other.takeAnswered(t)
	if !manager.Manages() || other.Manages() {
		t.Fatalf("manages: %v and %v", manager.Manages(), other.Manages())
	}
	other.servers[1].GPUShare().RecordWake(0, time.Now()) // as far as it knows
	other.takeAnswered(t)
	if other.servers[0].Asleep() || !other.servers[1].Asleep() {
		t.Errorf("of the other's servers sleep: %v and %v", other.servers[0].Asleep(), other.servers[1].Asleep())
	}

	for range 2 {
		if err := other.request("10.0.0.2:1"); err != nil {
			t.Error(err)
		}
	}
	if len(other.wanted) != 1 {
		t.Errorf("it wants %v", other.wanted)
	}
	if err := other.request("10.0.0.1:1"); err != nil { // which is awake
		t.Error(err)
	}
	other.takeAnswered(t)
	manager.takeAnswered(t)
	if due(manager.servers[0]) || !due(manager.servers[1]) {
		t.Error("the one that the other wants, and that sleeps, is not woken")
	}
	manager.servers[1].WakeRequests().Finish(errOccupied, time.Hour, time.Now())
	if err := other.request("10.0.0.2:1"); err != nil {
		t.Error(err)
	}
	other.takeAnswered(t)
	manager.takeAnswered(t)
	if due(manager.servers[1]) {
		t.Error("it is tried again though it could not be woken just now")
	}
	if idle, awake := manager.servers[0].GPUShare().Occupant(time.Now(), 0); !awake || idle.Idle < time.Hour {
		t.Errorf("no request uses it, and it was idle for %v", idle.Idle)
	}

	if !other.servers[0].GPUShare().Enter() {
		t.Fatal("the other cannot use what is awake")
	}
	other.takeAnswered(t)
	manager.takeAnswered(t)
	if idle, _ := manager.servers[0].GPUShare().Occupant(time.Now(), 0); idle.Idle > time.Minute {
		t.Errorf("the other uses it, and it was idle for %v", idle.Idle)
	}
	if long := time.Now().Add(-time.Hour); manager.othersDone("10.0.0.1:1", long) || !manager.othersDone("10.0.0.2:1", long) {
		t.Error("what the other uses is not what the manager knows of")
	}
	other.servers[0].GPUShare().Leave(time.Now())
	other.takeAnswered(t)
	manager.takeAnswered(t)
	if !manager.othersDone("10.0.0.1:1", time.Now().Add(-time.Hour)) {
		t.Error("the other uses it no more")
	}

	manager.servers[1].GPUShare().RecordWake(time.Second, time.Now())
	manager.takeAnswered(t)
	other.takeAnswered(t)
	if other.servers[1].Asleep() {
		t.Error("it was woken, and the other does not send to it")
	}
}

// A manager that ends lets another one manage at once, to which nothing is closed; a gateway
// that does not manage takes nothing from the one that does.
func TestArbiter_AManagerThatEndsIsFollowedAtOnce(t *testing.T) {
	client := newTestRedis(t)
	first, second, third := newGateway(t, client, "a"), newGateway(t, client, "b"), newGateway(t, client, "c")
	first.takeAnswered(t)
	first.servers[0].GPUShare().SetDraining(true)
	first.takeAnswered(t)
	second.takeAnswered(t)
	if !second.servers[0].Asleep() {
		t.Fatal("what is to sleep is open to the other")
	}
	end := func(g gateway) {
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		g.Run(ended)
	}
	end(third)
	second.takeAnswered(t)
	if second.Manages() {
		t.Error("one that did not manage ended, and another manages")
	}
	end(first)
	second.takeAnswered(t)
	if !second.Manages() || second.servers[0].Asleep() {
		t.Errorf("the second manages %v, and its server is closed %v", second.Manages(), second.servers[0].Asleep())
	}
}

// Rounds are taken while servers share GPUs; without such servers Redis
// is not asked.
func TestArbiter_RunTakesRoundsForSharedGPUs(t *testing.T) {
	for _, shared := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var dials atomic.Int64
			client := redis.NewClient(&redis.Options{Addr: "10.0.0.9:6379", MaxRetries: -1, DialerRetries: 1, PoolSize: 1000, Dialer: func(context.Context, string, string) (net.Conn, error) {
				dials.Add(1)
				return nil, syscall.ECONNREFUSED
			}})
			defer func() { _ = client.Close() }()
			fleet := pools.NewFleet(pools.Default(), slog.New(slog.DiscardHandler))
			defer fleet.Close()
			specs := sharing("http://10.0.0.1:1")
			if !shared {
				specs[0].GPUs = ""
			}
			if err := fleet.Apply(specs); err != nil {
				t.Fatal(err)
			}
			a := NewArbiter(fleet, client, "test:", "me", slog.New(slog.DiscardHandler))
			ctx, cancel := context.WithCancel(t.Context())
			go a.Run(ctx)
			time.Sleep(10 * time.Second)
			cancel()
			synctest.Wait()
			if n := dials.Load(); shared != (n > 5) || !shared && n > 0 {
				t.Errorf("shared GPUs %v: Redis was asked %d times in 10 s", shared, n)
			}
		})
	}
}

// Requests ask, rounds take and people look at one arbiter at once; nothing that was asked for
// is lost.
func TestArbiter_IsSafeForConcurrentUse(t *testing.T) {
	a := &Arbiter{log: slog.New(slog.DiscardHandler)}
	var asked sync.WaitGroup
	taken := make(map[string]bool)
	for i := range 4 {
		asked.Go(func() {
			for j := range 100 {
				if err := a.request(fmt.Sprintf("%d:%d", i, j)); err != nil {
					t.Error(err)
				}
				a.Manages()
				a.othersDone("a:1", time.Now())
			}
		})
	}
	asked.Go(func() {
		for range 100 {
			a.recordManager(nil, true)
			a.keep(time.Now(), []string{"a:1"}, true)
			a.recordManager(nil, false)
		}
	})
	done := make(chan struct{})
	go func() { asked.Wait(); close(done) }()
	for ended := false; !ended; {
		select {
		case <-done:
			ended = true
		default:
		}
		for _, id := range a.takeWanted() {
			taken[id] = true
		}
	}
	if len(taken) != 400 {
		t.Errorf("%d of 400 were taken", len(taken))
	}
}
