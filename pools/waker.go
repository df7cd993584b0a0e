package pools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// awakeWish is the name of the wish that a server be awake.
const awakeWish = "awake"

const (
	// fetchTime lets decodes fetch the KV of prefills that are done.
	fetchTime = 500 * time.Millisecond
	watchTime = 10 * time.Millisecond // between two looks at what an occupant still has
)

var errOccupied = errors.New("the GPUs did not become free in time")

// wake puts those to sleep that occupy the server's GPUs, and wakes it.
func (k *keeper) wake(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, k.fleet.cfg.Sleep.Timeout)
	defer cancel()
	if turns := k.fleet.turns.Load(); !turns.Manages() {
		return k.askManager(ctx, turns)
	}
	free, err := k.fleet.occupy(ctx, k.spec.GPUs)
	if err != nil {
		return err
	}
	defer free()
	for _, o := range k.fleet.sharing(k.spec) {
		if occupant, awake := o.turn.occupant(time.Now(), 0); awake {
			Pause(ctx, k.fleet.cfg.Sleep.MinAwake-occupant.Awake)
			if err := k.putToSleep(ctx, o.Spec, o.live); err != nil {
				return fmt.Errorf("%s: %w", o.id, err)
			}
		}
	}
	began := time.Now()
	for _, step := range wakeSteps(k.fleet.cfg.Sleep.Level) {
		if err := k.post(ctx, k.spec.URL+step.path, step.body); err != nil {
			k.log.Warn("server not woken", "step", step.path, "error", err.Error())
			return err
		}
	}
	k.live.turn.woke(time.Since(began), time.Now())
	k.log.Info("server woken", "seconds", time.Since(began).Seconds())
	return nil
}

// askManager lets the gateway that manages the GPUs wake the server, again and again
// until it is awake: who manages may change.
func (k *keeper) askManager(ctx context.Context, turns *Turns) error {
	for {
		if asleep, _ := k.live.turn.asleepNow(); !asleep {
			return nil
		}
		if turns.Manages() {
			return errOccupied // no other does any more: whoever waits asks us again
		}
		if err := turns.want(k.spec.ID()); err != nil {
			return err
		}
		if !Pause(ctx, watchTime) {
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
func (k *keeper) putToSleep(ctx context.Context, spec Spec, l *live) error {
	l.turn.rest(true)
	began := time.Now()
	for !l.turn.done() || !k.othersDone(spec, l, began) {
		if !Pause(ctx, watchTime) {
			l.turn.rest(false)
			return errOccupied
		}
	}
	if spec.Role.Serves(Prefill) && spec.Role != Both {
		Pause(ctx, fetchTime)
	}
	if err := k.post(ctx, spec.URL+"/sleep?level="+strconv.Itoa(k.fleet.cfg.Sleep.Level), nil); err != nil {
		l.turn.rest(false)
		return err
	}
	l.turn.slept()
	k.log.Info("server put to sleep", "sleeper", spec.ID())
	return nil
}

// othersDone reports whether no other gateway has anything on a server that rests since
// a time: by their word, and by the engine's, which counts what nobody told of.
func (k *keeper) othersDone(spec Spec, l *live, since time.Time) bool {
	turns := k.fleet.turns.Load()
	if turns == nil {
		return true
	}
	if !turns.othersDone(spec.ID(), since) {
		return false
	}
	load := l.Load()
	return !load.known() || load.At.After(since) && load.Running.Value+load.Waiting.Value == 0
}

// sleepIdle puts the server to sleep if nobody asked it for anything for long.
func (k *keeper) sleepIdle(ctx context.Context, now time.Time) {
	c := k.fleet.cfg.Sleep
	if k.spec.GPUs == "" || c.Idle == 0 || !k.live.Health().Up || !k.fleet.turns.Load().Manages() {
		return
	}
	o, awake := k.live.turn.occupant(now, 0)
	if !awake || o.Quiet < c.Idle || o.Awake < c.MinAwake {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	free, err := k.fleet.occupy(ctx, k.spec.GPUs)
	if err != nil {
		return // others are at it, or the fleet ends
	}
	defer free()
	if err := k.putToSleep(ctx, k.spec, k.live); err != nil {
		k.log.Warn("idle server not put to sleep", "error", err.Error())
	}
}

// occupy makes the caller the only one that lets servers on these GPUs sleep or wake,
// until it calls free.
func (f *Fleet) occupy(ctx context.Context, gpus string) (free func(), err error) {
	held, _ := f.gpus.LoadOrStore(gpus, make(chan struct{}, 1))
	lock := held.(chan struct{})
	select {
	case lock <- struct{}{}:
		return func() { <-lock }, nil
	case <-ctx.Done():
		return nil, errOccupied
	}
}

// sleeping asks the engine whether it sleeps. Engines without sleep mode do not know
// the path, and do not sleep.
func (p *prober) sleeping(ctx context.Context) {
	if p.spec.GPUs == "" {
		return
	}
	mark := p.live.turn.news()
	body, err := p.get(ctx, p.spec.URL+"/is_sleeping")
	if err != nil {
		return
	}
	var answer struct {
		Sleeping bool `json:"is_sleeping"`
	}
	if json.Unmarshal(body, &answer) == nil {
		p.live.turn.observe(answer.Sleeping, mark, time.Now())
	}
}

// enter waits until the server is awake and counts on it.
func (l *Lease) enter(ctx context.Context) error {
	s := l.server
	for !s.turn.enter() {
		w, err := s.awake.want(awakeWish, false, time.Now())
		if err != nil {
			return err
		}
		select {
		case <-w.done:
			if w.err != nil {
				return w.err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	l.entered = true
	return nil
}
