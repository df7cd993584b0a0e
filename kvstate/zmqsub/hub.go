package zmqsub

import (
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	zmq "github.com/pebbe/zmq4"

	"github.com/tandem-gateway/tandem/kvstate"
)

// Hub has the ZMQ context that subscribers share, and bounds their replays.
type Hub struct {
	cfg     Config
	log     *slog.Logger
	context *zmq.Context
	replays chan struct{}                        // one entry for each replay under way
	names   atomic.Int64                         // of inproc sockets
	events  func(*zmq.Socket) (zmq.State, error) // that a socket has; fails in tests

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
		replays: make(chan struct{}, cfg.Replays), events: (*zmq.Socket).GetEvents, subscribers: map[*Subscriber]bool{},
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

// ready is what a waiter asks: whether there is something to read on one of the sockets, or end is closed.
func (h *Hub) ready(end <-chan struct{}, sockets ...*zmq.Socket) func() (bool, error) {
	return func() (bool, error) {
		select {
		case <-end:
			return true, nil
		default:
		}
		for _, socket := range sockets {
			if events, err := h.events(socket); err != nil || events&zmq.POLLIN != 0 {
				return err == nil, err
			}
		}
		return false, nil
	}
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
