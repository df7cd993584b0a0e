package election

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// Record is who holds an office that others talk to.
type Record struct {
	Replica string
	Address string // where it listens, host:port
	Token   string // what others show there; whoever reads the Redis may do so
	Epoch   int64  // of two records the higher is the newer
}

// Office is a lease that says of its holder more than a name: a hash of the record.
type Office struct {
	client redis.UniversalClient
	key    string
	own    Record // without an epoch
	life   time.Duration
}

// NewOffice returns an office as one candidate sees it.
func NewOffice(client redis.UniversalClient, key string, own Record, life time.Duration) *Office {
	return &Office{client: client, key: key, own: own, life: life}
}

// holdRecord takes the office, renews it, or reads who has it:
//
//	KEYS[1]  the office
//	ARGV     replica, address, token, life in ms
//
// The epoch is Redis's clock in microseconds: it grows even when Redis was emptied.
var holdRecord = redis.NewScript(`
local held = redis.call('HGET', KEYS[1], 'replica')
if not held then
	local now = redis.call('TIME')
	redis.call('HSET', KEYS[1], 'replica', ARGV[1], 'address', ARGV[2], 'token', ARGV[3],
		'epoch', now[1] .. string.format('%06d', now[2]))
	held = ARGV[1]
end
if held == ARGV[1] then redis.call('PEXPIRE', KEYS[1], ARGV[4]) end
return redis.call('HMGET', KEYS[1], 'replica', 'address', 'token', 'epoch')`)

// Hold takes the office if it is free, or renews it if it is the candidate's, and returns
// who has it.
func (o *Office) Hold(ctx context.Context) (Record, error) {
	said, err := holdRecord.Run(ctx, o.client, []string{o.key}, o.own.Replica, o.own.Address, o.own.Token, o.life.Milliseconds()).StringSlice()
	if err != nil {
		return Record{}, err
	}
	if len(said) != 4 {
		return Record{}, fmt.Errorf("record of %d fields", len(said))
	}
	epoch, err := strconv.ParseInt(said[3], 10, 64)
	if err != nil {
		return Record{}, fmt.Errorf("epoch of the record: %w", err)
	}
	return Record{Replica: said[0], Address: said[1], Token: said[2], Epoch: epoch}, nil
}

var releaseRecord = redis.NewScript(`
if redis.call('HGET', KEYS[1], 'replica') == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0`)

// Release lets another one have the office at once, if it is the candidate's.
func (o *Office) Release(ctx context.Context) error {
	return releaseRecord.Run(ctx, o.client, []string{o.key}, o.own.Replica).Err()
}
