package access

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
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
		charges = append(charges, &charge)
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

// published is a Redis that keeps what is published, and can do nothing else.
type published struct {
	mu       sync.Mutex
	messages []usedMessage
	err      error // it says to all
}

func (p *published) DialHook(next redis.DialHook) redis.DialHook { return next }

func (p *published) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		var m usedMessage
		if err := json.Unmarshal(cmd.Args()[2].([]byte), &m); err != nil {
			return err
		}
		p.messages = append(p.messages, m)
		return p.err
	}
}

func (p *published) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// take returns how many keys the messages since the last call told of.
func (p *published) take() (keys []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.messages {
		keys = append(keys, len(m.Keys))
	}
	p.messages = nil
	return keys
}

// publishing is a QuotaSync whose messages are kept.
func publishing(t *testing.T) (*QuotaSync, *published) {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, Dialer: func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("no Redis")
	}})
	t.Cleanup(func() { _ = client.Close() })
	p := &published{}
	client.AddHook(p)
	return NewQuotaSync(client, "", "me", slog.New(slog.DiscardHandler)), p
}

// A change is published once within 20 ms, together with others, and at three heartbeats
// after it; a key with requests in flight at every one.
func TestQuotaSync_WhenAChangeIsPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := publishing(t)
		ctx, cancel := context.WithCancel(t.Context())
		ended := false
		go func() {
			s.Run(ctx)
			ended = true
		}()
		after := func(d time.Duration, what string, want ...int) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			// One of no keys says that the replica is there, as often as it likes.
			got := slices.DeleteFunc(p.take(), func(keys int) bool { return keys == 0 })
			if !slices.Equal(got, want) {
				t.Errorf("%s: messages of %v keys, want %v", what, got, want)
			}
		}
		time.Sleep(heartbeat + heartbeat/2)
		if got := p.take(); !slices.Equal(got, []int{0}) {
			t.Errorf("nothing is used: messages of %v keys, want one of none", got)
		}
		one, two := newQuota(s, "one"), newQuota(s, "two")
		s.report(one)
		time.Sleep(batchDelay / 2)
		s.report(two)
		s.report(two)
		after(batchDelay, "two keys are used", 2)
		for range repeats {
			after(heartbeat, "a heartbeat later", 2)
		}
		after(heartbeat, "when they were repeated")
		one.running = 1
		s.report(one)
		after(batchDelay, "a request begins", 1)
		for range 3 * repeats {
			after(heartbeat, "it runs", 1)
		}
		one.running = 0
		s.report(one)
		after(batchDelay, "it ends", 1)
		for range repeats {
			after(heartbeat, "it has ended", 1)
		}
		after(2*heartbeat, "all is told")
		if ended {
			t.Error("Run returned by itself")
		}
		cancel()
		synctest.Wait()
		time.Sleep(heartbeat)
		synctest.Wait()
		if !ended {
			t.Error("Run did not return")
		}
		p.take()
		time.Sleep(3 * heartbeat)
		if got := p.take(); len(got) > 0 {
			t.Errorf("%d messages after the end", len(got))
		}
	})
}

// A key that is used while others are gathered goes out with them; no message of nothing
// follows.
func TestQuotaSync_ChangesThatAreGatheredAreOneMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := publishing(t)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { s.Run(ctx) })
		synctest.Wait()
		s.report(newQuota(s, "one"))
		time.Sleep(batchDelay / 2)
		s.report(newQuota(s, "two"))
		time.Sleep(heartbeat / 2)
		if got := p.take(); !slices.Equal(got, []int{2}) {
			t.Errorf("messages of %v keys, want one of both", got)
		}
		cancel()
		running.Wait()
	})
}

// Run's parts end with it: what it was given may be closed then.
func TestQuotaSync_RunReturnsWhenItsPartsHaveEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := publishing(t)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*heartbeat, cancel)
		start := time.Now()
		s.Run(ctx)
		if took := time.Since(start); took < 10*heartbeat {
			t.Errorf("it returned after %v", took)
		}
	})
}

func TestQuotaSync_ManyKeysTakeSeveralMessages(t *testing.T) {
	s, p := publishing(t)
	quotas := make([]*quota, 2*maxKeys+1)
	for i := range quotas {
		quotas[i] = newQuota(s, strconv.Itoa(i))
	}
	for _, x := range []struct {
		n    int
		want []int
	}{{0, []int{0}}, {1, []int{1}}, {maxKeys, []int{maxKeys}}, {2 * maxKeys, []int{maxKeys, maxKeys}}, {2*maxKeys + 1, []int{maxKeys, maxKeys, 1}}} {
		s.send(t.Context(), quotas[:x.n])
		if got := p.take(); !slices.Equal(got, x.want) {
			t.Errorf("%d keys: messages of %v keys, want %v", x.n, got, x.want)
		}
	}
	p.err = errors.New("no Redis")
	s.send(t.Context(), quotas)
	if got := p.take(); len(got) != 1 {
		t.Errorf("%d messages after the first was lost", len(got)-1)
	}
}

// Changes are reported, taken and repeated by goroutines of their own: the race detector
// looks on, and none is lost.
func TestQuotaSync_LosesNoChangeOfManyAtOnce(t *testing.T) {
	s, _ := publishing(t)
	const rounds, each = 200, 2
	var reporting, taking sync.WaitGroup
	for range each {
		reporting.Go(func() {
			for range rounds {
				q := newQuota(s, "q")
				s.report(q)
				s.repeat(q)
			}
		})
	}
	done := make(chan struct{})
	var mu sync.Mutex // guards taken
	taken := make(map[*quota]bool)
	for range each {
		taking.Go(func() {
			for {
				for _, q := range s.takeChanged() {
					mu.Lock()
					taken[q] = true
					mu.Unlock()
				}
				s.takeRepeats()
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	reporting.Wait()
	close(done)
	taking.Wait()
	for _, q := range s.takeChanged() {
		taken[q] = true
	}
	if len(taken) != rounds*each {
		t.Errorf("%d of %d changes were taken", len(taken), rounds*each)
	}
}

// What is taken is not taken again before it changes again, and is repeated three times.
func TestQuotaSync_AChangeIsTakenOnceAndRepeatedThreeTimes(t *testing.T) {
	s, _ := publishing(t)
	q := newQuota(s, "q")
	s.report(q)
	s.report(q)
	if a, b := len(s.takeChanged()), len(s.takeChanged()); a != 1 || b != 0 {
		t.Errorf("taken %d times, then %d", a, b)
	}
	s.repeat(q) // repeats less than the change does
	times := 0
	for len(s.takeRepeats()) > 0 && times < 10 {
		times++
	}
	if times != repeats || len(s.recent) != 0 {
		t.Errorf("repeated %d times, %d are kept", times, len(s.recent))
	}
	s.repeat(q)
	if a, b := len(s.takeRepeats()), len(s.takeRepeats()); a != 1 || b != 0 {
		t.Errorf("one that runs is repeated %d times, then %d", a, b)
	}
}
