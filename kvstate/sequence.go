package kvstate

// sequence decides from numbers and checksums alone what to do with each message of a
// source, and what to request of its replay. It does no I/O and knows no time.
//
// A replay is requested from the last batch applied, that one included: if it comes back with
// the same checksum, the publisher is the one it was, and what follows carries on where
// the source stopped. Otherwise the publisher has restarted, or no longer has that
// batch, and what the source knew is void.
type sequence struct {
	replays bool // the source can request replays

	last     stamp // last batch applied
	live     stamp // last live message seen
	complete bool  // the source knows all that the publisher can still replay
	accept   bool  // no replay can help now: take the next live message as it is
	requests int   // in a row for the same live message
	pub      [16]byte
	recent   [recent]stamp // last live messages, by number, to know a late copy

	replay replay
}

// recent is how many live messages are remembered.
const recent = 64

// stamp is the number and checksum of a message.
type stamp struct {
	known bool
	seq   uint64
	sum   uint64
}

// replay is the state of the replay under way.
type replay struct {
	request ReplayRequest
	got     bool // an answer came
	all     bool // it began with the first batch that the publisher has
	repeat  bool // the publisher is another one: request from the start
	useful  bool // a batch was applied
}

// ReplayReason is what a replay is needed for.
type ReplayReason uint8

const (
	Nothing          ReplayReason = iota
	Start                         // a source that knows nothing
	Gap                           // messages are missing
	Restart                       // the publisher restarted
	ConsistencyCheck              // is what the source knows still true?
	Rebuild                       // start again from what the publisher still has
)

// ReplayRequest is what a source wants replayed. Reason is Nothing when it wants nothing.
type ReplayRequest struct {
	Reason ReplayReason
	From   uint64
}

// Needed reports whether a replay is requested.
func (a ReplayRequest) Needed() bool { return a.Reason != Nothing }

// verdict is what is to be done with a message.
type verdict uint8

const (
	apply     verdict = iota
	ignore            // a duplicate
	resetOnly         // forget all, and keep the message for after the replay
	reset             // forget all, then apply
	wait              // keep the message for after the replay
)

// maxRequests bounds the replays for one live message.
const maxRequests = 3

// classify decides about a live message. With a request, the message is to be offered again
// after the replay.
func (q *sequence) classify(s stamp, publisher [16]byte) (verdict, ReplayRequest) {
	changed := publisher != q.pub && q.pub != [16]byte{} && publisher != [16]byte{}
	if publisher != [16]byte{} {
		q.pub = publisher
	}
	switch {
	case changed:
		return q.recordRestart()
	case !q.last.known:
		if q.replays && !q.accept && (!q.complete || s.seq > 0) && q.countRequest() {
			return wait, ReplayRequest{Start, 0}
		}
		q.complete = q.complete && s.seq == 0
		return apply, ReplayRequest{}
	case s.seq == q.last.seq+1:
		return apply, ReplayRequest{}
	case s.seq > q.last.seq:
		if q.replays && !q.accept && q.countRequest() {
			return wait, ReplayRequest{Gap, q.last.seq}
		}
		return reset, ReplayRequest{}
	case !q.live.known || s.seq > q.live.seq: // a replay has brought it already
		return ignore, ReplayRequest{}
	case s == q.recent[s.seq%recent]:
		return ignore, ReplayRequest{}
	}
	return q.recordRestart()
}

// recordSeen records a live message that was applied or ignored. An older one that comes again
// moves nothing back.
func (q *sequence) recordSeen(s stamp) {
	q.recent[s.seq%recent] = s
	if !q.live.known || s.seq > q.live.seq {
		q.live = s
	}
}

// countRequest counts a request for the same live message, false when there were too many.
func (q *sequence) countRequest() bool {
	q.requests++
	return q.requests <= maxRequests
}

func (q *sequence) recordRestart() (verdict, ReplayRequest) {
	if q.replays && !q.accept {
		return resetOnly, ReplayRequest{Restart, 0}
	}
	return reset, ReplayRequest{}
}

// recordApplied records that a message was applied.
func (q *sequence) recordApplied(s stamp) {
	q.last = s
	q.requests, q.accept = 0, false
}

// forget makes the sequence that of a source that knows nothing. What the publisher is
// stays known.
func (q *sequence) forget() {
	q.last, q.live, q.recent, q.complete = stamp{}, stamp{}, [recent]stamp{}, false
}

// resume makes the sequence that of a source that has applied everything up to s.
func (q *sequence) resume(s stamp) {
	q.forget()
	q.last = s
	q.recordSeen(s)
}

// recordConnect is the request when the feed has connected, for the first time or again.
func (q *sequence) recordConnect() ReplayRequest {
	if !q.replays {
		return ReplayRequest{}
	}
	if q.last.known {
		return ReplayRequest{Gap, q.last.seq}
	}
	return ReplayRequest{Start, 0}
}

// consistencyCheck is the request that shows whether what the source knows is still true.
func (q *sequence) consistencyCheck() ReplayRequest {
	switch {
	case !q.replays:
		return ReplayRequest{}
	case !q.last.known && !q.complete:
		return ReplayRequest{Start, 0}
	case !q.last.known:
		return ReplayRequest{ConsistencyCheck, 0}
	case !q.complete:
		return ReplayRequest{Rebuild, 0}
	}
	return ReplayRequest{ConsistencyCheck, q.last.seq}
}

// begin starts a replay.
func (q *sequence) begin(a ReplayRequest) { q.replay = replay{request: a, all: a.From == 0} }

// offerReplayed decides about one message of the replay.
func (q *sequence) offerReplayed(s stamp) verdict {
	r := &q.replay
	first := !r.got
	r.all = r.all || first && s.seq > r.request.From
	switch {
	case s.seq < r.request.From, r.repeat:
		return ignore // some publishers send more than was requested
	case first && r.request.Reason == Rebuild:
		r.got = true
		return reset
	case first && q.last.known:
		r.got = true
		if s == q.last {
			return ignore // the publisher is the one it was
		}
		if s.seq == q.last.seq {
			r.repeat = true
			return resetOnly
		}
		return reset
	}
	r.got = true
	switch {
	case !q.last.known, s.seq == q.last.seq+1:
		return apply
	case s.seq <= q.last.seq:
		return ignore
	}
	return reset // a hole
}

// finish ends the replay. Reset says that what the source knew is void; the request is
// what to replay next.
func (q *sequence) finish(complete bool) (forget bool, next ReplayRequest) {
	r := q.replay
	q.replay = replay{}
	switch {
	case !complete && r.useful:
		return false, ReplayRequest{Gap, q.last.seq}
	case !complete && r.request.Reason == ConsistencyCheck, !complete && r.request.Reason == Rebuild:
		return false, ReplayRequest{} // nothing says that it changed
	case !complete:
		q.accept, q.complete = true, false
		return q.last.known, ReplayRequest{Start, 0}
	case r.repeat:
		return false, ReplayRequest{Restart, 0}
	case q.last.known && !r.got: // the publisher has not got that far
		return true, ReplayRequest{Restart, 0}
	}
	q.complete = q.complete || r.all
	return false, ReplayRequest{}
}
