package pools

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
)

// The keys and channels of pools in Redis. All begin with the configured prefix; the
// braces keep them on one node of a cluster, so that sharing works as a whole or not.
//
//	<prefix>{work}           channel: what a replica has on the servers, when it changes
//	<prefix>{work}:of:<id>   the same as a key with a TTL, for replicas that start
//	<prefix>{work}:replicas  sorted set of their ids, which has an order and so can be
//	                         read in part; expires with the last of them
const (
	workChannel = "{work}"
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

	mu     sync.Mutex // guards the rest
	others map[string]replicaWork
	heard  chan struct{} // closed and made anew at each message
}

// replicaWork is what one other replica said last.
type replicaWork struct {
	at      time.Time // when it was received, by our clock
	taken   uint64
	servers map[string][2]InFlight
}

// workMessage is one replica's work: by server ID, prefill and decode. Taken is how
// many turns of the replica that decides for it are in this work, or were.
type workMessage struct {
	Replica string                   `json:"r"`
	Taken   uint64                   `json:"k,omitempty"`
	Servers map[string][2]sharedWork `json:"s"`
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
		select {
		case <-ctx.Done():
			r.leave(context.WithoutCancel(ctx))
			return
		case <-beat.C:
		case <-r.fleet.worked:
			if !Pause(ctx, workDelay) {
				r.leave(context.WithoutCancel(ctx))
				return
			}
		}
		r.tell(ctx)
	}
}

func (r *Replicas) tell(ctx context.Context) {
	message, err := json.Marshal(r.own(time.Now()))
	if err != nil {
		r.log.Error("own work is no JSON", "error", err.Error())
		return
	}
	_, err = r.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.Publish(ctx, r.prefix+workChannel, message)
		p.Set(ctx, r.prefix+workKey+r.id, message, workExpiry)
		p.ZAdd(ctx, r.prefix+replicaSet, redis.Z{Member: r.id})
		p.Expire(ctx, r.prefix+replicaSet, setExpiry)
		return nil
	})
	r.note(err)
}

// leave says that nothing is in flight any more.
func (r *Replicas) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, workBeat)
	defer cancel()
	message, _ := json.Marshal(workMessage{Replica: r.id}) // an empty message always encodes
	_, _ = r.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.Publish(ctx, r.prefix+workChannel, message)
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
	sub := r.client.Subscribe(ctx, r.prefix+workChannel)
	defer func() { _ = sub.Close() }()
	if _, err := sub.ReceiveTimeout(ctx, workBeat); err != nil {
		return
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
	var m workMessage
	if len(message) > maxWorkMsg || json.Unmarshal(message, &m) != nil || m.Replica == "" || len(m.Replica) > 128 {
		r.ignored.Add(1)
		return
	}
	if m.Replica == r.id {
		return
	}
	r.received.Add(1)
	w := replicaWork{at: now, taken: m.Taken, servers: make(map[string][2]InFlight, len(m.Servers))}
	for id, both := range m.Servers {
		var work [2]InFlight
		for i, s := range both {
			if s.Requests < 0 || s.Tokens < 0 || !(s.Stays >= 0 && s.Stays <= s.Queue && s.Queue < 1e6) {
				r.ignored.Add(1)
				return
			}
			seconds := func(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }
			work[i] = InFlight{s.Requests, s.Tokens, seconds(s.Queue), seconds(s.Stays)}
		}
		w.servers[id] = work
	}
	defer r.fleet.changed.note()
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, other := range r.others {
		if now.Sub(other.at) > workExpiry {
			delete(r.others, id)
		}
	}
	close(r.heard)
	r.heard = make(chan struct{})
	if len(w.servers) == 0 && m.Taken == 0 {
		delete(r.others, m.Replica)
	} else if _, known := r.others[m.Replica]; known || len(r.others) < 256 {
		r.others[m.Replica] = w
	}
}

// inFlight is the other replicas' work on a server. Their queues have drained for
// as long as nothing was heard, as far as they do without an answer.
func (r *Replicas) inFlight(server string, leg Role, now time.Time) (sum InFlight) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, other := range r.others {
		age := now.Sub(other.at)
		if age > workExpiry {
			continue
		}
		w := other.servers[server][legIndex(leg)]
		w.Queue = max(w.Stays, w.Queue-age)
		sum = sum.plus(w)
	}
	return sum
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
