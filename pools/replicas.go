package pools

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/tidwall/gjson"
)

// The keys and channels of pools in Redis. All begin with the configured prefix; the
// braces keep them on one node of a cluster, so that sharing works as a whole or not.
//
//	<prefix>{work}:2         channel: what changed of a replica's work on the servers, and
//	                         all of it on each beat, in MessagePack
//	<prefix>{work}           channel: all of it at each change in JSON, while there are
//	                         replicas of a version that knows nothing else
//	<prefix>{work}:of:<id>   all of it in JSON on each beat, as a key with a TTL, for replicas
//	                         that start
//	<prefix>{work}:replicas  sorted set of their ids, which has an order and so can be
//	                         read in part; expires with the last of them. The score is the
//	                         newest form that the replica knows, 0 where that is JSON
const (
	jsonChannel = "{work}"
	workChannel = "{work}:2"
	workKey     = "{work}:of:"
	replicaSet  = "{work}:replicas"
)

// How work travels between replicas.
const (
	workDelay  = 10 * time.Millisecond // changes are gathered for this long
	workBeat   = time.Second           // the whole is told again, so that nothing lost stays lost
	workExpiry = 3 * time.Second       // a replica that says nothing for this long has nothing
	maxWorkMsg = 1 << 20               // bytes of a message that is read
	setExpiry  = time.Minute           // of the set of ids; each start strikes out those that are gone
	// workBytes is how many bytes a second changes may take all replicas together to read:
	// the larger what is told and the more read it, the longer changes are gathered.
	workBytes = 2 << 20
	// workDrift is by how much a queue may differ from what the others believe, unsaid.
	workDrift = 10 * time.Millisecond
)

// Replicas shares what every gateway has on the servers, so that they do not all
// send to the one that looks idle. Messages hold sums and not changes: a lost one
// is made good by the next. Redis is never waited for by a request; without it each
// replica sees only its own work.
type Replicas struct {
	id     string
	prefix string
	client redis.UniversalClient
	fleet  *Fleet
	log    *slog.Logger

	connected atomic.Bool
	told      atomic.Bool // whether it has been said that it is, or is not
	received  atomic.Uint64
	ignored   atomic.Uint64

	turns atomic.Uint64 // that this replica has taken of one that decides for it

	news news // what the others were told; belongs to publish

	mu     sync.Mutex // guards the rest
	others map[string]replicaWork
	heard  chan struct{} // closed and made anew at each message
}

// replicaWork is what one other replica said last.
type replicaWork struct {
	at      time.Time // when it was received, by our clock
	taken   uint64
	servers map[string]serverWork
	current bool // it speaks MessagePack: its JSON is for others
}

// serverWork is its work on one server, prefill and decode, as of when that was received.
type serverWork struct {
	at   time.Time
	both [2]InFlight
}

// workMessage is one replica's work: by server ID, prefill and decode. Taken is how
// many turns of the replica that decides for it are in this work, or were.
type workMessage struct {
	Replica string                   `json:"r"`
	Taken   uint64                   `json:"k,omitempty"`
	Servers map[string][2]sharedWork `json:"s"`

	partial bool // what is not named is as it was told before
	current bool // it came in MessagePack
}

type sharedWork struct {
	Requests int     `json:"n,omitempty"`
	Tokens   int     `json:"t,omitempty"`
	Queue    float64 `json:"q,omitempty"` // seconds
	Stays    float64 `json:"l,omitempty"` // likewise
}

// NewReplicas returns the sharing of a fleet's work under a replica's own id.
func NewReplicas(fleet *Fleet, client redis.UniversalClient, prefix, id string, log *slog.Logger) *Replicas {
	r := &Replicas{
		id: id, prefix: prefix, client: client, fleet: fleet, log: log,
		others: make(map[string]replicaWork), heard: make(chan struct{}),
	}
	fleet.others.Store(r)
	return r
}

// TookTurn counts a turn of another replica, which decides for this one: its work has
// been claimed, or was given up. The news of the work that follow say the count too.
func (r *Replicas) TookTurn() (count uint64) {
	defer r.fleet.noteWork()
	return r.turns.Add(1)
}

// Taken is how many turns a replica had taken when it last told its work, 0 for one
// that has none, and what is closed when anything new is heard of anyone.
func (r *Replicas) Taken(replica string) (count uint64, heard <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.others[replica].taken, r.heard
}

// Run shares until the context ends.
func (r *Replicas) Run(ctx context.Context) {
	var parts sync.WaitGroup
	parts.Go(func() { r.publish(ctx) })
	parts.Go(func() { r.subscribe(ctx) })
	parts.Wait()
	r.fleet.others.CompareAndSwap(r, nil)
}

// publish tells changes soon after they are made, and the whole every beat.
func (r *Replicas) publish(ctx context.Context) {
	beat := time.NewTicker(workBeat)
	defer beat.Stop()
	for {
		whole := false
		select {
		case <-ctx.Done():
			r.leave(context.WithoutCancel(ctx))
			return
		case <-beat.C:
			whole = true
		case <-r.fleet.worked:
			if !Pause(ctx, r.news.delay()) {
				r.leave(context.WithoutCancel(ctx))
				return
			}
		}
		r.tell(ctx, whole)
	}
}

// tell publishes what has changed since the others were told, or everything.
func (r *Replicas) tell(ctx context.Context, whole bool) {
	now := time.Now()
	own := r.own(now)
	m := r.news.of(own, whole, now)
	if m.partial && len(m.Servers) == 0 && m.Taken == r.news.taken {
		return
	}
	message := m.encode(nil)
	var old []byte // for those who know nothing else, and on each beat for those who start
	if r.news.mixed || !m.partial {
		var err error
		if old, err = json.Marshal(own); err != nil {
			r.log.Error("own work is no JSON", "error", err.Error())
			return
		}
	}
	var replicas *redis.ZSliceCmd
	_, err := r.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.Publish(ctx, r.prefix+workChannel, message)
		if r.news.mixed {
			p.Publish(ctx, r.prefix+jsonChannel, old)
		}
		if old != nil {
			p.Set(ctx, r.prefix+workKey+r.id, old, workExpiry)
		}
		if m.partial {
			return nil
		}
		p.ZAdd(ctx, r.prefix+replicaSet, redis.Z{Member: r.id, Score: wireVersion})
		p.Expire(ctx, r.prefix+replicaSet, setExpiry)
		replicas = p.ZRangeWithScores(ctx, r.prefix+replicaSet, 0, -1)
		return nil
	})
	r.note(err)
	r.news.published(m, len(message)+len(old), err == nil, now)
	if err == nil && replicas != nil {
		all := replicas.Val()
		r.news.replicas = len(all)
		r.news.mixed = slices.ContainsFunc(all, func(z redis.Z) bool { return z.Score < wireVersion })
	}
}

// leave says that nothing is in flight any more.
func (r *Replicas) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, workBeat)
	defer cancel()
	nothing := workMessage{Replica: r.id}
	old, _ := json.Marshal(nothing) // an empty message always encodes
	_, _ = r.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.Publish(ctx, r.prefix+workChannel, nothing.encode(nil))
		p.Publish(ctx, r.prefix+jsonChannel, old)
		p.Del(ctx, r.prefix+workKey+r.id)
		p.ZRem(ctx, r.prefix+replicaSet, r.id)
		return nil
	}) // Redis may be away; the keys expire
}

// own sums up this replica's work. Servers without any are left out.
func (r *Replicas) own(now time.Time) workMessage {
	// The count is read first: the work includes all of its turns.
	m := workMessage{Replica: r.id, Taken: r.turns.Load(), Servers: make(map[string][2]sharedWork)}
	for _, s := range r.fleet.Servers() {
		var both [2]sharedWork
		for i, leg := range []Role{Prefill, Decode} {
			own := s.OwnInFlight(leg, now)
			both[i] = sharedWork{own.Requests, own.Tokens, own.Queue.Seconds(), own.Stays.Seconds()}
		}
		if both != ([2]sharedWork{}) {
			m.Servers[s.id] = both
		}
	}
	return m
}

// note keeps whether Redis answers, and logs when that changes.
func (r *Replicas) note(err error) {
	ok := err == nil
	if r.connected.Swap(ok) == ok && r.told.Swap(true) {
		return
	}
	r.told.Store(true)
	if ok {
		r.log.Info("sharing work with other replicas")
		return
	}
	r.log.Warn("cannot share work with other replicas", "error", err.Error())
}

// subscribe receives the others' messages until the context ends.
func (r *Replicas) subscribe(ctx context.Context) {
	for ctx.Err() == nil {
		r.receive(ctx)
		Pause(ctx, workBeat/4)
	}
}

// receive reads messages until the connection fails. It first takes what the
// others last left as keys.
func (r *Replicas) receive(ctx context.Context) {
	sub := r.client.Subscribe(ctx, r.prefix+workChannel, r.prefix+jsonChannel)
	defer func() { _ = sub.Close() }()
	for range 2 { // one answer for each channel
		if _, err := sub.ReceiveTimeout(ctx, workBeat); err != nil {
			return
		}
	}
	r.catchUp(ctx)
	for ctx.Err() == nil {
		// A timeout tells of a connection that hangs: beats come every second.
		message, err := sub.ReceiveTimeout(ctx, workExpiry)
		if err != nil {
			return
		}
		if m, ok := message.(*redis.Message); ok {
			r.take([]byte(m.Payload), time.Now())
		}
	}
}

func (r *Replicas) catchUp(ctx context.Context) {
	ids, err := r.client.ZRange(ctx, r.prefix+replicaSet, 0, 255).Result()
	if err != nil {
		return
	}
	for _, id := range ids {
		message, err := r.client.Get(ctx, r.prefix+workKey+id).Bytes()
		if err == nil {
			r.take(message, time.Now())
		}
		if err == redis.Nil { //nolint:errorlint // go-redis returns it bare
			r.client.ZRem(ctx, r.prefix+replicaSet, id) // expired: its replica is gone
		}
	}
}

// take reads one message. What it cannot read it counts and ignores: others may
// write to this Redis.
func (r *Replicas) take(message []byte, now time.Time) {
	if len(message) > maxWorkMsg {
		r.ignored.Add(1)
		return
	}
	if r.isForOthers(message, now) {
		return
	}
	m, err := decodeWork(message)
	if err != nil {
		r.ignored.Add(1)
		return
	}
	if m.Replica == r.id {
		return
	}
	servers := make(map[string]serverWork, len(m.Servers))
	for id, both := range m.Servers {
		w := serverWork{at: now}
		for i, s := range both {
			var possible bool
			if w.both[i], possible = s.inFlight(); !possible {
				r.ignored.Add(1)
				return
			}
		}
		servers[id] = w
	}
	r.received.Add(1)
	defer r.fleet.changed.note()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keepLocked(&m, servers, now)
	close(r.heard)
	r.heard = make(chan struct{})
}

// isForOthers reports JSON of a replica that speaks MessagePack to this one: it is told
// for replicas of an earlier version. It is not parsed for that, only its beginning.
func (r *Replicas) isForOthers(message []byte, now time.Time) bool {
	if len(message) == 0 || message[0] != '{' {
		return false
	}
	replica := gjson.GetBytes(message, "r").Str
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.others[replica]
	return replica == r.id || known.current && now.Sub(known.at) <= workExpiry
}

// keepLocked takes over the work of another replica.
func (r *Replicas) keepLocked(m *workMessage, servers map[string]serverWork, now time.Time) {
	for id, other := range r.others {
		if now.Sub(other.at) > workExpiry {
			delete(r.others, id)
		}
	}
	was, known := r.others[m.Replica]
	if m.partial && known {
		for id, w := range servers {
			was.servers[id] = w
		}
		servers = was.servers
	}
	maps.DeleteFunc(servers, func(_ string, w serverWork) bool { return w.both == [2]InFlight{} })
	if len(servers) == 0 && m.Taken == 0 {
		delete(r.others, m.Replica)
	} else if known || len(r.others) < 256 {
		r.others[m.Replica] = replicaWork{at: now, taken: m.Taken, servers: servers, current: m.current}
	}
}

// inFlight is the other replicas' work on a server. Their queues have drained for
// as long as nothing was heard, as far as they do without an answer.
func (r *Replicas) inFlight(server string, leg Role, now time.Time) (sum InFlight) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, other := range r.others {
		if now.Sub(other.at) > workExpiry {
			continue
		}
		told, busy := other.servers[server]
		if busy {
			sum = sum.plus(told.both[legIndex(leg)].after(now.Sub(told.at)))
		}
	}
	return sum
}

// after is work as it is believed so long after it was told, while nothing else is.
func (w InFlight) after(age time.Duration) InFlight {
	w.Queue = max(w.Stays, w.Queue-age)
	return w
}

// OthersBusy reports whether other gateway replicas have work in flight, as far as this
// one was told.
func (f *Fleet) OthersBusy(now time.Time) bool {
	r := f.others.Load()
	return r != nil && r.Count(now) > 0
}

// Count returns how many other replicas are known to have work in flight.
func (r *Replicas) Count(now time.Time) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, other := range r.others {
		if now.Sub(other.at) <= workExpiry && len(other.servers) > 0 {
			n++
		}
	}
	return n
}

var (
	connectedDesc = prometheus.NewDesc("tandem_replicas_connected", "1 while this replica can share its work through Redis, else 0.", nil, nil)
	othersDesc    = prometheus.NewDesc("tandem_replicas_busy", "Other replicas that have work in flight.", nil, nil)
	messagesDesc  = prometheus.NewDesc("tandem_replica_messages_total",
		"Messages of other replicas about their work, read or ignored as unreadable.",
		[]string{"kind"}, nil)
)

// Describe and Collect make Replicas a Prometheus collector.
func (r *Replicas) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{connectedDesc, othersDesc, messagesDesc} {
		ch <- d
	}
}

func (r *Replicas) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(connectedDesc, prometheus.GaugeValue, oneIf(r.connected.Load()))
	ch <- prometheus.MustNewConstMetric(othersDesc, prometheus.GaugeValue, float64(r.Count(time.Now())))
	ch <- prometheus.MustNewConstMetric(messagesDesc, prometheus.CounterValue, float64(r.received.Load()), "read")
	ch <- prometheus.MustNewConstMetric(messagesDesc, prometheus.CounterValue, float64(r.ignored.Load()), "ignored")
}
