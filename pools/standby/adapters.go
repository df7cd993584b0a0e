package standby

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/tandem-gateway/tandem/pools"
)

// adapterManager loads adapters on one server when requests ask for them and unloads those
// that none has asked for lately.
type adapterManager struct {
	engine
	cfg pools.AdapterConfig
	log *slog.Logger
}

// load makes room for an adapter and loads it.
func (m *adapterManager) load(ctx context.Context, name string) error {
	a, known := m.cfg.Find(name)
	base, fits := a.BaseIn(m.server.Health().Models)
	if !known || !fits {
		return fmt.Errorf("adapter %s does not fit the server's model", name)
	}
	if err := m.makeRoom(ctx, time.Now()); err != nil {
		return err
	}
	start := time.Now()
	err := m.order(ctx, "load_lora_adapter", map[string]string{"lora_name": a.Name, "lora_path": a.Path})
	took := time.Since(start)
	if err != nil {
		m.server.RecordFailedAdapterLoad()
		m.log.Warn("adapter not loaded", "adapter", name, "error", err.Error())
		return err
	}
	m.server.RecordAdapterLoad(a, base, took)
	m.log.Info("adapter loaded", "adapter", name, "seconds", took.Seconds())
	return nil
}

// makeRoom unloads the adapter that was not asked for for longest, if the server has as
// many as it may.
func (m *adapterManager) makeRoom(ctx context.Context, now time.Time) error {
	most := m.cfg.PerServer
	if most == 0 {
		return nil
	}
	for {
		loaded := m.loaded()
		if len(loaded) < most {
			return nil
		}
		idle := m.idle(loaded, now)
		if len(idle) == 0 {
			return errAdapterRoom
		}
		oldest := slices.MinFunc(idle, func(a, b string) int {
			requests := m.server.LoadRequests()
			return requests.LastUseOfAll(a, now).Compare(requests.LastUseOfAll(b, now))
		})
		if err := m.unload(ctx, oldest); err != nil {
			return err
		}
	}
}

// unloadIdle unloads what was not asked for for the configured time.
func (m *adapterManager) unloadIdle(ctx context.Context, now time.Time) {
	if m.cfg.Idle == 0 || !m.server.Health().Up {
		return
	}
	for _, name := range m.idle(m.loaded(), now) {
		if now.Sub(m.server.LoadRequests().LastUseOfAll(name, now)) > m.cfg.Idle {
			_ = m.unload(ctx, name) // logged there; the next look tries again
		}
	}
}

// loaded lists the adapters of the directory that the server has.
func (m *adapterManager) loaded() (names []string) {
	for _, model := range m.server.Health().Models {
		if _, known := m.cfg.Find(model.ID); known && model.Parent != "" {
			names = append(names, model.ID)
		}
	}
	return names
}

// idle leaves out those that requests of this gateway hold, and those that the
// engine last had at work when this gateway did not: they are another's.
func (m *adapterManager) idle(names []string, now time.Time) (idle []string) {
	load := m.server.Load().Adapters
	for _, name := range names {
		used, held := m.server.LoadRequests().LastUse(name, now)
		working := slices.Contains(load.Running, name) || slices.Contains(load.Waiting, name)
		if held == 0 && !(working && used.Before(load.Asked)) {
			idle = append(idle, name)
		}
	}
	return idle
}

func (m *adapterManager) unload(ctx context.Context, name string) error {
	m.server.ForgetModel(name)       // first: no new request counts on it
	defer m.server.ForgetModel(name) // a probe may have found it meanwhile
	if err := m.order(ctx, "unload_lora_adapter", map[string]string{"lora_name": name}); err != nil {
		m.log.Warn("adapter not unloaded", "adapter", name, "error", err.Error())
		return err
	}
	m.server.RecordAdapterUnload(name)
	m.log.Info("adapter unloaded", "adapter", name)
	return nil
}

// order has an engine do something with an adapter: vLLM takes it under /v1, SGLang at the
// root.
func (m *adapterManager) order(ctx context.Context, action string, adapter map[string]string) error {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Timeout)
	defer cancel()
	under := "/v1/"
	if m.server.Connector() == "sglang" {
		under = "/"
	}
	return m.post(ctx, m.server.URL+under+action, adapter)
}
