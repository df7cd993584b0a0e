package autoscale

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// A client that was refused may come again to another gateway, before the next decision.
// So gateways tell each other at once whom they refuse, by fingerprints:
//
//	<prefix>{demand}:refused  channel: fingerprints, eight bytes each
const refusedKey = "{demand}:refused"

// How refusals travel.
const (
	refusalDelay = 100 * time.Millisecond // they are gathered for this long
	refusalRetry = time.Second            // until the next try, when Redis is away
)

// passRefusals tells the others whom this gateway refuses, and a meter whom they refuse,
// until the context ends. What is lost while Redis is away makes retries count as demand.
func (s *Shared) passRefusals(ctx context.Context, m *Meter) {
	var parts sync.WaitGroup
	parts.Go(func() { s.tellRefusals(ctx, m) })
	parts.Go(func() {
		for ctx.Err() == nil {
			s.hearRefusals(ctx, m)
			select {
			case <-ctx.Done():
			case <-time.After(refusalRetry):
			}
		}
	})
	parts.Wait()
}

func (s *Shared) tellRefusals(ctx context.Context, m *Meter) {
	tick := time.NewTicker(refusalDelay)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		var message []byte
		for _, fingerprint := range m.newlyRefused() {
			message = binary.LittleEndian.AppendUint64(message, fingerprint)
		}
		if len(message) > 0 {
			_ = s.client.Publish(ctx, s.prefix+refusedKey, message).Err() // step says that Redis is away
		}
	}
}

// hearRefusals listens until the connection fails.
func (s *Shared) hearRefusals(ctx context.Context, m *Meter) {
	sub := s.client.Subscribe(ctx, s.prefix+refusedKey)
	defer func() { _ = sub.Close() }()
	for silent := 0; ctx.Err() == nil && silent < 3; {
		// Without a limit go-redis waits past the end of the context.
		message, err := sub.ReceiveTimeout(ctx, refusalRetry)
		var late net.Error
		switch {
		case errors.As(err, &late) && late.Timeout():
			silent++ // nothing to tell, or a connection that hangs: a ping shows
			err = sub.Ping(ctx)
		case err == nil:
			silent = 0
		}
		if err != nil {
			return
		}
		if heard, ok := message.(*redis.Message); ok {
			for text := []byte(heard.Payload); len(text) >= 8; text = text[8:] {
				m.heardRefused(binary.LittleEndian.Uint64(text))
			}
		}
	}
}
