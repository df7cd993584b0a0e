package council

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/tandem-gateway/tandem/pd/council/councilpb"
)

// Errors of requests that follow.
var (
	// ErrAway: nobody decides for them, they are to be bound at once.
	ErrAway = errors.New("no decider")
	// ErrTimeout: their turn does not come in time.
	ErrTimeout = errors.New("the decider cannot serve the request in time")
)

// DefaultPatience lets a request that waits for a decider that is lost go within a tenth
// of a second.
const DefaultPatience = 80 * time.Millisecond

// Follower sends the tickets of one replica to whoever decides.
type Follower struct {
	replica  string
	election *Election
	count    func() uint64
	creds    credentials.TransportCredentials
	metrics  *Metrics
	log      *slog.Logger

	// Patience is the silence after which a decider is given up. It is set before Run.
	Patience time.Duration

	mu      sync.Mutex // guards the rest
	ask     chan *councilpb.Ask
	waiting map[uint64]chan<- *councilpb.Say // by ticket; nil while nobody is followed
	next    uint64
}

// NewFollower returns a follower that connects with the given credentials. count counts
// a turn that was taken, in this replica's news of its work too, and returns how many
// they are.
func NewFollower(e *Election, replica string, count func() uint64, creds credentials.TransportCredentials, m *Metrics, log *slog.Logger) *Follower {
	return &Follower{replica: replica, election: e, count: count, creds: creds, metrics: m, log: log, Patience: DefaultPatience}
}

// Follows reports whether there is another replica that decides and is heard: not for a
// nil follower.
func (f *Follower) Follows() bool {
	if f == nil {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.waiting != nil
}

// Decides reports whether this replica decides for all: not for a nil follower.
func (f *Follower) Decides() bool {
	if f == nil {
		return false
	}
	_, own, _ := f.election.Current()
	return own
}

// Bind waits for the turn of a request. The ticket's id is set here. The caller
// claims the turn's servers, or gives it up, and then calls taken. The error is
// ErrAway, ErrTimeout, or the context's.
func (f *Follower) Bind(ctx context.Context, t *councilpb.Ticket) (turn *councilpb.Turn, taken func(), err error) {
	said := make(chan *councilpb.Say, 1)
	ask, ok := f.join(t, said)
	if !ok {
		return nil, nil, ErrAway
	}
	select {
	case say, ok := <-said:
		switch {
		case ok && say.GetRefused().GetReason() == councilpb.Refused_TIMEOUT:
			return nil, nil, ErrTimeout
		case !ok || say.GetTurn() == nil:
			return nil, nil, ErrAway
		}
		return say.GetTurn(), func() { f.took(ask, t.Id) }, nil
	case <-ctx.Done():
	}
	f.mu.Lock()
	_, waits := f.waiting[t.Id]
	delete(f.waiting, t.Id)
	f.mu.Unlock()
	if waits {
		f.offer(ask, &councilpb.Ask{What: &councilpb.Ask_Cancel{Cancel: &councilpb.Cancel{Id: t.Id}}})
	} else {
		f.took(ask, t.Id) // the turn came in the same moment, or nobody is there to hear
	}
	return nil, nil, context.Cause(ctx)
}

// join hands a ticket in, false while nobody is followed.
func (f *Follower) join(t *councilpb.Ticket, said chan<- *councilpb.Say) (ask chan *councilpb.Ask, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.waiting == nil || len(f.waiting) >= maxTickets {
		return nil, false
	}
	f.next++
	t.Id = f.next
	if !f.offer(f.ask, &councilpb.Ask{What: &councilpb.Ask_Ticket{Ticket: t}}) {
		return nil, false
	}
	f.waiting[t.Id] = said
	return f.ask, true
}

// took counts a turn, and tells the decider from which news on the work is in them.
func (f *Follower) took(ask chan *councilpb.Ask, id uint64) {
	f.offer(ask, &councilpb.Ask{What: &councilpb.Ask_Taken{Taken: &councilpb.Taken{Id: id, Count: f.count()}}})
}

// offer queues a message, false if the decider takes none: it is about to be lost.
func (f *Follower) offer(ask chan *councilpb.Ask, message *councilpb.Ask) bool {
	select {
	case ask <- message:
		return true
	default:
		return false
	}
}

// Run follows whoever decides until the context ends.
func (f *Follower) Run(ctx context.Context) {
	for ctx.Err() == nil {
		who, own, changed := f.election.Current()
		if own || who.Replica == "" {
			select {
			case <-changed:
			case <-ctx.Done():
			}
			continue
		}
		err := f.follow(ctx, who, changed)
		f.log.Debug("the decider is not followed any more", "replica", who.Replica, "error", err)
		select {
		case <-changed:
		case <-ctx.Done():
		case <-time.After(recordRenew / 2):
		}
	}
}

// follow hands tickets to one decider until it is lost, or another one is elected.
func (f *Follower) follow(ctx context.Context, who Record, changed <-chan struct{}) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	conn, err := grpc.NewClient(who.Address, grpc.WithTransportCredentials(f.creds), grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(maxMessage)))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	lost := time.AfterFunc(recordLife, func() { cancel(ErrAway) }) // to connect
	defer lost.Stop()
	stream, err := councilpb.NewDeciderClient(conn).Decide(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(&councilpb.Ask{What: &councilpb.Ask_Hello{Hello: &councilpb.Hello{Replica: f.replica, Token: who.Token, Epoch: who.Epoch}}}); err != nil {
		return err
	}
	if _, err := stream.Recv(); err != nil {
		return err
	}
	ask := f.begin()
	f.log.Info("following the decider", "replica", who.Replica, "epoch", who.Epoch)
	heard := time.Now()
	defer func() { f.end(time.Since(heard)) }()
	var parts sync.WaitGroup
	defer parts.Wait()
	defer cancel(nil)
	parts.Go(func() {
		defer cancel(nil)
		f.send(ctx, stream, ask, changed)
	})
	for {
		lost.Reset(f.Patience)
		say, err := stream.Recv()
		if err != nil {
			return errors.Join(context.Cause(ctx), err)
		}
		heard = time.Now()
		f.deliver(say)
	}
}

// send passes messages on until the context ends or another decider is elected.
func (f *Follower) send(ctx context.Context, stream grpc.BidiStreamingClient[councilpb.Ask, councilpb.Say], ask <-chan *councilpb.Ask, changed <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
			return
		case message := <-ask:
			if stream.Send(message) != nil {
				return
			}
		}
	}
}

// begin lets requests hand in tickets.
func (f *Follower) begin() chan *councilpb.Ask {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ask = make(chan *councilpb.Ask, maxTickets)
	f.waiting = make(map[uint64]chan<- *councilpb.Say)
	f.metrics.follows.Set(1)
	return f.ask
}

// end tells all who wait that nobody decides, after a silence of the one who did.
func (f *Follower) end(silence time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.waiting) > 0 {
		f.metrics.silence.Observe(silence.Seconds())
	}
	for _, said := range f.waiting {
		close(said)
	}
	f.metrics.fallbacks.Add(float64(len(f.waiting)))
	f.metrics.follows.Set(0)
	f.waiting = nil
}

// deliver gives what was said to the request that waits for it. A turn of one that
// has left is taken at once: nothing of it is in flight.
func (f *Follower) deliver(say *councilpb.Say) {
	id := say.GetTurn().GetId() + say.GetRefused().GetId() // one of them is there, or none
	if id == 0 {
		return
	}
	f.mu.Lock()
	said, waits := f.waiting[id]
	delete(f.waiting, id)
	ask := f.ask
	f.mu.Unlock()
	if waits {
		said <- say
		return
	}
	f.took(ask, id)
}
