package zmqsub

import (
	"context"
	"fmt"

	zmq "github.com/pebbe/zmq4"
	"github.com/tinylib/msgp/msgp"
)

// Announcement is how a vLLM with the P2pNcclConnector says, every few seconds, that it
// is there (vllm p2p_nccl_engine.py, ping: a msgpack map to the proxy's ROUTER socket).
type Announcement struct {
	Type string // P prefills, D decodes
	HTTP string // host:port of its API
	KV   string // host:port where other engines reach its KV
}

const maxAnnouncement = 4 << 10 // bytes

// Announcements receives them at one address.
type Announcements struct {
	listener *listener
	address  string
}

// ListenAnnouncements binds the address, such as tcp://*:30001.
func (h *Hub) ListenAnnouncements(address string) (*Announcements, error) {
	router, err := h.context.NewSocket(zmq.ROUTER)
	if err != nil {
		return nil, err
	}
	l, err := h.listen(router,
		h.configure(router, h.cfg.QueueMessages),
		router.SetMaxmsgsize(maxAnnouncement),
		router.Bind(address),
	)
	if err != nil {
		return nil, fmt.Errorf("announcements at %s: %w", address, err)
	}
	at, err := router.GetLastEndpoint()
	if err != nil {
		l.close()
		return nil, fmt.Errorf("announcements at %s: %w", address, err)
	}
	return &Announcements{listener: l, address: at}, nil
}

// Address is where the socket is bound.
func (a *Announcements) Address() string { return a.address }

// Run calls received with each announcement until the context ends, and closes the socket.
// What cannot be read is passed over: any client may connect.
func (a *Announcements) Run(ctx context.Context, received func(Announcement)) {
	a.listener.run(ctx, func(frames [][]byte) {
		if len(frames) != 2 { // the sender's identity, and the map
			return
		}
		if announcement, err := parseAnnouncement(frames[1]); err == nil {
			received(announcement)
		}
	})
}

func parseAnnouncement(payload []byte) (a Announcement, err error) {
	n, rest, err := msgp.ReadMapHeaderBytes(payload)
	if err != nil {
		return Announcement{}, err
	}
	fields := map[string]*string{"type": &a.Type, "http_address": &a.HTTP, "zmq_address": &a.KV}
	for range n {
		var key []byte
		if key, rest, err = msgp.ReadMapKeyZC(rest); err != nil {
			return Announcement{}, err
		}
		field := fields[string(key)]
		if field == nil {
			rest, err = msgp.Skip(rest)
		} else {
			*field, rest, err = msgp.ReadStringBytes(rest)
		}
		if err != nil {
			return Announcement{}, err
		}
	}
	if a.Type != "P" && a.Type != "D" || a.HTTP == "" || a.KV == "" {
		return Announcement{}, fmt.Errorf("an announcement of %q at %q without a part", a.Type, a.HTTP)
	}
	return a, nil
}
