package kvstate

// sequence decides from numbers and checksums alone what to do with each message of a
// source, and what to ask of its replay. It does no I/O and knows no time.
//
// A replay asks from the last batch applied, that one included: if it comes back with
// the same checksum, the publisher is the one it was, and what follows carries on where
// the source stopped. Otherwise the publisher has restarted, or no longer has that
// batch, and what the source knew is void.
type sequence struct {
	replays bool // the source can ask for replays

	last   stamp // last batch applied
	live   stamp // last live message seen
	whole  bool  // the source knows all that the publisher can still tell
	accept bool  // no replay can help now: take the next live message as it is
	asked  int   // asks in a row for the same live message
	pub    [16]byte
	recent [recent]stamp // last live messages, by number, to know a late copy

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
	ask    Ask
	got    bool // an answer came
	all    bool // it began with the first batch that the publisher has
	again  bool // the publisher is another one: ask from the start
	useful bool // a batch was applied
}

// Why says what a replay is asked for.
type Why uint8

const (
	Nothing Why = iota
	Start       // a source that knows nothing
	Gap         // messages are missing
	Restart     // the publisher restarted
	Proof       // is what the source knows still true?
	Rebuild     // start again from what the publisher still has
)

// Ask is what a source wants replayed. Why is Nothing when it wants nothing.
type Ask struct {
	Why  Why
	From uint64
}

// Wanted reports whether a replay is asked for.
func (a Ask) Wanted() bool { return a.Why != Nothing }

// verdict is what is to be done with a message.
type verdict uint8

const (
	apply     verdict = iota
	ignore            // a duplicate
	resetOnly         // forget all, and keep the message for after the replay
	reset             // forget all, then apply
	wait              // keep the message for after the replay
)

// maxAsks bounds the replays for one live message.
const maxAsks = 3

// offer decides about a live message. With an ask, the message is to be offered again
// after the replay.
func (q *sequence) offer(s stamp, publisher [16]byte) (verdict, Ask) {
	changed := publisher != q.pub && q.pub != [16]byte{} && publisher != [16]byte{}
	if publisher != [16]byte{} {
		q.pub = publisher
	}
	switch {
	case changed:
		return q.restarted()
	case !q.last.known:
		if q.replays && !q.accept && (!q.whole || s.seq > 0) && q.mayAsk() {
			return wait, Ask{Start, 0}
		}
		q.whole = q.whole && s.seq == 0
		return apply, Ask{}
	case s.seq == q.last.seq+1:
		return apply, Ask{}
	case s.seq > q.last.seq:
		if q.replays && !q.accept && q.mayAsk() {
			return wait, Ask{Gap, q.last.seq}
		}
		return reset, Ask{}
	case !q.live.known || s.seq > q.live.seq: // a replay has brought it already
		return ignore, Ask{}
	case s == q.recent[s.seq%recent]:
		return ignore, Ask{}
	}
	return q.restarted()
}

// saw notes a live message that was settled. An older one that comes again moves
// nothing back.
func (q *sequence) saw(s stamp) {
	q.recent[s.seq%recent] = s
	if !q.live.known || s.seq > q.live.seq {
		q.live = s
	}
}

func (q *sequence) mayAsk() bool {
	q.asked++
	return q.asked <= maxAsks
}

func (q *sequence) restarted() (verdict, Ask) {
	if q.replays && !q.accept {
		return resetOnly, Ask{Restart, 0}
	}
	return reset, Ask{}
}

// took notes that a message was applied.
func (q *sequence) took(s stamp) {
	q.last = s
	q.asked, q.accept = 0, false
}

// forget makes the sequence that of a source that knows nothing. What the publisher is
// stays known.
func (q *sequence) forget() {
	q.last, q.live, q.recent, q.whole = stamp{}, stamp{}, [recent]stamp{}, false
}

// resume makes the sequence that of a source that has applied everything up to s.
func (q *sequence) resume(s stamp) {
	q.forget()
	q.last = s
	q.saw(s)
}

// connected is the ask when the feed has connected, for the first time or again.
func (q *sequence) connected() Ask {
	if !q.replays {
		return Ask{}
	}
	if q.last.known {
		return Ask{Gap, q.last.seq}
	}
	return Ask{Start, 0}
}

// proof is the ask that shows whether what the source knows is still true.
func (q *sequence) proof() Ask {
	switch {
	case !q.replays:
		return Ask{}
	case !q.last.known && !q.whole:
		return Ask{Start, 0}
	case !q.last.known:
		return Ask{Proof, 0}
	case !q.whole:
		return Ask{Rebuild, 0}
	}
	return Ask{Proof, q.last.seq}
}

// begin starts a replay.
func (q *sequence) begin(a Ask) { q.replay = replay{ask: a, all: a.From == 0} }

// replayed decides about one message of the replay.
func (q *sequence) replayed(s stamp) verdict {
	r := &q.replay
	first := !r.got
	r.all = r.all || first && s.seq > r.ask.From
	switch {
	case s.seq < r.ask.From, r.again:
		return ignore // some publishers send more than was asked
	case first && r.ask.Why == Rebuild:
		r.got = true
		return reset
	case first && q.last.known:
		r.got = true
		if s == q.last {
			return ignore // the proof
		}
		if s.seq == q.last.seq {
			r.again = true
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

// finish ends the replay. Reset says that what the source knew is void; the ask is
// what to replay next.
func (q *sequence) finish(complete bool) (forget bool, next Ask) {
	r := q.replay
	q.replay = replay{}
	switch {
	case !complete && r.useful:
		return false, Ask{Gap, q.last.seq}
	case !complete && r.ask.Why == Proof, !complete && r.ask.Why == Rebuild:
		return false, Ask{} // nothing says that it changed
	case !complete:
		q.accept, q.whole = true, false
		return q.last.known, Ask{Start, 0}
	case r.again:
		return false, Ask{Restart, 0}
	case q.last.known && !r.got: // the publisher has not got that far
		return true, Ask{Restart, 0}
	}
	q.whole = q.whole || r.all
	return false, Ask{}
}
