package replicate

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tandem-gateway/tandem/kvstate"
	"github.com/tandem-gateway/tandem/pools/election"
)

// How the one receiver of an engine in connect mode is found, and what it passes on.
const (
	receiverLease = 2 * time.Second
	receiverRenew = 500 * time.Millisecond
	deltaDelay    = 20 * time.Millisecond // events are gathered for this long
	deltaKept     = 512                   // entries of the stream, ten seconds of a busy engine
	deltaBatch    = 16                    // entries that are read at once: a read has a deadline
)

// Feed is where a source's messages come from. Open connects or binds and returns what
// ends it; it must not wait for the engine.
type Feed func() (stop func(), err error)

// Follow keeps the source of an engine in connect mode out true until the context ends. Such
// an engine has one receiver: the replica that holds the lease binds the feed and passes
// on what it receives as deltas through a stream, the others apply them. When the receiver
// fails, another one takes over within three seconds: a snapshot first, since what was
// published in between is lost, and the source forgets what it cannot prove.
//
// The lease says which replica receives and at which address, which is this replica's: whatever
// points the engine at its receiver (a name in DNS, a Service) can follow it.
func (sh *Shared) Follow(ctx context.Context, s *kvstate.Source, address string, feed Feed) {
	sh.followed.Store(s.ID(), true)
	defer sh.followed.Delete(s.ID())
	f := sh.newFollower(s, address)
	for ctx.Err() == nil {
		mine, err := f.lease.Hold(ctx)
		sh.recordRedisState(err)
		switch {
		case mine:
			f.receive(ctx, feed)
		case err != nil:
			// Without Redis no other replica can receive for this one: do it alone.
			f.receiveWithoutRedis(ctx, feed)
		default:
			f.applyDeltas(ctx)
		}
	}
}

// follower is the part of one replica in one such source.
type follower struct {
	*Shared
	s     *kvstate.Source
	lease *election.Lease
	claim string // what this replica is in the lease: its name and address
	from  string // last entry of the stream that was read
	// restoreAt is when a snapshot may be asked for again.
	restoreAt time.Time
	warned    bool // that what was put into a store cannot be used
}

// newFollower returns what has read nothing yet.
func (sh *Shared) newFollower(s *kvstate.Source, address string) *follower {
	claim := sh.replica + " " + address
	return &follower{Shared: sh, s: s, lease: election.NewLease(sh.client, sh.key(s.ID(), "receiver"), claim, receiverLease), claim: claim, from: "$"}
}

// receive receives from the engine for as long as the lease is renewed.
func (f *follower) receive(ctx context.Context, feed Feed) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f.s.Record(true)
	defer f.s.Record(false)
	// The others begin where this replica does.
	f.publish(ctx, f.s.Snapshot(), nil)
	stop, err := feed()
	if err != nil {
		f.log.Error("cannot receive KV events", "source", f.s.ID().String(), "error", err.Error())
		waitFor(ctx, receiverLease)
		return
	}
	defer stop()
	f.receiving.Store(f.s.ID(), true)
	defer f.receiving.Delete(f.s.ID())
	f.s.SetReceiver(f.claim)
	var renewing sync.WaitGroup
	renewing.Go(func() {
		defer cancel()
		f.lease.Keep(ctx, receiverRenew)
	})
	for waitFor(ctx, deltaDelay) {
		if delta := f.s.TakeDelta(); delta != nil {
			f.publish(ctx, delta, f.s.TakePuts())
		}
	}
	renewing.Wait()
	f.from = "$"
}

// receiveWithoutRedis receives from the engine until Redis answers again. It asks for
// the lease, which in a cluster may be away while other nodes answer.
func (f *follower) receiveWithoutRedis(ctx context.Context, feed Feed) {
	stop, err := feed()
	if err != nil { // another replica on this machine has the address
		waitFor(ctx, receiverRenew)
		return
	}
	defer stop()
	f.s.SetReceiver(f.claim)
	for waitFor(ctx, receiverRenew) {
		if _, err := f.lease.Holder(ctx); err == nil {
			return
		}
	}
}

// publish puts a delta into the stream, and beside it what the engine has put into a store, nil if
// nothing. A delta that does not get through is a gap to the replicas that read it: they take a
// snapshot, and the journal makes the next one complete. What was put then stays unknown to them.
func (f *follower) publish(ctx context.Context, delta, puts []byte) {
	key, values := f.key(f.s.ID(), "deltas"), []any{"d", delta}
	if puts != nil {
		values = append(values, "s", puts)
	}
	_, err := f.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.XAdd(ctx, &redis.XAddArgs{Stream: key, MaxLen: deltaKept, Approx: true, Values: values})
		p.Expire(ctx, key, snapshotLife)
		return nil
	})
	f.recordRedisState(err)
	if err != nil {
		f.s.LoseDelta()
	}
}

// applyDeltas applies what the receiver passes on, until the lease is free or the context
// ends.
func (f *follower) applyDeltas(ctx context.Context) {
	key := f.key(f.s.ID(), "deltas")
	if f.from == "$" {
		f.begin(ctx)
	}
	for ctx.Err() == nil {
		streams, err := f.client.XRead(ctx, &redis.XReadArgs{Streams: []string{key, f.from}, Count: deltaBatch, Block: receiverRenew / 4}).Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			f.recordRedisState(err)
			return
		}
		for _, stream := range streams {
			for _, entry := range stream.Messages {
				f.take(ctx, entry)
			}
		}
		receiver, err := f.lease.Holder(ctx)
		if err != nil || receiver == "" {
			return
		}
		f.s.SetReceiver(receiver)
	}
}

// begin takes the kept snapshot; what the stream still has of the time before it is
// passed over.
func (f *follower) begin(ctx context.Context) {
	f.Restore(ctx, f.s)
	f.from = "0"
}

// restorePause is how long a source that missed something waits for a better snapshot.
const restorePause = time.Second

// take applies one entry.
func (f *follower) take(ctx context.Context, entry redis.XMessage) {
	f.from = entry.ID
	if delta, ok := entry.Values["d"].(string); ok {
		f.takeDelta(ctx, []byte(delta))
	}
	// Behind the delta, which may say that the engine is another one.
	if puts, ok := entry.Values["s"].(string); ok {
		if err := f.s.ApplyPuts([]byte(puts)); err != nil && !f.warned {
			f.warned = true
			f.log.Warn("what an engine put into its store cannot be used", "source", f.s.ID().String(), "error", err.Error())
		}
	}
}

// takeDelta applies a delta. Where something is missing before it, the kept snapshot is
// taken, and until one comes that closes the gap nothing is believed: the receiver
// writes one now and then.
func (f *follower) takeDelta(ctx context.Context, delta []byte) {
	if !errors.Is(f.s.Apply(delta), kvstate.ErrDeltaGap) || f.isApplied(delta) || time.Now().Before(f.restoreAt) {
		return
	}
	f.restoreAt = time.Now().Add(restorePause)
	if f.Restore(ctx, f.s) && (f.isApplied(delta) || f.s.Apply(delta) == nil) {
		f.restoreAt = time.Time{}
		return
	}
	f.s.RecordGap()
}

// isApplied reports whether a delta has only what the source knows already.
func (f *follower) isApplied(delta []byte) bool {
	epoch, seq, err := kvstate.SnapshotOrder(delta)
	now := f.s.State()
	return err == nil && now.SeqKnown && (epoch < now.Epoch || epoch == now.Epoch && seq <= now.Seq)
}

// waitFor waits, false if the context ended first.
func waitFor(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
