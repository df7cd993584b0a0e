package replicas

import (
	"context"
	"maps"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/pools"
)

// subscribe receives the others' messages until the context ends.
func (r *Exchange) subscribe(ctx context.Context) {
	for ctx.Err() == nil {
		r.receive(ctx)
		pools.Pause(ctx, workBeat/4)
	}
}

// receive reads messages until the connection fails. It first takes what the
// others last left as keys.
func (r *Exchange) receive(ctx context.Context) {
	sub := r.client.Subscribe(ctx, r.prefix+workChannel, r.prefix+jsonChannel)
	defer func() { _ = sub.Close() }()
	for range 2 { // one answer for each channel
		if _, err := sub.ReceiveTimeout(ctx, workBeat); err != nil {
			return
		}
	}
	r.catchUp(ctx)
	for ctx.Err() == nil {
		// A timeout means a connection that hangs: beats come every second.
		message, err := sub.ReceiveTimeout(ctx, workExpiry)
		if err != nil {
			return
		}
		if m, ok := message.(*redis.Message); ok {
			r.take([]byte(m.Payload), time.Now())
		}
	}
}

func (r *Exchange) catchUp(ctx context.Context) {
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
func (r *Exchange) take(message []byte, now time.Time) {
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
	if m.Replica != r.id && !r.isDirect(m.Replica) {
		r.keep(&m, false, now)
	}
}

// keep takes over the work of another replica, that it published or reported directly.
func (r *Exchange) keep(m *workMessage, direct bool, now time.Time) {
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
	defer r.fleet.NotifyChange()
	r.mu.Lock()
	r.keepLocked(m, servers, direct, now)
	close(r.changed)
	r.changed = make(chan struct{})
	r.mu.Unlock()
	r.judgeFleet(m, now)
}

// isForOthers reports JSON of a replica that speaks MessagePack to this one: it is meant
// for replicas of an earlier version. It is not parsed for that, only its beginning.
func (r *Exchange) isForOthers(message []byte, now time.Time) bool {
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
func (r *Exchange) keepLocked(m *workMessage, servers map[string]serverWork, direct bool, now time.Time) {
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
	maps.DeleteFunc(servers, func(_ string, w serverWork) bool { return w.both == [2]pools.InFlight{} })
	if len(servers) == 0 && m.Decisions == 0 {
		delete(r.others, m.Replica)
	} else if known || len(r.others) < 256 {
		r.others[m.Replica] = replicaWork{at: now, decisions: m.Decisions, servers: servers, current: m.current, direct: direct}
	}
}

// InFlight is the other replicas' work on a server. Their queues have drained for
// as long as nothing was received, as far as they do without an answer.
func (r *Exchange) InFlight(server string, leg pools.Role, now time.Time) (sum pools.InFlight) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, other := range r.others {
		if now.Sub(other.at) > workExpiry {
			continue
		}
		reported, busy := other.servers[server]
		if busy {
			sum = sum.Plus(after(reported.both[pools.LegIndex(leg)], now.Sub(reported.at)))
		}
	}
	return sum
}

// after is work as it is believed so long after it was reported, while nothing else is.
func after(w pools.InFlight, age time.Duration) pools.InFlight {
	w.Queue = max(w.Stays, w.Queue-age)
	return w
}

// Busy returns how many other replicas are known to have work in flight.
func (r *Exchange) Busy(now time.Time) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, other := range r.others {
		if now.Sub(other.at) <= workExpiry && len(other.servers) > 0 {
			n++
		}
	}
	return n
}
