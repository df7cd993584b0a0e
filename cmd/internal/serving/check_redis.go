package serving

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// How long a trial of Redis takes at most.
const (
	trialLife     = 10 * time.Second // of its keys
	trialPatience = 3 * time.Second  // for a message to come back
)

// redisTrial tries what replicas do in a Redis. Its keys expire, whatever becomes of it.
type redisTrial struct {
	client redis.UniversalClient
	key    string // all begin with it, and are on one node of a cluster
}

// tryRedis does under a prefix what replicas do, and says all that is refused.
func tryRedis(ctx context.Context, client redis.UniversalClient, prefix string) error {
	trial := redisTrial{client, prefix + "{check}:" + rand.Text()}
	var refused []error
	for _, step := range []struct {
		name string
		try  func(context.Context) error
	}{
		{"a key cannot be set", func(ctx context.Context) error { return client.Set(ctx, trial.key, "1", trialLife).Err() }},
		{"a script cannot be run (EVAL)", trial.script},
		{"messages cannot be sent and received (PUBLISH, SUBSCRIBE)", trial.message},
		{"demand and drains cannot be shared (MULTI, hashes)", trial.hash},
		{"work in flight cannot be shared (sorted sets)", trial.sortedSet},
		{"events of engines cannot be shared (streams)", trial.stream},
		{"the time cannot be read", func(ctx context.Context) error { return client.Time(ctx).Err() }},
	} {
		if err := step.try(ctx); err != nil {
			refused = append(refused, fmt.Errorf("%s: %w", step.name, err))
		}
	}
	if len(refused) == 0 {
		return nil
	}
	return fmt.Errorf("it answers, but replicas cannot share through it (docs/redis.md has the user that may):\n%w", errors.Join(refused...))
}

// script runs one that writes, as an election does, by its text and by its hash.
func (r redisTrial) script(ctx context.Context) error {
	const lua = `redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) return 1`
	keys, args := []string{r.key}, []any{"1", trialLife.Milliseconds()}
	if err := r.client.Eval(ctx, lua, keys, args...).Err(); err != nil {
		return err
	}
	return redis.NewScript(lua).EvalSha(ctx, r.client, keys, args...).Err()
}

// message sends one, and waits until it is received.
func (r redisTrial) message(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, trialPatience)
	defer cancel()
	receiver := r.client.Subscribe(ctx, r.key)
	defer func() { _ = receiver.Close() }() // nothing more is read
	if _, err := receiver.Receive(ctx); err != nil {
		return err
	}
	if err := r.client.Publish(ctx, r.key, "1").Err(); err != nil {
		return err
	}
	_, err := receiver.ReceiveMessage(ctx)
	return err
}

func (r redisTrial) hash(ctx context.Context) error {
	key := r.key + ":hash"
	_, err := r.client.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.HSet(ctx, key, "field", "1")
		p.PExpire(ctx, key, trialLife)
		p.HGetAll(ctx, key)
		return nil
	})
	return err
}

func (r redisTrial) sortedSet(ctx context.Context) error {
	key := r.key + ":set"
	_, err := r.client.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.ZAdd(ctx, key, redis.Z{Score: 1, Member: "1"})
		p.PExpire(ctx, key, trialLife)
		p.ZRange(ctx, key, 0, -1)
		return nil
	})
	return err
}

func (r redisTrial) stream(ctx context.Context) error {
	key := r.key + ":stream"
	_, err := r.client.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.XAdd(ctx, &redis.XAddArgs{Stream: key, Values: []string{"field", "1"}})
		p.PExpire(ctx, key, trialLife)
		return nil
	})
	return err
}
