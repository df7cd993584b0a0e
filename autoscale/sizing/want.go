package sizing

import (
	"errors"
	"math"
	"time"
)

// DefaultInterval is the time between two decisions: as often as an HPA asks.
const DefaultInterval = 15 * time.Second

// Bounds are the fewest and the most servers of a role.
type Bounds struct{ Min, Max int }

// Planner holds what is the same for every decision.
type Planner struct {
	Prefill, Decode Bounds

	// Use is the share of a server's speed that is planned with, 0..1. Spare is how
	// many standard deviations of ten seconds' prompt tokens are planned for beside
	// it: uneven load needs more servers, and many servers even it out. Decode needs
	// none: a request is there for longer than ten seconds, which evens it out too.
	Use, Spare float64
	// KVUse is the share of decode's KV that is planned with, 0..1.
	KVUse float64
	// Drain is the time in which prompts that wait already should be worked off. A long
	// prompt makes many wait for a moment. DecodeDrain is the same of requests that wait
	// for decode, which only long answers make.
	Drain, DecodeDrain time.Duration
	// Convert is the share of the time of a convertible decode server that may go
	// to prompts, 0..1. They take over the part of prefill's spare that they can.
	Convert float64

	// DownAfter is how long fewer servers must have been enough before any goes.
	// DownMargin is what they must have to spare then, as a share of the load.
	DownAfter  time.Duration
	DownMargin float64
	// IdleAfter without demand takes both roles to zero, where both Min are 0.
	IdleAfter time.Duration

	MaxAge  time.Duration // signals older than this decide nothing
	Watched time.Duration // with demand seen for less than this, no server goes
}

// DefaultPlanner is what the closed loop of `tandem-lab sim --autoscale` was judged
// with.
func DefaultPlanner() Planner {
	return Planner{
		Prefill: Bounds{1, 100}, Decode: Bounds{1, 100},
		Use: 1, Spare: 0.4, KVUse: 0.9,
		Drain: 10 * time.Minute, DecodeDrain: time.Minute, Convert: 0.5,
		DownAfter: 2 * time.Minute, DownMargin: 0.2, IdleAfter: 10 * time.Minute,
		MaxAge: time.Minute, Watched: 5 * time.Minute,
	}
}

// Validate reports what is wrong with the planner, nil if nothing.
func (p *Planner) Validate() error {
	for _, b := range []Bounds{p.Prefill, p.Decode} {
		if b.Min < 0 || b.Max < max(b.Min, 1) {
			return errors.New("scaling: the fewest servers must not be negative, nor more than the most")
		}
	}
	if (p.Prefill.Min == 0) != (p.Decode.Min == 0) {
		return errors.New("scaling: both roles may go to zero, or none")
	}
	share := func(v float64) bool { return v > 0 && v <= 1 }
	if !share(p.Use) || !share(p.KVUse) || p.Spare < 0 || p.Convert < 0 || p.Convert > 1 || p.DownMargin < 0 {
		return errors.New("scaling: use and kv-use are shares in 0..1, spare and margin not negative")
	}
	if p.Drain <= 0 || p.DecodeDrain <= 0 || p.DownAfter < 0 || p.MaxAge <= 0 || p.Watched < 0 || p.IdleAfter < 0 {
		return errors.New("scaling: drain and max-age must be positive, other times not negative")
	}
	return nil
}

// ToZero reports whether both roles may go to zero.
func (p *Planner) ToZero() bool { return p.Prefill.Min == 0 && p.Decode.Min == 0 }

// Reason says in one word what decided about a role. It is a label of metrics.
type Reason string

const (
	Stale              Reason = "stale"   // the signals are too old or a figure is missing: nothing changes
	WarmUp             Reason = "young"   // too little was seen to take a server away
	Idle               Reason = "idle"    // no demand for long
	WaitingForCapacity Reason = "held"    // requests wait for a first server
	Demand             Reason = "demand"  // the expected tokens per second
	Burst              Reason = "burst"   // the last minute's, far above what was expected
	Backlog            Reason = "backlog" // demand, and the prompts that wait already
	KV                 Reason = "kv"      // KV that requests hold and wait for
	Stabilization      Reason = "settle"  // fewer would do, but not for long enough yet
	Pending            Reason = "pending" // fewer would do, but servers are still starting
	Bound              Reason = "bound"   // the most that are allowed

	Draining Reason = "draining" // fewer will do as soon as those that go have nothing to do
)

// Want is how many servers of a role are wanted, and why.
type Want struct {
	Servers int
	Reason  Reason
	Load    float64 // what Servers rounds up; Servers themselves where something else decided
}

// Plan is a decision for both roles. It decides nothing where Known is false: there
// was no earlier decision to keep.
type Plan struct {
	Prefill, Decode Want
	Known           bool
}

// Memory is what a decision must know of earlier ones. The zero value remembers
// nothing.
type Memory struct {
	Known           bool
	Prefill, Decode StandingTarget
}

// StandingTarget is the standing decision for a role.
type StandingTarget struct {
	Servers int
	// Fewer is how long fewer servers have been enough, 0 if they are not, and Most
	// is the largest number of those fewer that was needed in that time.
	Fewer time.Duration
	Most  int
}

// Plan decides from signals, and from what it decided before, elapsed ago.
func (p *Planner) Plan(s Signals, m Memory, elapsed time.Duration) (Plan, Memory) {
	if !p.usable(&s) {
		return p.hold(m), m
	}
	if !m.Known {
		// What is there is the first decision: it is not known to be too much.
		m = Memory{Known: true}
		m.Prefill.Servers = s.Prefill.Ready + s.Prefill.Pending
		m.Decode.Servers = s.Decode.Ready + s.Decode.Pending
	}
	if p.idle(&s) {
		none := Want{Reason: Idle}
		return Plan{none, none, true}, Memory{Known: true}
	}
	warmingUp := s.Prompt.Covers() < p.Watched
	prefill := p.stabilize(&m.Prefill, p.prefill(&s), p.Prefill, s.Prefill, warmingUp, elapsed)
	decode := p.stabilize(&m.Decode, p.decode(&s), p.Decode, s.Decode, warmingUp, elapsed)
	return Plan{prefill, decode, true}, m
}

// usable reports whether the signals can decide anything. A missing figure is not
// a zero.
func (p *Planner) usable(s *Signals) bool {
	for _, v := range []float64{s.PrefillSpeed, s.DecodeSpeed, s.KVCapacity} {
		if !(v > 0) || math.IsInf(v, 0) {
			return false
		}
	}
	for _, v := range []float64{s.Prompt.Mean(), s.Output.Mean(), s.PrefillBacklog, s.DecodeBacklog, s.KV.Mean()} {
		if !(v >= 0) || math.IsInf(v, 0) {
			return false
		}
	}
	return s.Age <= p.MaxAge && len(s.Prompt) > 0 && len(s.Output) > 0 && len(s.KV) > 0
}

// hold keeps the standing decision.
func (p *Planner) hold(m Memory) Plan {
	return Plan{Want{Servers: m.Prefill.Servers, Reason: Stale}, Want{Servers: m.Decode.Servers, Reason: Stale}, m.Known}
}

// idle reports whether it is time for both roles to go to zero.
func (p *Planner) idle(s *Signals) bool {
	if !p.ToZero() || s.WaitingForCapacity > 0 || s.PrefillBacklog > 0 || s.DecodeBacklog > 0 || s.KV.Last(Bin).Mean() > 0 {
		return false
	}
	return s.Prompt.Covers() >= p.IdleAfter && s.Prompt.Last(p.IdleAfter).Mean() == 0
}

// need is a number of servers before it is stabilized: as a fraction of servers, so
// that a margin can be asked of it.
type need struct {
	servers float64
	reason  Reason
}

// prefill servers work off the expected tokens and those that wait.
func (p *Planner) prefill(s *Signals) need {
	f := s.Prompt.forecast(s.ColdStart)
	spare := p.Spare * f.Noise
	spare -= min(spare, p.converted(s))
	return rate(s, f.Burst, (f.Level/p.Use+spare)/s.PrefillSpeed, s.PrefillBacklog/(s.PrefillSpeed*p.Drain.Seconds()))
}

// converted is the prompt tokens per second that decode servers could take over.
func (p *Planner) converted(s *Signals) float64 {
	room := max(0, p.KVUse-s.KV.Mean()/(s.KVCapacity*float64(max(s.Decode.Ready, 1))))
	return p.Convert * room * float64(s.Decode.Convertible) * s.PrefillSpeed
}

// decode servers give the expected output within the objective for ITL, and have
// room for the KV.
func (p *Planner) decode(s *Signals) need {
	f := s.Output.forecast(s.ColdStart)
	n := rate(s, f.Burst, f.Level/p.Use/s.DecodeSpeed, s.DecodeBacklog/(s.DecodeSpeed*p.DecodeDrain.Seconds()))
	kv := s.KV.forecast(s.ColdStart)
	if room := kv.Level / (p.KVUse * s.KVCapacity); room > n.servers {
		return need{room, KV}
	}
	return n
}

// rate is the need for servers for a forecast rate, and late for what waits already.
func rate(s *Signals, burst bool, servers, late float64) need {
	n := need{servers + late, Demand}
	switch {
	case s.WaitingForCapacity > 0 && n.servers < 1:
		return need{1, WaitingForCapacity}
	case late > 0.1*servers:
		n.reason = Backlog
	case burst:
		n.reason = Burst
	}
	return n
}

// stabilize turns a need into a decision: more at once, fewer only when they have been
// enough for long, with a margin, and no server is still starting.
func (p *Planner) stabilize(k *StandingTarget, n need, b Bounds, pool Pool, warmingUp bool, elapsed time.Duration) Want {
	least := max(b.Min, 1)
	up := max(least, atLeast(n.servers))
	down := max(least, atLeast(n.servers*(1+p.DownMargin)))
	want := Want{Reason: n.reason}
	switch {
	case up >= k.Servers:
		k.Fewer, k.Most = 0, 0
		want.Servers = up
	case warmingUp:
		want = Want{Servers: k.Servers, Reason: WarmUp}
	case down >= k.Servers:
		k.Fewer, k.Most = 0, 0
		want.Servers = k.Servers
	case pool.Pending > 0:
		k.Fewer, k.Most = 0, 0
		want = Want{Servers: k.Servers, Reason: Pending}
	default:
		k.Fewer, k.Most = k.Fewer+elapsed, max(k.Most, down)
		want = Want{Servers: k.Servers, Reason: Stabilization}
		if k.Fewer >= p.DownAfter {
			want = Want{Servers: k.Most, Reason: n.reason}
			k.Fewer, k.Most = 0, 0
		}
	}
	if want.Servers > b.Max {
		want = Want{Servers: b.Max, Reason: Bound}
	}
	k.Servers = want.Servers
	want.Load = float64(want.Servers)
	if want.Servers == atLeast(n.servers) {
		want.Load = n.servers
	}
	return want
}

// atLeast rounds up, but not for what rounding of figures may have added.
func atLeast(servers float64) int { return int(math.Ceil(servers - 1e-6)) }
