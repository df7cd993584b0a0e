package replicas

import (
	"context"
	"time"

	"github.com/tandem-gateway/tandem/pools"
)

// directDelay is for how long changes are gathered behind a report over a connection: the first one
// of a while is reported at once, and at most 500 a second.
const directDelay = 2 * time.Millisecond

// Stream reports this replica's work to another one over a connection that the two have, until the
// context ends: each change at once or nearly, and all of it every beat. send is given what Receive
// takes there, and does not wait; false: it does not get there.
func (r *Exchange) Stream(ctx context.Context, send func(report []byte) bool) {
	changed, stop := r.fleet.WorkChanges()
	defer stop()
	beat := time.NewTicker(workBeat)
	defer beat.Stop()
	var reported report
	for whole := true; ; {
		now := time.Now()
		if m := reported.changesOf(r.own(now), whole, now); !reported.has(&m) {
			message := m.encode()
			reported.recordPublished(m, len(message), send(message), now)
		}
		if !pools.Pause(ctx, directDelay) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-beat.C:
			whole = true
		case <-changed:
			whole = false
		}
	}
}

// Receive takes in what another replica reports by Stream. From then on what it publishes in Redis
// does not count, which comes later, until it is Lost.
func (r *Exchange) Receive(replica string, report []byte) {
	m, err := decodeWork(report)
	if err != nil || m.Replica != replica || replica == r.id {
		r.ignored.Add(1)
		return
	}
	r.keep(&m, true, time.Now())
}

// Lost lets count again what a replica publishes: it reports nothing directly any more.
func (r *Exchange) Lost(replica string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w, known := r.others[replica]; known {
		w.direct = false
		r.others[replica] = w
	}
}

// isDirect reports whether a replica reports its work directly.
func (r *Exchange) isDirect(replica string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.others[replica].direct
}
