package door

import (
	"context"
	"encoding/json"
	"log/slog"
	"math"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// What door has in Redis, behind the configured prefix.
//
//	<prefix>used  channel: what keys have used at a replica, in sum since its start
const usedChannel = "used"

// How usage travels between replicas.
const (
	tellDelay  = 20 * time.Millisecond // changes are gathered for this long
	beat       = time.Second           // what changed lately is told again, so that nothing lost stays lost
	retold     = 3                     // beats for which a change is told again
	silence    = 3 * time.Second       // after it a replica is gone, or this one is cut off
	maxMessage = 1 << 20               // bytes of a message that is read
	maxTold    = 2000                  // keys in one message
	maxHeard   = 256                   // replicas that are listened to
)

// Ledger lets replicas charge their buckets with what the others let in: each has the
// whole limit, and hears of the others' use some 20 ms after it. Over any minute a key
// thus gets at most its limit, and what the other replicas let in within that delay
// (within a second where a message was lost). A replica that is cut off takes its share
// of the limit, one by the number of replicas that it heard last. A request never waits
// for it; a nil Ledger shares nothing.
type Ledger struct {
	id, epoch string
	prefix    string
	client    redis.UniversalClient
	log       *slog.Logger
	find      func(id string) *quota // nil for a key that is not known here

	changes chan struct{} // says that dirty is not empty

	mu     sync.Mutex // guards what follows
	dirty  map[*quota]bool
	recent map[*quota]int // beats for which it is told again

	started  time.Time
	heard    atomic.Int64 // when anything was heard last, our own voice included; time since started
	replicas atomic.Int64 // how many there were then, this one included
	ignored  atomic.Uint64
}

// usedMessage is what one replica says of keys, by ID.
type usedMessage struct {
	Replica string               `json:"r"`
	Epoch   string               `json:"e"` // another after each start
	Keys    map[string]toldUsage `json:"k"`
}

// toldUsage is what a key has used at a replica since its epoch, what it has running,
// and how long ago it was first used there, in seconds.
type toldUsage struct {
	usage
	Running float64 `json:"n,omitempty"`
	Age     float64 `json:"a"`
}

// sane bounds what is believed: others may write to this Redis.
func (t toldUsage) sane() bool {
	for _, v := range []float64{t.Requests, t.Prompt, t.Output, t.Running, t.Age} {
		if math.Abs(v) > 1e15 {
			return false
		}
	}
	return t.Running >= 0 && t.Running < 1e9
}

// NewLedger returns the sharing of what keys use, under a replica's id.
func NewLedger(client redis.UniversalClient, prefix, id string, log *slog.Logger) *Ledger {
	l := &Ledger{
		id: id, epoch: strconv.FormatInt(time.Now().UnixNano(), 36), prefix: prefix, client: client, log: log,
		changes: make(chan struct{}, 1), dirty: make(map[*quota]bool), recent: make(map[*quota]int), started: time.Now(),
	}
	l.replicas.Store(1)
	l.heard.Store(math.MinInt64 / 2)
	return l
}

// share is the part of each limit that this replica may let in by itself.
func (l *Ledger) share(now time.Time) float64 {
	if l == nil || now.Sub(l.started)-time.Duration(l.heard.Load()) <= silence {
		return 1
	}
	return 1 / float64(l.replicas.Load())
}

// changed notes that others must be told. It is called with the quota's lock held.
func (l *Ledger) changed(q *quota) {
	if l == nil {
		return
	}
	l.mu.Lock()
	l.dirty[q] = true
	l.recent[q] = retold
	l.mu.Unlock()
	select {
	case l.changes <- struct{}{}:
	default:
	}
}

// Run shares until the context ends.
func (l *Ledger) Run(ctx context.Context) {
	var parts sync.WaitGroup
	parts.Go(func() { l.publish(ctx) })
	parts.Go(func() { l.subscribe(ctx) })
	parts.Wait()
}

func (l *Ledger) publish(ctx context.Context) {
	again := time.NewTicker(beat)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-again.C:
			l.tell(ctx, l.due())
		case <-l.changes:
			pause(ctx, tellDelay)
			l.tell(ctx, l.news())
		}
	}
}

// news are the quotas that changed since the last call.
func (l *Ledger) news() []*quota {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]*quota, 0, len(l.dirty))
	for q := range l.dirty {
		out = append(out, q)
	}
	clear(l.dirty)
	return out
}

// due are those that are told again at a beat.
func (l *Ledger) due() []*quota {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]*quota, 0, len(l.recent))
	for q, beats := range l.recent {
		out = append(out, q)
		if beats <= 1 {
			delete(l.recent, q)
		} else {
			l.recent[q] = beats - 1
		}
	}
	return out
}

// tell says what the quotas have used, and in any case that this replica is there.
func (l *Ledger) tell(ctx context.Context, quotas []*quota) {
	for first := true; first || len(quotas) > 0; first = false {
		part := quotas[:min(len(quotas), maxTold)]
		quotas = quotas[len(part):]
		m := usedMessage{Replica: l.id, Epoch: l.epoch, Keys: make(map[string]toldUsage, len(part))}
		for _, q := range part {
			told := q.told(time.Now())
			m.Keys[q.id] = told
			if told.Running > 0 {
				l.keepTelling(q)
			}
		}
		message, err := json.Marshal(m)
		if err == nil {
			err = l.client.Publish(ctx, l.prefix+usedChannel, message).Err()
		}
		if err != nil {
			l.log.Debug("what keys used was not told", "error", err.Error())
			return
		}
	}
}

// keepTelling of a key with requests in flight: others forget them otherwise.
func (l *Ledger) keepTelling(q *quota) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.recent[q] = max(l.recent[q], 1)
}

func (l *Ledger) subscribe(ctx context.Context) {
	for ctx.Err() == nil {
		l.listen(ctx)
		pause(ctx, beat/4)
	}
}

// listen takes in what is told until the connection fails.
func (l *Ledger) listen(ctx context.Context) {
	sub := l.client.Subscribe(ctx, l.prefix+usedChannel)
	defer func() { _ = sub.Close() }()
	if _, err := sub.ReceiveTimeout(ctx, beat); err != nil {
		return
	}
	e := ears{ledger: l, replicas: make(map[string]*replica)}
	for ctx.Err() == nil {
		message, err := sub.ReceiveTimeout(ctx, silence) // our own beats come every second
		if err != nil {
			return
		}
		if m, ok := message.(*redis.Message); ok {
			e.take([]byte(m.Payload), time.Now())
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
