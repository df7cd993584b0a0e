package replicate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tandem-gateway/tandem/kvstate"
	"github.com/tandem-gateway/tandem/pools/election"
)

// The keys in Redis. All begin with the configured prefix; the braces keep
// those of one source on one node of a cluster.
//
//	<prefix>kv:{server#rank}:snapshot       name of the newest snapshot
//	<prefix>kv:{server#rank}:snapshot:NAME  list of its pieces
//	<prefix>kv:{server#rank}:writer         which replica writes the next one; expires
//	<prefix>kv:{server#rank}:receiver       which replica receives, and at which
//	                                        address; expires
//	<prefix>kv:{server#rank}:deltas         stream of what the receiver receives
const (
	snapshotLife  = time.Hour        // of a snapshot that is not renewed
	pieceLife     = time.Minute      // of the pieces of one that breaks off, from the last on
	snapshotPiece = 255 << 10        // bytes; with its header it fills an allocation of Redis
	snapshotMax   = 1 << 30          // bytes that are read
	restoreTries  = 3                // of a snapshot, before it is done without
	writerLease   = 45 * time.Second // one snapshot a source and lease
	askInterval   = time.Second      // between two questions whether Redis answers
)

// Shared keeps what the sources know in Redis, so that a replica that starts is warm in
// seconds: per source a snapshot, written now and then by one replica that receives from its engine. Engine hashes
// and sequence numbers are in it, so removals and parents still resolve afterwards.
// Two writers do no harm; without Redis nothing is kept.
type Shared struct {
	client  redis.UniversalClient
	prefix  string
	replica string
	index   *kvstate.Index
	log     *slog.Logger

	// kvstate.SourceID of each engine in connect mode, and of those from which this replica receives for all.
	followed, receiving sync.Map

	restored, written, failed atomic.Uint64
	answered                  atomic.Bool // Redis did, once at least
	down                      atomic.Bool
	silent                    atomic.Bool // Redis did not answer when it was asked last whether it does
}

// New returns the sharing of an index under a replica's own name.
func New(index *kvstate.Index, client redis.UniversalClient, prefix, replica string, log *slog.Logger) *Shared {
	return &Shared{client: client, prefix: prefix, replica: replica, index: index, log: log}
}

func (sh *Shared) key(id kvstate.SourceID, name string) string {
	return sh.prefix + "kv:{" + id.Server + "#" + strconv.Itoa(id.Rank) + "}:" + name
}

// recordRedisState keeps whether Redis answers, and logs when that changes. A call that was given up says nothing of it.
func (sh *Shared) recordRedisState(err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	down := err != nil
	if down {
		sh.failed.Add(1)
	} else {
		sh.answered.Store(true)
	}
	if sh.down.Swap(down) == down {
		return
	}
	if down {
		sh.log.Warn("cannot keep KV locality in Redis", "error", err.Error())
		return
	}
	sh.log.Info("keeping KV locality in Redis")
}

// Restore brings a source to where the newest snapshot of it was; false if there is none
// that can be used. It is called before the source's feed connects: the replay, or the
// first live batch, then shows whether the snapshot is still true. While Redis is known
// to be away it is not asked: a fleet of sources would wait for it one after the other.
func (sh *Shared) Restore(ctx context.Context, s *kvstate.Source) bool {
	if sh.down.Load() {
		return false
	}
	var err error
	for try := 0; try < restoreTries && (try == 0 || mayComeRight(err)); try++ {
		err = sh.restore(ctx, s)
	}
	switch {
	case errors.Is(err, redis.Nil):
		sh.answered.Store(true)
		return false
	case unanswered(err):
		sh.recordRedisState(err)
		return false
	}
	if err != nil {
		sh.log.Warn("a KV snapshot cannot be used", "source", s.ID().String(), "error", err.Error())
		return false
	}
	sh.answered.Store(true)
	sh.restored.Add(1)
	return true
}

// restore tries it once.
func (sh *Shared) restore(ctx context.Context, s *kvstate.Source) error {
	snapshot, err := sh.read(ctx, s.ID())
	if err != nil {
		return err
	}
	return s.Apply(snapshot)
}

// mayComeRight reports whether the same may be read another time: Redis did not answer, or a
// newer snapshot took the place of the one that was being read, whose pieces then end early.
func mayComeRight(err error) bool {
	return unanswered(err) || errors.Is(err, kvstate.ErrDelta)
}

// unanswered reports whether Redis did not answer.
func unanswered(err error) bool {
	var reply redis.Error
	return err != nil && !errors.As(err, &reply) && !errors.Is(err, kvstate.ErrDelta)
}

func (sh *Shared) read(ctx context.Context, id kvstate.SourceID) ([]byte, error) {
	name, err := sh.client.Get(ctx, sh.key(id, "snapshot")).Result()
	if err != nil {
		return nil, err
	}
	var snapshot []byte
	const batch = 16 // pieces a round trip
	for from := int64(0); ; from += batch {
		pieces, err := sh.client.LRange(ctx, sh.key(id, "snapshot:"+name), from, from+batch-1).Result()
		if err != nil {
			return nil, err
		}
		for _, p := range pieces {
			snapshot = append(snapshot, p...)
		}
		if len(snapshot) > snapshotMax {
			return nil, fmt.Errorf("%w: larger than %d bytes", kvstate.ErrDelta, snapshotMax)
		}
		if len(pieces) < batch {
			return snapshot, nil
		}
	}
}

// Run writes snapshots until the context ends, each source's when it has changed and no
// other replica has written it lately. Those of an engine in connect mode are its receiver's to write: a follower that
// missed something knows nothing, waits for a snapshot that closes the gap, and would put its own in the place of it.
func (sh *Shared) Run(ctx context.Context, every time.Duration) {
	written := make(map[kvstate.SourceID]uint64) // what a source's changes were, when it was written
	tick, ask := time.NewTicker(every), time.NewTicker(min(every, askInterval))
	defer tick.Stop()
	defer ask.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ask.C:
			sh.silent.Store(unanswered(sh.client.Exists(ctx, sh.prefix+"kv").Err()))
			continue
		case <-tick.C:
		}
		sources := sh.index.List()
		if len(sources) == 0 {
			sh.recordRedisState(sh.client.Exists(ctx, sh.prefix+"kv").Err()) // nothing else asks
		}
		for _, s := range sources {
			if sh.isFollower(s.ID()) {
				continue
			}
			if changes := s.Changes(); (changes != written[s.ID()] || sh.snapshotGone(ctx, s.ID())) && sh.takeWriterLease(ctx, s.ID(), every) {
				if err := sh.Write(ctx, s); err != nil {
					sh.recordRedisState(err)
					continue
				}
				written[s.ID()] = changes
			}
		}
	}
}

// isFollower reports whether another replica receives what the source's engine publishes.
func (sh *Shared) isFollower(id kvstate.SourceID) bool {
	_, followed := sh.followed.Load(id)
	_, receives := sh.receiving.Load(id)
	return followed && !receives
}

// snapshotGone reports whether a snapshot that was written is gone: expired, or Redis was
// emptied.
func (sh *Shared) snapshotGone(ctx context.Context, id kvstate.SourceID) bool {
	n, err := sh.client.Exists(ctx, sh.key(id, "snapshot")).Result()
	sh.recordRedisState(err)
	return err == nil && n == 0
}

// takeWriterLease takes the lease on a source's next snapshot, and reports whether this replica
// is to write it.
func (sh *Shared) takeWriterLease(ctx context.Context, id kvstate.SourceID, every time.Duration) bool {
	lease := election.NewLease(sh.client, sh.key(id, "writer"), sh.replica, min(writerLease, 3*every/2))
	held, err := lease.Take(ctx)
	sh.recordRedisState(err)
	return held
}

// Write keeps a snapshot of a source.
func (sh *Shared) Write(ctx context.Context, s *kvstate.Source) error {
	snapshot, id := s.Snapshot(), s.ID()
	epoch, seq, err := kvstate.SnapshotOrder(snapshot)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("%d-%d-%s", epoch, seq, sh.replica)
	pieces, pointer := sh.key(id, "snapshot:"+name), sh.key(id, "snapshot")
	if err := sh.client.Del(ctx, pieces).Err(); err != nil {
		return err
	}
	for from := 0; from < len(snapshot); from += snapshotPiece {
		piece := snapshot[from:min(from+snapshotPiece, len(snapshot))]
		// In one transaction: what breaks off at any point expires.
		if _, err := sh.client.TxPipelined(ctx, func(p redis.Pipeliner) error {
			p.RPush(ctx, pieces, piece)
			p.Expire(ctx, pieces, pieceLife)
			return nil
		}); err != nil {
			return err
		}
	}
	before, err := sh.client.Get(ctx, pointer).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return err
	}
	_, err = sh.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.Expire(ctx, pieces, snapshotLife)
		p.Set(ctx, pointer, name, snapshotLife)
		if before != "" && before != name {
			// A replica that reads it at this moment has it broken off, and reads the new one.
			p.Del(ctx, sh.key(id, "snapshot:"+before))
		}
		return nil
	})
	if err == nil {
		sh.written.Add(1)
	}
	return err
}
