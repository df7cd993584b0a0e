package leader

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/tandem-gateway/tandem/pd/leader/leaderpb"
	"github.com/tandem-gateway/tandem/pools/election"
)

// Errors of requests that follow.
var (
	// ErrNoLeader: no replica decides for them, they are to be bound at once.
	ErrNoLeader = errors.New("no leader")
	// ErrTimeout: their turn does not come in time.
	ErrTimeout = errors.New("the leader cannot serve the request in time")
)

// Timeout is ErrTimeout of a request for which there is room in a known time.
type Timeout struct {
	Return time.Duration // 0: it is not known
}

func (t *Timeout) Error() string { return ErrTimeout.Error() }
func (t *Timeout) Unwrap() error { return ErrTimeout }

// returnIn is in how long there is room for the request of an error, 0 where that is not known.
func returnIn(err error) time.Duration {
	var timeout *Timeout
	if !errors.As(err, &timeout) {
		return 0
	}
	return timeout.Return
}

// mostReturn bounds what a leader may say: hours would keep clients away for a wrong number.
const mostReturn = time.Minute

// DefaultPatience lets a request that waits for a leader that is lost go within a tenth
// of a second.
const DefaultPatience = 80 * time.Millisecond

// Work is what a replica has in flight, as it reports it to others.
type Work interface {
	// CountDecision counts a turn that was taken, in the reports too, and returns how many they are.
	CountDecision() uint64
	// Stream reports the work by send until the context ends. send is false where a report is lost.
	Stream(ctx context.Context, send func(report []byte) bool)
}

// Follower sends the waiting requests of one replica to the leader.
type Follower struct {
	replica  string
	election *Election
	work     Work
	creds    credentials.TransportCredentials
	metrics  *Metrics
	log      *slog.Logger

	logged election.Record // the leader that is followed, as the log has it; zero: none. Of Run alone, as is lost
	lost   time.Time       // when it was followed last

	// Patience is the silence after which a leader is given up. It is set before Run.
	Patience time.Duration

	mu      sync.Mutex // guards the rest
	send    chan *leaderpb.ToLeader
	waiting map[uint64]chan<- *leaderpb.ToFollower // by request; nil while no leader is followed
	next    uint64
}

// NewFollower returns a follower that connects with the given credentials, and reports this
// replica's work to the leader.
func NewFollower(e *Election, replica string, work Work, creds credentials.TransportCredentials, m *Metrics, log *slog.Logger) *Follower {
	return &Follower{replica: replica, election: e, work: work, creds: creds, metrics: m, log: log, Patience: DefaultPatience}
}

// Follows reports whether another replica leads and is connected: not for a nil follower.
func (f *Follower) Follows() bool {
	if f == nil {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.waiting != nil
}

// Leads reports whether this replica decides for all: not for a nil follower.
func (f *Follower) Leads() bool {
	if f == nil {
		return false
	}
	_, own, _ := f.election.Current()
	return own
}

// Bind waits for the turn of a request. Its id is set here. The caller claims the turn's
// servers, or gives it up, and then calls taken. The error is ErrNoLeader, a Timeout, or
// the context's.
func (f *Follower) Bind(ctx context.Context, r *leaderpb.RemoteRequest) (turn *leaderpb.Turn, taken func(), err error) {
	answer := make(chan *leaderpb.ToFollower, 1)
	send, ok := f.enqueue(r, answer)
	if !ok {
		return nil, nil, ErrNoLeader
	}
	select {
	case m, ok := <-answer:
		switch {
		case ok && m.GetRefused().GetReason() == leaderpb.Refused_TIMEOUT:
			in := time.Duration(min(m.GetRefused().GetReturnUs(), uint64(mostReturn.Microseconds()))) * time.Microsecond
			return nil, nil, &Timeout{in}
		case !ok || m.GetTurn() == nil:
			return nil, nil, ErrNoLeader
		}
		return m.GetTurn(), func() { f.reportTaken(send, r.Id) }, nil
	case <-ctx.Done():
	}
	f.mu.Lock()
	_, waits := f.waiting[r.Id]
	delete(f.waiting, r.Id)
	f.mu.Unlock()
	if waits {
		f.offer(send, &leaderpb.ToLeader{What: &leaderpb.ToLeader_Cancel{Cancel: &leaderpb.Cancel{Id: r.Id}}})
	} else {
		f.reportTaken(send, r.Id) // the turn came in the same moment, or the leader is lost
	}
	return nil, nil, context.Cause(ctx)
}

// enqueue sends a request to the leader, false while no leader is followed.
func (f *Follower) enqueue(r *leaderpb.RemoteRequest, answer chan<- *leaderpb.ToFollower) (send chan *leaderpb.ToLeader, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.waiting == nil || len(f.waiting) >= maxRequests {
		return nil, false
	}
	f.next++
	r.Id = f.next
	if !f.offer(f.send, &leaderpb.ToLeader{What: &leaderpb.ToLeader_Request{Request: r}}) {
		return nil, false
	}
	f.waiting[r.Id] = answer
	return f.send, true
}

// reportTaken counts a turn, and tells the leader from which report on the work is in them.
func (f *Follower) reportTaken(send chan *leaderpb.ToLeader, id uint64) {
	f.offer(send, &leaderpb.ToLeader{What: &leaderpb.ToLeader_Taken{Taken: &leaderpb.Taken{Id: id, Count: f.work.CountDecision()}}})
}

// offer queues a message, false if the leader takes none: it is about to be lost.
func (f *Follower) offer(send chan *leaderpb.ToLeader, message *leaderpb.ToLeader) bool {
	select {
	case send <- message:
		return true
	default:
		return false
	}
}

// Run follows the leader of the moment until the context ends.
func (f *Follower) Run(ctx context.Context) {
	for ctx.Err() == nil {
		leader, own, changed := f.election.Current()
		if own || leader.Replica == "" {
			select {
			case <-changed:
			case <-ctx.Done():
			}
			continue
		}
		err := f.follow(ctx, leader, changed)
		f.logLost(leader, err)
		select {
		case <-changed:
		case <-ctx.Done():
		case <-time.After(recordRenew / 2):
		}
	}
}

// logFollowed says that a leader is followed, once: on a loaded machine it is given up for a moment, many times.
func (f *Follower) logFollowed(leader election.Record) {
	if leader == f.logged {
		f.log.Debug("following the leader again", "replica", leader.Replica, "epoch", leader.Epoch)
		return
	}
	f.logged = leader
	f.log.Info("following the leader", "replica", leader.Replica, "epoch", leader.Epoch)
}

// logLost says that no leader is followed, where none has been for as long as an election takes: not the one that was,
// nor the one that does not answer now.
func (f *Follower) logLost(leader election.Record, err error) {
	f.log.Debug("the leader does not answer", "replica", leader.Replica, "error", err)
	if f.logged != (election.Record{}) && time.Since(f.lost) >= recordLife {
		f.log.Info("the leader is not followed any more", "replica", f.logged.Replica, "epoch", f.logged.Epoch, "leader", leader.Replica, "error", err)
		f.logged = election.Record{}
	}
}

// follow sends requests to one leader until it is lost, or another one is elected.
func (f *Follower) follow(ctx context.Context, leader election.Record, changed <-chan struct{}) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	conn, err := grpc.NewClient(leader.Address, grpc.WithTransportCredentials(f.creds), grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(maxMessage)))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	lost := time.AfterFunc(recordLife, func() { cancel(ErrNoLeader) }) // to connect
	defer lost.Stop()
	stream, err := leaderpb.NewDeciderClient(conn).Decide(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(&leaderpb.ToLeader{What: &leaderpb.ToLeader_Hello{Hello: &leaderpb.Hello{Replica: f.replica, Token: leader.Token, Epoch: leader.Epoch}}}); err != nil {
		return err
	}
	if _, err := stream.Recv(); err != nil {
		return err
	}
	send := f.begin()
	f.logFollowed(leader)
	received := time.Now()
	defer func() {
		f.lost = time.Now()
		f.end(time.Since(received))
	}()
	var parts sync.WaitGroup
	defer parts.Wait()
	defer cancel(nil)
	parts.Go(func() {
		defer cancel(nil)
		f.sendAll(ctx, stream, send, changed)
	})
	parts.Go(func() {
		f.work.Stream(ctx, func(report []byte) bool {
			return f.offer(send, &leaderpb.ToLeader{What: &leaderpb.ToLeader_Work{Work: report}})
		})
	})
	for {
		lost.Reset(f.Patience)
		m, err := stream.Recv()
		if err != nil {
			return errors.Join(context.Cause(ctx), err)
		}
		received = time.Now()
		f.deliver(m)
	}
}

// sendAll sends what is queued until the context ends or another leader is elected.
func (f *Follower) sendAll(ctx context.Context, stream grpc.BidiStreamingClient[leaderpb.ToLeader, leaderpb.ToFollower], send <-chan *leaderpb.ToLeader, changed <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
			return
		case message := <-send:
			if stream.Send(message) != nil {
				return
			}
		}
	}
}

// begin lets requests be sent.
func (f *Follower) begin() chan *leaderpb.ToLeader {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.send = make(chan *leaderpb.ToLeader, maxRequests)
	f.waiting = make(map[uint64]chan<- *leaderpb.ToFollower)
	f.metrics.follows.Set(1)
	return f.send
}

// end tells all requests that wait that there is no leader, after a silence of it.
func (f *Follower) end(silence time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.waiting) > 0 {
		f.metrics.silence.Observe(silence.Seconds())
	}
	for _, answer := range f.waiting {
		close(answer)
	}
	f.metrics.fallbacks.Add(float64(len(f.waiting)))
	f.metrics.follows.Set(0)
	f.waiting = nil
}

// deliver gives an answer to the request that waits for it. A turn of one that
// has left is taken at once: nothing of it is in flight.
func (f *Follower) deliver(m *leaderpb.ToFollower) {
	id := m.GetTurn().GetId() + m.GetRefused().GetId() // one of them is there, or none
	if id == 0 {
		return
	}
	f.mu.Lock()
	answer, waits := f.waiting[id]
	delete(f.waiting, id)
	send := f.send
	f.mu.Unlock()
	if waits {
		answer <- m
		return
	}
	f.reportTaken(send, id)
}
