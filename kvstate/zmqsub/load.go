package zmqsub

import (
	"context"
	"fmt"

	zmq "github.com/pebbe/zmq4"
)

const (
	maxLoad   = 4 << 10 // bytes of a load
	loadQueue = 8       // loads that wait in a socket: a new one makes the old ones worthless
)

// Loads receives what one rank of an engine pushes of its load: messages of topic, number and payload,
// as KV events come, without a replay.
type Loads struct {
	listener *listener
}

// ListenLoads connects to where a rank pushes its load; of the feed the address and the topic count.
func (h *Hub) ListenLoads(feed Feed) (*Loads, error) {
	sub, err := h.context.NewSocket(zmq.SUB)
	if err != nil {
		return nil, err
	}
	l, err := h.listen(sub,
		h.configure(sub, h.cfg.QueueMessages),
		sub.SetMaxmsgsize(maxLoad),
		sub.SetRcvhwm(loadQueue),
		sub.SetSubscribe(feed.Topic),
		sub.Connect(feed.Events),
	)
	if err != nil {
		return nil, fmt.Errorf("load at %s: %w", feed.Events, err)
	}
	return &Loads{listener: l}, nil
}

// Run calls received with each payload until the context ends, and closes the socket. A message of
// another form is an empty payload.
func (l *Loads) Run(ctx context.Context, received func(payload []byte)) {
	l.listener.run(ctx, func(frames [][]byte) {
		if len(frames) != 3 {
			received(nil)
			return
		}
		received(frames[2])
	})
}
