// Package pubsub receives the messages of a Redis channel on which hours may pass without
// one. It imports go-redis and nothing of ours; pd and autoscale import it.
package pubsub

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
)

// Receive calls take with each message of a subscription until the context ends or the
// connection fails. After a second without a message, and after the next one, it sends a
// ping; three seconds without a message or an answer mean that the connection hangs.
func Receive(ctx context.Context, sub *redis.PubSub, take func(*redis.Message)) {
	for silent := 0; ctx.Err() == nil; {
		// Without a limit go-redis waits past the end of the context.
		received, err := sub.ReceiveTimeout(ctx, time.Second)
		var late net.Error
		switch {
		case errors.As(err, &late) && late.Timeout():
			if silent++; silent == 3 {
				return
			}
			err = sub.Ping(ctx)
		case err == nil:
			silent = 0
		}
		if err != nil {
			return
		}
		if message, ok := received.(*redis.Message); ok {
			take(message)
		}
	}
}
