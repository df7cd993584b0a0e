package council

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/tandem-gateway/tandem/pd/council/councilpb"
)

// session is one follower at the decider.
type session struct {
	*Server
	replica string
	say     chan *councilpb.Say
	parts   sync.WaitGroup

	mu    sync.Mutex // guards seats
	seats map[uint64]*seat
}

// seat is one ticket, from its coming to the news that its turn was taken.
type seat struct {
	cancel context.CancelFunc
	taken  chan uint64 // the follower's count of turns, once
}

// take does what a follower asks.
func (f *session) take(ctx context.Context, ask *councilpb.Ask) {
	switch what := ask.What.(type) {
	case *councilpb.Ask_Ticket:
		f.sit(ctx, what.Ticket)
	case *councilpb.Ask_Cancel:
		f.mu.Lock()
		defer f.mu.Unlock()
		if s := f.seats[what.Cancel.Id]; s != nil {
			s.cancel()
		}
	case *councilpb.Ask_Taken:
		f.mu.Lock()
		defer f.mu.Unlock()
		if s := f.seats[what.Taken.Id]; s != nil {
			select {
			case s.taken <- what.Taken.Count:
			default: // said twice
			}
		}
	}
}

// sit lets a ticket wait for its turn.
func (f *session) sit(ctx context.Context, t *councilpb.Ticket) {
	ctx, cancel := context.WithCancel(ctx)
	s := &seat{cancel: cancel, taken: make(chan uint64, 1)}
	f.mu.Lock()
	_, twice := f.seats[t.Id]
	full := len(f.seats) >= maxTickets
	if !twice && !full {
		f.seats[t.Id] = s
	}
	f.mu.Unlock()
	if twice || full {
		cancel()
		f.refuse(ctx, t.Id, councilpb.Refused_UNABLE)
		return
	}
	f.parts.Go(func() {
		defer cancel()
		f.serve(ctx, t, s)
		f.mu.Lock()
		delete(f.seats, t.Id)
		f.mu.Unlock()
	})
}

// serve waits for a ticket's turn, tells it, and keeps its work on the books until
// the follower's news include it.
func (f *session) serve(ctx context.Context, t *councilpb.Ticket, s *seat) {
	turn, told, err := f.order.Bind(ctx, t)
	if err != nil {
		reason := councilpb.Refused_UNABLE
		if errors.Is(err, ErrTimeout) {
			reason = councilpb.Refused_TIMEOUT
		}
		f.refuse(ctx, t.Id, reason)
		return
	}
	defer told()
	f.metrics.turns.Inc()
	f.tell(ctx, &councilpb.Say{What: &councilpb.Say_Turn{Turn: turn}})
	void := time.NewTimer(takeWithin)
	defer void.Stop()
	var count uint64
	select {
	case count = <-s.taken:
	case <-void.C:
		return
	case <-ctx.Done():
		return
	}
	for {
		heard, more := f.news.Taken(f.replica)
		if heard >= count {
			return
		}
		select {
		case <-more:
		case <-void.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (f *session) refuse(ctx context.Context, id uint64, reason councilpb.Refused_Reason) {
	f.tell(ctx, &councilpb.Say{What: &councilpb.Say_Refused{Refused: &councilpb.Refused{Id: id, Reason: reason}}})
}

func (f *session) tell(ctx context.Context, say *councilpb.Say) {
	select {
	case f.say <- say:
	case <-ctx.Done():
	}
}

// speak sends what there is to say, and a sign of life where there is nothing.
func (f *session) speak(ctx context.Context, stream grpc.BidiStreamingServer[councilpb.Ask, councilpb.Say]) {
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for {
		say := &councilpb.Say{}
		select {
		case <-ctx.Done():
			return
		case say = <-f.say:
		case <-tick.C:
		}
		if stream.Send(say) != nil {
			return // Recv has failed too
		}
	}
}
