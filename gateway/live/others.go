package live

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/tandem-gateway/tandem/gateway/peers"
)

// Ask gets a path of the admin ports of all other gateways at once, within a bounded time.
type Ask func(ctx context.Context, path string) []peers.Answer

// How old what other gateways answered may be.
const (
	askAgain = Every - Every/4 // a tick that comes a little early asks as well
	tooOld   = 3 * Every       // after which it is not shown any more
	forget   = time.Minute     // a model that nobody looks at
)

// others asks the other gateways for their reports while somebody looks. No page waits for it: each
// shows what was answered last. Safe for concurrent use.
type others struct {
	ask    Ask
	ctx    context.Context // of what is asked
	cancel context.CancelFunc
	asked  sync.WaitGroup

	mu     sync.Mutex        // guards rounds
	rounds map[string]*round // by the model whose history is asked for
}

// round is one question to all gateways, and what they answered to the last one.
type round struct {
	begun   time.Time
	ended   time.Time // of the last one; zero: none has
	answers []answer
	running chan struct{} // closed when the one under way ends; nil: none is
}

// answer is the report of a gateway, or why there is none.
type answer struct {
	replica, version string
	report           *Report
	behind           time.Duration // by which its clock is behind this one's, as far as an answer's time allows to say
	silent           string
}

func newOthers(ask Ask) *others {
	ctx, cancel := context.WithCancel(context.Background())
	return &others{ask: ask, ctx: ctx, cancel: cancel, rounds: make(map[string]*round)}
}

// close ends what is asked, and waits for it.
func (o *others) close() {
	o.mu.Lock()
	o.cancel() // from here on nothing begins
	o.mu.Unlock()
	o.asked.Wait()
}

// latest is what the others answered last, of a model's history. Where that is some time ago they are
// asked anew; running is closed when they have answered, and nil where nothing is asked.
func (o *others) latest(model string, now time.Time) (answers []answer, known bool, running <-chan struct{}) {
	if o.ask == nil {
		return nil, true, nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	r := o.rounds[model]
	if r == nil {
		r = new(round)
		o.rounds[model] = r
	}
	if r.running == nil && now.Sub(r.begun) >= askAgain && o.ctx.Err() == nil {
		o.beginLocked(r, model, now)
	}
	if known = !r.ended.IsZero() && now.Sub(r.ended) < tooOld; known {
		answers = r.answers
	}
	return answers, known, r.running
}

func (o *others) beginLocked(r *round, model string, now time.Time) {
	for name, old := range o.rounds {
		if old.running == nil && now.Sub(old.begun) > forget && old != r {
			delete(o.rounds, name)
		}
	}
	r.begun, r.running = now, make(chan struct{})
	o.asked.Go(func() {
		answers := o.askAll(model)
		o.mu.Lock()
		defer o.mu.Unlock()
		r.answers, r.ended = answers, time.Now()
		close(r.running)
		r.running = nil
	})
}

func (o *others) askAll(model string) []answer {
	var all []answer
	for _, a := range o.ask(o.ctx, "/ui/report?model="+url.QueryEscape(model)) {
		all = append(all, read(&a))
	}
	return all
}

// read reads what a gateway answered.
func read(a *peers.Answer) answer {
	out := answer{replica: a.ID, version: a.Version}
	if failed, ok := errors.AsType[*url.Error](a.Err); ok {
		out.silent = failed.Err.Error() // the rest is its address
		return out
	}
	if a.Err != nil {
		out.silent = a.Err.Error()
		return out
	}
	if a.Status != http.StatusOK {
		out.silent = "its version reports nothing to others"
		return out
	}
	var report Report
	if err := json.Unmarshal(a.Body, &report); err != nil {
		out.silent = "its report cannot be read: " + err.Error()
		return out
	}
	report.Gateway.Replica, report.Gateway.Silent = a.ID, ""
	out.report, out.behind = &report, time.Since(report.At)
	out.version = cmp.Or(report.Gateway.Version, a.Version)
	return out
}
