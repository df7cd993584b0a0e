package order

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// kvSupply is the KV room that decode has, and will have while all of it is in use.
type kvSupply struct {
	room  int     // tokens
	freed float64 // that come free in a second, of those that are in use now
	again float64 // and later, in a second, of all; 0: there is room for all
	first float64 // how many seconds what is in use now takes to come free
	share float64 // of what comes free, 0..1, that is not for answers to grow into
	ends  []kvEnd // of the answers that run, the soonest first, where requests wait for room
}

// kvEnd is in how many seconds so many tokens have come free.
type kvEnd struct {
	in     float64
	tokens int
}

// kvSupply is that of the decode servers for requests of so many tokens. Answers end once within the time of one, and take
// some of what that frees as they grow; they are taken to be as those that wait. What is room now, and will be taken
// by those that wait, comes free no sooner than in the time of one. Steps are as they are now: what is known of batches
// that were never seen is a guess, by which nobody is to be refused.
func (o *Order) kvSupply(ends []kvEnd, request int, s *Servers) (k kvSupply) {
	k.ends = ends
	output := max(o.output, float64(o.size)) / float64(o.size)
	kv := float64(o.kv) / float64(o.size)
	all, used := 0.0, 0
	for d := range s.Decode {
		state := &s.Decode[d]
		switch {
		case state.Excluded:
			continue
		case !s.Gate || state.KVRoom == math.MaxInt: // it does not say
			return kvSupply{ends: ends}
		}
		room := max(0, state.KVRoom)
		answer := state.Step * output
		if state.Running == 0 { // an empty one takes any request
			room = max(room, request)
		}
		k.room += room
		if answer > 0 {
			used += state.Used
			all += float64(state.Used + room)
			k.freed += float64(state.Used) / answer
			k.again += float64(state.Used+room) / answer
		}
	}
	if k.again > 0 {
		k.first = all / k.again
	}
	k.share = kv / (kv + output/2)
	k.freed, k.again = k.freed*k.share, k.again*k.share
	if o.kv > k.room && k.again > 0 {
		k.addEnds(o.went, used, k.first/output, s.Now)
	}
	return k
}

// addEnds writes when what is in use comes free, by when the last requests went: those that went together end together.
// What others have in use comes free evenly, and all of it does where nothing is known.
func (k *kvSupply) addEnds(went []wentRequest, used int, step float64, now time.Duration) {
	for i := len(went) - 1; i >= 0 && used > 0; i-- {
		w := &went[i]
		tokens := min(used, w.tokens+int(w.output/2))
		k.ends = append(k.ends, kvEnd{max(0, step*w.output-(now-w.at).Seconds()), tokens})
		used -= tokens
	}
	if len(k.ends) == 0 {
		return
	}
	for part := range evenly {
		k.ends = append(k.ends, kvEnd{k.first * float64(part+1) / evenly, used / evenly})
	}
	k.ends = append(k.ends, kvEnd{k.first, k.room})
	slices.SortFunc(k.ends, func(a, b kvEnd) int { return cmp.Compare(a.in, b.in) })
	sum := 0
	for i := range k.ends {
		sum += k.ends[i].tokens
		k.ends[i].tokens = sum
	}
}

// evenly is the parts in which comes free what is taken to do so evenly.
const evenly = 8

// wait is in how many seconds there is room for so many tokens: the sooner of what follows from when requests went, and
// from how many tokens come free in a second in the mean. Answers may be shorter than expected.
func (k *kvSupply) wait(kv int) float64 {
	lacking := float64(kv - k.room)
	switch soon := k.freed * k.first; {
	case lacking <= 0 || k.again == 0:
		return 0
	case lacking <= soon:
		return min(lacking/k.freed, k.waitForEnds(lacking))
	default:
		return min(k.first+(lacking-soon)/k.again, k.waitForEnds(lacking))
	}
}

// waitForEnds is in how many seconds so many tokens have come free: those that take their room end as much later as an
// answer takes.
func (k *kvSupply) waitForEnds(tokens float64) float64 {
	if len(k.ends) == 0 || k.share == 0 {
		return math.Inf(1)
	}
	tokens /= k.share
	all := float64(k.ends[len(k.ends)-1].tokens)
	rounds := math.Ceil(tokens/all) - 1
	left := int(math.Ceil(tokens - rounds*all))
	at, _ := slices.BinarySearchFunc(k.ends, left, func(e kvEnd, tokens int) int { return e.tokens - tokens })
	return rounds*k.first + k.ends[min(at, len(k.ends)-1)].in
}

// wentRequest is a request that has its servers: when it went, and what KV it takes.
type wentRequest struct {
	at     time.Duration
	tokens int     // of its prompt
	output float64 // expected
}

// mostWent is how many of the last requests are remembered: more than decode servers answer at once.
const mostWent = 4096

// recordWent notes a request that goes.
func (o *Order) recordWent(t *Ticket, now time.Duration) {
	if len(o.went) >= 2*mostWent {
		o.went = o.went[:copy(o.went, o.went[len(o.went)-mostWent:])]
	}
	o.went = append(o.went, wentRequest{now, t.kv, t.output})
}

// forgetWent undoes the last recordWent.
func (o *Order) forgetWent() { o.went = o.went[:len(o.went)-1] }
