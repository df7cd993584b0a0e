package pools

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// SleepConfig is how servers that share GPUs alternate. Only one of them is awake at
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
	Awake     time.Duration // since it woke, or was first seen awake
	Idle      time.Duration // since it had its last request; 0 while it has one
	Remaining time.Duration // predicted time until its requests are done
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
		total += max(c.MinAwake-o.Awake, o.Remaining, 0)
		if o.Idle < c.MinAwake {
			total += wake
		}
	}
	return total
}

// GPUShare is a server's share of GPUs that several servers use: asleep or awake, and which
// leases need it awake.
type GPUShare struct {
	mu         sync.Mutex // guards the rest
	asleep     bool
	draining   bool      // about to sleep: it takes no new lease
	closed     bool      // the same, decided by another gateway, which manages it
	leases     int       // that need it awake
	awakeSince time.Time // since when; zero before it was first seen
	idleSince  time.Time // since when no lease needs it
	wakeTime   time.Duration
	version    int // of asleep, by us: an answer of the engine from before a change is out of date
}

// Enter makes the server stay awake for a lease, false if it is not awake.
func (g *GPUShare) Enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.asleep || g.draining || g.closed {
		return false
	}
	g.leases++
	return true
}

// Leave ends one enter.
func (g *GPUShare) Leave(now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.leases--
	g.idleSince = now
}

// SetDraining refuses new leases, or allows them again.
func (g *GPUShare) SetDraining(draining bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.draining = draining
}

// setClosed refuses all new leases, or allows them again, and reports whether that is a change.
func (g *GPUShare) setClosed(closed bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	changed := g.closed != closed
	g.closed = closed
	return changed
}

// RecordUse records that another gateway uses the server.
func (g *GPUShare) RecordUse(now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.idleSince = now
}

// Unused reports whether no lease needs the server awake any more.
func (g *GPUShare) Unused() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.leases == 0
}

// RecordSleep and RecordWake record what we had the engine do.
func (g *GPUShare) RecordSleep() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asleep, g.draining = true, false
	g.version++
}

func (g *GPUShare) RecordWake(took time.Duration, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asleep, g.draining, g.awakeSince, g.idleSince = false, false, now, now
	g.version++
	if g.wakeTime == 0 {
		g.wakeTime = took
	}
	g.wakeTime += (took - g.wakeTime) / 4
}

// Version returns the version of the state, to be read before the engine is asked for it.
func (g *GPUShare) Version() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.version
}

// Observe records the state that the engine reports, unless we changed it since it was asked.
func (g *GPUShare) Observe(asleep bool, mark int, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.version != mark {
		return
	}
	if g.awakeSince.IsZero() || g.asleep && !asleep {
		g.awakeSince, g.idleSince = now, now
	}
	g.asleep = asleep
}

// Occupant describes an awake server, false if it sleeps.
func (g *GPUShare) Occupant(now time.Time, left time.Duration) (Occupant, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	o := Occupant{Awake: now.Sub(g.awakeSince), Remaining: left}
	if g.leases == 0 {
		o.Idle = now.Sub(g.idleSince)
	}
	return o, !g.asleep && !g.awakeSince.IsZero()
}

// Asleep reports whether a request must wait for the server to wake, and what
// waking it took.
func (g *GPUShare) Asleep() (asleep bool, took time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.asleep || g.draining || g.closed, g.wakeTime
}

// Asleep reports whether the server sleeps, or is about to.
func (s *Server) Asleep() bool {
	if s.GPUs == "" {
		return false
	}
	asleep, _ := s.gpus.Asleep()
	return asleep
}

// WakeTime predicts how long the server needs until it can take a request because it
// sleeps, 0 if it does not.
func (s *Server) WakeTime(now time.Time) time.Duration {
	if !s.Asleep() {
		return 0
	}
	var occupants []Occupant
	for _, o := range s.SharingGPUs() {
		left := o.OwnInFlight(Prefill, now).Queue + o.OwnInFlight(Decode, now).Queue
		if occupant, awake := o.gpus.Occupant(now, left); awake {
			occupants = append(occupants, occupant)
		}
	}
	_, took := s.gpus.Asleep()
	return s.fleet.cfg.Sleep.WakeTime(took, occupants)
}

// SharingGPUs lists the other servers on the same GPUs.
func (s *Server) SharingGPUs() (others []*Server) {
	for _, o := range s.fleet.Servers() {
		if s.GPUs != "" && o.GPUs == s.GPUs && o.id != s.id {
			others = append(others, o)
		}
	}
	return others
}

// CloseGPUShare keeps requests from the server, or allows them as soon as a probe reports
// that it is awake.
func (s *Server) CloseGPUShare(closed bool) {
	if s.gpus.setClosed(closed) && !closed {
		s.ProbeNow()
	}
}
