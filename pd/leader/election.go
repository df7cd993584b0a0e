package leader

import (
	"context"
	"crypto/rand"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// How the leader is found.
const (
	recordLife  = 2 * time.Second // of a leader that does not renew it
	recordRenew = 500 * time.Millisecond
)

// Record is who leads.
type Record struct {
	Replica string
	Address string // of its Server, host:port
	Token   string // what followers show; whoever reads the Redis may follow
	Epoch   int64  // of two records the higher is the newer
}

// stand keeps, takes or reads the record:
//
//	KEYS[1] <prefix>decider  hash of the record, expires
//	ARGV    replica, address, token, life in ms
//
// The epoch is Redis's clock in microseconds: it grows even when Redis was emptied.
var stand = redis.NewScript(`
local held = redis.call('HGET', KEYS[1], 'replica')
if not held then
  local now = redis.call('TIME')
  redis.call('HSET', KEYS[1], 'replica', ARGV[1], 'address', ARGV[2], 'token', ARGV[3],
    'epoch', now[1] .. string.format('%06d', now[2]))
  held = ARGV[1]
end
if held == ARGV[1] then redis.call('PEXPIRE', KEYS[1], ARGV[4]) end
return redis.call('HMGET', KEYS[1], 'replica', 'address', 'token', 'epoch')`)

// yield gives the record up if it is the replica's own.
var yield = redis.NewScript(`
if redis.call('HGET', KEYS[1], 'replica') == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0`)

// Election finds one leader among the replicas that share a Redis. While Redis does
// not answer the last known one stays: followers find out by themselves whether it
// lives.
type Election struct {
	client redis.UniversalClient
	key    string
	own    Record // without an epoch
	log    *slog.Logger

	mu      sync.Mutex // guards the rest
	current Record     // zero: nobody is known
	changed chan struct{}
}

// NewElection returns an election in which a replica stands with the address of its
// Server.
func NewElection(client redis.UniversalClient, prefix, replica, address string, log *slog.Logger) *Election {
	return &Election{
		client: client, key: prefix + "decider", log: log, changed: make(chan struct{}),
		own: Record{Replica: replica, Address: address, Token: rand.Text()},
	}
}

// Run stands for election until the context ends, and gives the office back.
func (e *Election) Run(ctx context.Context) {
	tick := time.NewTicker(recordRenew)
	defer tick.Stop()
	for {
		e.ask(ctx)
		select {
		case <-ctx.Done():
			e.resign(context.WithoutCancel(ctx))
			return
		case <-tick.C:
		}
	}
}

func (e *Election) ask(ctx context.Context) {
	said, err := stand.Run(ctx, e.client, []string{e.key}, e.own.Replica, e.own.Address, e.own.Token, recordLife.Milliseconds()).StringSlice()
	if err != nil || len(said) != 4 {
		e.log.Debug("cannot ask who leads", "error", err)
		return
	}
	epoch, err := strconv.ParseInt(said[3], 10, 64)
	if err != nil {
		e.log.Debug("the leader's record cannot be read", "error", err.Error())
		return
	}
	e.set(Record{Replica: said[0], Address: said[1], Token: said[2], Epoch: epoch})
}

// resign lets the next one be found at once.
func (e *Election) resign(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, recordRenew)
	defer cancel()
	if err := yield.Run(ctx, e.client, []string{e.key}, e.own.Replica).Err(); err != nil {
		e.log.Debug("the leader's record was not given back", "error", err.Error())
	}
}

func (e *Election) set(r Record) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if r == e.current {
		return
	}
	e.current = r
	close(e.changed)
	e.changed = make(chan struct{})
	e.log.Info("leader elected", "replica", r.Replica, "address", r.Address, "epoch", r.Epoch, "own", r.Replica == e.own.Replica)
}

// Current returns who leads, a zero Record while nobody is known, whether that is
// this replica itself, and what is closed when it changes.
func (e *Election) Current() (who Record, own bool, changed <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.current, e.current.Replica == e.own.Replica, e.changed
}
