package leader

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/tandem-gateway/tandem/pd/leader/leaderpb"
)

// session is one follower at the leader.
type session struct {
	*Server
	replica string
	queued  chan *leaderpb.ToFollower
	parts   sync.WaitGroup

	mu      sync.Mutex // guards waiting
	waiting map[uint64]*remoteRequest
}

// remoteRequest is a follower's request, from its arrival to the report that its turn was
// taken.
type remoteRequest struct {
	cancel context.CancelFunc
	taken  chan uint64 // the follower's count of turns, once
}

// receive does what a follower asks for.
func (f *session) receive(ctx context.Context, m *leaderpb.ToLeader) {
	switch what := m.What.(type) {
	case *leaderpb.ToLeader_Request:
		f.accept(ctx, what.Request)
	case *leaderpb.ToLeader_Cancel:
		f.mu.Lock()
		defer f.mu.Unlock()
		if w := f.waiting[what.Cancel.Id]; w != nil {
			w.cancel()
		}
	case *leaderpb.ToLeader_Taken:
		f.mu.Lock()
		defer f.mu.Unlock()
		if w := f.waiting[what.Taken.Id]; w != nil {
			select {
			case w.taken <- what.Taken.Count:
			default: // sent twice
			}
		}
	case *leaderpb.ToLeader_Work:
		f.reports.Receive(f.replica, what.Work)
	}
}

// accept lets a request wait for its turn.
func (f *session) accept(ctx context.Context, r *leaderpb.RemoteRequest) {
	waits, cancel := context.WithCancel(ctx)
	w := &remoteRequest{cancel: cancel, taken: make(chan uint64, 1)}
	f.mu.Lock()
	_, twice := f.waiting[r.Id]
	full := len(f.waiting) >= maxRequests
	if !twice && !full {
		f.waiting[r.Id] = w
	}
	f.mu.Unlock()
	if twice || full {
		cancel()
		f.refuse(ctx, r.Id, leaderpb.Refused_UNABLE, 0)
		return
	}
	f.parts.Go(func() {
		defer cancel()
		f.serve(waits, r, w)
		f.mu.Lock()
		delete(f.waiting, r.Id)
		f.mu.Unlock()
	})
}

// serve waits for a request's turn, sends it, and keeps its work on the books until the
// follower's reports include it. Where no reports come, since Redis does not answer, it is
// kept until its prefill should be over: for longer, servers that are idle would look busy.
func (f *session) serve(ctx context.Context, r *leaderpb.RemoteRequest, w *remoteRequest) {
	bound, err := f.order.Bind(ctx, r)
	if err != nil {
		reason := leaderpb.Refused_UNABLE
		if errors.Is(err, ErrTimeout) {
			reason = leaderpb.Refused_TIMEOUT
		}
		f.refuse(ctx, r.Id, reason, returnIn(err))
		return
	}
	defer bound.Release()
	f.metrics.turns.Inc()
	f.send(ctx, &leaderpb.ToFollower{What: &leaderpb.ToFollower_Turn{Turn: bound.Turn}})
	void := time.NewTimer(takeWithin)
	defer void.Stop()
	over := time.NewTimer(max(bound.FirstStep, reportWithin))
	defer over.Stop()
	var count uint64
	select {
	case count = <-w.taken:
	case <-void.C:
		return
	case <-ctx.Done():
		return
	}
	for {
		received, more := f.reports.ReportedDecisions(f.replica)
		if received >= count {
			return
		}
		select {
		case <-more:
		case <-over.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (f *session) refuse(ctx context.Context, id uint64, reason leaderpb.Refused_Reason, returnIn time.Duration) {
	refused := &leaderpb.Refused{Id: id, Reason: reason, ReturnUs: uint64(max(0, returnIn).Microseconds())}
	f.send(ctx, &leaderpb.ToFollower{What: &leaderpb.ToFollower_Refused{Refused: refused}})
}

func (f *session) send(ctx context.Context, m *leaderpb.ToFollower) {
	select {
	case f.queued <- m:
	case <-ctx.Done():
	}
}

// sendAll sends what is queued, and a sign of life where there is nothing.
func (f *session) sendAll(ctx context.Context, stream grpc.BidiStreamingServer[leaderpb.ToLeader, leaderpb.ToFollower]) {
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for {
		m := &leaderpb.ToFollower{}
		select {
		case <-ctx.Done():
			return
		case m = <-f.queued:
		case <-tick.C:
		}
		if stream.Send(m) != nil {
			return // Recv has failed too
		}
	}
}
