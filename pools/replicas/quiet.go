package replicas

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
)

// ListenQuietly hands over the messages of a channel on which nothing may be said for
// hours, until the context ends or the connection fails: after each second of silence a
// ping asks for it, and three without an answer are a connection that hangs. Channels with
// beats need no ping.
func ListenQuietly(ctx context.Context, sub *redis.PubSub, take func(*redis.Message)) {
	for silent := 0; ctx.Err() == nil && silent < 3; {
		// Without a limit go-redis waits past the end of the context.
		received, err := sub.ReceiveTimeout(ctx, time.Second)
		var late net.Error
		switch {
		case errors.As(err, &late) && late.Timeout():
			silent++
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
