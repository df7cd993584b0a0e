package pools

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"
)

var (
	errNoKeeper    = errors.New("the server has left the fleet")
	errAdapterRoom = errors.New("all adapters of the server are in use")
)

// keeper loads adapters on one server when requests want them and unloads those that
// nobody has wanted for long, one after the other; and wakes the server, where it
// shares GPUs with others (waker.go).
type keeper struct {
	spec   Spec
	live   *live
	fleet  *Fleet
	client *http.Client
	log    *slog.Logger
}

// keeperInterval is how often idle adapters are looked for.
const keeperInterval = time.Second

// run fulfils wishes until ctx ends.
func (k *keeper) run(ctx context.Context) {
	for _, wishes := range []*wishes{k.live.adapters, k.live.awake} {
		wishes.setOpen(true)
		defer wishes.setOpen(false)
	}
	tick := time.NewTicker(keeperInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.live.awake.wake:
			k.live.awake.fulfil(awakeWish, k.wake(ctx), time.Now())
		case <-k.live.adapters.wake:
			for name := k.live.adapters.next(); name != "" && ctx.Err() == nil; name = k.live.adapters.next() {
				k.live.adapters.fulfil(name, k.load(ctx, name), time.Now())
			}
		case <-tick.C:
			k.unloadIdle(ctx, time.Now())
			k.sleepIdle(ctx, time.Now())
		}
	}
}

// load makes room for an adapter and loads it.
func (k *keeper) load(ctx context.Context, name string) error {
	a, known := k.fleet.cfg.Adapters.find(name)
	base, fits := a.base(k.live.Health().Models)
	if !known || !fits {
		return fmt.Errorf("adapter %s does not fit the server's model", name)
	}
	if err := k.makeRoom(ctx, time.Now()); err != nil {
		return err
	}
	start := time.Now()
	err := k.order(ctx, "load_lora_adapter", map[string]string{"lora_name": a.Name, "lora_path": a.Path})
	took := time.Since(start)
	if err != nil {
		k.live.adapterCounts.failed.Add(1)
		k.log.Warn("adapter not loaded", "adapter", name, "error", err.Error())
		return err
	}
	k.live.adapterCounts.loaded.Add(1)
	k.fleet.noteAdapterLoad(took)
	k.live.changeModels(func(models []Model) []Model { return append(models, a.as(base)) })
	k.log.Info("adapter loaded", "adapter", name, "seconds", took.Seconds())
	return nil
}

// makeRoom unloads the adapter that was not wanted for longest, if the server has as
// many as it may.
func (k *keeper) makeRoom(ctx context.Context, now time.Time) error {
	most := k.fleet.cfg.Adapters.PerServer
	if most == 0 {
		return nil
	}
	for {
		loaded := k.loaded()
		if len(loaded) < most {
			return nil
		}
		idle := k.idle(loaded, now)
		if len(idle) == 0 {
			return errAdapterRoom
		}
		oldest := slices.MinFunc(idle, func(a, b string) int {
			usedA, _ := k.live.adapters.lastUse(a, now)
			usedB, _ := k.live.adapters.lastUse(b, now)
			return usedA.Compare(usedB)
		})
		if err := k.unload(ctx, oldest); err != nil {
			return err
		}
	}
}

// unloadIdle unloads what was not wanted for the configured time.
func (k *keeper) unloadIdle(ctx context.Context, now time.Time) {
	limit := k.fleet.cfg.Adapters.Idle
	if limit == 0 || !k.live.Health().Up {
		return
	}
	for _, name := range k.idle(k.loaded(), now) {
		if used, _ := k.live.adapters.lastUse(name, now); now.Sub(used) > limit {
			_ = k.unload(ctx, name) // logged there; the next look tries again
		}
	}
}

// loaded lists the adapters of the directory that the server has.
func (k *keeper) loaded() (names []string) {
	for _, m := range k.live.Health().Models {
		if _, known := k.fleet.cfg.Adapters.find(m.ID); known && m.Parent != "" {
			names = append(names, m.ID)
		}
	}
	return names
}

// idle leaves out those that requests of this gateway hold, and those that the
// engine last had at work when this gateway did not: they are another's.
func (k *keeper) idle(names []string, now time.Time) (idle []string) {
	load := k.live.Load().Adapters
	for _, name := range names {
		used, held := k.live.adapters.lastUse(name, now)
		working := slices.Contains(load.Running, name) || slices.Contains(load.Waiting, name)
		if held == 0 && !(working && used.Before(load.Asked)) {
			idle = append(idle, name)
		}
	}
	return idle
}

func (k *keeper) unload(ctx context.Context, name string) error {
	forget := func() {
		k.live.changeModels(func(models []Model) []Model {
			return slices.DeleteFunc(models, func(m Model) bool { return m.ID == name })
		})
	}
	forget()       // first: no new request counts on it
	defer forget() // a probe may have found it meanwhile
	if err := k.order(ctx, "unload_lora_adapter", map[string]string{"lora_name": name}); err != nil {
		k.log.Warn("adapter not unloaded", "adapter", name, "error", err.Error())
		return err
	}
	k.live.adapterCounts.unloaded.Add(1)
	k.log.Info("adapter unloaded", "adapter", name)
	return nil
}

// maxKeeperAnswer bounds what is read of an engine's answer, in bytes.
const maxKeeperAnswer = 64 << 10

// order tells an engine what to do with an adapter: vLLM takes it under /v1, SGLang at the
// root.
func (k *keeper) order(ctx context.Context, action string, adapter map[string]string) error {
	ctx, cancel := context.WithTimeout(ctx, k.fleet.cfg.Adapters.Timeout)
	defer cancel()
	under := "/v1/"
	if k.live.connectorOf(k.spec) == "sglang" {
		under = "/"
	}
	return k.post(ctx, k.spec.URL+under+action, adapter)
}

// post asks an engine for something. That an adapter is there already, or gone already,
// is what was wanted: other gateways may have asked before.
func (k *keeper) post(ctx context.Context, url string, body map[string]string) error {
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(data))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := k.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxKeeperAnswer))
	if err != nil {
		return err
	}
	already := resp.StatusCode == http.StatusBadRequest && strings.Contains(string(answer), "already been loaded")
	gone := resp.StatusCode == http.StatusNotFound && strings.Contains(string(answer), "cannot be found")
	if resp.StatusCode != http.StatusOK && !already && !gone {
		return fmt.Errorf("%s answered %d", req.URL.Path, resp.StatusCode)
	}
	return nil
}

// Prepare begins to make the server able to take a request for the model: it is woken
// if it sleeps, and an adapter of the directory is loaded if it lacks it. It stays awake,
// and the adapter stays, until the lease is released. What is returned waits for that;
// nil if the server is ready.
func (l *Lease) Prepare(model string) (await func(context.Context) error) {
	s := l.server
	if s.GPUs != "" && !s.turn.enter() {
		_, _ = s.awake.want(awakeWish, false, time.Now()) // whoever waits asks again
		return func(ctx context.Context) error {
			if err := l.enter(ctx); err != nil {
				return err
			}
			l.paused(time.Now())
			if load := l.loadAdapter(model); load != nil {
				return load(ctx)
			}
			return nil
		}
	}
	l.entered = s.GPUs != ""
	return l.loadAdapter(model)
}

// loadAdapter is the part of Prepare that is about adapters.
func (l *Lease) loadAdapter(model string) (await func(context.Context) error) {
	s := l.server
	if _, onDemand := s.fleet.cfg.Adapters.find(model); !onDemand {
		return nil
	}
	w, err := s.adapters.want(model, s.health.Load().Serves(model), time.Now())
	l.adapter = model
	if w == nil && err == nil {
		return nil
	}
	return func(ctx context.Context) error {
		if err != nil {
			return err
		}
		select {
		case <-w.done:
			l.paused(time.Now())
			return w.err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// paused tells the server's backlog that it was made ready until now.
func (l *Lease) paused(now time.Time) {
	l.server.mu.Lock()
	defer l.server.mu.Unlock()
	l.server.work[legIndex(l.leg)].Paused(now)
}

// LostAdapter takes note that the server does not have a model that it listed, and
// reports whether that is an adapter that can be loaded again: another gateway has
// unloaded it.
func (s *Server) LostAdapter(model string) bool {
	if _, onDemand := s.fleet.cfg.Adapters.find(model); !onDemand {
		return false
	}
	s.changeModels(func(models []Model) []Model {
		return slices.DeleteFunc(models, func(m Model) bool { return m.ID == model })
	})
	return true
}

// noteAdapterLoad keeps what loading an adapter takes: the mean of the last few.
func (f *Fleet) noteAdapterLoad(took time.Duration) {
	for {
		old := f.adapterLoad.Load()
		next := int64(took)
		if old > 0 {
			next = old + (int64(took)-old)/4
		}
		if f.adapterLoad.CompareAndSwap(old, next) {
			return
		}
	}
}
