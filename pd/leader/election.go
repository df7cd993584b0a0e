package leader

import (
	"context"
	"crypto/rand"
	"log/slog"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tandem-gateway/tandem/pools/election"
)

// How the leader is found.
const (
	recordLife  = 2 * time.Second // of a leader that does not renew it
	recordRenew = 500 * time.Millisecond
)

// Election finds one leader among the replicas that share a Redis. While Redis does
// not answer the last known one stays: followers find out by themselves whether it
// lives.
type Election struct {
	lease   *election.RecordLease
	token   string // in the own record: its name alone may be that of the process before this one
	log     *slog.Logger
	failing bool // Redis did not answer last, and that was logged; Run's goroutine alone uses it

	mu      sync.Mutex      // guards the rest
	current election.Record // zero: no leader is known
	changed chan struct{}
}

// NewElection returns an election in which a replica stands with the address of its
// Server.
func NewElection(client redis.UniversalClient, prefix, replica, address string, log *slog.Logger) *Election {
	own := election.Record{Replica: replica, Address: address, Token: rand.Text()}
	return &Election{
		lease: election.NewRecordLease(client, prefix+"decider", own, recordLife), token: own.Token,
		log: log, changed: make(chan struct{}),
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
	record, err := e.lease.Hold(ctx)
	if err != nil {
		if !e.failing && ctx.Err() == nil {
			e.failing = true
			e.log.Warn("cannot ask which replica leads: none is elected, and the last known one stays", "error", err.Error())
		}
		return
	}
	if e.failing {
		e.failing = false
		e.log.Info("the leader's election goes on")
	}
	e.set(record)
}

// resign lets the next one be found at once.
func (e *Election) resign(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, recordRenew)
	defer cancel()
	if err := e.lease.Release(ctx); err != nil {
		e.log.Debug("the leader's record was not given back", "error", err.Error())
	}
}

func (e *Election) set(r election.Record) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if r == e.current {
		return
	}
	e.current = r
	close(e.changed)
	e.changed = make(chan struct{})
	e.log.Info("leader elected", "replica", r.Replica, "address", r.Address, "epoch", r.Epoch, "own", r.Token == e.token)
}

// Current returns the leader, a zero record while none is known, whether that is
// this replica itself, and what is closed when it changes.
func (e *Election) Current() (leader election.Record, own bool, changed <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.current, e.current.Token == e.token, e.changed
}
