package scaling

import "math"

// binSeconds is the step of the time series in a report.
const binSeconds = 30.0

// account judges requests as they end.
type account struct {
	scenario *Scenario
	own      func(*request) float64

	good, all       int
	calm, calmGood  int // of those that did not arrive in a burst
	late, slow      int
	longestWait     float64
	binAll, binGood []int // by time of arrival
	watch           *watch
}

// recordEnd settles a request whose last token came at the time.
func (a *account) recordEnd(s *sequence, at float64) {
	inTime := s.first-s.at <= a.scenario.Wait+a.own(s.request)+tick
	smooth := s.output < 2 || (at-s.first)/float64(s.output-1) <= a.scenario.TPOT
	a.all++
	a.watch.recordEnd(s)
	a.longestWait = max(a.longestWait, s.first-s.at)
	if !inTime {
		a.late++
	}
	if !smooth {
		a.slow++
	}
	bin := int(s.at / binSeconds)
	a.binAll[bin]++
	calm := !a.scenario.bursting(s.at)
	if calm {
		a.calm++
	}
	if inTime && smooth {
		a.good++
		a.binGood[bin]++
		if calm {
			a.calmGood++
		}
	}
}

func (s *Scenario) bursting(at float64) bool {
	for _, b := range s.Bursts {
		if at >= b.From && at < b.From+b.Seconds {
			return true
		}
	}
	return false
}

// disturbed is when the load's last burst ends or its mix shifts, 0 for never.
func (s *Scenario) disturbed() float64 {
	if n := len(s.Bursts); n > 0 {
		return s.Bursts[n-1].From + s.Bursts[n-1].Seconds
	}
	return s.ShiftAt
}

// recovery is how long after a time requests go on missing their objective: until
// the first bin from which on, for a minute, 95 % are good, else to the end.
func (a *account) recovery(after float64) float64 {
	from := int(math.Ceil(after / binSeconds))
	for bin := from; bin+1 < len(a.binAll); bin++ {
		good := a.binGood[bin] + a.binGood[bin+1]
		if float64(good) >= 0.95*float64(a.binAll[bin]+a.binAll[bin+1]) {
			return max(0, float64(bin)*binSeconds-after)
		}
	}
	return a.scenario.Seconds - after
}

// part of a whole, 1 where there is nothing.
func part(some, whole int) float64 {
	if whole == 0 {
		return 1
	}
	return float64(some) / float64(whole)
}
