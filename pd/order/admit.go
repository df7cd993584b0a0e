package order

import (
	"iter"
	"math"
	"slices"
	"sort"
	"time"
)

// Admit lets a request wait if its prefill will begin by t.Latest, and says in how long.
// margin is how long a wait that is predicted is to be reckoned with: who waits must be
// able to count on it.
//
// It keeps nobody else waiting beyond his own latest, but those who have less claim to a
// place: of a lower class, late for their objective, or of a tenant who has more work
// waiting than the newcomer's. They give way, and wait no more. Who would be too late in
// any case changes nothing.
func (o *Order) Admit(t *Ticket, s *Servers, margin func(time.Duration) time.Duration) (hold time.Duration, gaveWay []*Ticket, ok bool) {
	o.Add(t, s.Links)
	fleet := newBacklog(s, o.pace.share())
	before, behind := 0.0, false
	for w := range o.served {
		switch {
		case w == t:
			hold, behind = fleet.begins(before), true
			if s.Now+margin(hold) > t.latest() {
				o.Remove(t)
				return hold, nil, false
			}
		case behind && s.Now+fleet.begins(before) > w.latest() && s.Now+fleet.begins(before-t.shortest) <= w.latest():
			if !o.yields(w, t, gaveWay) {
				o.Remove(t)
				return hold, nil, false
			}
			gaveWay = append(gaveWay, w)
			continue
		}
		before += w.shortest
	}
	for _, w := range gaveWay {
		o.Remove(w)
	}
	return hold, gaveWay, true
}

// yields says whether a request that waits has less claim to a place than a newcomer, once
// others have given way.
func (o *Order) yields(w, newcomer *Ticket, gaveWay []*Ticket) bool {
	switch {
	case w.Class != newcomer.Class:
		return w.Class > newcomer.Class
	case w.late != newcomer.late:
		return w.late
	case w.Tenant == newcomer.Tenant:
		return false
	}
	left := o.lines.work(w) - w.shortest
	for _, gone := range gaveWay {
		if gone.Class == w.Class && gone.late == w.late && gone.Tenant == w.Tenant {
			left -= gone.shortest
		}
	}
	return left >= o.lines.work(newcomer)
}

// work is the seconds of prefill that wait in the line of a ticket.
func (ls lines) work(t *Ticket) (seconds float64) {
	if l, _, _ := ls.find(t); l != nil {
		for _, w := range l.waiting {
			seconds += w.shortest
		}
	}
	return seconds
}

// served yields all that wait in the order in which they will go if nobody else comes and
// each best server is as good as another: by class, those who are late last, then of the
// tenant who was served least by then.
func (o *Order) served(yield func(*Ticket) bool) {
	for first := 0; first < len(o.lines); {
		end := first
		for end < len(o.lines) && o.lines[end].class == o.lines[first].class && o.lines[end].late == o.lines[first].late {
			end++
		}
		for t := range inTurn(o.lines[first:end]) {
			if !yield(t) {
				return
			}
		}
		first = end
	}
}

// inTurn yields the requests of one class that are late, or are not.
func inTurn(class []*line) iter.Seq[*Ticket] {
	return func(yield func(*Ticket) bool) {
		play := make([]line, len(class))
		for i, l := range class {
			play[i] = *l
		}
		for len(play) > 0 {
			next := 0
			for i := range play {
				if play[i].served < play[next].served {
					next = i
				}
			}
			l := &play[next]
			if !yield(l.waiting[0]) {
				return
			}
			l.served += l.waiting[0].shortest
			if l.waiting = l.waiting[1:]; len(l.waiting) == 0 {
				play = slices.Delete(play, next, next+1)
			}
		}
	}
}

// latest is the moment by which its prefill must begin.
func (t *Ticket) latest() time.Duration {
	if t.Latest == 0 {
		return math.MaxInt64
	}
	return t.Latest
}

// Quickest is the least time, in seconds, from the beginning of a request's prefill to its
// first token, wherever in the fleet: infinite if nowhere.
func (s *Servers) Quickest(t *Ticket) float64 {
	t.measure(s.Links)
	least := math.Inf(1)
	for p := range s.Prefill {
		if !s.Prefill[p].Out {
			least = min(least, at(t.PrefillReady, p)+s.HandOff+t.Prefill[p]+t.move[p])
		}
	}
	for d := range s.Decode {
		if !s.Decode[d].Out {
			least = min(least, at(t.DecodeReady, d)+t.Alone[d])
		}
	}
	return least + s.ideal().Step
}

// backlog is the work ahead of the servers that prefill, as basins of which the lowest
// fills first: what waits goes where it can begin soonest.
type backlog struct {
	pace    float64
	ahead   []float64 // seconds by server, least first
	filling []float64 // work, in seconds, with which all before a server have as much ahead as it
}

func newBacklog(s *Servers, pace float64) *backlog {
	b := &backlog{pace: pace, ahead: slices.Sorted(s.aheads)}
	sum := 0.0
	for i, ahead := range b.ahead {
		b.filling = append(b.filling, float64(i)*ahead-sum)
		sum += ahead
	}
	return b
}

// aheads yields the work ahead of each prefill server that may be chosen, or where there
// are none of each decode server.
func (s *Servers) aheads(yield func(seconds float64) bool) {
	prefills := false
	for i := range s.Prefill {
		if p := &s.Prefill[i]; !p.Out {
			prefills = true
			if !yield(p.Ahead) {
				return
			}
		}
	}
	for i := range s.Decode {
		if d := &s.Decode[i]; !prefills && !d.Out && !yield(d.Ahead) {
			return
		}
	}
}

// begins is in how long the next begins after so many seconds of prefill that wait.
func (b *backlog) begins(work float64) time.Duration {
	if len(b.ahead) == 0 {
		return 0 // nothing is known: all are out for the moment
	}
	work /= b.pace
	k := max(1, sort.SearchFloat64s(b.filling, work)) // that many are filled
	level := (work - b.filling[k-1]) / float64(k)
	return time.Duration((b.ahead[k-1] + level) * float64(time.Second))
}
