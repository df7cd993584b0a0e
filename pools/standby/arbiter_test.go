package standby

import (
	"context"
	"log/slog"
	"testing"
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

// What a gateway of another version, or an operator by hand, left in the hash of those who
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
// been silent for long, who does not manage knows that there is nobody to ask.
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
