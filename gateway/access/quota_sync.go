package access

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

// What access has in Redis, behind the configured prefix.
//
//	<prefix>used  channel: what keys have used at a replica, in sum since its start
const usedChannel = "used"

// How usage travels between replicas.
const (
	batchDelay     = 20 * time.Millisecond // changes are gathered for this long
	heartbeat      = time.Second           // what changed lately is reported again, so that nothing lost stays lost
	repeats        = 3                     // heartbeats for which a change is reported again
	replicaTimeout = 3 * time.Second       // without a message another replica is gone, or this one is cut off
	maxMessage     = 1 << 20               // bytes of a message that is read
	maxKeys        = 2000                  // in one message
	maxReplicas    = 256                   // whose reports count
)

// QuotaSync lets replicas charge their buckets with what the others let in: each has the
// whole limit, and receives the others' use some 20 ms after it. Over any minute a key
// thus gets at most its limit, and what the other replicas let in within that delay
// (within a second where a message was lost). A replica that is cut off takes its share
// of the limit, one by the number of replicas that it counted last. A request never waits
// for it; a nil QuotaSync shares nothing.
type QuotaSync struct {
	id, epoch string
	prefix    string
	client    redis.UniversalClient
	log       *slog.Logger
	find      func(id string) *quota // nil for a key that is not known here

	changes chan struct{} // says that changed is not empty

	mu      sync.Mutex // guards what follows
	changed map[*quota]bool
	recent  map[*quota]int // heartbeats for which it is reported again

	started  time.Time
	received atomic.Int64 // when a message came last, our own included; time since started
	replicas atomic.Int64 // how many there were then, this one included
	ignored  atomic.Uint64
}

// usedMessage is what one replica reports of keys, by ID.
type usedMessage struct {
	Replica string                   `json:"r"`
	Epoch   string                   `json:"e"` // another after each start
	Keys    map[string]reportedUsage `json:"k"`
}

// reportedUsage is what a key has used at a replica since its epoch, what it has running,
// and how long ago it was first used there, in seconds.
type reportedUsage struct {
	usage
	Running float64 `json:"n,omitempty"`
	Age     float64 `json:"a"`
}

// valid bounds what is believed: others may write to this Redis.
func (u reportedUsage) valid() bool {
	for _, v := range []float64{u.Requests, u.Prompt, u.Output, u.Running, u.Age} {
		if math.Abs(v) > 1e15 {
			return false
		}
	}
	return u.Running >= 0 && u.Running < 1e9
}

// NewQuotaSync returns the sharing of what keys use, under a replica's id.
func NewQuotaSync(client redis.UniversalClient, prefix, id string, log *slog.Logger) *QuotaSync {
	s := &QuotaSync{
		id: id, epoch: strconv.FormatInt(time.Now().UnixNano(), 36), prefix: prefix, client: client, log: log,
		changes: make(chan struct{}, 1), changed: make(map[*quota]bool), recent: make(map[*quota]int), started: time.Now(),
	}
	s.replicas.Store(1)
	s.received.Store(math.MinInt64 / 2)
	return s
}

// share is the part of each limit that this replica may let in by itself, 0..1.
func (s *QuotaSync) share(now time.Time) float64 {
	if s == nil || now.Sub(s.started)-time.Duration(s.received.Load()) <= replicaTimeout {
		return 1
	}
	return 1 / float64(s.replicas.Load())
}

// report lets the other replicas know what a quota has used. It is called with the
// quota's lock held.
func (s *QuotaSync) report(q *quota) {
	if s == nil {
		return
	}
	s.mu.Lock()
	s.changed[q] = true
	s.recent[q] = repeats
	s.mu.Unlock()
	select {
	case s.changes <- struct{}{}:
	default:
	}
}

// Run shares until the context ends.
func (s *QuotaSync) Run(ctx context.Context) {
	var parts sync.WaitGroup
	parts.Go(func() { s.publish(ctx) })
	parts.Go(func() { s.subscribe(ctx) })
	parts.Wait()
}

func (s *QuotaSync) publish(ctx context.Context) {
	tick := time.NewTicker(heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.send(ctx, s.takeRepeats())
		case <-s.changes:
			pause(ctx, batchDelay)
			// What changed during the pause is taken too, and signals once more.
			if changed := s.takeChanged(); len(changed) > 0 {
				s.send(ctx, changed)
			}
		}
	}
}

// takeChanged returns the quotas that changed since the last call.
func (s *QuotaSync) takeChanged() []*quota {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*quota, 0, len(s.changed))
	for q := range s.changed {
		out = append(out, q)
	}
	clear(s.changed)
	return out
}

// takeRepeats returns those that are reported again at a heartbeat.
func (s *QuotaSync) takeRepeats() []*quota {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*quota, 0, len(s.recent))
	for q, heartbeats := range s.recent {
		out = append(out, q)
		if heartbeats <= 1 {
			delete(s.recent, q)
		} else {
			s.recent[q] = heartbeats - 1
		}
	}
	return out
}

// send publishes what the quotas have used, and in any case that this replica is there.
func (s *QuotaSync) send(ctx context.Context, quotas []*quota) {
	for first := true; first || len(quotas) > 0; first = false {
		part := quotas[:min(len(quotas), maxKeys)]
		quotas = quotas[len(part):]
		m := usedMessage{Replica: s.id, Epoch: s.epoch, Keys: make(map[string]reportedUsage, len(part))}
		for _, q := range part {
			u := q.usage(time.Now())
			m.Keys[q.id] = u
			if u.Running > 0 {
				s.repeat(q)
			}
		}
		message, err := json.Marshal(m)
		if err == nil {
			err = s.client.Publish(ctx, s.prefix+usedChannel, message).Err()
		}
		if err != nil {
			s.log.Debug("usage of keys was not published", "error", err.Error())
			return
		}
	}
}

// repeat reports a key with requests in flight at the next heartbeat too: other replicas
// forget them otherwise.
func (s *QuotaSync) repeat(q *quota) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recent[q] = max(s.recent[q], 1)
}

func (s *QuotaSync) subscribe(ctx context.Context) {
	for ctx.Err() == nil {
		s.listen(ctx)
		pause(ctx, heartbeat/4)
	}
}

// listen receives reports until the connection fails.
func (s *QuotaSync) listen(ctx context.Context) {
	sub := s.client.Subscribe(ctx, s.prefix+usedChannel)
	defer func() { _ = sub.Close() }()
	if _, err := sub.ReceiveTimeout(ctx, heartbeat); err != nil {
		return
	}
	r := usageReceiver{sync: s, replicas: make(map[string]*replica)}
	for ctx.Err() == nil {
		message, err := sub.ReceiveTimeout(ctx, replicaTimeout) // our own heartbeats come every second
		if err != nil {
			return
		}
		if m, ok := message.(*redis.Message); ok {
			r.receive([]byte(m.Payload), time.Now())
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
