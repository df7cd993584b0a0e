package election

import (
	"context"
	"net"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/tandem-gateway/tandem/loadtest/redisserver"
)

const (
	key  = "test:lease"
	life = 30 * time.Second // longer than any test
)

func must(t *testing.T, what string, got bool, err error, want bool) {
	t.Helper()
	if err != nil || got != want {
		t.Fatalf("%s: %v, %v, want %v", what, got, err, want)
	}
}

// left is how long a key lives on, to a second.
func left(t *testing.T, r *redisserver.Server) time.Duration {
	t.Helper()
	return r.Client().PTTL(t.Context(), key).Val()
}

// The value is the bare name, as earlier versions wrote it: they and this one find one
// holder together.
func TestLease_OneOfTwoHoldsIt(t *testing.T) {
	r := redisserver.Start(t)
	a, b := NewLease(r.Client(), key, "a", life), NewLease(r.Client(), key, "b", life)
	for range 2 {
		held, err := a.Hold(t.Context())
		must(t, "a holds it", held, err, true)
		held, err = b.Hold(t.Context())
		must(t, "b holds it", held, err, false)
		held, err = b.Take(t.Context())
		must(t, "b takes it", held, err, false)
	}
	if value := r.Client().Get(t.Context(), key).Val(); value != "a" {
		t.Errorf("the key says %q", value)
	}
	if err := b.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if holder, err := b.Holder(t.Context()); holder != "a" || err != nil {
		t.Fatalf("%q holds it after another gave it back, %v", holder, err)
	}
	if err := a.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if holder, err := a.Holder(t.Context()); holder != "" || err != nil {
		t.Fatalf("%q holds what was given back, %v", holder, err)
	}
	held, err := b.Take(t.Context())
	must(t, "b takes what is free", held, err, true)
}

func TestLease_OnlyHoldRenews(t *testing.T) {
	r := redisserver.Start(t)
	a := NewLease(r.Client(), key, "a", life)
	held, err := a.Take(t.Context())
	must(t, "a takes it", held, err, true)
	if ttl := left(t, r); ttl <= life-10*time.Second || ttl > life {
		t.Fatalf("it lives for %v", ttl)
	}
	r.Client().PExpire(t.Context(), key, life/2)
	held, err = a.Take(t.Context())
	must(t, "a takes its own", held, err, true)
	if ttl := left(t, r); ttl > life/2 {
		t.Errorf("taken again it lives for %v", ttl)
	}
	held, err = a.Hold(t.Context())
	must(t, "a holds its own", held, err, true)
	if ttl := left(t, r); ttl <= life/2 {
		t.Errorf("held it lives for %v", ttl)
	}
}

// keep runs Keep in the background and returns what is closed when it ends.
func keep(ctx context.Context, l *Lease, every time.Duration) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.Keep(ctx, every)
	}()
	return done
}

func TestKeep_RenewsUntilTheContextEndsAndGivesBack(t *testing.T) {
	r := redisserver.Start(t)
	a := NewLease(r.Client(), key, "a", life)
	held, err := a.Hold(t.Context())
	must(t, "a holds it", held, err, true)
	r.Client().PExpire(t.Context(), key, life/2)
	ctx, cancel := context.WithCancel(t.Context())
	done := keep(ctx, a, 10*time.Millisecond)
	for left(t, r) <= life/2 {
		select {
		case <-done:
			t.Fatal("given up")
		case <-time.After(time.Millisecond):
		}
	}
	cancel()
	<-done
	if holder, err := a.Holder(t.Context()); holder != "" || err != nil {
		t.Errorf("%q holds it afterwards, %v", holder, err)
	}
}

func TestKeep_ALeaseOfAnotherOrOfNobodyIsLostAndLeftAlone(t *testing.T) {
	r := redisserver.Start(t)
	for _, now := range []string{"b", ""} {
		a := NewLease(r.Client(), key, "a", life)
		r.Client().Del(t.Context(), key)
		held, err := a.Hold(t.Context())
		must(t, "a holds it", held, err, true)
		done := keep(t.Context(), a, 10*time.Millisecond)
		if now == "" {
			r.Client().Del(t.Context(), key)
		} else {
			r.Client().Set(t.Context(), key, now, life)
		}
		select {
		case <-done:
		case <-time.After(life):
			t.Fatalf("kept while %q holds it", now)
		}
		if holder, _ := a.Holder(t.Context()); holder != now {
			t.Errorf("%q holds it afterwards, want %q", holder, now)
		}
	}
}

// While Redis does not answer a lease is kept for as long as it lives there, and no longer:
// another candidate may hold it by then.
func TestKeep_WithoutRedisItIsLostWhenItMustHaveExpired(t *testing.T) {
	r := redisserver.Start(t)
	const short = 2 * time.Second
	a := NewLease(r.Client(), key, "a", short)
	held, err := a.Hold(t.Context())
	must(t, "a holds it", held, err, true)
	r.Kill()
	began := time.Now()
	done := keep(t.Context(), a, 10*time.Millisecond)
	select {
	case <-done:
	case <-time.After(life):
		t.Fatal("kept for ever")
	}
	if kept := time.Since(began); kept < short {
		t.Errorf("given up after %v of %v", kept, short)
	}
}

func TestScript_TheRestRunsInTheSameStep(t *testing.T) {
	r := redisserver.Start(t)
	script := NewScript(`
if held ~= ARGV[1] then return held end
redis.call('SET', KEYS[2], ARGV[4], 'PX', ARGV[2])
return 'mine'`)
	for _, c := range []struct{ candidate, says string }{{"a", "mine"}, {"b", "a"}, {"a", "mine"}} {
		l := NewLease(r.Client(), key, c.candidate, life)
		if got, err := l.HoldAnd(t.Context(), script, []string{"test:done"}, "by "+c.candidate).Text(); err != nil || got != c.says {
			t.Fatalf("%s is told %q, %v, want %q", c.candidate, got, err, c.says)
		}
		if by := r.Client().Get(t.Context(), "test:done").Val(); by != "by a" {
			t.Fatalf("done %q", by)
		}
	}
}

// Without an answer of Redis no candidate holds anything, and the error says why.
func TestElection_WithoutRedisNobodyHoldsAnything(t *testing.T) {
	r := redisserver.Start(t)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	a, record := NewLease(r.Client(), key, "a", life), NewRecordLease(r.Client(), "test:record", Record{Replica: "a"}, life)
	held, err := a.Hold(t.Context())
	must(t, "a holds it", held, err, true)
	for name, ask := range map[string]func() (held bool, err error){
		"take":           func() (bool, error) { return a.Take(gone) },
		"hold":           func() (bool, error) { return a.Hold(gone) },
		"holder":         func() (bool, error) { holder, err := a.Holder(gone); return holder != "", err },
		"release":        func() (bool, error) { return false, a.Release(gone) },
		"hold a record":  func() (bool, error) { now, err := record.Hold(gone); return now != Record{}, err },
		"leave a record": func() (bool, error) { return false, record.Release(gone) },
	} {
		if held, err := ask(); held || err == nil {
			t.Errorf("%s: %v, %v", name, held, err)
		}
	}
}

// watching keeps the context of the last command.
type watching struct {
	mu   sync.Mutex // guards last
	last context.Context
}

func (w *watching) DialHook(next redis.DialHook) redis.DialHook { return next }
func (w *watching) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (w *watching) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		w.mu.Lock()
		w.last = ctx
		w.mu.Unlock()
		return next(ctx, cmd)
	}
}

// Giving back has a time of its own, which is over with it.
func TestKeep_TheTimeToGiveBackEndsWithIt(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: redisserver.Start(t).Addr()})
	defer func() { _ = client.Close() }()
	w := new(watching)
	client.AddHook(w)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	a := NewLease(client, key, "a", life)
	held, err := a.Hold(t.Context())
	must(t, "a holds it", held, err, true)
	a.Keep(ended, life)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last.Err() == nil {
		t.Error("it goes on")
	}
	if _, bounded := w.last.Deadline(); !bounded {
		t.Error("it has no end of its own")
	}
}

// While Redis does not answer a lease is kept to the last moment of its life.
func TestKeep_ToTheLastMomentOfItsLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := redis.NewClient(&redis.Options{Addr: "10.0.0.9:6379", MaxRetries: -1, DialerRetries: 1, PoolSize: 10_000,
			Dialer: func(context.Context, string, string) (net.Conn, error) { return nil, syscall.ECONNREFUSED }})
		defer func() { _ = client.Close() }()
		start := time.Now()
		NewLease(client, key, "a", time.Second).Keep(t.Context(), 250*time.Millisecond)
		if kept := time.Since(start); kept != 1250*time.Millisecond {
			t.Errorf("kept for %v of a second, looking every quarter of it", kept)
		}
	})
}
