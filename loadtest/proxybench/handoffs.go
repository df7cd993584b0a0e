package proxybench

import (
	"fmt"
	"maps"
	"net"
	"sync"
	"time"
)

// Legs counts what the engines saw of the legs of requests.
type Legs struct {
	Alone  int            `json:"alone"`  // requests that one server answered
	Pairs  int            `json:"pairs"`  // decode legs whose KV was there and theirs
	Faults map[string]int `json:"faults"` // what a real engine would have refused or got wrong
}

// ledger holds what was handed over and not yet read: by NIXL under the name of the request on the
// prefill server, by SGLang under the room in which both legs meet.
type ledger struct {
	mu       sync.Mutex // guards all below
	legs     Legs
	issued   uint64
	handoffs map[string]handoff
	rooms    map[string]*room
	measure  int                // is counted by reset
	closed   map[mark]time.Time // legs whose reader left before their end
	read128k map[mark]time.Time // when the first leg of a request with such a prompt was read
}

// handoff is what a prefill leg left for its decode.
type handoff struct {
	of     mark
	tokens int // of the prompt whose KV it is
	at     time.Time
}

// room is where the two legs of a request meet.
type room struct {
	of      mark
	role    string
	measure int      // in which the first leg came
	first   net.Conn // on which that waits
}

func newLedger() *ledger {
	l := &ledger{handoffs: map[string]handoff{}, rooms: map[string]*room{}}
	l.reset(time.Now())
	return l
}

// reset begins the counts of another measure. Requests of the one before may be under way still.
func (l *ledger) reset(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.legs = Legs{Faults: map[string]int{}}
	l.measure++
	l.closed, l.read128k = map[mark]time.Time{}, map[mark]time.Time{}
	maps.DeleteFunc(l.handoffs, func(_ string, h handoff) bool { return now.Sub(h.at) > handoffTime })
}

// handoffTime is how long a hand-off is good for.
const handoffTime = time.Minute

// counts are what was seen since the last reset.
func (l *ledger) counts() Legs {
	l.mu.Lock()
	defer l.mu.Unlock()
	legs := l.legs
	legs.Faults = maps.Clone(l.legs.Faults)
	return legs
}

// alone counts a request that has one leg.
func (l *ledger) alone() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.legs.Alone++
}

func (l *ledger) faultLocked(why string) { l.legs.Faults[why]++ }

// fault counts what a real engine would have refused.
func (l *ledger) fault(why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.faultLocked(why)
}

// issue keeps a prompt's blocks for a decode, under a new name.
func (l *ledger) issue(of mark, tokens int) (name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.issued++
	name = fmt.Sprintf("chatcmpl-%s-%08x", of[:], l.issued)
	l.handoffs[name] = handoff{of, tokens, time.Now()}
	return name
}

// read takes a hand-off, which is good for one decode of the same prompt with all of its blocks; where decode
// goes on behind prefill's token, it has the ids of the prompt and that one.
func (l *ledger) read(name string, of mark, blocks, behind int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h, known := l.handoffs[name]
	delete(l.handoffs, name)
	switch {
	case !known:
		l.faultLocked("hand-off unknown or read before")
	case h.of != of:
		l.faultLocked("hand-off of another request")
	case behind != 0 && behind != h.tokens+1:
		l.faultLocked("decode goes on behind another prompt")
	case blocksOf(h.tokens) != blocks:
		l.faultLocked("hand-off with other blocks")
	default:
		l.legs.Pairs++
	}
}

// meetTime is how long a leg waits in its room for the other one.
const meetTime = 5 * time.Second

// meet waits for the other leg of a request. false: it has not come, or is another request's. The error is
// errLeft where the proxy closed the connection of this leg meanwhile.
func (l *ledger) meet(name, role string, of mark, c *engineConn) (met bool, err error) {
	l.mu.Lock()
	r, second := l.rooms[name]
	if !second {
		_ = c.conn.SetReadDeadline(time.Now().Add(meetTime)) // before the other leg can end the wait
		r = &room{of, role, l.measure, c.conn}
		l.rooms[name] = r
		l.mu.Unlock()
		return l.await(name, r, c)
	}
	defer l.mu.Unlock()
	delete(l.rooms, name)
	_ = r.first.SetReadDeadline(time.Unix(1, 0)) // which ends its wait
	switch {
	case r.role == role:
		l.faultLocked("two legs of one role in a room")
	case r.of != of:
		l.faultLocked("legs of two requests in a room")
	default:
		l.legs.Pairs++
		return true, nil
	}
	return false, nil
}

// await is meet for the first leg. The other one is not missed where the proxy has given the request up, as
// it does when its client leaves between the two, nor where the measure in which this one came is over.
func (l *ledger) await(name string, r *room, c *engineConn) (met bool, err error) {
	_, ended := c.in.Peek(1) // nothing else is to be read before the answer
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = c.conn.SetReadDeadline(time.Time{})
	if l.rooms[name] != r {
		return true, nil
	}
	delete(l.rooms, name)
	if !isTimeout(ended) {
		l.closed[r.of] = time.Now()
		return false, errLeft
	}
	if r.measure == l.measure {
		l.faultLocked("the other leg did not come")
	}
	return false, nil
}

// left notes when the reader of a stream left before its end.
func (l *ledger) left(of mark, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed[of] = at
}

// arrived notes when a leg was read, if its prompt is so long that this is asked for.
func (l *ledger) arrived(of *leg, at time.Time) {
	if of.size < longestPrompt/2 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, before := l.read128k[of.mark]; !before {
		l.read128k[of.mark] = at
	}
}

// arrivals are when the requests with the longest prompts were first read, in nanoseconds since 1970.
func (l *ledger) arrivals() map[string]int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return nanosOf(l.read128k)
}

// departures are the streams whose reader left before their end.
func (l *ledger) departures() map[string]int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return nanosOf(l.closed)
}

// nanosOf are times in nanoseconds since 1970.
func nanosOf(times map[mark]time.Time) map[string]int64 {
	all := make(map[string]int64, len(times))
	for of, at := range times {
		all[string(of[:])] = at.UnixNano()
	}
	return all
}
