package gateway

import (
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/tandem-gateway/tandem/pd"
)

// outageSilence is the time between two lines of the log on one model that no server serves.
const outageSilence = time.Minute

// outages are the models whose requests no server takes. While servers are down that is each
// request that comes, so that the log has a line a minute for each model, and metrics count them.
type outages struct {
	mu     sync.Mutex
	models map[string]*outage
}

// outage is that of a model. It is over when no request was refused for outageSilence.
type outage struct {
	logged  time.Time // zero: it was not
	last    time.Time // that a request was refused
	refused int       // requests since it was logged
}

// isOutage reports whether a request found no server, and not one that failed it or that lacks a partner.
func isOutage(err error) bool {
	var none *pd.NoServerError
	return errors.As(err, &none) && !none.NoPair
}

// add counts a refused request, and returns how many there were since the last line of the log if
// the next one is due, else 0.
func (o *outages) add(model string, now time.Time) (refused int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	maps.DeleteFunc(o.models, func(_ string, m *outage) bool { return now.Sub(m.last) > outageSilence })
	m := o.models[model]
	if m == nil {
		m = new(outage)
		if o.models == nil {
			o.models = make(map[string]*outage)
		}
		o.models[model] = m
	}
	m.refused++
	m.last = now
	if now.Sub(m.logged) < outageSilence {
		return 0
	}
	refused = m.refused
	m.logged, m.refused = now, 0
	return refused
}
