package zmqsub

import (
	"context"
	"errors"
	"fmt"
	"time"

	zmq "github.com/pebbe/zmq4"
)

const (
	maxLoad   = 4 << 10                // bytes of a load
	loadQueue = 8                      // loads that wait in a socket: a new one makes the old ones worthless
	loadPause = 250 * time.Millisecond // how soon the end of the context is seen
)

// Loads receives what one rank of an engine pushes of its load: messages of topic, number and payload,
// as KV events come, without a replay.
type Loads struct {
	sub *zmq.Socket
}

// ListenLoads connects to where a rank pushes its load; of the feed the address and the topic count.
func (h *Hub) ListenLoads(feed Feed) (*Loads, error) {
	sub, err := h.context.NewSocket(zmq.SUB)
	if err != nil {
		return nil, err
	}
	err = errors.Join(
		h.configure(sub),
		sub.SetMaxmsgsize(maxLoad),
		sub.SetRcvhwm(loadQueue),
		sub.SetRcvtimeo(loadPause),
		sub.SetSubscribe(feed.Topic),
		sub.Connect(feed.Events),
	)
	if err != nil {
		_ = sub.Close() // it was never of use
		return nil, fmt.Errorf("load at %s: %w", feed.Events, err)
	}
	return &Loads{sub: sub}, nil
}

// Run calls received with each payload until the context ends, and closes the socket. A message of
// another form is an empty payload.
func (l *Loads) Run(ctx context.Context, received func(payload []byte)) {
	defer func() { _ = l.sub.Close() }() // nothing is left to send
	for ctx.Err() == nil {
		switch frames, err := l.sub.RecvMessageBytes(0); {
		case err != nil: // none has come for a while
		case len(frames) != 3:
			received(nil)
		default:
			received(frames[2])
		}
	}
}
