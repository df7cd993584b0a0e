package standby

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/tandem-gateway/tandem/pools"
)

const (
	// fetchTime lets decodes fetch the KV of prefills that are done.
	fetchTime = 500 * time.Millisecond
	watchTime = 10 * time.Millisecond // between two looks at what an occupant still has
)

// wakeController wakes one server that shares GPUs with others when requests ask for it, and
// puts it to sleep when it is idle.
type wakeController struct {
	engine
	cfg     pools.SleepConfig
	arbiter *Arbiter
	held    *occupancy
	log     *slog.Logger
}

// wake puts those to sleep that occupy the server's GPUs, and wakes it.
func (c *wakeController) wake(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	if !c.arbiter.Manages() {
		return c.askManager(ctx)
	}
	free, err := c.held.take(ctx, c.server.GPUs)
	if err != nil {
		return err
	}
	defer free()
	for _, other := range c.server.SharingGPUs() {
		if occupant, awake := other.GPUShare().Occupant(time.Now(), 0); awake {
			pools.Pause(ctx, c.cfg.MinAwake-occupant.Awake)
			if err := c.putToSleep(ctx, other); err != nil {
				return fmt.Errorf("%s: %w", other.ID(), err)
			}
		}
	}
	began := time.Now()
	for _, step := range wakeSteps(c.cfg.Level) {
		if err := c.post(ctx, c.server.URL+step.path, step.body); err != nil {
			c.log.Warn("server not woken", "step", step.path, "error", err.Error())
			return err
		}
	}
	c.server.GPUShare().RecordWake(time.Since(began), time.Now())
	c.log.Info("server woken", "seconds", time.Since(began).Seconds())
	return nil
}

// askManager lets the gateway that manages the GPUs wake the server, again and again
// until it is awake: which one manages may change.
func (c *wakeController) askManager(ctx context.Context) error {
	for {
		if asleep, _ := c.server.GPUShare().Asleep(); !asleep {
			return nil
		}
		if c.arbiter.Manages() {
			return errOccupied // no other does any more: requests that wait ask us again
		}
		if err := c.arbiter.request(c.server.ID()); err != nil {
			return err
		}
		if !pools.Pause(ctx, watchTime) {
			return errOccupied
		}
	}
}

// wakeStep is one thing that is asked of an engine so that it wakes.
type wakeStep struct {
	path string
	body map[string]string
}

// wakeSteps returns them in order. Weights that were dropped (level 2) come back as room
// for them, in which the engine would compute garbage: it has to read them again before
// it gets its KV cache (vLLM's sleep mode, docs/features/sleep_mode.md).
func wakeSteps(level int) []wakeStep {
	if level < 2 {
		return []wakeStep{{path: "/wake_up"}}
	}
	return []wakeStep{
		{path: "/wake_up?tags=weights"},
		{path: "/collective_rpc", body: map[string]string{"method": "reload_weights"}},
		{path: "/wake_up?tags=kv_cache"},
	}
}

// putToSleep lets a server finish what it has and then sleep. It takes nothing new
// meanwhile; if it does not come to its end in time it stays awake.
func (c *wakeController) putToSleep(ctx context.Context, s *pools.Server) error {
	share := s.GPUShare()
	share.SetDraining(true)
	began := time.Now()
	for !share.Unused() || !c.othersDone(s, began) {
		if !pools.Pause(ctx, watchTime) {
			share.SetDraining(false)
			return errOccupied
		}
	}
	if s.Role.Serves(pools.Prefill) && s.Role != pools.Both {
		pools.Pause(ctx, fetchTime)
	}
	if err := c.post(ctx, s.URL+"/sleep?level="+strconv.Itoa(c.cfg.Level), nil); err != nil {
		share.SetDraining(false)
		return err
	}
	share.RecordSleep()
	c.log.Info("server put to sleep", "sleeper", s.ID())
	return nil
}

// othersDone reports whether no other gateway has anything on a server that rests since
// a time: as they report, and as the engine does, which counts what none of them reports.
func (c *wakeController) othersDone(s *pools.Server, since time.Time) bool {
	if c.arbiter == nil {
		return true
	}
	if !c.arbiter.othersDone(s.ID(), since) {
		return false
	}
	load := s.Load()
	return !load.Known() || load.At.After(since) && load.Running.Value+load.Waiting.Value == 0
}

// sleepIdle puts the server to sleep if no request has come for it for long.
func (c *wakeController) sleepIdle(ctx context.Context, now time.Time) {
	if c.server.GPUs == "" || c.cfg.Idle == 0 || !c.server.Health().Up || !c.arbiter.Manages() {
		return
	}
	o, awake := c.server.GPUShare().Occupant(now, 0)
	if !awake || o.Idle < c.cfg.Idle || o.Awake < c.cfg.MinAwake {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	free, err := c.held.take(ctx, c.server.GPUs)
	if err != nil {
		return // others are at it, or the fleet ends
	}
	defer free()
	if err := c.putToSleep(ctx, c.server); err != nil {
		c.log.Warn("idle server not put to sleep", "error", err.Error())
	}
}

// occupancy is the GPUs whose occupant is being changed. Its zero value: none.
type occupancy struct {
	byGPUs sync.Map // by label, a chan that is held while the occupant there changes
}

// take makes the caller the only one that lets servers on these GPUs sleep or wake,
// until it calls free.
func (o *occupancy) take(ctx context.Context, gpus string) (free func(), err error) {
	held, _ := o.byGPUs.LoadOrStore(gpus, make(chan struct{}, 1))
	lock := held.(chan struct{})
	select {
	case lock <- struct{}{}:
		return func() { <-lock }, nil
	case <-ctx.Done():
		return nil, errOccupied
	}
}
