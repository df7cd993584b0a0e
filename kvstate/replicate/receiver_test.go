package replicate

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tandem-gateway/tandem/kvstate"
	"github.com/tandem-gateway/tandem/loadtest/redisserver"
)

// answers is a Redis that is not there: each command gets what a function says, and no network
// is used, so that the tests of waiting run in virtual time.
type answers struct {
	mu    sync.Mutex // guards asked
	asked []string   // names of the commands
	give  func(name string, nth int) error
}

func (a *answers) DialHook(next redis.DialHook) redis.DialHook { return next }

func (a *answers) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		err := a.answer(cmd.Name())
		cmd.SetErr(err)
		return err
	}
}

func (a *answers) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(_ context.Context, cmds []redis.Cmder) (err error) {
		for _, cmd := range cmds {
			err = a.answer(cmd.Name())
			cmd.SetErr(err)
		}
		return err
	}
}

func (a *answers) answer(name string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, name)
	return a.give(name, len(a.asked))
}

// newAnswers returns a client whose commands get what give says of the nth of them.
func newAnswers(t *testing.T, give func(name string, nth int) error) (*redis.Client, *answers) {
	t.Helper()
	client, a := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1}), &answers{give: give}
	t.Cleanup(func() { _ = client.Close() })
	client.AddHook(a)
	return client, a
}

// opened is a feed that notes whether it is open.
type opened struct {
	mu    sync.Mutex // guards the rest
	times int
	open  bool
}

func (o *opened) feed() (func(), error) {
	o.set(true)
	return func() { o.set(false) }, nil
}

func (o *opened) set(open bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.open = open; open {
		o.times++
	}
}

func (o *opened) now() (open bool, times int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.open, o.times
}

// passedOn is what a reader that starts now holds after all entries of the stream, and how many
// there are.
func passedOn(t *testing.T, r *redisserver.Server, m *sharer) (blocks, entries int) {
	t.Helper()
	reader := newSharer(t, r, "reader", false)
	for _, e := range r.Client().XRange(t.Context(), m.shared.key(m.source.ID(), "deltas"), "-", "+").Val() {
		if err := reader.source.Apply([]byte(e.Values["d"].(string))); err != nil {
			t.Fatal(err)
		}
		entries++
	}
	return reader.holds(), entries
}

// The replica that has the lease passes on all that it knows, then what comes, and says that it
// receives. When another one has the lease it closes its feed, says so no more, records no more
// deltas, and begins to read where the stream ends.
func TestReceive_PassesOnUntilTheLeaseIsLost(t *testing.T) {
	r := redisserver.Start(t)
	m := newSharer(t, r, "a", false)
	m.connect(4)
	f := m.shared.newFollower(m.source, "tcp://a")
	f.from = "7-7"
	if mine, err := f.lease.Hold(t.Context()); !mine || err != nil {
		t.Fatal(mine, err)
	}
	var feed opened
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.receive(t.Context(), feed.feed)
	}()
	waitUntil(t, "it receives", func() bool { _, _, n := scraped(t, m.shared); return n == 1 })
	if blocks, entries := passedOn(t, r, m); blocks != 4 || entries != 1 {
		t.Errorf("%d entries say that %d blocks are held, want all 4 in one", entries, blocks)
	}
	for _, msg := range engineMessages(4, 6) {
		m.source.ApplyLive(msg)
	}
	waitUntil(t, "the new blocks are passed on", func() bool { blocks, _ := passedOn(t, r, m); return blocks == 6 })
	if ttl := r.Client().TTL(t.Context(), m.shared.key(m.source.ID(), "deltas")).Val(); ttl <= snapshotLife-time.Minute || ttl > snapshotLife {
		t.Errorf("the stream expires in %v", ttl)
	}
	waitUntil(t, "its own claim is known", func() bool { return m.source.State().Receiver == "a tcp://a" })
	if open, times := feed.now(); !open || times != 1 {
		t.Errorf("the feed was opened %d times, it is open: %v", times, open)
	}

	r.Client().Set(t.Context(), m.shared.key(m.source.ID(), "receiver"), "b tcp://b", time.Minute)
	<-done
	if open, _ := feed.now(); open {
		t.Error("the feed is open without the lease")
	}
	if _, _, n := scraped(t, m.shared); n != 0 {
		t.Errorf("scraped is that it receives from %v engines", n)
	}
	if f.from != "$" {
		t.Errorf("it reads on at %s, want the end", f.from)
	}
	for _, msg := range engineMessages(6, 7) {
		m.source.ApplyLive(msg)
	}
	if m.source.TakeDelta() != nil {
		t.Error("deltas are recorded that nobody passes on")
	}
	if holder := r.Client().Get(t.Context(), m.shared.key(m.source.ID(), "receiver")).Val(); holder != "b tcp://b" {
		t.Errorf("the lease is %q", holder)
	}
}

// A replica whose context ends while it receives gives the lease back before it is done.
func TestReceive_TheLeaseIsFreeWhenItHasEnded(t *testing.T) {
	r := redisserver.Start(t)
	m := newSharer(t, r, "a", false)
	f := m.shared.newFollower(m.source, "tcp://a")
	if mine, err := f.lease.Hold(t.Context()); !mine || err != nil {
		t.Fatal(mine, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	f.receive(ctx, func() (func(), error) {
		cancel()
		return func() {}, nil
	})
	if holder, err := f.lease.Holder(t.Context()); holder != "" || err != nil {
		t.Errorf("the lease is %q, %v", holder, err)
	}
}

// Where the feed cannot be opened, the replica that has the lease tries again after as long as
// the lease lives, so that another one may take it; it passes nothing on and does not say that it
// receives.
func TestReceive_AFeedThatCannotBeOpenedIsLeftToAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, _ := newAnswers(t, func(string, int) error { return nil })
		var text strings.Builder
		m := newSharerWith(t, client, "a", false)
		m.shared.log = slog.New(slog.NewTextHandler(&text, nil))
		f, start := m.shared.newFollower(m.source, "tcp://a"), time.Now()
		f.receive(t.Context(), func() (func(), error) { return nil, errors.New("address in use") })
		if took := time.Since(start); took != receiverLease {
			t.Errorf("it tries again after %v, want %v", took, receiverLease)
		}
		if !strings.Contains(text.String(), "address in use") {
			t.Errorf("logged is %q", text.String())
		}
		if _, _, n := scraped(t, m.shared); n != 0 || m.source.State().Receiver != "" {
			t.Errorf("%v engines are received, the receiver is %q", n, m.source.State().Receiver)
		}
		m.connect(1)
		if m.source.TakeDelta() != nil {
			t.Error("deltas are recorded that nobody passes on")
		}
	})
}

// Without Redis each replica that can open the feed receives for itself, and asks twice a second
// whether Redis is back: then the feed is closed.
func TestReceiveWithoutRedis_EndsWhenRedisIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, asked := newAnswers(t, func(_ string, nth int) error {
			if nth < 4 {
				return io.EOF
			}
			return redis.Nil
		})
		m := newSharerWith(t, client, "a", false)
		f, start := m.shared.newFollower(m.source, "tcp://a"), time.Now()
		var feed opened
		go func() {
			time.Sleep(receiverRenew / 2)
			if open, _ := feed.now(); !open || m.source.State().Receiver != "a tcp://a" {
				t.Errorf("while Redis is away: the feed is open: %v, the receiver is %q", open, m.source.State().Receiver)
			}
		}()
		f.receiveWithoutRedis(t.Context(), feed.feed)
		if took := time.Since(start); took != 4*receiverRenew || !slices.Equal(asked.asked, []string{"get", "get", "get", "get"}) {
			t.Errorf("it ended after %v and %v", took, asked.asked)
		}
		if open, times := feed.now(); open || times != 1 {
			t.Errorf("the feed was opened %d times, it is open: %v", times, open)
		}
	})
}

// Where another replica of this machine has the address, and Redis is away, it is tried again
// after half a second.
func TestReceiveWithoutRedis_AFeedThatCannotBeOpenedIsTriedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, asked := newAnswers(t, func(string, int) error { return redis.Nil })
		m := newSharerWith(t, client, "a", false)
		f, start := m.shared.newFollower(m.source, "tcp://a"), time.Now()
		f.receiveWithoutRedis(t.Context(), func() (func(), error) { return nil, errors.New("address in use") })
		if took := time.Since(start); took != receiverRenew || len(asked.asked) != 0 || m.source.State().Receiver != "" {
			t.Errorf("after %v, %d commands, the receiver is %q", took, len(asked.asked), m.source.State().Receiver)
		}
	})
}

// Follow receives alone while Redis is away, and ends with its context, the feed closed.
func TestFollow_WithoutRedisReceivesAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, _ := newAnswers(t, func(string, int) error { return io.EOF })
		m := newSharerWith(t, client, "a", false)
		ctx, cancel := context.WithTimeout(t.Context(), 10*receiverRenew+time.Millisecond)
		defer cancel()
		var feed opened
		m.shared.Follow(ctx, m.source, "tcp://a", feed.feed)
		if open, times := feed.now(); open || times != 1 || !m.shared.down.Load() {
			t.Errorf("the feed was opened %d times, it is open: %v; Redis is known to be away: %v", times, open, m.shared.down.Load())
		}
	})
}

// The stream keeps some ten seconds of a busy engine, whatever comes; that Redis takes entries or
// does not is known from each.
func TestPublish_TheStreamIsBounded(t *testing.T) {
	r := redisserver.Start(t)
	m := newSharer(t, r, "a", false)
	f := m.shared.newFollower(m.source, "tcp://a")
	m.shared.down.Store(true)
	for range deltaKept + 300 {
		f.publish(t.Context(), []byte("x"), nil)
	}
	// Redis drops whole nodes of its tree, of 100 entries each.
	if n := r.Client().XLen(t.Context(), m.shared.key(m.source.ID(), "deltas")).Val(); n < deltaKept || n > deltaKept+100 {
		t.Errorf("%d entries are kept, want %d", n, deltaKept)
	}
	if m.shared.down.Load() {
		t.Error("Redis is taken to be away though it answers")
	}
	client, _ := newAnswers(t, func(string, int) error { return io.EOF })
	lost := newSharerWith(t, client, "b", false)
	lost.shared.newFollower(lost.source, "tcp://b").publish(t.Context(), []byte("x"), nil)
	if !lost.shared.down.Load() {
		t.Error("Redis is not known to be away")
	}
}

// follows runs applyDeltas until it returns.
func follows(t *testing.T, f *follower) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.applyDeltas(t.Context())
	}()
	return done
}

// A replica that begins takes the kept snapshot and then all that the stream has; it knows which
// replica receives, and returns when none does.
func TestApplyDeltas_FromTheSnapshotToTheEndOfTheLease(t *testing.T) {
	r := redisserver.Start(t)
	first := newSharer(t, r, "a", false)
	first.connect(10)
	receiver := first.shared.newFollower(first.source, "tcp://a")
	for _, delta := range first.deltas(10, 2, 2) {
		receiver.publish(t.Context(), delta, nil)
	}
	first.write(t)
	for _, delta := range first.deltas(14, 1) {
		receiver.publish(t.Context(), delta, nil)
	}
	if mine, err := receiver.lease.Hold(t.Context()); !mine || err != nil {
		t.Fatal(mine, err)
	}

	m := newSharer(t, r, "b", false)
	f := m.shared.newFollower(m.source, "tcp://b")
	done := follows(t, f)
	waitUntil(t, "all is known", func() bool { return m.holds() == 15 && m.source.State().Receiver == "a tcp://a" })
	r.Client().PExpire(t.Context(), m.shared.key(m.source.ID(), "receiver"), time.Minute) // the test may be slow
	for _, delta := range first.deltas(15, 3) {
		receiver.publish(t.Context(), delta, nil)
	}
	waitUntil(t, "what comes is known", func() bool { return m.holds() == 18 })
	select {
	case <-done:
		t.Fatal("it ended while another replica receives")
	default:
	}
	if err := receiver.lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-done
	if n := m.shared.restored.Load(); n != 1 || f.from == "$" || f.from == "0" {
		t.Errorf("%d snapshots were taken, and it has read up to %s", n, f.from)
	}
}

// A replica that has read some of the stream goes on behind it, and takes no snapshot.
func TestApplyDeltas_GoesOnWhereItHadRead(t *testing.T) {
	r := redisserver.Start(t)
	first := newSharer(t, r, "a", false)
	first.connect(10)
	first.write(t)
	m := newSharer(t, r, "b", false)
	f := m.shared.newFollower(m.source, "tcp://b")
	f.from = "5-5"
	f.applyDeltas(t.Context()) // nobody receives: it returns
	if m.holds() != 0 || m.shared.restored.Load() != 0 || f.from != "5-5" {
		t.Errorf("it holds %d blocks, read up to %s", m.holds(), f.from)
	}
}

// Where Redis does not answer, nothing more is read, and that is known.
func TestApplyDeltas_EndsWhereRedisDoesNotAnswer(t *testing.T) {
	client, asked := newAnswers(t, func(string, int) error { return io.EOF })
	m := newSharerWith(t, client, "b", false)
	f := m.shared.newFollower(m.source, "tcp://b")
	f.from = "5-5"
	f.applyDeltas(t.Context())
	if !m.shared.down.Load() || !slices.Equal(asked.asked, []string{"xread"}) {
		t.Errorf("Redis is known to be away: %v, asked was %v", m.shared.down.Load(), asked.asked)
	}
}

// A delta is known already if its last batch is not behind what the source knows; nothing is where
// the source has no number yet, and garbage never.
func TestFollower_ADeltaIsKnownByItsLastBatch(t *testing.T) {
	r := redisserver.Start(t)
	first := newSharer(t, r, "a", false)
	first.connect(12)
	first.write(t)
	deltas := first.deltas(12, 2, 2)
	m := newSharer(t, r, "b", false)
	f := m.shared.newFollower(m.source, "tcp://b")
	if f.isApplied(deltas[0]) {
		t.Error("a source without a number knows it")
	}
	f.begin(t.Context())
	for _, at := range []int{14, 16} {
		if f.isApplied(deltas[(at-14)/2]) {
			t.Errorf("a delta up to %d is known before it came", at)
		}
		f.take(t.Context(), entry(deltas[(at-14)/2]))
		if !f.isApplied(deltas[(at-14)/2]) || !f.isApplied(deltas[0]) {
			t.Errorf("a delta up to %d is not known after it came", at)
		}
	}
	if f.isApplied([]byte("garbage")) {
		t.Error("garbage is known")
	}
}

// What an engine has put into a store is passed on beside the delta, in an entry that versions which
// do not know of it take as any other. What cannot be used of it is left out.
func TestFollower_KnowsWhatIsInAStore(t *testing.T) {
	r := redisserver.Start(t)
	first, m := newSharer(t, r, "a", false), newSharer(t, r, "b", false)
	receiver := first.shared.newFollower(first.source, "tcp://a")
	first.source.Record(true)
	tokens := make([]uint32, blockTokens)
	first.source.ApplyLive(kvstate.Message{Payload: batch(stored(0, []uint64{1}, tokens), storedIn("cpu", 0, []uint64{1}, tokens), removed([]uint64{1}))})
	receiver.publish(t.Context(), first.source.TakeDelta(), first.source.TakePuts())
	entries := r.Client().XRange(t.Context(), m.shared.key(m.source.ID(), "deltas"), "-", "+").Val()
	if len(entries) != 1 {
		t.Fatalf("%d entries, want 1", len(entries))
	}
	puts := entries[0].Values["s"]
	entries[0].Values["s"] = "garbage"
	f := m.shared.newFollower(m.source, "tcp://b")
	has := func() int {
		var h kvstate.Hits
		m.index.Match(&kvstate.Prompt{Model: "m", Tokens: tokens}, &h)
		return h.Held("engine:8000").Disk
	}
	if f.take(t.Context(), entries[0]); has() != 0 || m.source.State().Seq != 0 || !m.source.State().SeqKnown {
		t.Errorf("with garbage beside the delta: %d tokens, %+v", has(), m.source.State())
	}
	entries[0].Values["s"] = puts
	if f.take(t.Context(), entries[0]); has() != blockTokens {
		t.Errorf("%d tokens in the store, want %d", has(), blockTokens)
	}
}
