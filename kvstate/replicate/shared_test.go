package replicate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tandem-gateway/tandem/kvstate"
	"github.com/tandem-gateway/tandem/loadtest/redisserver"
)

// sharer is one replica's index of one source.
type sharer struct {
	index  *kvstate.Index
	source *kvstate.Source
	shared *Shared
}

func newSharer(t *testing.T, r *redisserver.Server, name string, replays bool) *sharer {
	t.Helper()
	client := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: []string{r.Addr()}, MaxRetries: -1, ContextTimeoutEnabled: true,
		DialTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second})
	t.Cleanup(func() { _ = client.Close() })
	return newSharerWith(t, client, name, replays)
}

func newSharerWith(t *testing.T, client redis.UniversalClient, name string, replays bool) *sharer {
	t.Helper()
	ix, err := kvstate.New(kvstate.Default())
	if err != nil {
		t.Fatal(err)
	}
	s, err := ix.Open(kvstate.Spec{SourceID: kvstate.SourceID{Server: "engine:8000"}, Model: "m", Replays: replays})
	if err != nil {
		t.Fatal(err)
	}
	return &sharer{ix, s, New(ix, client, "test:", name, slog.New(slog.DiscardHandler))}
}

// connect connects the source to its engine and applies its first messages, of one block each.
func (m *sharer) connect(blocks int) {
	m.source.RecordConnect()
	for _, msg := range engineMessages(0, blocks) {
		m.source.ApplyLive(msg)
	}
}

// write writes the source's snapshot.
func (m *sharer) write(t *testing.T) {
	t.Helper()
	if err := m.shared.Write(t.Context(), m.source); err != nil {
		t.Fatal(err)
	}
}

// holds is what the source has on the GPU, in blocks.
func (m *sharer) holds() (n int) {
	for _, h := range m.source.State().Holders {
		n += h.GPU
	}
	return n
}

// engineMessages are batches of one block each, a chain, numbered from a start.
func engineMessages(from, to int) (all []kvstate.Message) {
	for i := from; i < to; i++ {
		tokens := make([]uint32, 16)
		for k := range tokens {
			tokens[k] = uint32(16*i + k)
		}
		all = append(all, kvstate.Message{Seq: uint64(i), Payload: batch(stored(uint64(i), []uint64{uint64(i + 1)}, tokens))})
	}
	return all
}

func waitUntil(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// breakOff is a connection that carries so many pieces of a snapshot and nothing after them.
type breakOff struct {
	redis.Hook
	pieces int
}

func (b *breakOff) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (b *breakOff) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return b.process(next) }

func (b *breakOff) process(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return b.carry(cmd, func() error { return next(ctx, cmd) })
	}
}

func (b *breakOff) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			if err := b.carry(cmd, func() error { return nil }); err != nil {
				return err
			}
		}
		return next(ctx, cmds)
	}
}

func (b *breakOff) carry(cmd redis.Cmder, do func() error) error {
	if b.pieces < 0 {
		return io.ErrUnexpectedEOF
	}
	if cmd.Name() == "rpush" {
		if b.pieces--; b.pieces < 0 {
			return io.ErrUnexpectedEOF
		}
	}
	return do()
}

func TestShared_PiecesOfASnapshotThatBreaksOffExpire(t *testing.T) {
	r := redisserver.Start(t)
	client := redis.NewClient(&redis.Options{Addr: r.Addr(), MaxRetries: -1})
	t.Cleanup(func() { _ = client.Close() })
	client.AddHook(&breakOff{pieces: 2})
	a := newSharerWith(t, client, "a", false)
	a.connect(40_000)
	if err := a.shared.Write(t.Context(), a.source); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatalf("it did not break off: %v", err)
	}
	keys := r.Client().Keys(t.Context(), "*").Val()
	if len(keys) != 1 {
		t.Fatalf("left in Redis: %q", keys)
	}
	if n := r.Client().LLen(t.Context(), keys[0]).Val(); n != 2 {
		t.Errorf("%d pieces were written, want 2", n)
	}
	if ttl := r.Client().PTTL(t.Context(), keys[0]).Val(); ttl <= 0 || ttl > pieceLife {
		t.Errorf("%s expires in %v", keys[0], ttl)
	}
}

func TestShared_ASnapshotMakesAnotherReplicaWarm(t *testing.T) {
	r := redisserver.Start(t)
	a, b := newSharer(t, r, "a", false), newSharer(t, r, "b", false)
	if b.shared.Restore(t.Context(), b.source) {
		t.Error("restored from nothing")
	}
	a.connect(20_000) // several pieces
	for range 2 {     // the second replaces the first
		a.write(t)
	}
	if !b.shared.Restore(t.Context(), b.source) || b.holds() != 20_000 || a.holds() != 20_000 {
		t.Fatalf("%d blocks of %d", b.holds(), a.holds())
	}
	if !bytes.Equal(a.source.Snapshot(), b.source.Snapshot()) {
		t.Error("the two differ")
	}
	// Removals and parents still resolve, and the numbering goes on.
	next := engineMessages(20_000, 20_001)[0]
	if request := b.source.ApplyLive(next); request.Needed() {
		b.source.BeginReplay(request)
		b.source.EndReplay(true)
		b.source.ApplyLive(next)
	}
	if b.holds() != 20_001 {
		t.Errorf("%d blocks after the next batch", b.holds())
	}
	keys, err := r.Client().Keys(t.Context(), "*").Result()
	if err != nil || len(keys) != 2 {
		t.Errorf("keys %v, %v", keys, err)
	}
	for _, k := range keys {
		if ttl := r.Client().TTL(t.Context(), k).Val(); ttl <= 0 {
			t.Errorf("%s has no TTL", k)
		}
	}
}

// between runs something once, before the first command of a kind that it carries.
type between struct {
	redis.Hook
	command string
	do      func()
}

func (b *between) DialHook(next redis.DialHook) redis.DialHook { return next }
func (b *between) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (b *between) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if do := b.do; cmd.Name() == b.command && do != nil {
			b.do = nil
			do()
		}
		return next(ctx, cmd)
	}
}

// A snapshot that is replaced while a replica reads it is read again: the one that took its place.
func TestShared_ASnapshotThatIsReplacedWhileItIsReadIsReadAgain(t *testing.T) {
	r := redisserver.Start(t)
	writers := []*sharer{newSharer(t, r, "a", false), newSharer(t, r, "b", false)}
	for _, w := range writers {
		w.connect(10)
	}
	writers[0].write(t)

	client := redis.NewClient(&redis.Options{Addr: r.Addr(), MaxRetries: -1})
	t.Cleanup(func() { _ = client.Close() })
	client.AddHook(&between{command: "lrange", do: func() { writers[1].write(t) }})
	reader := newSharerWith(t, client, "c", false)
	if !reader.shared.Restore(t.Context(), reader.source) || reader.holds() != 10 {
		t.Errorf("it holds %d blocks of 10", reader.holds())
	}
}

func TestShared_OneReplicaWritesForAll(t *testing.T) {
	r := redisserver.Start(t)
	a, b := newSharer(t, r, "a", false), newSharer(t, r, "b", false)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, m := range []*sharer{a, b} {
		m.connect(100)
		running.Go(func() { m.shared.Run(ctx, 50*time.Millisecond) })
	}
	waitUntil(t, "a replica wrote", func() bool { return a.shared.written.Load()+b.shared.written.Load() > 0 })
	cancel()
	running.Wait()
	if n := a.shared.written.Load() + b.shared.written.Load(); n > 3 {
		t.Errorf("written %d times for one state", n)
	}
}

// A snapshot is written when the source has changed or the kept one is gone, and not at other
// times; one that could not be written is tried again.
func TestRun_WritesWhatHasChangedOrIsGone(t *testing.T) {
	r := redisserver.Start(t)
	client, looks := countingClient(t, r)
	m := newSharerWith(t, client, "a", false)
	m.connect(10)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { m.shared.Run(ctx, 10*time.Millisecond) })
	defer running.Wait()
	defer cancel()
	expect := func(what string, n uint64) {
		t.Helper()
		waitUntil(t, what, func() bool { return m.shared.written.Load() >= n })
		from := looks.n.Load()
		waitUntil(t, "looks that find nothing to do", func() bool { return looks.n.Load() >= from+6 }) // half of them only ask whether Redis answers
		if got := m.shared.written.Load(); got != n {
			t.Errorf("%s: written %d times, want %d", what, got, n)
		}
	}
	expect("the first is written", 1)
	m.source.ApplyLive(engineMessages(10, 11)[0])
	expect("a change is written", 2)
	r.Client().FlushAll(t.Context())
	expect("what is gone is written again", 3)
	m.source.ApplyLive(engineMessages(11, 12)[0])
	looks.fail("rpush")
	waitUntil(t, "it fails", m.shared.down.Load)
	looks.fail("")
	waitUntil(t, "what failed is written", func() bool { return m.shared.written.Load() == 4 && !m.shared.down.Load() })
	b := newSharer(t, r, "b", false)
	if !b.shared.Restore(t.Context(), b.source) || b.holds() != 12 {
		t.Errorf("what was written last has %d blocks of 12", b.holds())
	}
}

// Where no server publishes KV events Redis is asked all the same, and known to be away or back.
func TestRun_AsksRedisWithoutASource(t *testing.T) {
	r := redisserver.Start(t)
	client, looks := countingClient(t, r)
	index, err := kvstate.New(kvstate.Default())
	if err != nil {
		t.Fatal(err)
	}
	sh := New(index, client, "test:", "a", slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { sh.Run(ctx, 10*time.Millisecond) })
	defer running.Wait()
	defer cancel()
	shared := func(want float64) func() bool {
		return func() bool { up, _, _ := scraped(t, sh); return up == want }
	}
	waitUntil(t, "it answers", shared(1))
	looks.fail("exists")
	waitUntil(t, "it is away", shared(0))
	looks.fail("")
	waitUntil(t, "it is back", shared(1))
}

// That Redis is away shows long before the next snapshot is due, and that it is back.
func TestRun_RedisThatIsAwayShowsBeforeTheNextSnapshot(t *testing.T) {
	r := redisserver.Start(t)
	client, _ := countingClient(t, r)
	m := newSharerWith(t, client, "a", false)
	m.shared.Restore(t.Context(), m.source)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { m.shared.Run(ctx, time.Hour) })
	defer running.Wait()
	defer cancel()
	shared := func(want float64) func() bool {
		return func() bool { up, _, _ := scraped(t, m.shared); return up == want }
	}
	if !shared(1)() {
		t.Error("it has answered, and counts as away")
	}
	r.Kill()
	waitUntil(t, "it is away", shared(0))
	r.Restart()
	waitUntil(t, "it is back", shared(1))
}

// counter counts commands of one name, and lets those of another fail.
type counter struct {
	redis.Hook
	command string
	n       atomic.Int64
	failing atomic.Value
}

// countingClient is a client of a Redis that counts how often it asks whether something is there.
func countingClient(t *testing.T, r *redisserver.Server) (*redis.Client, *counter) {
	client := redis.NewClient(&redis.Options{Addr: r.Addr(), MaxRetries: -1})
	t.Cleanup(func() { _ = client.Close() })
	looks := &counter{command: "exists"}
	client.AddHook(looks)
	return client, looks
}

func (c *counter) fail(command string) { c.failing.Store(command) }

func (c *counter) DialHook(next redis.DialHook) redis.DialHook { return next }
func (c *counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == c.command {
			c.n.Add(1)
		}
		if failing, _ := c.failing.Load().(string); failing == cmd.Name() {
			return io.ErrUnexpectedEOF
		}
		return next(ctx, cmd)
	}
}

func (c *counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		failing, _ := c.failing.Load().(string)
		if slices.ContainsFunc(cmds, func(cmd redis.Cmder) bool { return cmd.Name() == failing }) {
			return io.ErrUnexpectedEOF
		}
		return next(ctx, cmds)
	}
}

// The turn to write a source's next snapshot is one replica's for one and a half intervals, and
// for 45 s at most.
func TestRun_TheTurnToWriteExpires(t *testing.T) {
	r := redisserver.Start(t)
	a, b := newSharer(t, r, "a", false), newSharer(t, r, "b", false)
	for _, c := range []struct{ every, want time.Duration }{{10 * time.Second, 15 * time.Second}, {30 * time.Second, 45 * time.Second}, {time.Hour, 45 * time.Second}} {
		r.Client().FlushAll(t.Context())
		if !a.shared.takeWriterLease(t.Context(), a.source.ID(), c.every) || b.shared.takeWriterLease(t.Context(), b.source.ID(), c.every) {
			t.Error("both write, or none")
		}
		ttl := r.Client().PTTL(t.Context(), a.shared.key(a.source.ID(), "writer")).Val()
		if ttl > c.want || ttl < c.want-5*time.Second {
			t.Errorf("every %v: the turn lasts %v, want %v", c.every, ttl, c.want)
		}
	}
}

// A snapshot may be in any number of pieces, and is read 16 at a time.
func TestRestore_ReadsAllPieces(t *testing.T) {
	r := redisserver.Start(t)
	a := newSharer(t, r, "a", false)
	a.connect(50)
	snapshot := a.source.Snapshot()
	for _, pieces := range []int{1, 15, 16, 17, 32, 40} {
		m := newSharer(t, r, "b", false)
		name := m.shared.key(m.source.ID(), "snapshot")
		r.Client().Set(t.Context(), name, "x", 0)
		r.Client().Del(t.Context(), name+":x")
		for i := range pieces {
			r.Client().RPush(t.Context(), name+":x", snapshot[i*len(snapshot)/pieces:(i+1)*len(snapshot)/pieces])
		}
		if !m.shared.Restore(t.Context(), m.source) || m.holds() != 50 {
			t.Errorf("%d pieces: %d blocks of 50", pieces, m.holds())
		}
	}
}

func TestShared_GarbageInRedisHarmsNothing(t *testing.T) {
	r := redisserver.Start(t)
	m := newSharer(t, r, "a", false)
	c, id := r.Client(), m.source.ID()
	for name, piece := range map[string]string{"empty": "", "short": "x", "random": string(bytes.Repeat([]byte{0x5a}, 1000))} {
		c.Set(t.Context(), m.shared.key(id, "snapshot"), name, 0)
		c.RPush(t.Context(), m.shared.key(id, "snapshot:"+name), piece)
		if m.shared.Restore(t.Context(), m.source) {
			t.Errorf("%s passed for a snapshot", name)
		}
		if m.shared.down.Load() || m.shared.restored.Load() != 0 {
			t.Errorf("%s: Redis is taken to be away: %v; %d snapshots count as restored", name, m.shared.down.Load(), m.shared.restored.Load())
		}
	}
	c.Set(t.Context(), m.shared.key(id, "snapshot:wrong"), "a string", 0)
	c.Set(t.Context(), m.shared.key(id, "snapshot"), "wrong", 0)
	if m.shared.Restore(t.Context(), m.source) {
		t.Error("a key of another type passed for a snapshot")
	}
}

// dialer is an engine in connect mode: only one feed is bound to it at a time.
type dialer struct {
	mu    sync.Mutex // guards the rest
	bound *kvstate.Source
	name  string
	next  int
}

func (d *dialer) feed(m *sharer, name string) Feed {
	return func() (func(), error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.bound != nil {
			return nil, fmt.Errorf("%s has the address", d.name)
		}
		d.bound, d.name = m.source, name
		m.source.RecordConnect()
		return func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.bound, d.name = nil, ""
		}, nil
	}
}

// say publishes the next n batches to the replica that is bound; else they are lost.
func (d *dialer) say(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, m := range engineMessages(d.next, d.next+n) {
		d.next++
		if d.bound == nil {
			continue
		}
		if request := d.bound.ApplyLive(m); request.Needed() { // this engine can replay all
			d.bound.BeginReplay(request)
			for _, old := range engineMessages(0, d.next) {
				d.bound.ApplyReplayed(old)
			}
			if again := d.bound.EndReplay(true); !again.Needed() {
				d.bound.ApplyLive(m)
			}
		}
	}
}

// talking returns a condition, looked at while the engine goes on publishing: ever more
// rarely, so that all may know what was said last.
func (d *dialer) talking(holds func() bool) func() bool {
	last, pause := time.Now(), 300*time.Millisecond
	return func() bool {
		if time.Since(last) > pause {
			d.say(1)
			last, pause = time.Now(), 2*pause
		}
		return holds()
	}
}

// received is how many batches the engine has published.
func (d *dialer) received() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.next
}

func (d *dialer) receiver() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.name
}

func TestFollow_OneReceivesAllKnowAndAnotherTakesOver(t *testing.T) {
	r := redisserver.Start(t)
	sharers := map[string]*sharer{"a": newSharer(t, r, "a", true), "b": newSharer(t, r, "b", true), "c": newSharer(t, r, "c", true)}
	engine := &dialer{}
	stops := make(map[string]func())
	for name, m := range sharers {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			m.shared.Follow(ctx, m.source, "tcp://"+name, engine.feed(m, name))
		}()
		stops[name] = func() { cancel(); <-done }
	}
	defer func() {
		for _, stop := range stops {
			stop()
		}
	}()
	allKnow := engine.talking(func() bool {
		for name := range stops {
			if sharers[name].holds() != engine.received() {
				return false
			}
		}
		return true
	})
	waitUntil(t, "a replica receives", func() bool { return engine.receiver() != "" })
	engine.say(50)
	waitUntil(t, "all know", allKnow)
	engine.say(50)
	waitUntil(t, "all know more", allKnow)

	first := engine.receiver()
	waitUntil(t, "all know which replica receives, and where", func() bool {
		for _, m := range sharers {
			if m.source.State().Receiver != first+" tcp://"+first {
				return false
			}
		}
		return true
	})
	start := time.Now()
	stops[first]()
	delete(stops, first)
	waitUntil(t, "another takes over", func() bool { return engine.receiver() != "" })
	if took := time.Since(start); took > 20*time.Second { // three seconds, on a machine that is not busy
		t.Errorf("taken over after %v", took)
	}
	engine.say(20)
	waitUntil(t, "the others know", allKnow)

	// Redis away for a while: the receiver goes on hearing, the others catch up.
	r.Kill()
	engine.say(10)
	r.Restart()
	waitUntil(t, "a replica receives again", func() bool { return engine.receiver() != "" })
	waitUntil(t, "the others know all again", allKnow)
}

// The node of a cluster that has an engine's keys dies: the replica that receives from the
// engine goes on, and when another node has taken over all know all again.
func TestFollow_AClusterNodeFailsOver(t *testing.T) {
	cluster := redisserver.StartCluster(t)
	engine := &dialer{}
	sharers := make(map[string]*sharer)
	for _, name := range []string{"a", "b"} {
		client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs(), MaxRetries: -1, ContextTimeoutEnabled: true,
			ClusterStateReloadInterval: time.Second, DialTimeout: time.Second, ReadTimeout: time.Second, WriteTimeout: time.Second})
		m := newSharerWith(t, client, name, true)
		sharers[name] = m
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			m.shared.Follow(ctx, m.source, "tcp://"+name, engine.feed(m, name))
		}()
		defer func() {
			cancel()
			<-done
			_ = client.Close()
		}()
	}
	allKnow := engine.talking(func() bool {
		n := engine.received()
		return n > 0 && sharers["a"].holds() == n && sharers["b"].holds() == n
	})
	waitUntil(t, "all know", allKnow)
	key := sharers["a"].shared.key(sharers["a"].source.ID(), "receiver")
	master := cluster.Master(t, key)
	master.Kill()
	waitUntil(t, "a replica receives while no node has the keys", func() bool { return engine.receiver() != "" })
	waitUntil(t, "another node has the keys", func() bool { now := cluster.Master(t, key); return now != nil && now != master })
	back := time.Now()
	waitUntil(t, "all know again", allKnow)
	took := time.Since(back)
	t.Logf("all know again after %v", took)
	if took > 20*time.Second { // a second or two, on a machine that is not busy
		t.Error("that is more than 20 s")
	}
}
