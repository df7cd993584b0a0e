package modeltokens

import (
	"context"
	"encoding/binary"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/pubsub"
)

// The keys in Redis, behind the configured prefix; the braces keep them on one
// node of a cluster.
//
//	<prefix>{lessons}       channel: what a replica learned of prompts' tokens
//	<prefix>{lessons}:kept  list of the latest of them, for replicas that start; expires
const (
	syncChannel      = "{lessons}"
	syncList         = "{lessons}:kept"
	maxKeptPrefixes  = 512
	keptPrefixLife   = time.Hour
	maxLearnedPrefix = 1 << 20 // bytes of one that is passed on or taken in
	syncQueue        = 256     // learned prefixes that wait to be published; beyond it they are dropped
)

// Sync passes what learned mode finds out of prompts' tokens to other replicas, and
// takes in what they found. What they find holds token ids, from which prompts can be read:
// it belongs only in a Redis where prompts may be.
type Sync struct {
	sources *Sources
	client  redis.UniversalClient
	prefix  string
	log     *slog.Logger
	queue   chan []byte
}

// NewSync returns the passing on of what sources learn.
func NewSync(of *Sources, client redis.UniversalClient, prefix string, log *slog.Logger) *Sync {
	s := &Sync{sources: of, client: client, prefix: prefix, log: log, queue: make(chan []byte, syncQueue)}
	of.sync.Store(s)
	return s
}

// offer queues a learned prefix. A request never waits for it.
func (s *Sync) offer(model string, prefix []byte) {
	if len(prefix) == 0 || len(prefix) > maxLearnedPrefix || len(model) > 255 {
		return
	}
	select {
	case s.queue <- append(append(binary.AppendUvarint(nil, uint64(len(model))), model...), prefix...):
	default:
	}
}

// Run passes learned prefixes on and takes them in until the context ends.
func (s *Sync) Run(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			s.listen(ctx)
			pools.Pause(ctx, time.Second)
		}
	}()
	for {
		select {
		case <-ctx.Done():
			<-done
			return
		case prefix := <-s.queue:
			s.publish(ctx, prefix)
		}
	}
}

func (s *Sync) publish(ctx context.Context, prefix []byte) {
	_, err := s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.Publish(ctx, s.prefix+syncChannel, prefix)
		p.LPush(ctx, s.prefix+syncList, prefix)
		p.LTrim(ctx, s.prefix+syncList, 0, maxKeptPrefixes-1)
		p.Expire(ctx, s.prefix+syncList, keptPrefixLife)
		return nil
	})
	if err != nil {
		s.log.Debug("a learned prefix was not passed on", "error", err.Error())
	}
}

// listen takes in what was kept, then what is published, until the connection fails.
func (s *Sync) listen(ctx context.Context) {
	sub := s.client.Subscribe(ctx, s.prefix+syncChannel)
	defer func() { _ = sub.Close() }()
	if _, err := sub.ReceiveTimeout(ctx, time.Second); err != nil {
		return
	}
	for from := int64(maxKeptPrefixes); from > 0; from -= 16 { // oldest first
		kept, err := s.client.LRange(ctx, s.prefix+syncList, from-16, from-1).Result()
		if err != nil {
			return
		}
		for i := len(kept) - 1; i >= 0; i-- {
			s.take([]byte(kept[i]))
		}
	}
	pubsub.Receive(ctx, sub, func(m *redis.Message) { s.take([]byte(m.Payload)) })
}

// take reads one prefix. What it cannot read it ignores: others may write to this Redis.
func (s *Sync) take(message []byte) {
	n, at := binary.Uvarint(message)
	if len(message) > maxLearnedPrefix+300 || at <= 0 || n == 0 || n > 255 || uint64(len(message)-at) < n {
		return
	}
	model, prefix := string(message[at:at+int(n)]), message[at+int(n):]
	source, _ := s.sources.Source(model)
	if source == nil {
		return
	}
	if err := source.Import(prefix); err != nil {
		s.log.Debug("a learned prefix cannot be read", "model", model, "error", err.Error())
	}
}
