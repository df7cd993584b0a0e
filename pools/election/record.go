package election

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// Record describes the holder of a lease to which others connect.
type Record struct {
	Replica string
	Address string // where it listens, host:port
	Token   string // what others show there; any client that reads the Redis may do so
	Epoch   int64  // of two records the higher is the newer
}

// RecordLease is a lease whose key holds more than the holder's ID: a hash of its record.
type RecordLease struct {
	client redis.UniversalClient
	key    string
	own    Record // without an epoch
	life   time.Duration
}

// NewRecordLease returns a lease as one candidate sees it.
func NewRecordLease(client redis.UniversalClient, key string, own Record, life time.Duration) *RecordLease {
	return &RecordLease{client: client, key: key, own: own, life: life}
}

// holdRecord takes the lease, renews it, or reads its holder:
//
//	KEYS[1]  the lease
//	ARGV     replica, address, token, life in ms
//
// The epoch is Redis's clock in microseconds: it grows even when Redis was emptied. A record of
// the same replica with another token is of the process before this one, and expires: where it
// says that the replica listens nobody does any more.
var holdRecord = redis.NewScript(`
local held = redis.call('HGET', KEYS[1], 'replica')
if not held then
	local now = redis.call('TIME')
	redis.call('HSET', KEYS[1], 'replica', ARGV[1], 'address', ARGV[2], 'token', ARGV[3],
		'epoch', now[1] .. string.format('%06d', now[2]))
	held = ARGV[1]
end
if held == ARGV[1] and redis.call('HGET', KEYS[1], 'token') == ARGV[3] then
	redis.call('PEXPIRE', KEYS[1], ARGV[4])
end
return redis.call('HMGET', KEYS[1], 'replica', 'address', 'token', 'epoch')`)

// Hold takes the lease if it is free, or renews it if it is the candidate's, and returns
// the holder's record.
func (o *RecordLease) Hold(ctx context.Context) (Record, error) {
	fields, err := holdRecord.Run(ctx, o.client, []string{o.key}, o.own.Replica, o.own.Address, o.own.Token, o.life.Milliseconds()).StringSlice()
	if err != nil {
		return Record{}, err
	}
	if len(fields) != 4 {
		return Record{}, fmt.Errorf("record of %d fields", len(fields))
	}
	epoch, err := strconv.ParseInt(fields[3], 10, 64)
	if err != nil {
		return Record{}, fmt.Errorf("epoch of the record: %w", err)
	}
	return Record{Replica: fields[0], Address: fields[1], Token: fields[2], Epoch: epoch}, nil
}

var releaseRecord = redis.NewScript(`
local held = redis.call('HMGET', KEYS[1], 'replica', 'token')
if held[1] == ARGV[1] and held[2] == ARGV[2] then return redis.call('DEL', KEYS[1]) end
return 0`)

// Release frees the lease at once, if it is the candidate's.
func (o *RecordLease) Release(ctx context.Context) error {
	return releaseRecord.Run(ctx, o.client, []string{o.key}, o.own.Replica, o.own.Token).Err()
}
