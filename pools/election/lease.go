package election

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// Lease is a key that one candidate at a time holds, and that expires unless it is renewed.
// Its value is the holder's ID, so that every candidate can read it.
type Lease struct {
	client    redis.UniversalClient
	key       string
	candidate string
	ttl       time.Duration
}

// NewLease returns a lease as one candidate sees it.
func NewLease(client redis.UniversalClient, key, candidate string, life time.Duration) *Lease {
	return &Lease{client: client, key: key, candidate: candidate, ttl: life}
}

// What a candidate does about a lease.
const (
	take  = "take"  // takes it if it is free
	hold  = "hold"  // takes it, or renews its own
	renew = "renew" // renews its own
)

// claimLua leaves in "held" the holder of the lease, false where it is free:
//
//	KEYS[1]  the lease
//	ARGV     candidate, life in ms, what it does
const claimLua = `
local held = redis.call('GET', KEYS[1])
if held == ARGV[1] and ARGV[3] ~= 'take' then
	redis.call('PEXPIRE', KEYS[1], ARGV[2])
elseif not held and ARGV[3] ~= 'renew' then
	redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
	held = ARGV[1]
end
`

var claim = redis.NewScript(claimLua + `return held`)

// claim does something about the lease, and returns the holder then, "" where it is free.
func (l *Lease) claim(ctx context.Context, what string) (holder string, err error) {
	holder, err = claim.Run(ctx, l.client, []string{l.key}, l.candidate, l.ttl.Milliseconds(), what).Text()
	if errors.Is(err, redis.Nil) {
		return "", nil
	}
	return holder, err
}

// Take takes the lease if it is free, and reports whether the candidate holds it then. It
// does not renew it: another one has its turn when it expires.
func (l *Lease) Take(ctx context.Context) (held bool, err error) {
	holder, err := l.claim(ctx, take)
	return err == nil && holder == l.candidate, err
}

// Hold takes the lease if it is free, or renews it if it is the candidate's, and reports
// whether it is.
func (l *Lease) Hold(ctx context.Context) (held bool, err error) {
	holder, err := l.claim(ctx, hold)
	return err == nil && holder == l.candidate, err
}

// Holder returns the candidate that holds the lease, "" where it is free.
func (l *Lease) Holder(ctx context.Context) (holder string, err error) {
	holder, err = l.client.Get(ctx, l.key).Result()
	if errors.Is(err, redis.Nil) {
		return "", nil
	}
	return holder, err
}

// Keep renews the lease at an interval until the context ends or the lease is lost, and then
// gives it back, so that another one need not wait. One that another candidate holds, or none,
// is lost at once; one that Redis cannot be asked about, when it must have expired.
func (l *Lease) Keep(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	defer l.releaseAfterRun(ctx, every)
	for sure := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		asked := time.Now()
		holder, err := l.claim(ctx, renew)
		switch {
		case err == nil && holder == l.candidate:
			sure = asked
		case err == nil, time.Since(sure) > l.ttl:
			return
		}
	}
}

// releaseAfterRun releases the lease within a time, even if the context has ended. What fails
// expires.
func (l *Lease) releaseAfterRun(ctx context.Context, within time.Duration) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), within)
	defer cancel()
	_ = l.Release(ctx)
}

var release = redis.NewScript(`
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0`)

// Release lets another one hold the lease at once, if it is the candidate's.
func (l *Lease) Release(ctx context.Context) error {
	return release.Run(ctx, l.client, []string{l.key}, l.candidate).Err()
}

// Script is a script that holds the lease and then goes on in the same step, so that what it
// does is done by the holder or not at all.
type Script struct{ script *redis.Script }

// NewScript makes one of Lua that goes on where the lease was held: "held" is the holder.
// Its own keys begin with KEYS[2], its own arguments with ARGV[4]; ARGV[1] is the candidate
// and ARGV[2] the life of the lease in milliseconds.
func NewScript(lua string) *Script {
	return &Script{redis.NewScript(claimLua + lua)}
}

// HoldAnd holds the lease and runs the rest of a script.
func (l *Lease) HoldAnd(ctx context.Context, s *Script, keys []string, args ...any) *redis.Cmd {
	all := append([]any{l.candidate, l.ttl.Milliseconds(), hold}, args...)
	return s.script.Run(ctx, l.client, append([]string{l.key}, keys...), all...)
}
