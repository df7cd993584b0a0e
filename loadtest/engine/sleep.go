package engine

import (
	"net/http"
	"slices"
	"sync"
)

// sleepState is vLLM's sleep mode: what has left the GPU, and what came back as garbage.
type sleepState struct {
	mu      sync.Mutex // guards the rest
	weights bool       // have left
	kv      bool       // has left
	lost    bool       // the weights were dropped (level 2) and not read again since
}

func (s *sleepState) asleep() bool { return s.weights || s.kv }

// sleepNow drops all work and all KV, and at level 2 the weights. While asleep the
// engine answers 503.
func (e *Engine) sleepNow(x *exchange) error {
	e.sleepMode.mu.Lock()
	defer e.sleepMode.mu.Unlock()
	e.sleepMode.weights, e.sleepMode.kv = true, true
	e.sleepMode.lost = e.sleepMode.lost || x.r.URL.Query().Get("level") == "2"
	for _, r := range e.ranks {
		r.sleep()
	}
	x.w.WriteHeader(http.StatusOK)
	return nil
}

// wakeUp brings back what the tags name, all without any. Weights that were dropped
// come back as room for them: what the engine says then is garbage, until it has read
// them again.
func (e *Engine) wakeUp(x *exchange) error {
	e.sleepMode.mu.Lock()
	defer e.sleepMode.mu.Unlock()
	tags := x.r.URL.Query()["tags"]
	if len(tags) == 0 || slices.Contains(tags, "weights") {
		e.sleepMode.weights = false
	}
	if len(tags) == 0 || slices.Contains(tags, "kv_cache") {
		e.sleepMode.kv = false
	}
	e.wakeLocked()
	x.w.WriteHeader(http.StatusOK)
	return nil
}

// collectiveRPC knows one method, which reads the weights into the room for them.
func (e *Engine) collectiveRPC(x *exchange) error {
	var call struct {
		Method string `json:"method"`
	}
	if err := x.decode(&call); err != nil {
		return err
	}
	e.sleepMode.mu.Lock()
	defer e.sleepMode.mu.Unlock()
	if call.Method != "reload_weights" || e.sleepMode.weights {
		return &apiError{http.StatusInternalServerError, "InternalServerError", "EngineCore encountered an issue.", ""}
	}
	e.sleepMode.lost = false
	e.wakeLocked()
	x.w.WriteHeader(http.StatusOK)
	return nil
}

func (e *Engine) wakeLocked() {
	for _, r := range e.ranks {
		r.wakeUp(e.sleepMode.asleep(), e.sleepMode.lost)
	}
}

func (e *Engine) isSleeping(x *exchange) error {
	e.sleepMode.mu.Lock()
	defer e.sleepMode.mu.Unlock()
	writeJSON(x.w, http.StatusOK, map[string]bool{"is_sleeping": e.sleepMode.asleep()})
	return nil
}
