package zmqsub

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	zmq "github.com/pebbe/zmq4"

	"github.com/tandem-gateway/tandem/kvstate"
)

// Subscriber feeds one source. Its goroutine owns all its sockets.
type Subscriber struct {
	hub    *Hub
	source *kvstate.Source
	feed   Feed
	log    *slog.Logger

	sub     *zmq.Socket
	monitor *zmq.Socket // reports connections
	waits   *waiter     // for what comes on them, by their marks
	address string

	peers      atomic.Int32 // connected now; a bound socket may have several
	wrongPeers int          // connections that were no ZMQ, and have yet to close

	pace     pace
	warnAt   time.Time // if it was never connected by then; zero once that is settled
	checkAt  time.Time // next consistency check
	resumeAt time.Time // no replays before, after some that failed

	owner   sync.WaitGroup
	closing chan struct{}
	once    sync.Once
}

// burst is how many messages are taken before the other sockets get their turn.
const burst = 256

// marks say on which of a subscriber's sockets something has come.
type marks int32

const (
	onEvents marks = 1 << iota
	onMonitor
	onReplies
	onTime // a rest is over
)

// watched are the events of connections that matter.
const (
	handshakeFailed = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
	watched         = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | handshakeFailed
)

// open makes the sockets. They pass to the goroutine when it starts.
func (s *Subscriber) open() (err error) {
	if s.waits, err = newWaiter(); err != nil {
		return err
	}
	if err = s.openFeed(s.feed.Events); err != nil {
		return err
	}
	s.address, err = s.sub.GetLastEndpoint()
	return err
}

// openFeed makes the sockets of the feed, at an address.
func (s *Subscriber) openFeed(address string) (err error) {
	if s.sub, err = s.hub.context.NewSocket(zmq.SUB); err != nil {
		return err
	}
	if err = s.hub.configure(s.sub, s.hub.cfg.QueueMessages); err != nil {
		return err
	}
	if err = s.sub.SetSubscribe(s.feed.Topic); err != nil {
		return err
	}
	events := fmt.Sprintf("inproc://monitor-%d", s.hub.names.Add(1))
	if err = s.sub.Monitor(events, watched); err != nil {
		return err
	}
	if s.monitor, err = s.hub.context.NewSocket(zmq.PAIR); err != nil {
		return err
	}
	if err = s.monitor.Connect(events); err != nil {
		return err
	}
	if err = errors.Join(s.waits.add(s.sub, onEvents), s.waits.add(s.monitor, onMonitor)); err != nil {
		return err
	}
	if s.feed.Bind {
		err = s.sub.Bind(address)
	} else {
		err = s.sub.Connect(address)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", address, err)
	}
	return nil
}

// configure sets what SUB and DEALER sockets have in common. So many messages may wait in it.
func (h *Hub) configure(socket *zmq.Socket, messages int) error {
	return errors.Join(
		socket.SetLinger(0),
		socket.SetRcvhwm(messages),
		socket.SetMaxmsgsize(h.cfg.MaxMessage),
		socket.SetReconnectIvl(h.cfg.ReconnectMin),
		socket.SetReconnectIvlMax(h.cfg.ReconnectMax),
		socket.SetHeartbeatIvl(h.cfg.Heartbeat),
		socket.SetTcpKeepalive(1),
		socket.SetTcpKeepaliveIdle(30),
		socket.SetTcpKeepaliveIntvl(10),
		socket.SetTcpKeepaliveCnt(3),
		socket.SetIpv6(true),
	)
}

// Connected reports whether the engine is connected now.
func (s *Subscriber) Connected() bool { return s.peers.Load() > 0 }

// Close ends the subscription and waits for its goroutine. The source stays open.
func (s *Subscriber) Close() {
	s.once.Do(func() {
		close(s.closing)
		if err := s.waits.interrupt(); err != nil {
			s.log.Error("KV event subscriber not woken", "error", err)
		}
		s.owner.Wait()
		s.close()
		s.hub.mu.Lock()
		delete(s.hub.subscribers, s)
		s.hub.mu.Unlock()
	})
}

// close is for who has the sockets: the goroutine has ended, or has not begun.
func (s *Subscriber) close() {
	s.closeSockets()
	if s.waits == nil {
		return
	}
	if err := s.waits.close(); err != nil {
		s.log.Warn("KV event subscriber not closed", "error", err)
	}
}

// closeSockets closes what is open of the feed's sockets. Reports of connections end before: ZMQ's thread, of which all
// sockets of a hub have one, would wait for ever to make one to a monitor that is closed (libzmq 4.3 socket_base.cpp,
// monitor_event), and no feed would hear anything any more.
func (s *Subscriber) closeSockets() {
	if s.sub != nil {
		if err := s.sub.Monitor("", 0); err != nil {
			s.log.Warn("reports of connections not ended", "error", err)
		}
	}
	for _, socket := range []*zmq.Socket{s.sub, s.monitor} {
		if socket == nil {
			continue
		}
		if err := socket.Close(); err != nil {
			s.log.Warn("ZMQ socket not closed", "error", err)
		}
	}
	s.sub, s.monitor = nil, nil
}

// run owns the sockets until it is closed. After an error of ZMQ it opens those of
// the feed again.
func (s *Subscriber) run() {
	for {
		err := s.receive()
		if err == nil {
			return
		}
		s.log.Error("KV event subscriber failed, opening its sockets again", "error", err)
		// What the engine publishes until then is lost, as when the connection breaks.
		s.peers.Store(0)
		s.wrongPeers = 0
		s.source.RecordDisconnect()
		if !s.reopen() {
			return
		}
	}
}

// reopen replaces the feed's sockets, with longer and longer pauses until it succeeds. It
// returns false if it is closed before.
func (s *Subscriber) reopen() bool {
	for pause := s.hub.cfg.ReconnectMin; ; pause = min(2*pause, s.hub.cfg.ReconnectMax) {
		select {
		case <-s.closing:
			return false
		case <-time.After(pause):
		}
		s.closeSockets()
		err := s.openFeed(s.address) // where it was: a wildcard would be another port now
		if err == nil {
			return true
		}
		s.log.Warn("KV event subscriber not opened", "error", err)
	}
}

// receive reads the sockets until it is closed (nil), or they cannot be asked.
func (s *Subscriber) receive() error {
	s.warnAt, s.checkAt = time.Now().Add(s.hub.cfg.ConnectWarning), time.Now().Add(s.hub.cfg.CheckEvery)
	for came := onEvents | onMonitor; !s.isClosing(); { // both, as ZMQ may have heard of something while they were opened
		if came&onMonitor != 0 {
			if err := s.readMonitor(); err != nil {
				return err
			}
		}
		taken, err := s.readMessages()
		if err != nil {
			return err
		}
		if !s.warnAt.IsZero() && time.Now().After(s.warnAt) {
			s.warnAt = time.Time{}
			s.log.Warn("KV events never connected: is it the address at which the engine publishes them?", "address", s.address,
				"bind", s.feed.Bind, "after", s.hub.cfg.ConnectWarning.String())
		}
		if time.Now().After(s.checkAt) {
			s.check()
		}
		if taken > 0 {
			if err = s.rest(taken); err != nil {
				return err
			}
		}
		if taken == burst {
			came = onEvents | onMonitor // there may be more
			continue
		}
		if came, err = s.waits.until(s.due(), onEvents|onMonitor, s.closing); err != nil {
			return err
		}
	}
	return nil
}

// rest lets messages gather until the next of the moments at which all feeds look for them, unless there are many: the
// queue holds few.
func (s *Subscriber) rest(taken int) error {
	now, every := time.Now(), s.hub.cfg.Rest
	if every == 0 || !s.pace.isSlow(taken, s.hub.cfg.QueueMessages/4, now, every) {
		return nil
	}
	return s.waits.rest(now.Truncate(every).Add(every).Sub(now), onEvents, s.closing)
}

// due is when there is something to do though nothing has come.
func (s *Subscriber) due() time.Time {
	if !s.warnAt.IsZero() && s.warnAt.Before(s.checkAt) {
		return s.warnAt
	}
	return s.checkAt
}

// readMessages takes messages that have come, up to a burst: with fewer the queue is empty.
func (s *Subscriber) readMessages() (taken int, err error) {
	for taken < burst {
		frames, err := s.hub.receive(s.sub)
		if err != nil || frames == nil {
			return taken, err
		}
		taken++
		message, err := kvstate.ParseLive(frames)
		if err != nil {
			s.source.RecordMisread()
			continue
		}
		s.take(message)
	}
	return taken, nil
}

// take hands a message over, and again after each replay that it makes necessary. The
// source settles it after a few.
func (s *Subscriber) take(m kvstate.Message) {
	for !s.isClosing() {
		request := s.source.ApplyLive(m)
		if !request.Needed() {
			return
		}
		s.replay(request)
	}
}

// readMonitor handles the events of connections that have come.
func (s *Subscriber) readMonitor() error {
	for !s.isClosing() {
		event, peer, _, err := s.monitor.RecvEvent(zmq.DONTWAIT)
		switch {
		case zmq.AsErrno(err) == zmq.Errno(syscall.EAGAIN):
			return nil
		case err != nil:
			return fmt.Errorf("reports of connections: %w", err)
		}
		if err = s.handle(event, peer); err != nil {
			return err
		}
	}
	return nil
}

// handle handles an event of a connection. Messages that came before a connection broke are taken before it counts as
// broken.
func (s *Subscriber) handle(event zmq.Event, peer string) error {
	switch {
	case event&handshakeFailed != 0:
		s.wrongPeers++ // its disconnect comes next
	case event == zmq.EVENT_DISCONNECTED && s.wrongPeers > 0:
		s.wrongPeers--
	case event == zmq.EVENT_DISCONNECTED:
		for taken := burst; taken == burst && !s.isClosing(); {
			var err error
			if taken, err = s.readMessages(); err != nil {
				return err
			}
		}
		s.peers.Add(-1)
		s.log.Warn("KV events disconnected", "address", s.address, "peer", peer)
		s.source.RecordDisconnect()
	case event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
		s.peers.Add(1)
		s.warnAt = time.Time{}
		s.log.Info("KV events connected", "address", s.address, "peer", peer)
		s.replay(s.source.RecordConnect())
		s.checkAt = time.Now().Add(s.hub.cfg.CheckAfter)
	}
	return nil
}

// check lets the source prove what it knows, unless replays have just failed.
func (s *Subscriber) check() {
	s.checkAt = time.Now().Add(s.hub.cfg.CheckEvery)
	if s.Connected() && time.Now().After(s.resumeAt) {
		s.replay(s.source.Check())
	}
}

func (s *Subscriber) isClosing() bool {
	select {
	case <-s.closing:
		return true
	default:
		return false
	}
}
