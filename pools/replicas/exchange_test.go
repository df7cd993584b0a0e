package replicas

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tandem-gateway/tandem/loadtest/redisserver"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/curve"
)

// fleetOf is a fleet of servers that are not probed.
func fleetOf(t testing.TB, servers int) *pools.Fleet {
	t.Helper()
	f := pools.NewFleet(pools.Default(), slog.New(slog.DiscardHandler))
	t.Cleanup(f.Close)
	var specs []pools.Spec
	for i := range servers {
		specs = append(specs, pools.Spec{URL: fmt.Sprintf("http://10.0.%d.%d:8000", i>>8, i&255), Role: pools.Both})
	}
	if err := f.Apply(specs); err != nil {
		t.Fatal(err)
	}
	return f
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

// replica is a gateway's view of one fleet, sharing through a Redis.
type replica struct {
	fleet  *pools.Fleet
	shared *Exchange
	server *pools.Server
	stop   func()
}

func newReplica(t *testing.T, r *redisserver.Server, id string) *replica {
	t.Helper()
	f := fleetOf(t, 1)
	client := redis.NewUniversalClient(&redis.UniversalOptions{
		Addrs: []string{r.Addr()}, MaxRetries: -1, ContextTimeoutEnabled: true,
		DialTimeout: time.Second, ReadTimeout: time.Second, WriteTimeout: time.Second,
	})
	shared := NewExchange(f, client, "test:", id, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		shared.Run(ctx)
	}()
	rep := &replica{fleet: f, shared: shared, server: f.Servers()[0]}
	rep.stop = sync.OnceFunc(func() {
		cancel()
		<-done
		_ = client.Close()
	})
	t.Cleanup(rep.stop)
	return rep
}

func (r *replica) claim(t *testing.T, tokens int) *pools.Lease {
	t.Helper()
	l, err := r.server.Claim(pools.Prefill, curve.Work{Tokens: tokens, Estimate: time.Duration(tokens) * time.Millisecond}, false, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (r *replica) sees() pools.InFlight { return r.server.InFlight(pools.Prefill, time.Now()) }

func TestReplicas_SeeEachOthersWorkSoon(t *testing.T) {
	r := redisserver.Start(t)
	a, b := newReplica(t, r, "a"), newReplica(t, r, "b")
	eventually(t, "both are connected", func() bool { return a.shared.connected.Load() && b.shared.connected.Load() })

	start := time.Now()
	one, two := a.claim(t, 50_000), a.claim(t, 70_000)
	eventually(t, "b sees a's work", func() bool { w := b.sees(); return w.Requests == 2 && w.Tokens == 120_000 && w.Queue > time.Minute })
	t.Logf("seen after %v", time.Since(start)) // the goal is 30 ms
	if own := b.server.OwnInFlight(pools.Prefill, time.Now()); own.Requests != 0 {
		t.Errorf("b takes it for its own: %+v", own)
	}
	if w := a.sees(); w.Requests != 2 {
		t.Errorf("a counts itself twice: %+v", w)
	}
	mine := b.claim(t, 10)
	eventually(t, "a sees b's work", func() bool { return a.sees().Requests == 3 })
	mine.Release()
	one.Release()
	two.Release()
	eventually(t, "nothing is left", func() bool { return b.sees() == (pools.InFlight{}) && a.sees() == (pools.InFlight{}) })
}

// What one has sent the others know within 30 ms. A busy machine may need longer, so one
// Of many tries will do.
func TestReplicas_SeeEachOthersWorkWithinThirtyMilliseconds(t *testing.T) {
	r := redisserver.Start(t)
	a, b := newReplica(t, r, "a"), newReplica(t, r, "b")
	eventually(t, "both are connected", func() bool { return a.shared.connected.Load() && b.shared.connected.Load() })
	soonest := time.Minute
	for deadline := time.Now().Add(30 * time.Second); soonest > 30*time.Millisecond && time.Now().Before(deadline); {
		_, received := b.shared.ReportedDecisions("a")
		start := time.Now()
		lease := a.claim(t, 500)
		for b.sees().Requests == 0 {
			<-received
			_, received = b.shared.ReportedDecisions("a")
		}
		soonest = min(soonest, time.Since(start))
		lease.Release()
		eventually(t, "it is gone again", func() bool { return b.sees().Requests == 0 })
	}
	t.Logf("at best after %v", soonest)
	if soonest > 30*time.Millisecond {
		t.Errorf("seen after %v at best", soonest)
	}
}

func TestReplicas_OneThatStartsLaterKnowsAtOnceAndOneThatDiesIsForgotten(t *testing.T) {
	r := redisserver.Start(t)
	a := newReplica(t, r, "a")
	a.claim(t, 500)
	eventually(t, "a left its key", func() bool { n, _ := r.Client().Exists(t.Context(), "test:{work}:of:a").Result(); return n == 1 })
	b := newReplica(t, r, "b")
	eventually(t, "b knows", func() bool { return b.sees().Requests == 1 })
	a.stop()
	eventually(t, "b forgets", func() bool { return b.sees().Requests == 0 })
	if n, err := r.Client().Exists(t.Context(), "test:{work}:of:a").Result(); n != 0 || err != nil {
		t.Errorf("a left %d keys, %v", n, err)
	}
}

func TestReplicas_RedisMayFailInEveryWay(t *testing.T) {
	r := redisserver.Start(t)
	a, b := newReplica(t, r, "a"), newReplica(t, r, "b")
	seen := func() bool { return b.sees().Requests == 1 }
	lease := a.claim(t, 100)
	eventually(t, "seen at first", seen)
	for name, fail := range map[string]struct{ do, heal func() }{
		"killed":  {r.Kill, r.Restart},
		"hanging": {r.Hang, r.Continue},
		"emptied": {func() { r.Do("FLUSHALL") }, func() {}},
		"read-only": {func() { r.Do("REPLICAOF", "127.0.0.1", "1") },
			func() { r.Do("REPLICAOF", "NO", "ONE") }},
	} {
		fail.do()
		// No request ever waits for Redis: a claim and a look take no time.
		start := time.Now()
		for range 1000 {
			a.claim(t, 1).Release()
			b.sees()
		}
		if took := time.Since(start); took > 30*time.Second { // waiting for it once takes a second
			t.Errorf("%s: 1,000 claims took %v", name, took)
		}
		fail.heal()
		lease.Release()
		eventually(t, name+": b sees that it ended", func() bool { return b.sees().Requests == 0 })
		lease = a.claim(t, 100)
		eventually(t, name+": b sees the next", seen)
	}
}

func TestReplicas_GarbageIsIgnored(t *testing.T) {
	r := redisserver.Start(t)
	b := newReplica(t, r, "b")
	c := r.Client()
	eventually(t, "b listens", func() bool { n, _ := c.Publish(t.Context(), "test:{work}", "{").Result(); return n > 0 })
	id := b.server.ID()
	for _, garbage := range []string{"", "null", "[]", `{"r":""}`, `{"r":"x","s":{"` + id + `":[{"n":-1},{}]}}`, `{"r":"x","s":{"` + id + `":[{"q":1e300},{}]}}`, `{"r":"x","s":7}`} {
		c.Publish(t.Context(), "test:{work}", garbage)
		c.Publish(t.Context(), "test:{work}:2", garbage)
		c.Set(t.Context(), "test:{work}:of:x", garbage, 0)
	}
	for i := range 400 {
		c.Publish(t.Context(), "test:{work}", fmt.Sprintf(`{"r":"r%d","s":{"%s":[{"n":1},{}]}}`, i, id))
	}
	eventually(t, "b has read them", func() bool { return b.shared.received.Load() >= 400 })
	if n := b.sees().Requests; n > 256 {
		t.Errorf("%d replicas are remembered", n)
	}
}

// Wall clocks do not matter: only when a message was received counts.
func TestReplicas_QueuesDrainFromWhenTheyWereReceived(t *testing.T) {
	f := fleetOf(t, 1)
	s, r := f.Servers()[0], NewExchange(f, nil, "", "b", slog.New(slog.DiscardHandler))
	now := time.Now()
	r.take([]byte(`{"r":"a","s":{"`+s.ID()+`":[{"n":1,"t":5,"q":2},{}]}}`), now)
	if q := s.InFlight(pools.Prefill, now.Add(500*time.Millisecond)).Queue; q != 1500*time.Millisecond {
		t.Errorf("after half a second: %v", q)
	}
	if w := s.InFlight(pools.Prefill, now.Add(workExpiry+time.Millisecond)); w != (pools.InFlight{}) {
		t.Errorf("after the expiry: %+v", w)
	}
}

// Clocks of gateways may be an hour apart: nothing that one reports is a time. What it
// has is dated by its receiver.
func TestReplicas_NoTimeCrosses(t *testing.T) {
	r := newReplica(t, redisserver.Start(t), "a")
	defer r.claim(t, 1000).Release()
	reported, err := json.Marshal(r.shared.own(time.Now()))
	if err != nil {
		t.Fatal(err)
	}
	var message struct {
		S map[string][2]map[string]float64
	}
	if err := json.Unmarshal(reported, &message); err != nil || len(message.S) != 1 {
		t.Fatalf("%v: %s", err, reported)
	}
	for _, both := range message.S {
		for _, work := range both {
			for name, value := range work {
				if value > 1e6 {
					t.Errorf("%s of %v may be a time: %s", name, value, reported)
				}
			}
		}
	}
}

// A decider keeps the work of a turn on its books until the report of the replica that took it
// include it: the count comes with the work, never before it.
func TestReplicas_TellHowManyTurnsTheirWorkIncludes(t *testing.T) {
	r := redisserver.Start(t)
	a, b := newReplica(t, r, "a"), newReplica(t, r, "b")
	lease := a.claim(t, 500)
	a.shared.CountDecision()
	for {
		count, received := b.shared.ReportedDecisions("a")
		if count == 1 {
			break
		}
		select {
		case <-received:
		case <-time.After(30 * time.Second):
			t.Fatal("b does not receive the turn")
		}
	}
	if w := b.sees(); w.Tokens != 500 {
		t.Errorf("b knows the turn without its work: %+v", w)
	}
	lease.Release()
	eventually(t, "the work is gone", func() bool { return b.sees().Requests == 0 })
	if count, _ := b.shared.ReportedDecisions("a"); count != 1 {
		t.Errorf("%d turns after they ended, want 1", count)
	}
}

// Between two beats nothing is received of a prefill that takes longer than predicted. It is
// not over for that.
func TestReplicas_WorkThatRunsOverIsThereBetweenBeats(t *testing.T) {
	fleet := func() (*Exchange, *pools.Server) {
		f := fleetOf(t, 1)
		return NewExchange(f, nil, "test:", rand.Text(), slog.New(slog.DiscardHandler)), f.Servers()[0]
	}
	a, on := fleet()
	b, seen := fleet()
	for range 2 {
		if _, err := on.Claim(pools.Prefill, curve.Work{Tokens: 100, Estimate: time.Second}, false, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	now := time.Now()
	own := a.own(now)
	b.take(own.encode(), now)
	reported := on.OwnInFlight(pools.Prefill, now).Queue
	const stays = 1300 * time.Millisecond
	for after, want := range map[time.Duration]time.Duration{0: reported, 100 * time.Millisecond: max(reported-100*time.Millisecond, stays), 2 * time.Second: stays} {
		if got := seen.InFlight(pools.Prefill, now.Add(after)).Queue; (got - want).Abs() > time.Millisecond {
			t.Errorf("%v after it was received the queue is %v, want %v", after, got, want)
		}
	}
}

// quietReplica is a replica that nothing but the test reports to.
func quietReplica(t testing.TB, id string, servers int) (*Exchange, []*pools.Server) {
	t.Helper()
	f := fleetOf(t, servers)
	return NewExchange(f, nil, "test:", id, slog.New(slog.DiscardHandler)), f.Servers()
}

// believes compares what a replica believes of another's work with what it is.
func believes(t *testing.T, seen, is []*pools.Server, now time.Time) {
	t.Helper()
	for i := range is {
		for _, leg := range []pools.Role{pools.Prefill, pools.Decode} {
			got, want := seen[i].InFlight(leg, now), is[i].OwnInFlight(leg, now)
			if !closeTo(got, want) {
				t.Errorf("%s of %s is believed to be %+v, and is %+v", leg, is[i].ID(), got, want)
			}
		}
	}
}

// Only what changed is reported, and that, with what was reported before, is everything.
func TestReplicas_ChangesAddUpToTheWhole(t *testing.T) {
	a, on := quietReplica(t, "a", 20)
	b, seen := quietReplica(t, "b", 20)
	now := time.Now()
	var leases []*pools.Lease
	report := func(whole bool) int {
		m := a.reported.changesOf(a.own(now), whole, now)
		b.take(m.encode(), now)
		a.reported.recordPublished(m, 0, true, now)
		return len(m.Servers)
	}
	for i := range 200 {
		if server := on[i*7%20]; i%3 < 2 {
			lease, err := server.Claim(pools.Prefill, curve.Work{Tokens: 1000 + i, Estimate: time.Duration(i) * time.Millisecond}, true, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			leases = append(leases, lease)
		} else {
			leases[0].Release()
			leases = leases[1:]
		}
		now = time.Now()
		if n := report(i%50 == 49); i > 0 && i%50 != 49 && n > 3 {
			t.Fatalf("one server has changed, and %d are reported", n)
		}
		believes(t, seen, on, now)
	}
	for _, lease := range leases {
		lease.Release()
	}
	now = time.Now()
	report(false)
	if n := b.Busy(now); n != 0 {
		t.Errorf("it has nothing any more, and %d are busy", n)
	}
}

// A message that was lost is made good by the next whole one, and what Redis did not take is
// reported again.
func TestReplicas_WhatWasLostIsReportedAgain(t *testing.T) {
	a, on := quietReplica(t, "a", 3)
	b, seen := quietReplica(t, "b", 3)
	now := time.Now()
	for i, fate := range []string{"arrives", "lost", "refused", "arrives"} {
		if _, err := on[i%3].Claim(pools.Decode, curve.Work{Tokens: 100}, true, time.Now()); err != nil {
			t.Fatal(err)
		}
		m := a.reported.changesOf(a.own(now), false, now)
		if fate == "arrives" {
			b.take(m.encode(), now)
		}
		a.reported.recordPublished(m, 0, fate != "refused", now)
	}
	believes(t, seen, on, now) // the last one was whole, since the one before it was refused
}

// Replicas of the version before this one know JSON on one channel, and send nothing else.
func TestReplicas_OfTwoVersionsWorkTogether(t *testing.T) {
	r := redisserver.Start(t)
	c := r.Client()
	old := c.Subscribe(t.Context(), "test:{work}")
	defer old.Close()
	if _, err := old.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	a, b := newReplica(t, r, "a"), newReplica(t, r, "b")
	id := a.server.ID()
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	var sends sync.WaitGroup
	sends.Go(func() { // again and again, as it does: others may strike it from the set as they start
		for pools.Pause(ctx, 20*time.Millisecond) {
			c.ZAdd(ctx, "test:{work}:replicas", redis.Z{Member: "old"})
			c.Publish(ctx, "test:{work}", `{"r":"old","s":{"`+id+`":[{"n":1,"t":7},{}]}}`)
		}
	})
	defer sends.Wait()
	defer stop()
	eventually(t, "the old one is received", func() bool { return a.sees().Tokens == 7 && b.sees().Tokens == 7 })
	lease := a.claim(t, 500)
	defer lease.Release()
	for {
		message, err := old.ReceiveMessage(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var m struct {
			R string
			S map[string][2]map[string]float64
		}
		if err := json.Unmarshal([]byte(message.Payload), &m); err != nil {
			t.Fatalf("%v: %s", err, message.Payload)
		}
		if m.R == "a" && m.S[id][0]["t"] == 500 {
			break
		}
	}
	eventually(t, "and the new ones receive each other", func() bool { return b.sees().Tokens == 500 || b.sees().Tokens == 507 })
}

// How much of the KV of what is in flight is shared follows from the prompts of all replicas (package kvroom).
func TestReplicas_SeeHowMuchOfEachOthersWorkIsPrompt(t *testing.T) {
	r := redisserver.Start(t)
	a, b := newReplica(t, r, "a"), newReplica(t, r, "b")
	lease, err := a.server.Claim(pools.Decode, curve.Work{Tokens: 120, Prompt: 90}, false, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	lease.BeginLocalPrefill(curve.Work{Tokens: 90, Estimate: time.Hour}, time.Now())
	sees := func(leg pools.Role) pools.InFlight { return b.server.InFlight(leg, time.Now()) }
	eventually(t, "the prompt is seen to be on its way", func() bool { return sees(pools.Decode).Prompts == 90 && sees(pools.Decode).Computing == 90 })
	lease.MarkSent(time.Hour, time.Now())
	eventually(t, "the server is seen to have it, and to compute it", func() bool { return sees(pools.Decode).Computing == 0 && sees(pools.Prefill).Computing == 90 })
	lease.EndsUnseen()
	eventually(t, "nothing will say when it is done", func() bool { return sees(pools.Decode).Prompts == 90 && sees(pools.Prefill).Computing == 0 })
}

func FuzzDecodeWork(f *testing.F) {
	m := workMessage{Replica: "a", Decisions: 7, Servers: map[string][2]sharedWork{"s": {{1, 20, 3, 1, 0, 9}, {4, 50, 6, 2, 40, 0}}}}
	f.Add(m.encode())
	f.Add([]byte(`{"r":"a","k":7,"s":{"s":[{"n":1},{}]}}`))
	f.Fuzz(func(t *testing.T, message []byte) {
		m, err := decodeWork(message)
		if err != nil {
			return
		}
		m.partial, m.current = false, true
		again, err := decodeWork(m.encode())
		if err != nil || len(again.Servers) != len(m.Servers) || again.Decisions != m.Decisions || again.Replica != m.Replica {
			t.Errorf("%+v is read again as %+v, %v", m, again, err)
		}
	})
}

// BenchmarkReplicasNews512: telling and hearing once, of 512 servers that are busy, of which
// two have changed; and the size of a message. Budget (2-core VM): what changed <= 150 us
// and 200 bytes; before, everything was sent in JSON each time.
func BenchmarkReplicasNews512(b *testing.B) {
	sender, on := quietReplica(b, "a", 512)
	receiver, _ := quietReplica(b, "b", 512)
	for i, s := range on {
		if _, err := s.Claim(pools.Prefill, curve.Work{Tokens: 10_000 + i, Estimate: time.Hour}, true, time.Now()); err != nil {
			b.Fatal(err)
		}
	}
	now := time.Now()
	whole := sender.own(now)
	for name, encode := range map[string]func(i int) []byte{
		"whole as JSON": func(int) []byte {
			message, _ := json.Marshal(sender.own(now))
			return message
		},
		"whole": func(int) []byte {
			m := sender.own(now)
			return m.encode()
		},
		"what changed": func(i int) []byte {
			sender.reported.recordPublished(whole, 0, true, now)
			for k := range 2 {
				id := on[(2*i+k)%512].ID()
				delete(sender.reported.servers, id)
			}
			m := sender.reported.changesOf(sender.own(now), false, now)
			return m.encode()
		},
	} {
		b.Run(name, func(b *testing.B) {
			size := 0
			for i := 0; b.Loop(); i++ {
				message := encode(i)
				size = len(message)
				receiver.mu.Lock()
				clear(receiver.others)
				receiver.mu.Unlock()
				receiver.take(message, now)
			}
			b.ReportMetric(float64(size), "bytes")
		})
	}
}

// The larger a message and the more replicas read it, the longer changes are gathered:
// all of them together read so many bytes a second, and no beat is missed.
func TestReplicas_GatherChangesForLongerWhereMoreIsRead(t *testing.T) {
	for _, each := range []struct {
		size, replicas int
		want           time.Duration
	}{
		{0, 0, workDelay},
		{100, 10, workDelay},
		{workBytes / 100, 2, workDelay},
		{workBytes / 100, 5, 40 * time.Millisecond},
		{workBytes / 100, 11, 100 * time.Millisecond},
		{workBytes, 100, workBeat / 4},
	} {
		n := report{size: each.size, replicas: each.replicas}
		if got := n.delay(); (got - each.want).Abs() > time.Millisecond {
			t.Errorf("%d bytes before %d replicas are gathered for %v, want %v", each.size, each.replicas, got, each.want)
		}
	}
}
