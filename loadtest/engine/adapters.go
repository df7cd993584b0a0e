package engine

import (
	"maps"
	"slices"
	"sync"
)

// adapters are the LoRA adapters loaded now.
type adapters struct {
	mu    sync.Mutex
	paths map[string]string // name -> path it was loaded from
}

func newAdapters(names []string) *adapters {
	a := &adapters{paths: map[string]string{}}
	for _, name := range names {
		a.paths[name] = name
	}
	return a
}

// load adds an adapter; it is an error to load one twice unless inPlace.
func (a *adapters) load(name, path string, inPlace bool) error {
	if name == "" || path == "" {
		return badRequest("", "Both 'lora_name' and 'lora_path' must be provided.")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, loaded := a.paths[name]; loaded && !inPlace {
		return badRequest("", "The lora adapter '%s' has already been loaded. If you want to load the adapter in place, set 'load_inplace' to True.", name)
	}
	a.paths[name] = path
	return nil
}

func (a *adapters) unload(name string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, loaded := a.paths[name]; !loaded {
		return notFound("", "The lora adapter '%s' cannot be found.", name)
	}
	delete(a.paths, name)
	return nil
}

// UnloadAdapter unloads an adapter, as if another client had asked for it.
func (e *Engine) UnloadAdapter(name string) error { return e.adapters.unload(name) }

func (a *adapters) has(name string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, loaded := a.paths[name]
	return loaded
}

// list returns the names, sorted.
func (a *adapters) list() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]string{}, slices.Sorted(maps.Keys(a.paths))...)
}
