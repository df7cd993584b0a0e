package zmqsub

import (
	"errors"
	"fmt"
	"math"
	"time"

	zmq "github.com/pebbe/zmq4"

	"github.com/tandem-gateway/tandem/kvstate"
)

// Errors of Try.
var (
	errNoPeer    = errors.New("nothing answers there")
	errWrongPeer = errors.New("what answers there is not the ZMQ socket that belongs there")
	errNoReplay  = errors.New("it is connected, but does not answer")
)

// Try connects to both addresses of a feed once, for checking a configuration by hand: a
// publisher has to shake hands at Events, and a replay has to end at Replay, of batches that
// no engine has numbered yet. Each may take patience. The feed must not be one that binds:
// its engine is in connect mode.
func Try(feed Feed, patience time.Duration) (err error) {
	context, err := zmq.NewContext()
	if err != nil {
		return fmt.Errorf("ZMQ context: %w", err)
	}
	defer func() { err = errors.Join(err, context.Term()) }()
	if failed := tryEvents(context, feed, patience); failed != nil {
		err = fmt.Errorf("events %s: %w", feed.Events, failed)
	}
	if feed.Replay == "" {
		return err
	}
	if failed := tryReplay(context, feed, patience); failed != nil {
		err = errors.Join(err, fmt.Errorf("replay %s: %w", feed.Replay, failed))
	}
	return err
}

func tryEvents(context *zmq.Context, feed Feed, patience time.Duration) (err error) {
	sub, err := context.NewSocket(zmq.SUB)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sub.Close()) }()
	return handshake(context, sub, feed.Events, patience)
}

func tryReplay(context *zmq.Context, feed Feed, patience time.Duration) (err error) {
	dealer, err := context.NewSocket(zmq.DEALER)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dealer.Close()) }()
	if err = handshake(context, dealer, feed.Replay, patience); err != nil {
		return err
	}
	if err = dealer.SetRcvtimeo(patience); err != nil {
		return err
	}
	if _, err = dealer.SendMessage("", kvstate.AppendRequest(nil, math.MaxInt64)); err != nil {
		return err
	}
	if _, err = dealer.RecvMessageBytes(0); err != nil {
		return fmt.Errorf("%w within %v", errNoReplay, patience)
	}
	return nil
}

// handshake connects a socket and waits until its peer proves to be of the right kind.
func handshake(context *zmq.Context, socket *zmq.Socket, endpoint string, patience time.Duration) (err error) {
	monitored := "inproc://try-" + endpoint
	if err = errors.Join(socket.SetLinger(0), socket.SetIpv6(true), socket.Monitor(monitored, zmq.EVENT_CONNECTED|watched)); err != nil {
		return err
	}
	monitor, err := context.NewSocket(zmq.PAIR)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, socket.Monitor("", 0), monitor.Close()) }() // in this order: see closeSockets
	if err = errors.Join(monitor.Connect(monitored), socket.Connect(endpoint)); err != nil {
		return err
	}
	found := errNoPeer
	for until := time.Now().Add(patience); ; {
		if err = monitor.SetRcvtimeo(max(time.Until(until), time.Millisecond)); err != nil {
			return err
		}
		event, _, _, err := monitor.RecvEvent(0)
		switch {
		case err != nil: // time is over
			return found
		case event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
			return nil
		case event&handshakeFailed != 0:
			return errWrongPeer
		case event == zmq.EVENT_CONNECTED:
			found = errWrongPeer
		}
	}
}
