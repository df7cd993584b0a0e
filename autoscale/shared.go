package autoscale

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tandem-gateway/tandem/autoscale/demand"
	"github.com/tandem-gateway/tandem/autoscale/sizing"
	"github.com/tandem-gateway/tandem/pools/election"
)

// The keys of autoscale in Redis, behind the configured prefix; the braces keep them
// on one node of a cluster. All expire.
//
//	<prefix>{demand}          hash: by replica, what it measured; what is older than the
//	                          bins that count is struck out
//	<prefix>{demand}:decider  the replica that decides
//	<prefix>{demand}:plans    what it decided
const (
	demandKey  = "{demand}"
	deciderKey = "{demand}:decider"
	plansKey   = "{demand}:plans"
)

// deciding is how long a replica decides without renewing it.
const deciding = 15 * time.Second

// Shared is where gateways add up their demand, and one of them decides for all. It is
// nothing that a request waits for.
type Shared struct {
	client  redis.UniversalClient
	prefix  string
	replica string
	decider *election.Lease
	clock   sharedClock
}

// NewShared returns the place where replicas meet.
func NewShared(client redis.UniversalClient, prefix, replica string) *Shared {
	s := &Shared{client: client, prefix: prefix, replica: replica, decider: election.NewLease(client, prefix+deciderKey, replica, deciding)}
	s.clock.own = time.Now
	s.clock.ask = func(ctx context.Context) (time.Time, error) { return client.Time(ctx).Result() }
	return s
}

// Now is the time of all replicas, whatever the clocks of their machines say.
func (s *Shared) Now() time.Time { return s.clock.now() }

// exchangeDemand shares what this replica measured and returns what all did, this one included. A
// replica that is gone stays in the sum for as long as its bins count.
func (s *Shared) exchangeDemand(ctx context.Context, own demand.Reading) ([]demand.Reading, error) {
	text, err := json.Marshal(own)
	if err != nil {
		return nil, err
	}
	key := s.prefix + demandKey
	var all *redis.MapStringStringCmd
	_, err = s.client.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.HSet(ctx, key, s.replica, text)
		p.Expire(ctx, key, (demand.KeptBins+6)*sizing.Bin)
		all = p.HGetAll(ctx, key)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("share demand: %w", err)
	}
	var readings []demand.Reading
	var old []string
	for replica, text := range all.Val() {
		var r demand.Reading
		if err := json.Unmarshal([]byte(text), &r); err != nil || own.At-r.At > int64(demand.KeptBins*sizing.Bin/time.Second) {
			old = append(old, replica)
			continue
		}
		maps.DeleteFunc(r.Models, func(_ string, m *demand.ModelReading) bool { return m == nil })
		if own.At-r.At > int64(goneAfter/time.Second) {
			r.Silent()
		}
		r.Decay(own.At)
		readings = append(readings, r)
	}
	if len(old) > 0 {
		if err := s.client.HDel(ctx, key, old...).Err(); err != nil {
			return nil, fmt.Errorf("strike out old demand: %w", err)
		}
	}
	return readings, nil
}

// goneAfter is how long a replica that says nothing is believed to be there.
const goneAfter = 15 * time.Second

// decides reports whether this replica decides for all. If two hold the lease for a moment,
// the plan of the later one counts.
func (s *Shared) decides(ctx context.Context) (bool, error) {
	held, err := s.decider.Hold(ctx)
	if err != nil {
		return false, fmt.Errorf("which replica decides: %w", err)
	}
	return held, nil
}

// replacePlans makes plans those of all, and notifies the others, if those that they follow
// from still stand.
var replacePlans = redis.NewScript(`
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
redis.call('PUBLISH', ARGV[4], ARGV[5])
return 1`)

// publish makes plans those of all, and notifies the others; read returns them. It does
// nothing, and says so, if others were published since the text was read that they follow
// from.
func (s *Shared) publish(ctx context.Context, last string, p plans) (done bool, err error) {
	text, err := json.Marshal(p)
	if err != nil {
		return false, err
	}
	done, err = replacePlans.Run(ctx, s.client, []string{s.prefix + plansKey}, last, text, time.Hour.Milliseconds(), s.prefix+decidedKey, s.replica).Bool()
	if err != nil {
		return false, fmt.Errorf("publish plans: %w", err)
	}
	return done, nil
}

// errForeign says that plans are not as this version writes them.
var errForeign = errors.New("plans of another version")

// read returns the plans that stand, and their text, which is empty where there are none.
func (s *Shared) read(ctx context.Context) (p plans, text string, err error) {
	text, err = s.client.Get(ctx, s.prefix+plansKey).Result()
	if errors.Is(err, redis.Nil) {
		return p, "", nil
	}
	if err != nil {
		return p, "", fmt.Errorf("read plans: %w", err)
	}
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return plans{}, text, fmt.Errorf("%w: %w", errForeign, err)
	}
	maps.DeleteFunc(p.Models, func(_ string, d *Decision) bool { return d == nil })
	maps.DeleteFunc(p.Memories, func(_ string, m *memory) bool { return m == nil })
	return p, text, nil
}
