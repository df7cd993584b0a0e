package zmqsub

import "time"

// pace counts the messages of a feed, by the times between the moments at which all feeds look.
type pace struct {
	began        time.Time // this time
	now, earlier int       // messages of this time, and of the one before
}

// isSlow adds messages that were taken, and reports whether there are few: no more in this time than those, nor in the one
// before. Where a look finds few because it is soon behind another, the times have many.
func (p *pace) isSlow(taken, few int, at time.Time, every time.Duration) bool {
	if began := at.Truncate(every); !began.Equal(p.began) {
		earlier := 0
		if began.Equal(p.began.Add(every)) {
			earlier = p.now
		}
		*p = pace{began: began, earlier: earlier}
	}
	p.now += taken
	return p.now <= few && p.earlier <= few
}
