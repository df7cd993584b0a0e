package pd

import (
	"context"
	"encoding/binary"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/pubsub"
)

// The keys of pd in Redis, behind the configured prefix; the braces keep them on one
// node of a cluster.
//
//	<prefix>{lessons}       channel: what a replica learned of prompts' tokens
//	<prefix>{lessons}:kept  list of the latest of them, for replicas that start; expires
const (
	lessonChannel = "{lessons}"
	lessonList    = "{lessons}:kept"
	lessonsKept   = 512
	lessonLife    = time.Hour
	maxLesson     = 1 << 20 // bytes of one that is passed on or taken in
	lessonQueue   = 256     // lessons that wait to be told; beyond it they are not
)

// Lessons passes what learned mode finds out of prompts' tokens to other replicas, and
// takes in what they found. Lessons hold token ids, from which prompts can be told:
// they belong only in a Redis where prompts may be.
type Lessons struct {
	locality *Locality
	client   redis.UniversalClient
	prefix   string
	log      *slog.Logger
	queue    chan []byte
}

// NewLessons returns the passing on of a locality's lessons.
func NewLessons(l *Locality, client redis.UniversalClient, prefix string, log *slog.Logger) *Lessons {
	s := &Lessons{locality: l, client: client, prefix: prefix, log: log, queue: make(chan []byte, lessonQueue)}
	l.lessons.Store(s)
	return s
}

// offer queues a lesson. A request never waits for it.
func (s *Lessons) offer(model string, lesson []byte) {
	if len(lesson) == 0 || len(lesson) > maxLesson || len(model) > 255 {
		return
	}
	select {
	case s.queue <- append(append(binary.AppendUvarint(nil, uint64(len(model))), model...), lesson...):
	default:
	}
}

// Run passes lessons on and takes them in until the context ends.
func (s *Lessons) Run(ctx context.Context) {
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
		case lesson := <-s.queue:
			s.tell(ctx, lesson)
		}
	}
}

func (s *Lessons) tell(ctx context.Context, lesson []byte) {
	_, err := s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.Publish(ctx, s.prefix+lessonChannel, lesson)
		p.LPush(ctx, s.prefix+lessonList, lesson)
		p.LTrim(ctx, s.prefix+lessonList, 0, lessonsKept-1)
		p.Expire(ctx, s.prefix+lessonList, lessonLife)
		return nil
	})
	if err != nil {
		s.log.Debug("a lesson was not passed on", "error", err.Error())
	}
}

// listen takes in what was kept, then what is told, until the connection fails.
func (s *Lessons) listen(ctx context.Context) {
	sub := s.client.Subscribe(ctx, s.prefix+lessonChannel)
	defer func() { _ = sub.Close() }()
	if _, err := sub.ReceiveTimeout(ctx, time.Second); err != nil {
		return
	}
	for from := int64(lessonsKept); from > 0; from -= 16 { // oldest first
		kept, err := s.client.LRange(ctx, s.prefix+lessonList, from-16, from-1).Result()
		if err != nil {
			return
		}
		for i := len(kept) - 1; i >= 0; i-- {
			s.take([]byte(kept[i]))
		}
	}
	pubsub.Receive(ctx, sub, func(m *redis.Message) { s.take([]byte(m.Payload)) })
}

// take reads one lesson. What it cannot read it ignores: others may write to this Redis.
func (s *Lessons) take(message []byte) {
	n, at := binary.Uvarint(message)
	if len(message) > maxLesson+300 || at <= 0 || n == 0 || n > 255 || uint64(len(message)-at) < n {
		return
	}
	model, lesson := string(message[at:at+int(n)]), message[at+int(n):]
	source := s.locality.source(model)
	if source == nil {
		return
	}
	if err := source.Import(lesson); err != nil {
		s.log.Debug("a lesson cannot be read", "model", model, "error", err.Error())
	}
}
