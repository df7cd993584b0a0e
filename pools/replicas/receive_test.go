package replicas

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tandem-gateway/tandem/loadtest/redisserver"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/curve"
)

// busyWith is what a replica reports that has one request on each of some servers.
func busyWith(replica string, partial bool, servers ...*pools.Server) []byte {
	m := workMessage{Replica: replica, Servers: make(map[string][2]sharedWork), partial: partial}
	for _, s := range servers {
		m.Servers[s.ID()] = [2]sharedWork{{Requests: 1, Tokens: 10}, {}}
	}
	return m.encode()
}

// As many replicas are remembered as there can be, and those that are gone are none of them:
// where gateways come and go, the new ones are known.
func TestReplicas_ThoseThatAreGoneMakeRoomForOthers(t *testing.T) {
	r, servers := quietReplica(t, "me", 1)
	now, requests := time.Now(), func(now time.Time) int { return servers[0].InFlight(pools.Prefill, now).Requests }
	for round := range 3 {
		for i := range 256 {
			r.take(busyWith(fmt.Sprintf("r%d-%d", round, i), false, servers...), now)
		}
		if busy, n := r.Busy(now.Add(workExpiry)), requests(now.Add(workExpiry)); busy != 256 || n != 256 {
			t.Errorf("round %d: %d replicas are busy with %d requests, want 256", round, busy, n)
		}
		now = now.Add(workExpiry + time.Millisecond)
		if busy, n := r.Busy(now), requests(now); busy != 0 || n != 0 {
			t.Errorf("round %d: %d that are gone are busy with %d requests", round, busy, n)
		}
	}
	r.take(busyWith("last", false, servers...), now)
	if n := len(r.others); n != 1 || r.Busy(now) != 1 {
		t.Errorf("%d are remembered, want the last one", n)
	}
}

// What a replica had before it fell silent is over. When it is back and reports what has
// changed, that is all that is known of it.
func TestReplicas_OneThatIsBackHasNothingOfBefore(t *testing.T) {
	r, servers := quietReplica(t, "me", 2)
	now := time.Now()
	has := func() (on []int) {
		for _, s := range servers {
			on = append(on, s.InFlight(pools.Prefill, now).Requests)
		}
		return on
	}
	r.take(busyWith("a", false, servers[0]), now)
	now = now.Add(workExpiry)
	r.take(busyWith("a", true, servers[1]), now)
	if got := has(); !slices.Equal(got, []int{1, 1}) {
		t.Errorf("what has changed, in time: %v", got)
	}
	now = now.Add(workExpiry + time.Millisecond)
	r.take(busyWith("a", true, servers[1]), now)
	if got := has(); !slices.Equal(got, []int{0, 1}) {
		t.Errorf("what has changed, after it was forgotten: %v", got)
	}
	r.take(busyWith("a", false), now)
	if n := len(r.others); n != 0 {
		t.Errorf("it has nothing: %d are remembered", n)
	}
}

// JSON of a replica that speaks MessagePack is for others, until it is gone: an earlier
// version that takes its place under the same id speaks nothing else.
func TestReplicas_AnEarlierVersionMayTakeThePlace(t *testing.T) {
	r, servers := quietReplica(t, "me", 1)
	now := time.Now()
	inJSON := []byte(`{"r":"a","s":{"` + servers[0].ID() + `":[{"n":7},{}]}}`)
	r.take(busyWith("a", false, servers[0]), now)
	for _, step := range []struct {
		after time.Duration
		want  int
	}{{workExpiry, 1}, {workExpiry + time.Millisecond, 7}} {
		at := now.Add(step.after)
		r.take(inJSON, at)
		if work := r.others["a"].servers[servers[0].ID()]; work.both[0].Requests != step.want {
			t.Errorf("%v after its last MessagePack it has %d requests, want %d", step.after, work.both[0].Requests, step.want)
		}
	}
}

// A replica that ends takes back all that it left in Redis and tells the others, which need not
// wait until it expires; what one left that was killed is struck out by the next that starts.
func TestReplicas_NothingIsLeftOfOneThatIsGone(t *testing.T) {
	server := redisserver.Start(t)
	c := server.Client()
	c.ZAdd(t.Context(), "test:"+replicaSet, redis.Z{Member: "killed"})
	a, b := newReplica(t, server, "a"), newReplica(t, server, "b")
	a.claim(t, 500)
	eventually(t, "b knows a", func() bool { return b.sees().Requests == 1 })
	eventually(t, "both are in the set, and none that is gone", func() bool {
		return slices.Equal(c.ZRange(t.Context(), "test:"+replicaSet, 0, -1).Val(), []string{"a", "b"})
	})
	a.stop()
	if keys, err := c.Exists(t.Context(), "test:"+workKey+"a").Result(); keys != 0 || err != nil {
		t.Errorf("it left its key: %d, %v", keys, err)
	}
	if set := c.ZRange(t.Context(), "test:"+replicaSet, 0, -1).Val(); !slices.Equal(set, []string{"b"}) {
		t.Errorf("in the set are %v", set)
	}
	eventually(t, "b remembers no replica", func() bool { // one that expires is struck out by what others report, and there are none
		b.shared.mu.Lock()
		defer b.shared.mu.Unlock()
		return len(b.shared.others) == 0
	})
}

// A message that was cut anywhere is none; so is one of a replica without a name.
func TestDecodeWork_ACutMessageIsNone(t *testing.T) {
	m := workMessage{Replica: "a", Decisions: 1 << 40, Servers: map[string][2]sharedWork{"10.0.0.1:8000": {{1, 20, 3, 1, 0, 9}, {4, 50, 6, 2, 40, 0}}}}
	whole := m.encode()
	if got, err := decodeWork(whole); err != nil || got.Replica != "a" || got.Decisions != 1<<40 || got.Servers["10.0.0.1:8000"] != m.Servers["10.0.0.1:8000"] || got.partial || !got.current {
		t.Fatalf("%+v, %v", got, err)
	}
	for n := range whole {
		if _, err := decodeWire(whole[:n]); err == nil {
			t.Errorf("%d of %d bytes are a message", n, len(whole))
		}
	}
	for replica, ok := range map[string]bool{"": false, "a": true, strings.Repeat("a", 128): true, strings.Repeat("a", 129): false} {
		if _, err := decodeWork((&workMessage{Replica: replica}).encode()); (err == nil) != ok {
			t.Errorf("a replica of %d letters: %v", len(replica), err)
		}
		if _, err := decodeWork([]byte(`{"r":"` + replica + `"}`)); (err == nil) != ok {
			t.Errorf("in JSON, a replica of %d letters: %v", len(replica), err)
		}
	}
}

// A replica of a version that reports no parts of its tokens is read, and reads what has them.
func TestDecodeWork_PartsOfTokensAreWhatEarlierVersionsLeaveOut(t *testing.T) {
	const id = "10.0.0.1:8000"
	m := workMessage{Replica: "a", Decisions: 7, Servers: map[string][2]sharedWork{id: {{Requests: 1, Tokens: 20}, {Requests: 4, Tokens: 50, Prompts: 40}}}}
	now := m.encode()
	parts := len((&workMessage{Servers: m.Servers}).appendParts(nil))
	before := append([]byte{now[0] - 1}, now[1:len(now)-parts]...) // five fields, as earlier
	got, err := decodeWork(before)
	if want := (sharedWork{Requests: 4, Tokens: 50}); err != nil || got.Servers[id][1] != want || got.Servers[id][0] != m.Servers[id][0] {
		t.Errorf("%+v, %v", got, err)
	}
	if later := append([]byte{now[0] + 1}, append(now[1:], 0)...); !bytes.HasPrefix(later[1:], before[1:]) {
		t.Error("what earlier versions read has changed its place")
	} else if got, err := decodeWork(later); err != nil || got.Servers[id] != m.Servers[id] {
		t.Errorf("with a field of a later version %+v, %v", got, err)
	}
}

// What is too long, cannot be read or cannot be is counted, and changes nothing; a message of
// the longest size counts.
func TestReplicas_WhatIsOfNoUseIsCounted(t *testing.T) {
	r, servers := quietReplica(t, "me", 1)
	now, id := time.Now(), servers[0].ID()
	work := func(size int) []byte {
		text := `{"r":"a","s":{"` + id + `":[{"n":1},{}]}}`
		return []byte(text + strings.Repeat(" ", size-len(text)))
	}
	for i, c := range []struct {
		message  []byte
		received uint64
		ignored  uint64
	}{
		{work(maxWorkMsg), 1, 0},
		{work(maxWorkMsg + 1), 1, 1},
		{[]byte(`{"r":`), 1, 2},
		{[]byte("nonsense"), 1, 3},
		{nil, 1, 4},
		{[]byte(`{"r":"a","s":{"` + id + `":[{"n":-1},{}]}}`), 1, 5},
		{[]byte(`{"r":"a","s":{"` + id + `":[{},{"t":-1}]}}`), 1, 6},
		{[]byte(`{"r":"a","s":{"` + id + `":[{"q":1,"l":2},{}]}}`), 1, 7},
		{[]byte(`{"r":"a","s":{"` + id + `":[{"q":1e6},{}]}}`), 1, 8},
		{[]byte(`{"r":"a","s":{"` + id + `":[{"q":1,"l":-1},{}]}}`), 1, 9},
		{[]byte(`{"r":"a","s":{"` + id + `":[{},{"t":2,"p":3}]}}`), 1, 10},
		{[]byte(`{"r":"a","s":{"` + id + `":[{"t":2,"w":-1},{}]}}`), 1, 11},
		{[]byte(`{"r":"me","s":{}}`), 1, 11}, // its own comes back
		{busyWith("me", false, servers...), 1, 11},
		{busyWith("b", false, servers...), 2, 11},
	} {
		r.take(c.message, now)
		if r.received.Load() != c.received || r.ignored.Load() != c.ignored {
			t.Errorf("message %d: %d received and %d ignored, want %d and %d", i, r.received.Load(), r.ignored.Load(), c.received, c.ignored)
		}
	}
	if got := servers[0].InFlight(pools.Prefill, now).Requests; got != 2 {
		t.Errorf("%d requests of a and b", got)
	}
}

// While a replica of an earlier version takes part, JSON is sent too, and no longer. The set of
// replicas expires if none is left to renew it.
func TestSend_JSONIsForEarlierVersions(t *testing.T) {
	server := redisserver.Start(t)
	c, ctx := server.Client(), t.Context()
	f := fleetOf(t, 1)
	r := NewExchange(f, c, "test:", "me", slog.New(slog.DiscardHandler))
	sub := c.Subscribe(ctx, "test:"+jsonChannel)
	defer func() { _ = sub.Close() }()
	if _, err := sub.Receive(ctx); err != nil {
		t.Fatal(err)
	}
	sent := func() (messages int) {
		t.Helper()
		c.Publish(ctx, "test:"+jsonChannel, "end")
		for {
			m, err := sub.ReceiveMessage(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if m.Payload == "end" {
				return messages
			}
			messages++
		}
	}
	key := func() string { return c.Get(ctx, "test:"+workKey+"me").Val() }
	claim := func() {
		t.Helper()
		l, err := f.Servers()[0].Claim(pools.Prefill, curve.Work{Tokens: 10}, true, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(l.Release)
	}
	for i, step := range []struct {
		do    func()
		whole bool
		json  int
		kept  bool // the key says it
	}{
		{claim, true, 0, true},
		{claim, false, 0, false},
		{func() { c.ZAdd(ctx, "test:"+replicaSet, redis.Z{Member: "old", Score: wireVersion - 1}) }, true, 0, true},
		{claim, false, 1, true},
		{func() { c.ZRem(ctx, "test:"+replicaSet, "old") }, true, 1, true},
		{claim, false, 0, false},
		{func() { c.ZAdd(ctx, "test:"+replicaSet, redis.Z{Member: "equal", Score: wireVersion}) }, true, 0, true},
		{claim, false, 0, false},
	} {
		step.do()
		c.Del(ctx, "test:"+workKey+"me")
		r.send(ctx, step.whole)
		if n := sent(); n != step.json || (key() != "") != step.kept {
			t.Errorf("step %d: %d messages in JSON, the key says %q", i, n, key())
		}
		if life := c.PTTL(ctx, "test:"+replicaSet).Val(); life <= 0 || life > setExpiry {
			t.Errorf("step %d: the set lives for %v", i, life)
		}
	}
}

// Messages come while work is looked at.
func TestReplicas_AreSafeForConcurrentUse(t *testing.T) {
	r, servers := quietReplica(t, "me", 1)
	now := time.Now()
	var wg sync.WaitGroup
	for _, each := range []func(){
		func() { r.take(busyWith("a", false, servers...), now) },
		func() { r.take(busyWith("b", true, servers...), now) },
		func() { r.take([]byte(`{"r":"c","s":{"x":[{"n":1},{}]}}`), now) },
		func() { r.Busy(now) },
		func() { servers[0].InFlight(pools.Prefill, now) },
		func() { r.ReportedDecisions("a") },
	} {
		wg.Go(func() {
			for range 200 {
				each()
			}
		})
	}
	wg.Wait()
	if got := servers[0].InFlight(pools.Prefill, now).Requests; got != 2 || r.Busy(now) != 3 {
		t.Errorf("%d requests there, %d replicas busy", got, r.Busy(now))
	}
}

// What the others last left is read when a replica connects, from those too that say nothing now.
func TestReplicas_WhatOthersLeftIsReadAtOnce(t *testing.T) {
	client := redisserver.Start(t).Client()
	fleet := fleetOf(t, 1)
	r := NewExchange(fleet, client, "test:", "b", slog.New(slog.DiscardHandler))
	changed, stop := fleet.Changes()
	defer stop()
	client.Set(t.Context(), "test:"+workKey+"a", busyWith("a", false, fleet.Servers()...), time.Minute)
	client.ZAdd(t.Context(), "test:"+replicaSet, redis.Z{Member: "a"}, redis.Z{Member: "gone"})
	r.catchUp(t.Context())
	if in := fleet.Servers()[0].InFlight(pools.Prefill, time.Now()); in.Requests != 1 || in.Tokens != 10 {
		t.Errorf("it knows of %d requests of %d tokens", in.Requests, in.Tokens)
	}
	select {
	case <-changed:
	default:
		t.Error("requests that wait for servers are not notified")
	}
	if set := client.ZRange(t.Context(), "test:"+replicaSet, 0, -1).Val(); !slices.Equal(set, []string{"a"}) {
		t.Errorf("in the set are %v", set)
	}
}

// Two fleets that share a prefix by mistake are warned of, once, when one has worked for minutes on nothing that the
// other knows. A replica that finds servers first is not one of them.
func TestReplicas_OfAnotherFleetAreWarnedOf(t *testing.T) {
	var text strings.Builder
	r := NewExchange(fleetOf(t, 2), nil, "test:", "a", slog.New(slog.NewTextHandler(&text, nil)))
	own := r.fleet.Servers()[0]
	var alone strings.Builder
	unlisted := NewExchange(fleetOf(t, 0), nil, "test:", "b", slog.New(slog.NewTextHandler(&alone, nil)))
	report := func(replica string, now time.Time, servers ...string) {
		m := workMessage{Replica: replica, Servers: make(map[string][2]sharedWork)}
		for _, id := range servers {
			m.Servers[id] = [2]sharedWork{{Requests: 1, Tokens: 10}, {}}
		}
		r.take(m.encode(), now)
		unlisted.take(m.encode(), now)
	}
	start, after := time.Now(), int(foreignAfter/time.Second)
	for second := range 3 * after {
		now := start.Add(time.Duration(second) * time.Second)
		report("other", now, "10.9.9.9:8000")
		if second%10 == 0 {
			report("other", now) // that it has nothing to do does not say whose it is
		}
		report("partly", now, "10.9.9.9:8000", own.ID())
		if report("early", now, "10.9.9.8:8000"); second%(after-10) == 0 {
			report("early", now, own.ID()) // which it has found at last
			report("early", now)
		}
		if second%after < 10 {
			report("idle", now, "10.9.9.8:8000")
		} else {
			report("idle", now) // for minutes
		}
		if second == after-1 && text.Len() > 0 {
			t.Errorf("before its time: %s", text.String())
		}
	}
	if got := text.String(); strings.Count(got, "redis-prefix") != 1 || !strings.Contains(got, "replica=other server=10.9.9.9:8000") {
		t.Errorf("logged is %q", got)
	}
	if alone.Len() > 0 {
		t.Errorf("where no server is known: %s", alone.String())
	}
}

// Whether Redis answers is logged when that is known first, and whenever it changes.
func TestReplicas_LogWhenRedisComesAndGoes(t *testing.T) {
	var text strings.Builder
	r := NewExchange(fleetOf(t, 1), nil, "test:", "a", slog.New(slog.NewTextHandler(&text, nil)))
	down := redis.ErrClosed
	for i, c := range []struct {
		err  error
		want string // that is logged; "": nothing
	}{{down, "cannot share work"}, {down, ""}, {nil, "sharing work with"}, {nil, ""}, {nil, ""}, {down, "cannot share work"}, {down, ""}} {
		text.Reset()
		r.recordConnection(c.err)
		if got := text.String(); !strings.Contains(got, c.want) || c.want == "" && got != "" {
			t.Errorf("look %d, %v: logged is %q", i, c.err, got)
		}
	}
}

// Work that differs by no more than the drift is not reported again; in each of its parts.
func TestCloseTo_WithinTheDrift(t *testing.T) {
	is := pools.InFlight{Requests: 2, Tokens: 100, Queue: time.Second, Stays: time.Second}
	for name, c := range map[string]struct {
		change func(*pools.InFlight)
		want   bool
	}{
		"the same":         {func(*pools.InFlight) {}, true},
		"a request more":   {func(w *pools.InFlight) { w.Requests++ }, false},
		"a token fewer":    {func(w *pools.InFlight) { w.Tokens-- }, false},
		"more of a prompt": {func(w *pools.InFlight) { w.Prompts++ }, false},
		"an end unseen":    {func(w *pools.InFlight) { w.Computing++ }, false},
		"a queue by drift": {func(w *pools.InFlight) { w.Queue += workDrift }, true},
		"a queue by more":  {func(w *pools.InFlight) { w.Queue += workDrift + 1 }, false},
		"a queue by less":  {func(w *pools.InFlight) { w.Queue -= workDrift + 1 }, false},
		"a stay by drift":  {func(w *pools.InFlight) { w.Stays -= workDrift }, true},
		"a stay by more":   {func(w *pools.InFlight) { w.Stays += workDrift + 1 }, false},
	} {
		w := is
		if c.change(&w); closeTo(w, is) != c.want {
			t.Errorf("%s: close %v", name, !c.want)
		}
	}
}
