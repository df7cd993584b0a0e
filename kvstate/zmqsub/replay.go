package zmqsub

import (
	"errors"
	"fmt"
	"time"

	zmq "github.com/pebbe/zmq4"

	"github.com/tandem-gateway/tandem/kvstate"
)

var (
	errIdle    = errors.New("no answer")              // in time
	errEndless = errors.New("the answers do not end") // in all of the time
)

// replay carries out what the source requests, and what it requests then. Where
// answers fail to come it gives up for a while, and the source goes on without.
func (s *Subscriber) replay(request kvstate.ReplayRequest) {
	if !request.Needed() {
		return
	}
	if s.feed.Replay == "" || time.Now().Before(s.resumeAt) {
		s.source.BeginReplay(request)
		s.source.EndReplay(false)
		return
	}
	patience := time.NewTimer(s.hub.cfg.ReplayTime)
	defer patience.Stop()
	select {
	case s.hub.replays <- struct{}{}:
		defer func() { <-s.hub.replays }()
	case <-patience.C: // others have all of the places
		s.source.BeginReplay(request)
		s.source.EndReplay(false)
		return
	case <-s.closing:
		return
	}
	deadline := time.Now().Add(s.hub.cfg.ReplayTime)
	for failed := 0; request.Needed() && !s.isClosing(); {
		s.source.BeginReplay(request)
		batches, err := s.request(request.From, deadline)
		if s.isClosing() {
			return // the source keeps what it knows
		}
		request = s.source.EndReplay(err == nil)
		if err == nil || batches > 0 {
			failed = 0
		} else {
			failed++
		}
		if failed == s.hub.cfg.ReplayAttempts || time.Now().After(deadline) {
			pause := s.hub.cfg.ReplayPause
			if errors.Is(err, errEndless) {
				pause *= 10 // all sources share the places, and it had one for all of its time
			}
			s.resumeAt = time.Now().Add(pause)
			s.log.Warn("KV events not replayed", "address", s.feed.Replay, "error", err, "again_after", pause.String())
			return
		}
	}
}

// request asks for the batches from a number on and hands them to the source, until the deadline. It
// returns how many came.
func (s *Subscriber) request(from uint64, deadline time.Time) (batches int, err error) {
	dealer, err := s.hub.context.NewSocket(zmq.DEALER)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, dealer.Close()) }()
	if err = s.hub.configure(dealer, s.hub.cfg.ReplayMessages); err != nil {
		return 0, err
	}
	if err = dealer.Connect(s.feed.Replay); err != nil {
		return 0, fmt.Errorf("%s: %w", s.feed.Replay, err)
	}
	if _, err = dealer.SendMessage("", kvstate.AppendRequest(nil, from)); err != nil {
		return 0, err
	}
	if err = s.waits.add(dealer, onReplies); err != nil {
		return 0, err
	}
	idle := time.Now().Add(s.hub.cfg.ReplayIdle)
	for {
		now := time.Now()
		if now.After(deadline) {
			return batches, errEndless
		}
		frames, err := s.hub.receive(dealer)
		if err != nil || s.isClosing() {
			return batches, err
		}
		if frames == nil {
			if now.After(idle) {
				return batches, fmt.Errorf("%w within %v", errIdle, s.hub.cfg.ReplayIdle)
			}
			if _, err = s.waits.until(idle, onReplies, s.closing); err != nil {
				return batches, err
			}
			continue
		}
		idle = now.Add(s.hub.cfg.ReplayIdle)
		message, end, err := kvstate.ParseReply(frames)
		switch {
		case err != nil:
			s.source.RecordMisread()
		case end:
			return batches, nil
		default:
			s.source.ApplyReplayed(message)
			batches++
		}
	}
}
