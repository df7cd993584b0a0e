package textsync

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/tandem-gateway/tandem/pd/senttext"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/pubsub"
)

const (
	channel = "{texts}"             // behind the configured prefix
	beat    = 20 * time.Millisecond // of messages, at least
	// maxMessage bounds what is told within a beat, in bytes: some 60 prompts of 220 KB, thousands of
	// usual ones. What comes beyond it the others do not learn.
	maxMessage = 256 << 10
)

// Sync tells other replicas what a history shares, and has it receive what they tell.
type Sync struct {
	history *senttext.History
	client  redis.UniversalClient
	channel string
	replica string
	log     *slog.Logger
	wake    chan struct{} // something is to be told

	told, received, dropped atomic.Uint64 // records

	mu   sync.Mutex // guards next
	next message
}

// New returns the sharing of a history under a replica's own name. It takes the history's Share.
func New(history *senttext.History, client redis.UniversalClient, prefix, replica string, log *slog.Logger) *Sync {
	s := &Sync{
		history: history, client: client, channel: prefix + channel, replica: replica, log: log,
		wake: make(chan struct{}, 1), next: newMessage(replica),
	}
	history.Share = s.offer
	return s
}

// offer has the others told. A request never waits for it.
func (s *Sync) offer(sent senttext.Sent) {
	s.mu.Lock()
	fits := s.next.add(sent)
	s.mu.Unlock()
	if !fits {
		s.dropped.Add(1)
		return
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run tells and receives until the context ends.
func (s *Sync) Run(ctx context.Context) {
	var listening sync.WaitGroup
	listening.Go(func() {
		for ctx.Err() == nil {
			s.listen(ctx)
			pools.Pause(ctx, time.Second)
		}
	})
	defer listening.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		}
		s.tell(ctx)
		pools.Pause(ctx, beat)
	}
}

// tell publishes what is to be told. What Redis does not take is not told again: by the time that it
// answers it is old.
func (s *Sync) tell(ctx context.Context) {
	s.mu.Lock()
	m := s.next
	s.next = newMessage(s.replica)
	s.mu.Unlock()
	if m.records == 0 {
		return
	}
	if err := s.client.Publish(ctx, s.channel, m.bytes).Err(); err != nil {
		s.dropped.Add(m.records)
		s.log.Debug("other replicas were not told what servers were sent", "error", err.Error())
		return
	}
	s.told.Add(m.records)
}

// listen receives what is published, until the connection fails.
func (s *Sync) listen(ctx context.Context) {
	sub := s.client.Subscribe(ctx, s.channel)
	defer func() { _ = sub.Close() }()
	if _, err := sub.ReceiveTimeout(ctx, time.Second); err != nil {
		return
	}
	pubsub.Receive(ctx, sub, func(m *redis.Message) { s.receive([]byte(m.Payload)) })
}

// receive takes in a message, as far as it can be read: others may write to this Redis.
func (s *Sync) receive(data []byte) {
	from, records, ok := open(data)
	if !ok || from == s.replica {
		return
	}
	for sent := range records {
		s.history.Receive(sent)
		s.received.Add(1)
	}
}

var recordsDesc = prometheus.NewDesc("tandem_sent_text_records_total",
	"What servers were sent of prompts that are known by their text alone: told to other replicas, received from them, or dropped, since there was too much of it or Redis did not take it.",
	[]string{"event"}, nil)

// Describe and Collect make Sync a Prometheus collector.
func (s *Sync) Describe(ch chan<- *prometheus.Desc) { ch <- recordsDesc }

func (s *Sync) Collect(ch chan<- prometheus.Metric) {
	for event, n := range map[string]uint64{"told": s.told.Load(), "received": s.received.Load(), "dropped": s.dropped.Load()} {
		ch <- prometheus.MustNewConstMetric(recordsDesc, prometheus.CounterValue, float64(n), event)
	}
}
