package pools

import (
	"sync"
	"time"

	"github.com/tandem-gateway/tandem/pools/curve"
	"github.com/tandem-gateway/tandem/pools/kvroom"
)

// workInFlight is what this gateway has on a server and has no answer to yet.
type workInFlight struct {
	mu   sync.Mutex       // guards work
	work [2]curve.Backlog // prefill, decode
}

// InFlight is work that gateways have on a server in one role.
type InFlight struct {
	Requests int
	Tokens   int
	Prompts  int // of Tokens on a decode server, those of prompts; not of gateways of earlier versions
	// Computing is, of Tokens, prompts that have yet to be computed and will show when they have been: on a decode server
	// those that prefill servers compute. Likewise.
	Computing int
	Queue     time.Duration // predicted time until the outstanding work is done
	Stays     time.Duration // of it, what does not wear off while nothing is answered
	Forming   time.Duration // of it, what is done in the same step as what is sent now; this gateway's
	Rest      time.Duration // not in it: what is left of prompts of which it is pieces; this gateway's
}

// kvSent is what is in flight on a decode server in terms of its KV, beside prompts that it computes itself.
func (w InFlight) kvSent(prefills InFlight) kvroom.Sent {
	return kvroom.Sent{Tokens: w.Tokens, Prompts: w.Prompts, Computing: w.Computing + prefills.Computing}
}

// Plus returns the sum of two.
func (w InFlight) Plus(o InFlight) InFlight {
	return InFlight{
		Requests: w.Requests + o.Requests, Tokens: w.Tokens + o.Tokens, Prompts: w.Prompts + o.Prompts, Computing: w.Computing + o.Computing, Queue: w.Queue + o.Queue,
		Stays: w.Stays + o.Stays, Forming: w.Forming + o.Forming, Rest: w.Rest + o.Rest,
	}
}

// LegIndex is the index of a leg in arrays with a value for each: 0 is prefill, 1 decode.
func LegIndex(leg Role) int {
	if leg == Prefill {
		return 0
	}
	return 1
}

// OwnInFlight returns this gateway's own outstanding work on the server.
func (l *workInFlight) OwnInFlight(leg Role, now time.Time) InFlight {
	l.mu.Lock()
	defer l.mu.Unlock()
	return inFlight(&l.work[LegIndex(leg)], now)
}

// inFlight is what a backlog has outstanding.
func inFlight(w *curve.Backlog, now time.Time) InFlight {
	w.Pass(now)
	return InFlight{Requests: w.Len(), Tokens: w.Tokens(), Prompts: w.Prompts(), Computing: w.Computing(), Queue: w.Ahead(now), Stays: w.Floor(), Forming: w.Forming(), Rest: w.Rest()}
}

// InFlight returns the outstanding work of all gateways on the server, as far as
// this one knows.
func (s *Server) InFlight(leg Role, now time.Time) InFlight {
	return s.OwnInFlight(leg, now).Plus(s.othersInFlight(leg, now))
}

// InFlightOfLegs is InFlight of both legs.
func (s *Server) InFlightOfLegs(now time.Time) (prefill, decode InFlight) {
	s.mu.Lock()
	prefill, decode = inFlight(&s.work[LegIndex(Prefill)], now), inFlight(&s.work[LegIndex(Decode)], now)
	s.mu.Unlock()
	return prefill.Plus(s.othersInFlight(Prefill, now)), decode.Plus(s.othersInFlight(Decode, now))
}

// FallsTo returns in how long the prefill work ahead on the server, or what is ahead of its
// next step, will have fallen to limit by the passing of time alone, false if it is there
// already or only a report can bring it there.
func (s *Server) FallsTo(limit time.Duration, now time.Time) (in time.Duration, ok bool) {
	limit -= s.othersInFlight(Prefill, now).Queue
	s.mu.Lock()
	defer s.mu.Unlock()
	in, ok = s.work[LegIndex(Prefill)].FallsTo(limit, now)
	return in, ok && in > 0
}

// promptBit distinguishes the prompt that a decode lease computes from the lease itself.
const promptBit = 1 << 63

// promptID is the prompt of the lease in the server's prefill work.
func (l *Lease) promptID() uint64 {
	if l.leg == Decode {
		return l.seq | promptBit
	}
	return l.seq
}

// BeginLocalPrefill records that the request's prompt is computed where it is decoded: the
// server has that work ahead like a prefill, until Computed or the end of the lease.
func (l *Lease) BeginLocalPrefill(work curve.Work, now time.Time) {
	l.server.mu.Lock()
	l.server.work[LegIndex(Prefill)].Begin(l.promptID(), work, now)
	l.server.mu.Unlock()
	l.server.countChange()
	l.server.fleet.NotifyWork()
}

// EndsUnseen records that nothing will say when the prompt has been computed: that of a prefill, or the one
// that is computed where it is decoded. The answer comes whole, and much later.
func (l *Lease) EndsUnseen() {
	l.server.mu.Lock()
	l.server.work[LegIndex(Prefill)].EndsUnseen(l.promptID())
	l.server.mu.Unlock()
	l.server.fleet.changed.notify() // when to look again has changed
}

// EndLocalPrefill records that the prompt has been computed, and adds to the server's curve what it
// took, less what the server's batch took meanwhile.
func (l *Lease) EndLocalPrefill(newTokens, cached int, batch time.Duration, now time.Time) {
	l.endLocal(curve.PrefillFeatures(newTokens, cached), took, batch, now)
}

// EndLocalWhole is EndLocalPrefill of a prompt whose answer of so many tokens came whole: when its first
// token was there is not known. The curve learns that the prompt took no longer than the server took for all
// of it, and at the lease's end what the engine's clock says (curve.Learned.ReadMeter). No step of an answer takes
// longer than the one that computes the prompt, so that this took its share of the time at the least.
func (l *Lease) EndLocalWhole(newTokens, cached, tokens int, now time.Time) {
	ended, known := l.endLocal(curve.PrefillFeatures(newTokens, cached), tookAtMost, 0, now)
	if known && tokens > 0 {
		ended.Served = min(ended.Served, now.Sub(l.sent)/time.Duration(tokens))
		l.server.evidence.Observe(ended)
	}
}

// EndLocalPieces is EndLocalPrefill of a prompt that was computed in pieces: what it took shows
// nothing of the curve, since the batch's own steps came between them.
func (l *Lease) EndLocalPieces() { l.endLocal(curve.Features{}, nothing, 0, time.Now()) }

// endLocal is endPrompt of a request that stays on the server.
func (l *Lease) endLocal(x curve.Features, shows shown, batch time.Duration, now time.Time) (ended curve.Completion, known bool) {
	ended, known = l.endPrompt(x, shows, batch, 0, now)
	l.server.fleet.NotifyWork()
	l.server.fleet.changed.notify()
	return ended, known
}

// shown is what the end of a prompt shows of what it took.
type shown int

const (
	nothing shown = iota
	tookAtMost
	took
)

// endPrompt ends the prompt that the lease's request had computed, and teaches the server's curve what it took: the time
// since it was sent if no other prompt was on the server, less what the server is predicted to have waited for beside its
// work; else the time since the answer before, of which other replicas' requests had their share. Both are less what the
// server's batch took meanwhile. The engine's clock counts it when the lease ends.
func (l *Lease) endPrompt(x curve.Features, shows shown, batch, beside time.Duration, now time.Time) (ended curve.Completion, known bool) {
	s := l.server
	others := s.othersInFlight(Prefill, now).Requests
	s.mu.Lock()
	work := &s.work[LegIndex(Prefill)]
	if ended, known = work.End(l.promptID(), now); known {
		l.computed = x
	}
	ours := work.Len() + 1 // it may have been taken to be done before (EndsUnseen)
	s.mu.Unlock()
	ended.Served = withoutBatch(ended.Served, batch)
	lasted := now.Sub(l.sent)
	own := withoutBatch(lasted, batch) - beside
	switch {
	case !known || shows == nothing:
	case shows == tookAtMost:
		s.prefill.ObserveAtMost(x, ended.Served, now)
	case ended.Alone && others == 0 && own < leastOf(lasted): // it waited less than predicted, and how long is not known
		s.prefill.ObserveAloneAtMost(x, lasted, now)
		s.evidence.Observe(ended)
	case ended.Alone && others == 0:
		s.prefill.Observe(x, own, now)
		s.evidence.Observe(ended)
	default:
		ended.Served = ended.Served * time.Duration(ours) / time.Duration(ours+others)
		s.prefill.ObserveServed(x, ended.Served, now)
		s.evidence.Observe(ended)
	}
	return ended, known
}

// leastOwn is the part of a time that is taken to be the prompt's own at least, whatever the batch, or a transfer, is
// predicted to take.
const leastOwn = 0.1

func leastOf(took time.Duration) time.Duration { return time.Duration(leastOwn * float64(took)) }

func withoutBatch(took, batch time.Duration) time.Duration { return max(took-batch, leastOf(took)) }

// ReplicaWork is what other gateways have on the servers, as they report it.
type ReplicaWork interface {
	// InFlight is what they have on one server.
	InFlight(server string, leg Role, now time.Time) InFlight
	// Busy is how many of them have anything in flight.
	Busy(now time.Time) int
}

// SetReplicaWork adds what other gateways have to the work on the servers; nil: none is known.
func (f *Fleet) SetReplicaWork(w ReplicaWork) {
	if w == nil {
		f.replicas.Store(nil)
		return
	}
	f.replicas.Store(&w)
}

// SharesWork reports whether other gateways' work on the servers is known.
func (f *Fleet) SharesWork() bool { return f.replicas.Load() != nil }

// OthersBusy reports whether other gateways have work in flight, as far as this one knows.
func (f *Fleet) OthersBusy(now time.Time) bool {
	w := f.replicas.Load()
	return w != nil && (*w).Busy(now) > 0
}

// othersInFlight is the work of other gateways on the server.
func (s *Server) othersInFlight(leg Role, now time.Time) InFlight {
	if w := s.fleet.replicas.Load(); w != nil {
		return (*w).InFlight(s.id, leg, now)
	}
	return InFlight{}
}

// WorkChanges returns a channel that is notified when this gateway's own work has changed, which
// replicas reports. stop ends it.
func (f *Fleet) WorkChanges() (changed <-chan struct{}, stop func()) { return f.worked.watch() }

// NotifyWork records that this gateway's own work has changed.
func (f *Fleet) NotifyWork() { f.worked.notify() }

// speed is what the server has shown of how long work takes on it.
type speed struct {
	prefill  *curve.Learned // time of a prefill, by PrefillFeatures
	step     *curve.Learned // time of a decode step, by StepFeatures
	evidence curve.Evidence // what prefills took beside what was predicted of them
	// gaps are of streams that ended before they had enough for a sample of a step: where the server computed no
	// prompts, and where it did.
	gaps [2]joinedGaps
}

// PrefillCurve predicts the time of a prefill on the server, by PrefillFeatures.
func (l *speed) PrefillCurve() curve.Curve { return l.prefill.Curve() }

// StepCurve predicts the time of a decode step on the server, by StepFeatures.
func (l *speed) StepCurve() curve.Curve { return l.step.Curve() }

// Beliefs are what is believed of the two curves, and how far that can be relied on.
func (l *speed) Beliefs(now time.Time) (prefill, step curve.Belief) {
	return l.prefill.Belief(now), l.step.Belief(now)
}

// Fadings are the confidences of Beliefs, as they fade.
func (l *speed) Fadings() (prefill, step curve.Fading) { return l.prefill.Fading(), l.step.Fading() }

// Evidence is what the server has shown of how well its prefills are predicted here.
func (l *speed) Evidence() *curve.Evidence { return &l.evidence }

// ObserveStep teaches the server's step curve one gap between two tokens of a
// stream, under the batch and KV of that time.
func (l *speed) ObserveStep(gap time.Duration, sequences, kvTokens int, now time.Time) {
	l.step.Observe(curve.StepFeatures(sequences, kvTokens), gap, now)
}

// ObserveStepAtMost is ObserveStep of a gap in which the server computed prompts too: the batch's own step took no
// longer.
func (l *speed) ObserveStepAtMost(gap time.Duration, sequences, kvTokens int, now time.Time) {
	l.step.ObserveAloneAtMost(curve.StepFeatures(sequences, kvTokens), gap, now)
}

// joinedGaps are gaps between tokens of several streams.
type joinedGaps struct {
	mu   sync.Mutex // guards the rest
	sum  time.Duration
	gaps int
	last time.Time // when the last of them were joined
}

// gapsLast is how long gaps wait for others: later ones are of another batch.
const gapsLast = 10 * time.Second

// JoinGaps adds the gaps of a stream, in sum, to those of others, beside prompts that the server computed or not, and
// returns the mean of all once they are so many; 0 until then.
func (l *speed) JoinGaps(sum time.Duration, gaps int, beside bool, enough int, now time.Time) (mean time.Duration) {
	j := &l.gaps[0]
	if beside {
		j = &l.gaps[1]
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if now.Sub(j.last) > gapsLast {
		j.sum, j.gaps = 0, 0
	}
	j.sum, j.gaps, j.last = j.sum+sum, j.gaps+gaps, now
	if j.gaps < enough {
		return 0
	}
	mean = j.sum / time.Duration(j.gaps)
	j.sum, j.gaps = 0, 0
	return mean
}

// Report returns what this replica has seen of the server's two curves.
func (l *speed) Report(now time.Time) (prefill, step curve.Report) {
	return l.prefill.Report(now), l.step.Report(now)
}

// ReceivePrefill and ReceiveStep add what another replica reports of the curves.
func (l *speed) ReceivePrefill(before *curve.Report, s curve.Report, age time.Duration, now time.Time) {
	l.prefill.Receive(before, s, age, now)
}

func (l *speed) ReceiveStep(before *curve.Report, s curve.Report, age time.Duration, now time.Time) {
	l.step.Receive(before, s, age, now)
}
