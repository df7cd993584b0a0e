package access

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tandem-gateway/tandem/loadtest/redisserver"
)

// replicaOn starts a replica whose quotas are shared through a Redis.
func replicaOn(t *testing.T, r *redisserver.Server, id string, entries ...string) (*Control, *QuotaSync) {
	t.Helper()
	client := redis.NewClient(&redis.Options{
		Addr: r.Addr(), MaxRetries: -1, ContextTimeoutEnabled: true, DialTimeout: time.Second, ReadTimeout: time.Second, WriteTimeout: time.Second,
	})
	s := NewQuotaSync(client, "test:", id, slog.New(slog.DiscardHandler))
	c := New(DefaultConfig(), s)
	reload(t, c, entries...)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		_ = client.Close()
	})
	return c, s
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !holds(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

func TestQuotaSync_ReplicasKeepOneLimitTogether(t *testing.T) {
	r := redisserver.Start(t)
	file := entry("k", "tenant: a", "requests-per-minute: 100", "concurrent-requests: 50")
	a, sa := replicaOn(t, r, "a", file)
	b, sb := replicaOn(t, r, "b", file)
	eventually(t, "they hear each other", func() bool { return sa.replicas.Load() == 2 && sb.replicas.Load() == 2 })
	ka, kb := a.Find([]byte("k")), b.Find([]byte("k"))

	var charges []*QuotaCharge
	began := time.Now()
	refilled := func() int { return 1 + int(100*time.Since(began).Minutes()) } // of the limit of requests, at most
	for range 40 {
		charge, err := ka.Admit(1, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		charges = append(charges, charge)
	}
	eventually(t, "b is told of all that runs at a", func() bool {
		kb.quota.mu.Lock()
		defer kb.quota.mu.Unlock()
		return kb.quota.others["a"].running == 40
	})
	if left := kb.LimitStatuses(time.Now())[OfRequests].Remaining; left > 60+refilled() {
		t.Errorf("b is not charged with what a let in: %d of 100 are left", left)
	}
	if n, refused := admit(kb, time.Now()); n != 10 || refused.Of != OfConcurrent {
		t.Errorf("with 40 of 50 running at a, b let in %d, then %+v", n, refused)
	}
	for _, charge := range charges[1:] {
		charge.End(Tokens{-1, -1}, time.Now())
	}
	charges[0].Refund(time.Now())
	eventually(t, "what ended at a does not count at b", func() bool {
		charge, err := kb.Admit(1, time.Now())
		if err != nil {
			return false
		}
		charge.Refund(time.Now())
		return true
	})
	if left := kb.LimitStatuses(time.Now())[OfRequests].Remaining; left < 50 || left > 51+refilled() {
		t.Errorf("after 39 at a and 10 at b %d of 100 are left", left)
	}
}

func TestQuotaSync_CutOffAReplicaTakesItsShare(t *testing.T) {
	r := redisserver.Start(t)
	file := entry("k", "tenant: a", "requests-per-minute: 100")
	_, sa := replicaOn(t, r, "a", file)
	_, sb := replicaOn(t, r, "b", file)
	eventually(t, "they hear each other", func() bool { return sa.replicas.Load() == 2 && sb.replicas.Load() == 2 })
	if sa.share(time.Now()) != 1 {
		t.Errorf("connected, the share is %v", sa.share(time.Now()))
	}
	r.Kill()
	eventually(t, "each takes a half", func() bool { return sa.share(time.Now()) == 0.5 && sb.share(time.Now()) == 0.5 })
	r.Restart()
	eventually(t, "each follows the other again", func() bool { return sa.share(time.Now()) == 1 && sb.share(time.Now()) == 1 })
}

func TestQuotaSync_GarbageInTheChannelHarmsNobody(t *testing.T) {
	s := NewQuotaSync(nil, "", "me", slog.New(slog.DiscardHandler))
	c := New(DefaultConfig(), s)
	reload(t, c, entry("k", "tenant: a", "requests-per-minute: 100", "concurrent-requests: 50"))
	k := c.Find([]byte("k"))
	receiver := usageReceiver{sync: s, replicas: make(map[string]*replica)}
	now := time.Now()
	for _, m := range []string{
		"", "{", "[]", `{"r":""}`, `{"r":"x","k":{"` + k.ID + `":{"r":1e300}}}`, `{"r":"x","k":{"` + k.ID + `":{"n":-5}}}`,
		`{"r":"x","k":{"nobody":{"r":5}}}`, `{"r":"x","k":{"` + k.ID + `":[1]}}`, `{"r":"x","k":{"` + k.ID + `":{"r":1e999}}}`,
	} {
		receiver.receive([]byte(m), now)
	}
	if n, _ := admit(k, now); n != 50 {
		t.Errorf("let in %d of 50", n)
	}
	if s.ignored.Load() != 6 {
		t.Errorf("%d messages ignored", s.ignored.Load())
	}
}
