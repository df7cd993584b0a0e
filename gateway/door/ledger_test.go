package door

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tandem-gateway/tandem/loadtest/redisserver"
)

// replicaOn starts a replica's door that shares through a Redis.
func replicaOn(t *testing.T, r *redisserver.Server, id string, entries ...string) (*Door, *Ledger) {
	t.Helper()
	client := redis.NewClient(&redis.Options{
		Addr: r.Addr(), MaxRetries: -1, ContextTimeoutEnabled: true, DialTimeout: time.Second, ReadTimeout: time.Second, WriteTimeout: time.Second,
	})
	l := NewLedger(client, "test:", id, slog.New(slog.DiscardHandler))
	d := New(DefaultConfig(), l)
	reload(t, d, entries...)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		_ = client.Close()
	})
	return d, l
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !holds(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

func TestLedger_ReplicasKeepOneLimitTogether(t *testing.T) {
	r := redisserver.Start(t)
	file := entry("k", "tenant: a", "requests-per-minute: 100", "concurrent-requests: 50")
	a, la := replicaOn(t, r, "a", file)
	b, lb := replicaOn(t, r, "b", file)
	eventually(t, "they hear each other", func() bool { return la.replicas.Load() == 2 && lb.replicas.Load() == 2 })
	ka, kb := a.Find([]byte("k")), b.Find([]byte("k"))

	var visits []*Visit
	began := time.Now()
	refilled := func() int { return 1 + int(100*time.Since(began).Minutes()) } // of the limit of requests, at most
	for range 40 {
		v, err := ka.Admit(1, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		visits = append(visits, v)
	}
	eventually(t, "b hears of all that runs at a", func() bool {
		kb.quota.mu.Lock()
		defer kb.quota.mu.Unlock()
		return kb.quota.others["a"].running == 40
	})
	if left := kb.Standings(time.Now())[OfRequests].Remaining; left > 60+refilled() {
		t.Errorf("b is not charged with what a let in: %d of 100 are left", left)
	}
	if n, refused := admit(kb, time.Now()); n != 10 || refused.Of != OfConcurrent {
		t.Errorf("with 40 of 50 running at a, b let in %d, then %+v", n, refused)
	}
	for _, v := range visits[1:] {
		v.End(Cost{-1, -1}, time.Now())
	}
	visits[0].Refund(time.Now())
	eventually(t, "what ended at a does not count at b", func() bool {
		v, err := kb.Admit(1, time.Now())
		if err != nil {
			return false
		}
		v.Refund(time.Now())
		return true
	})
	if left := kb.Standings(time.Now())[OfRequests].Remaining; left < 50 || left > 51+refilled() {
		t.Errorf("after 39 at a and 10 at b %d of 100 are left", left)
	}
}

func TestLedger_CutOffAReplicaTakesItsShare(t *testing.T) {
	r := redisserver.Start(t)
	file := entry("k", "tenant: a", "requests-per-minute: 100")
	_, la := replicaOn(t, r, "a", file)
	_, lb := replicaOn(t, r, "b", file)
	eventually(t, "they hear each other", func() bool { return la.replicas.Load() == 2 && lb.replicas.Load() == 2 })
	if la.share(time.Now()) != 1 {
		t.Errorf("connected, the share is %v", la.share(time.Now()))
	}
	r.Kill()
	eventually(t, "each takes a half", func() bool { return la.share(time.Now()) == 0.5 && lb.share(time.Now()) == 0.5 })
	r.Restart()
	eventually(t, "each follows the other again", func() bool { return la.share(time.Now()) == 1 && lb.share(time.Now()) == 1 })
}

func TestLedger_GarbageInTheChannelHarmsNobody(t *testing.T) {
	l := NewLedger(nil, "", "me", slog.New(slog.DiscardHandler))
	d := New(DefaultConfig(), l)
	reload(t, d, entry("k", "tenant: a", "requests-per-minute: 100", "concurrent-requests: 50"))
	k := d.Find([]byte("k"))
	e := ears{ledger: l, replicas: make(map[string]*replica)}
	now := time.Now()
	for _, m := range []string{
		"", "{", "[]", `{"r":""}`, `{"r":"x","k":{"` + k.ID + `":{"r":1e300}}}`, `{"r":"x","k":{"` + k.ID + `":{"n":-5}}}`,
		`{"r":"x","k":{"nobody":{"r":5}}}`, `{"r":"x","k":{"` + k.ID + `":[1]}}`, `{"r":"x","k":{"` + k.ID + `":{"r":1e999}}}`,
	} {
		e.take([]byte(m), now)
	}
	if n, _ := admit(k, now); n != 50 {
		t.Errorf("let in %d of 50", n)
	}
	if l.ignored.Load() != 6 {
		t.Errorf("%d messages ignored", l.ignored.Load())
	}
}
