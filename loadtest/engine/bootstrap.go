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

// bootstrapRoom is what a request carries of where its two legs meet, for engines that get
// both at once.
type bootstrapRoom struct {
	id string
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

// bootstrapSession is a bootstrap room at the prefill engine, used once. A leg whose peer
// does not come, or leaves, gets no error: it waits until its own time is up, as real
// engines do. The rank's lock guards it.
type bootstrapSession struct {
	prefill *sequence     // nil: decode came first
	joined  bool          // decode has come
	ready   chan struct{} // closed when the KV is computed
	final   piece         // prefill's answer, given once the KV was read
	timer   *time.Timer   // ends prefill's wait
}

func newBootstrapSession() *bootstrapSession { return &bootstrapSession{ready: make(chan struct{})} }

// recomputeTimeout is a decode's reason when the KV did not come in time.
const recomputeTimeout = "timeout"

// Prefill's side.

// joinPrefillLocked takes in a prefill leg with a bootstrap room. It waits for its decode when
// the connector stalls, else it begins to compute.
func (r *rank) joinPrefillLocked(s *sequence) {
	room := s.bootstrap.id
	m := r.sessions[room]
	if r.held.ended[room] != "" || m != nil && m.prefill != nil {
		r.rejectLocked(rejectedUsed)
		s.state = expecting
		r.endLocked(s, finishTransfer)
		return
	}
	if m == nil {
		m = newBootstrapSession()
		r.sessions[room] = m
	}
	m.prefill, s.session = s, m
	m.timer = time.AfterFunc(r.cfg.MeetTimeout, func() { r.abandonSession(s) })
	if s.state = expecting; m.joined || !s.bootstrap.stalls {
		r.enqueueLocked(s)
	}
}

// offerLocked keeps a computed prompt and its answer until decode has read the KV.
func (r *rank) offerLocked(s *sequence, final piece) {
	r.running = without(r.running, s)
	s.state = offering
	s.session.final = final
	close(s.session.ready)
}

// abandonSession ends a prefill leg whose decode has not come, or not read, in time.
func (r *rank) abandonSession(s *sequence) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.state == ended {
		return
	}
	r.counts.handoffsExpired++
	r.meters.kvExpired.Inc()
	s.finish = "" // of the answer that was not sent
	r.endLocked(s, finishTransfer)
}

// leavePrefillLocked closes the room of a prefill leg that ends.
func (r *rank) leavePrefillLocked(s *sequence, why string) {
	if s.session == nil {
		return
	}
	s.session.timer.Stop()
	delete(r.sessions, s.bootstrap.id)
	r.held.remember(s.bootstrap.id, why)
	s.session = nil
}

// serveBootstrap waits with a decode for the KV of its room, and lets it flow over this
// engine's link.
func serveBootstrap(ctx context.Context, r *rank, in kvPull) kvContent {
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
	content, ok := r.beginBootstrapRead(m)
	if !ok { // prefill ended at the same moment
		<-ctx.Done()
		return kvContent{}
	}
	err := r.outgoing.transfer(ctx, float64(max(0, len(content.Digests)-in.Skip))*r.blockBytes())
	r.endBootstrapRead(m, err == nil)
	return content
}

// join lets a decode into a room, once; prefill may begin then.
func (r *rank) join(room string) (m *bootstrapSession, rejection string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m = r.sessions[room]
	switch {
	case r.held.ended[room] != "" || m != nil && m.joined:
		r.rejectLocked(rejectedUsed)
		return nil, rejectedUsed
	case m == nil:
		m = newBootstrapSession()
		r.sessions[room] = m
	}
	m.joined = true
	if m.prefill != nil && m.prefill.state == expecting {
		r.enqueueLocked(m.prefill)
	}
	return m, ""
}

// leave takes out a decode that has gone before the KV was there. A prefill that is in
// the room is not notified.
func (r *rank) leave(room string, m *bootstrapSession) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sessions[room] == m && m.prefill == nil {
		delete(r.sessions, room)
		r.held.remember(room, rejectedFreed)
	}
}

func (r *rank) beginBootstrapRead(m *bootstrapSession) (content kvContent, ok bool) {
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

// endBootstrapRead ends the prefill leg: with its answer when the KV was read, else with an
// error, since the room cannot be used again.
func (r *rank) endBootstrapRead(m *bootstrapSession, complete bool) {
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

// joinSession brings the KV of a decode leg over: once the sequence has room it joins the
// prefill's room and waits there for what prefill computes. Only prefill's link is
// reckoned with.
func (r *rank) joinSession(ctx context.Context, s *sequence) {
	var got room
	select {
	case <-ctx.Done():
		return
	case got = <-s.admitted:
	}
	start, at, path := time.Now(), s.bootstrap, namedPath
	if r.cfg.Connector == ConnectorSGLang {
		path = meetPath
	}
	ctx, cancel := context.WithTimeout(ctx, r.cfg.MeetTimeout)
	defer cancel()
	content, err := r.side.call(ctx, at.host, at.port, path, kvPull{
		Room: at.id, Rank: at.rank, EngineID: at.engineID, Skip: got.have,
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
		r.meters.recordTransfer(time.Since(start), len(got.want)-got.have, r.blockBytes())
	} else {
		r.meters.failedTransfers.Inc()
		slog.Warn("no KV from the meeting", "engine_id", r.id, "reason", failure, "room", at.id)
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
