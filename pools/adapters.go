package pools

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Adapter is a LoRA adapter that servers may be told to load.
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

// AdapterConfig says which adapters may be loaded on demand, and how many stay.
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
	}
	if c.PerServer < 0 || c.Idle < 0 || c.Timeout <= 0 {
		return fmt.Errorf("adapters-per-server and adapter-idle must not be negative, adapter-timeout must be positive")
	}
	return nil
}

// find returns the directory's entry of a name.
func (c AdapterConfig) find(name string) (Adapter, bool) {
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
		if _, known := c.find(m.ID); known && m.Parent != "" {
			n++
		}
	}
	return n
}

// base returns the model of a server that the adapter adapts, false if it has none.
func (a Adapter) base(models []Model) (Model, bool) {
	for _, m := range models {
		if m.Parent == "" && (a.Base == "" || m.ID == a.Base) {
			return m, true
		}
	}
	return Model{}, false
}

// as is the adapter as a server that has loaded it lists it.
func (a Adapter) as(base Model) Model {
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
	if _, onDemand := s.fleet.cfg.Adapters.find(model); i < 0 && !onDemand {
		return AdapterView{}, false
	}
	load := s.FreshLoad(now).Adapters
	v := AdapterView{
		Loaded:  i >= 0,
		Running: slices.Contains(load.Running, model),
		Waiting: len(load.Waiting),
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
	if s.Asleep() && s.awake.refuses(awakeWish, now) {
		return false // it could not be woken just now
	}
	if h.Serves(model) {
		return true
	}
	a, onDemand := s.fleet.cfg.Adapters.find(model)
	if !onDemand {
		return false
	}
	_, fits := a.base(h.Models)
	return fits && !s.adapters.refuses(model, now)
}

// wishes is what requests want of a server's keeper, and when each adapter of
// the directory was wanted last.
type wishes struct {
	mu      sync.Mutex // guards the rest
	open    bool       // somebody fulfils them
	wishes  map[string]*wish
	inUse   map[string]int       // leases that hold it
	used    map[string]time.Time // when it was last taken or given back
	refused map[string]time.Time // until when an adapter is not asked for again
	wake    chan struct{}
}

// wish is an adapter that is to be loaded. err may be read once done is closed.
type wish struct {
	done chan struct{}
	err  error
}

func newWishes() *wishes {
	return &wishes{
		wishes: make(map[string]*wish), inUse: make(map[string]int), used: make(map[string]time.Time),
		refused: make(map[string]time.Time), wake: make(chan struct{}, 1),
	}
}

// want takes the adapter into use, and returns the wish to wait for; nil if the
// server has the adapter. Those who want the same wait for the same wish.
func (a *wishes) want(name string, loaded bool, now time.Time) (*wish, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.used[name] = now
	a.inUse[name]++
	w := a.wishes[name]
	switch {
	case w != nil:
		return w, nil
	case loaded:
		return nil, nil
	case !a.open:
		return nil, errNoKeeper
	}
	w = &wish{done: make(chan struct{})}
	a.wishes[name] = w
	select {
	case a.wake <- struct{}{}:
	default:
	}
	return w, nil
}

// leave gives one use back.
func (a *wishes) leave(name string, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.used[name] = now
	a.inUse[name]--
}

// next returns the name of a wish that is open, "" if there is none.
func (a *wishes) next() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name := range a.wishes {
		return name
	}
	return ""
}

// adapterRefusal is for how long a server that could not load an adapter is not
// asked to again.
const adapterRefusal = 30 * time.Second

// fulfil ends a wish.
func (a *wishes) fulfil(name string, err error, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	w := a.wishes[name]
	if w == nil {
		return
	}
	delete(a.wishes, name)
	delete(a.refused, name)
	if err != nil {
		pause := adapterRefusal
		if errors.Is(err, errAdapterRoom) || errors.Is(err, errOccupied) {
			pause = time.Second // one may be idle soon
		}
		a.refused[name] = now.Add(pause)
	}
	w.err = err
	close(w.done)
}

// setOpen says whether somebody fulfils wishes; if not, those that are left fail.
func (a *wishes) setOpen(open bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open = open
	for name, w := range a.wishes {
		if !open {
			delete(a.wishes, name)
			w.err = errNoKeeper
			close(w.done)
		}
	}
}

func (a *wishes) refuses(name string, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return now.Before(a.refused[name])
}

// lastUse returns when an adapter was last taken or given back, and by how many
// leases it is held. One that is seen for the first time counts as taken now, since
// another gateway may use it.
func (a *wishes) lastUse(name string, now time.Time) (at time.Time, held int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.used[name].IsZero() {
		a.used[name] = now
	}
	return a.used[name], a.inUse[name]
}
