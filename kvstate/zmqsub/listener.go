package zmqsub

import (
	"context"
	"errors"
	"time"

	zmq "github.com/pebbe/zmq4"
)

// listener reads one socket of which nothing else is wanted than its messages.
type listener struct {
	hub    *Hub
	socket *zmq.Socket
	waits  *waiter
}

// listen takes a new socket over, which is opened by and by; what went wrong before is an error here.
func (h *Hub) listen(socket *zmq.Socket, opened ...error) (*listener, error) {
	err := errors.Join(opened...)
	if err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	waits, err := newWaiter()
	if err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	l := &listener{hub: h, socket: socket, waits: waits}
	if err = waits.add(socket, onEvents); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// run calls received with the frames of each message until the context ends, and closes the socket.
func (l *listener) run(ctx context.Context, received func(frames [][]byte)) {
	defer l.close()
	defer context.AfterFunc(ctx, func() { _ = l.waits.interrupt() })() // it fails once it is closed
	for ctx.Err() == nil {
		frames, err := l.hub.receive(l.socket)
		if err == nil && frames == nil {
			_, err = l.waits.until(time.Now().Add(l.hub.cfg.CheckEvery), onEvents, ctx.Done())
		}
		if err == nil {
			if frames != nil {
				received(frames)
			}
			continue
		}
		l.hub.log.Error("message not received", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(l.hub.cfg.ReconnectMax):
		}
	}
}

func (l *listener) close() {
	if err := errors.Join(l.socket.Close(), l.waits.close()); err != nil {
		l.hub.log.Warn("ZMQ socket not closed", "error", err)
	}
}
