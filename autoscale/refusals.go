package autoscale

import (
	"context"
	"encoding/binary"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tandem-gateway/tandem/autoscale/demand"
	"github.com/tandem-gateway/tandem/pools/pubsub"
)

// Gateways report to each other at once what cannot wait for the next decision. A client that
// was refused may come again to another gateway: the requests they refuse, by fingerprints. KEDA
// may follow another gateway than the one that holds a first request: that one decided.
//
//	<prefix>{demand}:refused  channel: fingerprints, eight bytes each
//	<prefix>{demand}:decided  channel: the replica that published plans
const (
	refusedKey = "{demand}:refused"
	decidedKey = "{demand}:decided"
)

// How refusals and decisions travel.
const (
	refusalDelay  = 100 * time.Millisecond // refusals are gathered for this long
	retryInterval = time.Second            // until the next try, when Redis is away
)

// exchangeRefusals publishes which requests this gateway refuses, records in a meter which the
// others refuse, and calls decided when others publish plans, until the context ends. What is
// lost while Redis is away makes retries count as demand, and plans come with the next
// decision.
func (s *Shared) exchangeRefusals(ctx context.Context, m *demand.Meter, decided func()) {
	var parts sync.WaitGroup
	parts.Go(func() { s.publishRefusals(ctx, m) })
	parts.Go(func() {
		for ctx.Err() == nil {
			s.receive(ctx, m, decided)
			select {
			case <-ctx.Done():
			case <-time.After(retryInterval):
			}
		}
	})
	parts.Wait()
}

func (s *Shared) publishRefusals(ctx context.Context, m *demand.Meter) {
	tick := time.NewTicker(refusalDelay)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		var message []byte
		for _, fingerprint := range m.TakeRefused() {
			message = binary.LittleEndian.AppendUint64(message, fingerprint)
		}
		if len(message) > 0 {
			_ = s.client.Publish(ctx, s.prefix+refusedKey, message).Err() // step reports that Redis is away
		}
	}
}

// receive listens until the connection fails. What was decided before it listens is not
// published again.
func (s *Shared) receive(ctx context.Context, m *demand.Meter, decided func()) {
	sub := s.client.Subscribe(ctx, s.prefix+refusedKey, s.prefix+decidedKey)
	defer func() { _ = sub.Close() }()
	if _, err := sub.ReceiveTimeout(ctx, retryInterval); err != nil { // that it listens
		return
	}
	decided()
	pubsub.Receive(ctx, sub, func(message *redis.Message) {
		switch {
		case message.Channel == s.prefix+refusedKey:
			for text := []byte(message.Payload); len(text) >= 8; text = text[8:] {
				m.ReceiveRefused(binary.LittleEndian.Uint64(text))
			}
		case message.Payload != s.replica:
			decided()
		}
	})
}
