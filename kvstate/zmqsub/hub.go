package zmqsub

import (
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"

	zmq "github.com/pebbe/zmq4"

	"github.com/tandem-gateway/tandem/kvstate"
)

// Hub has the ZMQ context that subscribers share, and bounds their replays.
type Hub struct {
	cfg     Config
	log     *slog.Logger
	context *zmq.Context
	replays chan struct{}                              // one entry for each replay under way
	names   atomic.Int64                               // of inproc sockets
	receive func(socket *zmq.Socket) ([][]byte, error) // the frames of a message; fails in tests

	mu          sync.Mutex // guards subscribers
	subscribers map[*Subscriber]bool
}

// NewHub returns a hub without subscribers.
func NewHub(cfg Config, log *slog.Logger) (*Hub, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	context, err := zmq.NewContext()
	if err != nil {
		return nil, fmt.Errorf("ZMQ context: %w", err)
	}
	return &Hub{
		cfg: cfg, log: log, context: context,
		replays: make(chan struct{}, cfg.Replays), receive: receive, subscribers: map[*Subscriber]bool{},
	}, nil
}

// Subscribe brings the events of a feed to a source until it is closed. The source must
// have been opened with Replays set exactly if the feed has a Replay address.
func (h *Hub) Subscribe(source *kvstate.Source, feed Feed) (*Subscriber, error) {
	s := &Subscriber{hub: h, source: source, feed: feed, closing: make(chan struct{}), log: h.log.With("source", source.ID().String())}
	if err := s.open(); err != nil {
		s.close()
		return nil, fmt.Errorf("KV events of %s: %w", source.ID(), err)
	}
	h.mu.Lock()
	h.subscribers[s] = true
	h.mu.Unlock()
	s.owner.Go(s.run)
	return s, nil
}

// receive takes a message that has come; without one it returns none, and no error.
func receive(socket *zmq.Socket) ([][]byte, error) {
	frames, err := socket.RecvMessageBytes(zmq.DONTWAIT)
	if zmq.AsErrno(err) == zmq.Errno(syscall.EAGAIN) {
		return nil, nil
	}
	return frames, err
}

// Close ends all subscribers and waits for them.
func (h *Hub) Close() error {
	h.mu.Lock()
	var all []*Subscriber
	for s := range h.subscribers {
		all = append(all, s)
	}
	h.mu.Unlock()
	for _, s := range all {
		s.Close()
	}
	if err := h.context.Term(); err != nil {
		return fmt.Errorf("ZMQ context: %w", err)
	}
	return nil
}
