package replicate

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/tandem-gateway/tandem/kvstate"
	"github.com/tandem-gateway/tandem/loadtest/redisserver"
)

// deltas are what a receiver passes on: of so many batches each.
func (m *sharer) deltas(from int, batches ...int) (all [][]byte) {
	m.source.Record(true)
	defer m.source.Record(false)
	for _, n := range batches {
		for _, msg := range engineMessages(from, from+n) {
			m.source.ApplyLive(msg)
		}
		all, from = append(all, m.source.TakeDelta()), from+n
	}
	return all
}

func entry(delta []byte) redis.XMessage {
	return redis.XMessage{ID: "1-1", Values: map[string]any{"d": string(delta)}}
}

// A follower applies what is passed on. What it knows already changes nothing; where something is
// missing before it, it begins with the kept snapshot anew, and where that does not close the gap
// nothing of before is believed. It asks for a snapshot once in a while only.
func TestFollower_AGapIsClosedByTheSnapshotOrNothingIsBelieved(t *testing.T) {
	r := redisserver.Start(t)
	first := newSharer(t, r, "first", false)
	first.connect(10)
	first.write(t)
	deltas := first.deltas(10, 2, 2, 2) // up to 12, 14, 16
	begins := func() *follower {
		m := newSharer(t, r, "second", false)
		f := &follower{Shared: m.shared, s: m.source}
		f.begin(t.Context())
		return f
	}
	holds := func(f *follower) int { return (&sharer{source: f.s}).holds() }
	f := begins()
	for i, c := range []struct {
		delta []byte
		want  int
	}{{deltas[0], 12}, {deltas[0], 12}, {deltas[1], 14}, {deltas[0], 14}, {deltas[1], 14}, {deltas[2], 16}} {
		f.take(t.Context(), entry(c.delta))
		if got := holds(f); got != c.want || f.from != "1-1" || !f.restoreAt.IsZero() {
			t.Errorf("step %d: %d blocks, want %d; the next snapshot at %v", i, got, c.want, f.restoreAt)
		}
	}

	f = begins() // and misses the first two
	first.write(t)
	if f.take(t.Context(), entry(deltas[2])); holds(f) != 16 || !f.restoreAt.IsZero() {
		t.Errorf("after a snapshot that closes the gap: %d blocks", holds(f))
	}

	f = begins()
	later := first.deltas(16, 2, 2)
	resets := func() map[string]uint64 {
		counts := f.s.State().Counts
		return counts.ResetReasons()
	}
	if f.take(t.Context(), entry(later[1])); holds(f) != 0 || !maps.Equal(resets(), map[string]uint64{"gap": 1}) || f.restoreAt.IsZero() {
		t.Errorf("a gap that no snapshot closes: %d blocks, resets %v", holds(f), resets())
	}
	first.write(t)
	if f.take(t.Context(), entry(later[1])); holds(f) != 0 {
		t.Errorf("a snapshot was asked for again at once: %d blocks", holds(f))
	}
	f.restoreAt = time.Now()
	if f.take(t.Context(), entry(later[1])); holds(f) != 20 || !f.restoreAt.IsZero() {
		t.Errorf("and later: %d blocks", holds(f))
	}
	f.take(t.Context(), redis.XMessage{ID: "2-1", Values: map[string]any{"other": "x"}})
	if holds(f) != 20 || f.from != "2-1" {
		t.Errorf("after what is no delta: %d blocks, read up to %s", holds(f), f.from)
	}
}

// A delta that did not get through is made up for by the next.
func TestFollower_ADeltaThatWasLostIsInTheNext(t *testing.T) {
	r := redisserver.Start(t)
	client := redis.NewClient(&redis.Options{Addr: r.Addr(), MaxRetries: -1})
	t.Cleanup(func() { _ = client.Close() })
	m := newSharerWith(t, client, "a", false)
	m.source.RecordConnect()
	f := &follower{Shared: m.shared, s: m.source}
	m.source.Record(true)
	for _, msg := range engineMessages(0, 4) {
		m.source.ApplyLive(msg)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	f.publish(gone, m.source.TakeDelta(), nil)
	for _, msg := range engineMessages(4, 6) {
		m.source.ApplyLive(msg)
	}
	f.publish(t.Context(), m.source.TakeDelta(), nil)
	reader := newSharer(t, r, "b", false)
	entries := client.XRange(t.Context(), m.shared.key(m.source.ID(), "deltas"), "-", "+").Val()
	for _, e := range entries {
		if err := reader.source.Apply([]byte(e.Values["d"].(string))); err != nil {
			t.Error(err)
		}
	}
	if len(entries) != 1 || reader.holds() != 6 {
		t.Errorf("%d deltas came, which say that %d blocks of 6 are held", len(entries), reader.holds())
	}
}

// A follower that missed something waits for a snapshot that closes the gap, and puts none of its own, which has
// nothing, in the place of the one that is kept. Once it receives it writes them.
func TestRun_LeavesTheSnapshotToWhoReceives(t *testing.T) {
	r := redisserver.Start(t)
	first := newSharer(t, r, "first", false)
	first.connect(10)
	first.write(t)
	deltas := first.deltas(10, 2, 2) // the second begins at 12, which the snapshot does not have
	client, looks := countingClient(t, r)
	second := newSharerWith(t, client, "second", false)
	id := second.source.ID()
	r.Client().Set(t.Context(), second.shared.key(id, "receiver"), "first tcp://first", time.Minute)
	publisher := first.shared.newFollower(first.source, "tcp://first")
	publisher.publish(t.Context(), deltas[1], nil)

	ctx, cancel := context.WithCancel(t.Context())
	var feed opened
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { second.shared.Follow(ctx, second.source, "tcp://second", feed.feed) })
	waitUntil(t, "it has missed something", func() bool { counts := second.source.State().Counts; return counts.ResetReasons()["gap"] > 0 })
	running.Go(func() { second.shared.Run(ctx, 10*time.Millisecond) })
	waitUntil(t, "it has looked at what is to be written", func() bool { return looks.n.Load() >= 10 })
	third := newSharer(t, r, "third", false)
	if !third.shared.Restore(t.Context(), third.source) || third.holds() != 10 || second.shared.written.Load() != 0 {
		t.Errorf("kept are %d blocks of 10; the follower wrote %d snapshots", third.holds(), second.shared.written.Load())
	}
	r.Client().Del(t.Context(), second.shared.key(id, "receiver"))
	waitUntil(t, "it receives, and writes", func() bool { return second.shared.written.Load() > 0 })
}

// breaks is a connection on which the first reads fail in a way.
type breaks struct {
	redis.Hook
	err   error
	left  int
	tried int
}

func (b *breaks) DialHook(next redis.DialHook) redis.DialHook { return next }
func (b *breaks) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (b *breaks) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "get" {
			if b.tried++; b.tried <= b.left {
				return b.err
			}
		}
		return next(ctx, cmd)
	}
}

// A snapshot is asked for again where it may come right, and not for ever; that Redis is away is
// logged once, and then it is not asked.
func TestRestore_IsTriedAgainWhereItMayComeRight(t *testing.T) {
	for name, c := range map[string]struct {
		err      error
		left     int // reads that fail
		tried    int
		restored bool
		down     bool
	}{
		"it is there":                {nil, 0, 1, true, false},
		"the connection breaks":      {io.ErrUnexpectedEOF, restoreTries - 1, restoreTries, true, false},
		"Redis is away":              {io.ErrUnexpectedEOF, restoreTries, restoreTries, false, true},
		"there is none":              {redis.Nil, restoreTries, 1, false, false},
		"Redis says that it may not": {redis.ErrPoolTimeout, restoreTries, restoreTries, false, true},
	} {
		r := redisserver.Start(t)
		writer := newSharer(t, r, "a", false)
		writer.connect(5)
		writer.write(t)
		client := redis.NewClient(&redis.Options{Addr: r.Addr(), MaxRetries: -1})
		t.Cleanup(func() { _ = client.Close() })
		hook := &breaks{err: c.err, left: c.left}
		client.AddHook(hook)
		m := newSharerWith(t, client, "b", false)
		if got := m.shared.Restore(t.Context(), m.source); got != c.restored || hook.tried != c.tried || m.shared.down.Load() != c.down || (m.holds() == 5) != c.restored {
			t.Errorf("%s: restored %v after %d reads, %d blocks; down %v", name, got, hook.tried, m.holds(), m.shared.down.Load())
		}
		if up, _, _ := scraped(t, m.shared); (up == 0) != c.down {
			t.Errorf("%s: scraped is %v", name, up)
		}
		if n := m.shared.restored.Load(); (n == 1) != c.restored {
			t.Errorf("%s: %d snapshots count as restored", name, n)
		}
		if again := m.shared.Restore(t.Context(), m.source); c.down && (again || hook.tried != c.tried) {
			t.Errorf("%s: it is asked again, after %d reads", name, hook.tried)
		}
	}
}

// That Redis is away, and that it is back, is logged once each; a client that left says nothing of
// it. Scraped is which of the two it is, and how often it failed.
func TestShared_SaysWhenRedisIsAwayAndWhenItIsBack(t *testing.T) {
	var text strings.Builder
	index, err := kvstate.New(kvstate.Default())
	if err != nil {
		t.Fatal(err)
	}
	sh := New(index, nil, "test:", "a", slog.New(slog.NewTextHandler(&text, nil)))
	sh.receiving.Store(kvstate.SourceID{Server: "engine:8000", Rank: 1}, true)
	sh.receiving.Store(kvstate.SourceID{Server: "engine:8000", Rank: 2}, true)
	if up, _, _ := scraped(t, sh); up != 0 {
		t.Errorf("Redis is up before it was asked: %v", up)
	}
	failed := 0
	for i, c := range []struct {
		err    error
		logged string
		up     int
	}{{context.Canceled, "", 0}, {nil, "", 1}, {context.Canceled, "", 1}, {io.EOF, "cannot keep", 0}, {io.EOF, "", 0}, {context.Canceled, "", 0}, {nil, "keeping", 1}, {nil, "", 1}, {io.EOF, "cannot keep", 0}} {
		text.Reset()
		sh.recordRedisState(c.err)
		if got := text.String(); !strings.Contains(got, c.logged) || c.logged == "" && got != "" {
			t.Errorf("look %d, %v: logged is %q", i, c.err, got)
		}
		if errors.Is(c.err, io.EOF) {
			failed++
		}
		up, fails, receives := scraped(t, sh)
		if up != float64(c.up) || fails != float64(failed) || receives != 2 {
			t.Errorf("look %d, %v: scraped are %v up, %v failures, %v received; want %d, %d, 2", i, c.err, up, fails, receives, c.up, failed)
		}
	}
}

// scraped is whether Redis is up, how often it failed, and how many engines' events are received.
func scraped(t *testing.T, sh *Shared) (up, failed, received float64) {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(sh)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			switch f.GetName() {
			case "tandem_kv_shared":
				up = m.GetGauge().GetValue()
			case "tandem_kv_receiving":
				received += m.GetGauge().GetValue()
			case "tandem_kv_snapshots_total":
				if m.GetLabel()[0].GetValue() == "failed" {
					failed = m.GetCounter().GetValue()
				}
			}
		}
	}
	return up, failed, received
}
