package scaling

import (
	"cmp"
	"slices"
)

// pod is what pods of both roles have in common. Times are in seconds.
type pod struct {
	readyAt  float64
	draining bool
}

// pods of one role: those that are paid for.
type pods[P podServer] struct {
	all   []P
	make  func(readyAt float64) P
	hours float64 // of all pods since the start
}

// podServer is a pod with work on it.
type podServer interface {
	base() *pod
	busy() float64 // what would be waited for if it went: 0 when it can go at once
}

// scale brings the number of pods that are not going to want: new ones are ready
// after the cold start; those that still start go first, then the least busy.
func (p *pods[P]) scale(want int, now, coldStart float64) {
	staying := p.staying()
	for range want - len(staying) {
		p.all = append(p.all, p.make(now+coldStart))
	}
	if want >= len(staying) {
		return
	}
	slices.SortStableFunc(staying, func(a, b P) int {
		aStarts, bStarts := a.base().readyAt > now, b.base().readyAt > now
		switch {
		case aStarts && bStarts:
			return cmp.Compare(b.base().readyAt, a.base().readyAt)
		case aStarts != bStarts && aStarts:
			return -1
		case aStarts != bStarts:
			return 1
		}
		return cmp.Compare(a.busy(), b.busy())
	})
	for _, surplus := range staying[:len(staying)-want] {
		surplus.base().draining = true
	}
}

func (p *pods[P]) staying() []P {
	var all []P
	for _, s := range p.all {
		if !s.base().draining {
			all = append(all, s)
		}
	}
	return all
}

// counts are the ready and the starting pods among those that stay.
func (p *pods[P]) counts(now float64) (ready, pending int) {
	for _, s := range p.all {
		switch b := s.base(); {
		case b.draining:
		case b.readyAt <= now:
			ready++
		default:
			pending++
		}
	}
	return ready, pending
}

// pass lets time pass: drained pods go, the others are paid for.
func (p *pods[P]) pass(seconds float64) {
	p.all = slices.DeleteFunc(p.all, func(s P) bool { return s.base().draining && s.busy() == 0 })
	p.hours += float64(len(p.all)) * seconds / 3600
}
