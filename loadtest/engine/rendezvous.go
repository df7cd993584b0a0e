package engine

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"time"
)

// appointment is what a request says of where its two legs meet, for engines that get
// both at once.
type appointment struct {
	room string
	// host and port are those of the prefill engine's side channel, rank its rank; -1
	// leaves that to the number of the room.
	host string
	port int
	rank int
	// engineID is the prefill's, where decode must know it.
	engineID string
	// stalls: prefill computes only once decode has room for the KV.
	stalls bool
}

// meeting is an appointment at the prefill engine. It happens once. A leg whose peer
// does not come, or leaves, is told nothing: it waits until its own time is up, as real
// engines do. The rank's lock guards it.
type meeting struct {
	prefill *sequence     // nil: decode came first
	joined  bool          // decode has come
	ready   chan struct{} // closed when the KV is computed
	final   piece         // prefill's answer, given once the KV was read
	timer   *time.Timer   // ends prefill's wait
}

func newMeeting() *meeting { return &meeting{ready: make(chan struct{})} }

// recomputeTimeout is a decode's reason when the KV did not come in time.
const recomputeTimeout = "timeout"

// Prefill's side.

// appearLocked takes in a prefill leg with an appointment. It waits for its decode when
// the connector stalls, else it begins to compute.
func (r *rank) appearLocked(s *sequence) {
	room := s.appointment.room
	m := r.meetings[room]
	if r.held.ended[room] != "" || m != nil && m.prefill != nil {
		r.rejectLocked(rejectedUsed)
		s.state = expecting
		r.endLocked(s, finishTransfer)
		return
	}
	if m == nil {
		m = newMeeting()
		r.meetings[room] = m
	}
	m.prefill, s.meeting = s, m
	m.timer = time.AfterFunc(r.cfg.MeetTimeout, func() { r.giveUp(s) })
	if s.state = expecting; m.joined || !s.appointment.stalls {
		r.enqueueLocked(s)
	}
}

// offerLocked keeps a computed prompt and its answer until decode has read the KV.
func (r *rank) offerLocked(s *sequence, final piece) {
	r.running = without(r.running, s)
	s.state = offering
	s.meeting.final = final
	close(s.meeting.ready)
}

// giveUp ends a prefill leg whose decode has not come, or not read, in time.
func (r *rank) giveUp(s *sequence) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.state == ended {
		return
	}
	r.counts.handoffsExpired++
	r.meters.kvExpired.Inc()
	s.finish = "" // of the answer that nobody got
	r.endLocked(s, finishTransfer)
}

// partLocked closes the room of a prefill leg that ends.
func (r *rank) partLocked(s *sequence, why string) {
	if s.meeting == nil {
		return
	}
	s.meeting.timer.Stop()
	delete(r.meetings, s.appointment.room)
	r.held.remember(s.appointment.room, why)
	s.meeting = nil
}

// serveMeet waits with a decode for the KV of its room, and lets it flow over this
// engine's link.
func serveMeet(ctx context.Context, r *rank, in kvPull) kvContent {
	m, rejection := r.join(in.Room)
	if rejection != "" {
		return kvContent{Rejected: rejection}
	}
	select {
	case <-m.ready:
	case <-ctx.Done():
		r.leave(in.Room, m)
		return kvContent{}
	}
	content, ok := r.beginMeetRead(m)
	if !ok { // prefill ended at the same moment
		<-ctx.Done()
		return kvContent{}
	}
	err := r.outgoing.transfer(ctx, float64(max(0, len(content.Digests)-in.Skip))*r.blockBytes())
	r.endMeetRead(m, err == nil)
	return content
}

// join lets a decode into a room, once; prefill may begin then.
func (r *rank) join(room string) (m *meeting, rejection string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m = r.meetings[room]
	switch {
	case r.held.ended[room] != "" || m != nil && m.joined:
		r.rejectLocked(rejectedUsed)
		return nil, rejectedUsed
	case m == nil:
		m = newMeeting()
		r.meetings[room] = m
	}
	m.joined = true
	if m.prefill != nil && m.prefill.state == expecting {
		r.enqueueLocked(m.prefill)
	}
	return m, ""
}

// leave takes out a decode that has gone before the KV was there. A prefill that is in
// the room hears nothing of it.
func (r *rank) leave(room string, m *meeting) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.meetings[room] == m && m.prefill == nil {
		delete(r.meetings, room)
		r.held.remember(room, rejectedFreed)
	}
}

func (r *rank) beginMeetRead(m *meeting) (content kvContent, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := m.prefill
	if s.state != offering || !m.timer.Stop() {
		return kvContent{}, false
	}
	for _, b := range s.blocks[:s.prompt/r.cfg.BlockSize] {
		content.Digests = append(content.Digests, b.digest)
	}
	content.Cached = s.cached
	return content, true
}

// endMeetRead ends the prefill leg: with its answer when the KV was read, else with an
// error, since the room cannot be used again.
func (r *rank) endMeetRead(m *meeting, complete bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := m.prefill
	switch {
	case s.state != offering: // its client has left
	case complete:
		r.counts.handoffsPulled++
		r.countLocked(s)
		r.endLocked(s, s.finish)
		s.out.put(m.final)
	default:
		s.finish = ""
		r.endLocked(s, finishTransfer)
	}
}

// Decode's side.

// meet brings the KV of a decode leg over: once the sequence has room it joins the
// prefill's room and waits there for what prefill computes. Only prefill's link is
// reckoned with.
func (r *rank) meet(ctx context.Context, s *sequence) {
	var got room
	select {
	case <-ctx.Done():
		return
	case got = <-s.admitted:
	}
	start, at, path := time.Now(), s.appointment, namedPath
	if r.cfg.Connector == ConnectorSGLang {
		path = meetPath
	}
	ctx, cancel := context.WithTimeout(ctx, r.cfg.MeetTimeout)
	defer cancel()
	content, err := r.side.call(ctx, at.host, at.port, path, kvPull{
		Room: at.room, Rank: at.rank, EngineID: at.engineID, Skip: got.have,
		Reader: net.JoinHostPort(r.side.host, strconv.Itoa(r.side.port)),
	})
	failure := content.Rejected
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		failure = recomputeTimeout
	case ctx.Err() != nil:
		return // the sequence has ended
	case err != nil:
		failure = recomputeUnreachable
	case failure == "" && !slices.Equal(content.Digests, got.want):
		r.reject(recomputeForeign)
		failure = recomputeForeign
	}
	if failure == "" {
		r.meters.transferred(time.Since(start), len(got.want)-got.have, r.blockBytes())
	} else {
		r.meters.failedTransfers.Inc()
		slog.Warn("no KV from the meeting", "engine_id", r.id, "reason", failure, "room", at.room)
	}
	cached := -1
	if r.cfg.Connector == ConnectorSGLang {
		cached = content.Cached
	}
	r.loaded(s, failure, cached)
}

// rankOf is the rank that a decode means: by the engine id, by number, or by the room.
func rankOf(ranks []*rank, in kvPull) *rank {
	for _, r := range ranks {
		if r.id == in.EngineID {
			return r
		}
	}
	if in.Rank >= 0 && in.Rank < len(ranks) {
		return ranks[in.Rank]
	}
	number, err := strconv.ParseInt(in.Room, 10, 64)
	if err != nil || number < 0 {
		return ranks[0]
	}
	return ranks[number%int64(len(ranks))]
}
