package replicas

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tandem-gateway/tandem/pools"
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
	workBeat   = time.Second           // the whole is sent again, so that nothing lost stays lost
	workExpiry = 3 * time.Second       // a replica that reports nothing for this long has nothing
	maxWorkMsg = 1 << 20               // bytes of a message that is read
	setExpiry  = time.Minute           // of the set of ids; each start strikes out those that are gone
	// workBytes is how many bytes a second changes may take all replicas together to read:
	// the larger a message and the more replicas read it, the longer changes are gathered.
	workBytes = 2 << 20
	// workDrift is by how much a queue may differ from what the others believe without a report.
	workDrift = 10 * time.Millisecond
)

// Exchange shares what every gateway has on the servers, so that they do not all
// send to the one that looks idle. Messages hold sums and not changes: a lost one
// is made good by the next. Redis is never waited for by a request; without it each
// replica sees only its own work.
type Exchange struct {
	id     string
	prefix string
	client redis.UniversalClient
	fleet  *pools.Fleet
	log    *slog.Logger

	connected atomic.Bool
	logged    atomic.Bool // that it is, or is not
	received  atomic.Uint64
	ignored   atomic.Uint64

	decisions atomic.Uint64 // of the leader that this replica has carried out

	reported report // what the others know; belongs to publish

	mu      sync.Mutex // guards the rest
	others  map[string]replicaWork
	foreign map[string]foreignWork // of replicas that work on no server that is known here
	changed chan struct{}          // closed and made anew at each message
}

// replicaWork is what one other replica reported last.
type replicaWork struct {
	at        time.Time // when it was received, by our clock
	decisions uint64
	servers   map[string]serverWork
	current   bool // it speaks MessagePack: its JSON is for others
	direct    bool // it reports to this one over a connection of their own: what it publishes is older
}

// serverWork is its work on one server, prefill and decode, as of when that was received.
type serverWork struct {
	at   time.Time
	both [2]pools.InFlight
}

// workMessage is one replica's work: by server ID, prefill and decode. Decisions is how
// many decisions of the leader are in this work, or were.
type workMessage struct {
	Replica   string                   `json:"r"`
	Decisions uint64                   `json:"k,omitempty"`
	Servers   map[string][2]sharedWork `json:"s"`

	partial bool // what is not named is as it was reported before
	current bool // it came in MessagePack
}

type sharedWork struct {
	Requests  int     `json:"n,omitempty"`
	Tokens    int     `json:"t,omitempty"`
	Queue     float64 `json:"q,omitempty"` // seconds
	Stays     float64 `json:"l,omitempty"` // likewise
	Prompts   int     `json:"p,omitempty"` // of Tokens; 0 where an earlier version reports
	Computing int     `json:"w,omitempty"` // likewise; of a decode server earlier versions report Tokens
}

// NewExchange returns the sharing of a fleet's work under a replica's own id.
func NewExchange(fleet *pools.Fleet, client redis.UniversalClient, prefix, id string, log *slog.Logger) *Exchange {
	r := &Exchange{
		id: id, prefix: prefix, client: client, fleet: fleet, log: log,
		others: make(map[string]replicaWork), foreign: make(map[string]foreignWork), changed: make(chan struct{}),
	}
	fleet.SetReplicaWork(r)
	return r
}

// CountDecision counts a decision of the leader for this replica whose work has been claimed,
// or was given up. The reports of the work that follow carry the count too.
func (r *Exchange) CountDecision() (count uint64) {
	defer r.fleet.NotifyWork()
	return r.decisions.Add(1)
}

// ReportedDecisions is how many decisions of the leader were in the work that a replica last
// reported, 0 if it reported none, and a channel that is closed when the next report of any
// replica is received.
func (r *Exchange) ReportedDecisions(replica string) (count uint64, changed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.others[replica].decisions, r.changed
}

// Run shares until the context ends.
func (r *Exchange) Run(ctx context.Context) {
	var parts sync.WaitGroup
	parts.Go(func() { r.publish(ctx) })
	parts.Go(func() { r.subscribe(ctx) })
	parts.Wait()
	r.fleet.SetReplicaWork(nil)
}

// publish sends changes soon after they are made, and the whole every beat.
func (r *Exchange) publish(ctx context.Context) {
	changed, stop := r.fleet.WorkChanges()
	defer stop()
	beat := time.NewTicker(workBeat)
	defer beat.Stop()
	for {
		whole := false
		select {
		case <-ctx.Done():
			r.publishNothing(context.WithoutCancel(ctx))
			return
		case <-beat.C:
			whole = true
		case <-changed:
			if !pools.Pause(ctx, r.reported.delay()) {
				r.publishNothing(context.WithoutCancel(ctx))
				return
			}
		}
		r.send(ctx, whole)
	}
}

// send publishes what has changed since the last report, or everything.
func (r *Exchange) send(ctx context.Context, whole bool) {
	now := time.Now()
	own := r.own(now)
	m := r.reported.changesOf(own, whole, now)
	if r.reported.has(&m) {
		return
	}
	message := m.encode()
	var old []byte // for replicas that know nothing else, and on each beat for those that start
	if r.reported.mixed || !m.partial {
		var err error
		if old, err = json.Marshal(own); err != nil {
			r.log.Error("cannot encode own work", "error", err.Error())
			return
		}
	}
	var replicas *redis.ZSliceCmd
	_, err := r.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.Publish(ctx, r.prefix+workChannel, message)
		if r.reported.mixed {
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
	r.recordConnection(err)
	r.reported.recordPublished(m, len(message)+len(old), err == nil, now)
	if err == nil && replicas != nil {
		all := replicas.Val()
		r.reported.replicas = len(all)
		r.reported.mixed = slices.ContainsFunc(all, func(z redis.Z) bool { return z.Score < wireVersion })
	}
}

// publishNothing reports that nothing is in flight any more.
func (r *Exchange) publishNothing(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, workBeat)
	defer cancel()
	nothing := workMessage{Replica: r.id}
	old, _ := json.Marshal(nothing) // an empty message always encodes
	_, _ = r.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.Publish(ctx, r.prefix+workChannel, nothing.encode())
		p.Publish(ctx, r.prefix+jsonChannel, old)
		p.Del(ctx, r.prefix+workKey+r.id)
		p.ZRem(ctx, r.prefix+replicaSet, r.id)
		return nil
	}) // Redis may be away; the keys expire
}

// own sums up this replica's work. Servers without any are left out.
func (r *Exchange) own(now time.Time) workMessage {
	// The count is read first: the work includes all of these decisions.
	m := workMessage{Replica: r.id, Decisions: r.decisions.Load(), Servers: make(map[string][2]sharedWork)}
	for _, s := range r.fleet.Servers() {
		var both [2]sharedWork
		for i, leg := range []pools.Role{pools.Prefill, pools.Decode} {
			own := s.OwnInFlight(leg, now)
			both[i] = sharedWork{own.Requests, own.Tokens, own.Queue.Seconds(), own.Stays.Seconds(), own.Prompts, own.Computing}
		}
		if both != ([2]sharedWork{}) {
			m.Servers[s.ID()] = both
		}
	}
	return m
}

// IsCutOff reports whether Redis did not answer when work was last to be shared; false before the first time, and of
// nil, which shares nothing.
func (r *Exchange) IsCutOff() bool { return r != nil && r.logged.Load() && !r.connected.Load() }

// recordConnection keeps whether Redis answers, and logs when that changes.
func (r *Exchange) recordConnection(err error) {
	ok := err == nil
	if r.connected.Swap(ok) == ok && r.logged.Swap(true) {
		return
	}
	r.logged.Store(true)
	if ok {
		r.log.Info("sharing work with other replicas")
		return
	}
	r.log.Warn("cannot share work with other replicas", "error", err.Error())
}
