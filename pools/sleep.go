package pools

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// SleepConfig is how servers that share GPUs take turns. Only one of them is awake at
// a time (vLLM's sleep mode: the weights leave the GPU, the process stays).
type SleepConfig struct {
	MinAwake time.Duration // a server stays awake at least this long: hysteresis
	Idle     time.Duration // one without a request for this long is put to sleep; 0: only when another wants its GPUs
	Wake     time.Duration // assumed time of waking one, until it was seen
	Timeout  time.Duration // for the one before it to finish its requests, and for it to wake
	Level    int           // vLLM's: 1 keeps the weights in CPU memory, 2 drops them
}

// DefaultSleep lets a model serve half a minute before another one may have its GPUs.
func DefaultSleep() SleepConfig {
	return SleepConfig{MinAwake: 30 * time.Second, Wake: 5 * time.Second, Timeout: 5 * time.Minute, Level: 1}
}

// Validate reports what is wrong with the configuration, nil if nothing.
func (c SleepConfig) Validate() error {
	if c.MinAwake < 0 || c.Idle < 0 || c.Wake < 0 || c.Timeout <= 0 {
		return errors.New("sleep-min-awake, sleep-idle and sleep-wake must not be negative, sleep-timeout must be positive")
	}
	if c.Level != 1 && c.Level != 2 {
		return fmt.Errorf("sleep-level %d: want 1 or 2", c.Level)
	}
	return nil
}

// Occupant is a server that is awake on GPUs which another one wants.
type Occupant struct {
	Awake time.Duration // since it woke, or was first seen awake
	Quiet time.Duration // since it had its last request; 0 while it has one
	Left  time.Duration // predicted time until its requests are done
}

// WakeTime predicts how long a sleeping server needs to be awake: the occupants of its
// GPUs finish what they have, not before they were awake for MinAwake, and then it
// wakes. An occupant that was in use lately will be wanted again: its waking counts
// too, so that two busy models do not drive each other out.
func (c SleepConfig) WakeTime(wake time.Duration, occupants []Occupant) time.Duration {
	if wake == 0 {
		wake = c.Wake
	}
	total := wake
	for _, o := range occupants {
		total += max(c.MinAwake-o.Awake, o.Left, 0)
		if o.Quiet < c.MinAwake {
			total += wake
		}
	}
	return total
}

// turn is a server's part in sharing GPUs: asleep or awake, and who counts on it.
type turn struct {
	mu      sync.Mutex // guards the rest
	asleep  bool
	resting bool      // about to sleep: nobody new may count on it
	closed  bool      // another gateway, which manages it, says the same
	working int       // leases that count on it
	awake   time.Time // since when; zero before it was first seen
	quiet   time.Time // since when nobody counts on it
	took    time.Duration
	changes int // of asleep, by us: what was asked of the engine before one is old news
}

// enter counts on the server from now on, false if it is not awake.
func (t *turn) enter() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.asleep || t.resting || t.closed {
		return false
	}
	t.working++
	return true
}

// leave ends one enter.
func (t *turn) leave(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.working--
	t.quiet = now
}

// rest lets nobody new count on the server, or lets them again.
func (t *turn) rest(resting bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.resting = resting
}

// close keeps everybody out, or no more, and reports whether that is a change.
func (t *turn) close(closed bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	changed := t.closed != closed
	t.closed = closed
	return changed
}

// used takes note that another gateway uses the server.
func (t *turn) used(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.quiet = now
}

// done reports whether nobody counts on the server any more.
func (t *turn) done() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.working == 0
}

// slept and woke say what we had the engine do.
func (t *turn) slept() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.asleep, t.resting = true, false
	t.changes++
}

func (t *turn) woke(took time.Duration, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.asleep, t.resting, t.awake, t.quiet = false, false, now, now
	t.changes++
	if t.took == 0 {
		t.took = took
	}
	t.took += (took - t.took) / 4
}

// news is a mark of the state, before the engine is asked for it.
func (t *turn) news() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.changes
}

// observe takes the engine's word, unless we changed the state since it was asked.
func (t *turn) observe(asleep bool, mark int, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.changes != mark {
		return
	}
	if t.awake.IsZero() || t.asleep && !asleep {
		t.awake, t.quiet = now, now
	}
	t.asleep = asleep
}

// occupant describes an awake server, false if it sleeps.
func (t *turn) occupant(now time.Time, left time.Duration) (Occupant, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := Occupant{Awake: now.Sub(t.awake), Left: left}
	if t.working == 0 {
		o.Quiet = now.Sub(t.quiet)
	}
	return o, !t.asleep && !t.awake.IsZero()
}

// asleepNow reports whether a request must wait for the server to wake, and what
// waking it took.
func (t *turn) asleepNow() (asleep bool, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.asleep || t.resting || t.closed, t.took
}

// Asleep reports whether the server sleeps, or is about to.
func (s *Server) Asleep() bool {
	if s.GPUs == "" {
		return false
	}
	asleep, _ := s.turn.asleepNow()
	return asleep
}

// WakeTime predicts how long the server needs until it can take a request because it
// sleeps, 0 if it does not.
func (s *Server) WakeTime(now time.Time) time.Duration {
	if !s.Asleep() {
		return 0
	}
	var occupants []Occupant
	for _, o := range s.fleet.sharing(s.Spec) {
		left := o.OwnInFlight(Prefill, now).Queue + o.OwnInFlight(Decode, now).Queue
		if occupant, awake := o.turn.occupant(now, left); awake {
			occupants = append(occupants, occupant)
		}
	}
	_, took := s.turn.asleepNow()
	return s.fleet.cfg.Sleep.WakeTime(took, occupants)
}

// sharing lists the other servers on the same GPUs.
func (f *Fleet) sharing(spec Spec) (others []*Server) {
	for _, s := range f.Servers() {
		if s.GPUs == spec.GPUs && spec.GPUs != "" && s.id != spec.ID() {
			others = append(others, s)
		}
	}
	return others
}
