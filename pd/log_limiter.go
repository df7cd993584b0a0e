package pd

import (
	"maps"
	"sync"
	"time"
)

const (
	logSilence = time.Minute // between two lines of the log on the same thing
	mostFaults = 1024        // things at once; one that is forgotten is logged sooner
)

// LogLimiter bounds the log where something is wrong that each request meets: it has a line a minute for each thing that
// is wrong, such as a server or a model, and says how many requests met it. Metrics count them. Its zero value has met
// nothing.
type LogLimiter struct {
	mu     sync.Mutex
	faults map[string]*loggedFault // guarded by mu
}

// loggedFault is over when no request met it for logSilence.
type loggedFault struct {
	logged time.Time // zero: it was not
	last   time.Time // that a request met it
	met    int       // since it was logged
}

// Add counts a request, and returns how many there were since the last line of the log if the next one is due, else 0.
func (l *LogLimiter) Add(fault string, now time.Time) (met int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.faults, func(_ string, f *loggedFault) bool { return now.Sub(f.last) > logSilence })
	f := l.faults[fault]
	if f == nil {
		f = new(loggedFault)
		if len(l.faults) >= mostFaults {
			clear(l.faults)
		}
		if l.faults == nil {
			l.faults = make(map[string]*loggedFault)
		}
		l.faults[fault] = f
	}
	f.met++
	f.last = now
	if now.Sub(f.logged) < logSilence {
		return 0
	}
	met = f.met
	f.logged, f.met = now, 0
	return met
}
