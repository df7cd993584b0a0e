package pools

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Adapter is a LoRA adapter that servers may load on request.
type Adapter struct {
	Name string
	Base string // the model that it adapts; empty: whichever a server has
	Path string // where the engine finds it
}

// ParseAdapter reads "name=path" or "name@base=path".
func ParseAdapter(text string) (Adapter, error) {
	name, path, ok := strings.Cut(text, "=")
	name, base, _ := strings.Cut(name, "@")
	if !ok || name == "" || path == "" {
		return Adapter{}, fmt.Errorf("adapter %q: want name=path or name@base=path", text)
	}
	return Adapter{Name: name, Base: base, Path: path}, nil
}

// AdapterConfig lists the adapters that may be loaded on demand, and how many stay.
type AdapterConfig struct {
	Directory []Adapter     // the only ones; empty: what servers have by themselves is all
	PerServer int           // of the directory that one server may have; 0 is any number
	Idle      time.Duration // one that was not used for this long is unloaded; 0 is never
	Timeout   time.Duration // for one to be loaded
}

// DefaultAdapters loads nothing, as its directory is empty.
func DefaultAdapters() AdapterConfig { return AdapterConfig{Timeout: time.Minute} }

// Validate reports what is wrong with the configuration, nil if nothing.
func (c AdapterConfig) Validate() error {
	for i, a := range c.Directory {
		if slices.ContainsFunc(c.Directory[:i], func(o Adapter) bool { return o.Name == a.Name }) {
			return fmt.Errorf("adapter %s is named twice", a.Name)
		}
		if a.Name == a.Base {
			return fmt.Errorf("adapter %s has the name of its base model: requests for that name get the model; give the adapter another name", a.Name)
		}
	}
	if c.PerServer < 0 || c.Idle < 0 || c.Timeout <= 0 {
		return fmt.Errorf("adapters-per-server and adapter-idle must not be negative, adapter-timeout must be positive")
	}
	return nil
}

// Find returns the directory's entry of a name.
func (c AdapterConfig) Find(name string) (Adapter, bool) {
	for _, a := range c.Directory {
		if a.Name == name {
			return a, true
		}
	}
	return Adapter{}, false
}

// loaded counts the directory's entries among models.
func (c AdapterConfig) loaded(models []Model) (n int) {
	for _, m := range models {
		if _, known := c.Find(m.ID); known && m.Parent != "" {
			n++
		}
	}
	return n
}

// BaseIn returns the model of a server that the adapter adapts, false if it has none.
func (a Adapter) BaseIn(models []Model) (Model, bool) {
	for _, m := range models {
		if m.Parent == "" && (a.Base == "" || m.ID == a.Base) {
			return m, true
		}
	}
	return Model{}, false
}

// asModel is the adapter as a server that has loaded it lists it.
func (a Adapter) asModel(base Model) Model {
	return Model{ID: a.Name, Parent: base.ID, MaxModelLen: base.MaxModelLen, Created: base.Created}
}

// AdapterView is what is known of one adapter on one server.
type AdapterView struct {
	Loaded  bool          // the server has it, else it must be loaded first
	Running bool          // it is in the batch
	Full    bool          // the batch has as many adapters as it can, and not this one
	Waiting int           // adapters that wait for a place in the batch
	Evicts  bool          // to be loaded it must take the place of another one
	Load    time.Duration // what loading one took lately; 0 is unknown
}

// Adapter returns what is known of an adapter on the server; false if the model is
// none there.
func (s *Server) Adapter(model string, now time.Time) (AdapterView, bool) {
	h := s.health.Load()
	i := slices.IndexFunc(h.Models, func(m Model) bool { return m.ID == model })
	if i >= 0 && h.Models[i].Parent == "" {
		return AdapterView{}, false
	}
	if _, onDemand := s.fleet.cfg.Adapters.Find(model); i < 0 && !onDemand {
		return AdapterView{}, false
	}
	load := s.FreshLoad(now).Adapters
	v := AdapterView{
		Loaded:  i >= 0,
		Running: slices.Contains(load.Running, model),
		Waiting: load.WithoutPlace(),
		Load:    time.Duration(s.fleet.adapterLoad.Load()),
	}
	if most := s.fleet.cfg.Adapters.PerServer; most > 0 && !v.Loaded {
		v.Evicts = s.fleet.cfg.Adapters.loaded(h.Models) >= most
	}
	v.Full = load.Max > 0 && len(load.Running) >= load.Max && !v.Running
	return v, true
}

// Serves reports whether the server may take requests for the model: it has it, or can
// load it, and if it sleeps it can be woken.
func (s *Server) Serves(model string, now time.Time) bool {
	h := s.health.Load()
	if s.Asleep() && s.wakeRequests.Refuses(now) {
		return false // it could not be woken just now
	}
	if h.Serves(model) {
		return true
	}
	a, onDemand := s.fleet.cfg.Adapters.Find(model)
	if !onDemand {
		return false
	}
	_, fits := a.BaseIn(h.Models)
	return fits && !s.loadRequests.refuses(model, now)
}

// RecordAdapterLoad records that the server has loaded an adapter of a model, and how long it took.
func (s *Server) RecordAdapterLoad(a Adapter, base Model, took time.Duration) {
	s.loadRequests.loaded.Add(1)
	s.fleet.recordAdapterLoadTime(took)
	s.fleet.adapterUse.recordLoad(took)
	s.changeModels(func(models []Model) []Model { // a probe may have found it first
		return append(slices.DeleteFunc(models, func(m Model) bool { return m.ID == a.Name }), a.asModel(base))
	})
}

// RecordFailedAdapterLoad counts an adapter that the server did not load.
func (s *Server) RecordFailedAdapterLoad() { s.loadRequests.failed.Add(1) }

// RecordAdapterUnload records that the server has unloaded an adapter.
func (s *Server) RecordAdapterUnload(name string) {
	s.loadRequests.unloaded.Add(1)
	s.loadRequests.forget(name)
}

// ForgetModel takes a model from what the server is known to serve.
func (s *Server) ForgetModel(id string) {
	s.changeModels(func(models []Model) []Model {
		return slices.DeleteFunc(models, func(m Model) bool { return m.ID == id })
	})
}

// ForgetAdapter records that the server does not have a model that it listed, and
// reports whether that is an adapter that can be loaded again: another gateway has
// unloaded it.
func (s *Server) ForgetAdapter(model string) bool {
	if _, onDemand := s.fleet.cfg.Adapters.Find(model); !onDemand {
		return false
	}
	s.ForgetModel(model)
	return true
}

// recordAdapterLoadTime keeps what loading an adapter takes: the mean of the last few.
func (f *Fleet) recordAdapterLoadTime(took time.Duration) {
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

// adapterUse counts, for all servers together, what the directory's adapters cost requests: legs that
// found the adapter on their server and those that it had to be loaded for, and loads that succeeded
// with the time that all of them took.
type adapterUse struct {
	hits, misses atomic.Uint64

	mu       sync.Mutex // guards the rest
	loads    uint64
	loadTime time.Duration
}

func (u *adapterUse) recordLoad(took time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.loads++
	u.loadTime += took
}

func (u *adapterUse) readLoads() (loads uint64, took time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.loads, u.loadTime
}
