package engine

import (
	"net/http"
	"slices"
	"sync"
)

// slumber is vLLM's sleep mode: what has left the GPU, and what came back as garbage.
type slumber struct {
	mu      sync.Mutex // guards the rest
	weights bool       // have left
	kv      bool       // has left
	lost    bool       // the weights were dropped (level 2) and not read again since
}

func (s *slumber) asleep() bool { return s.weights || s.kv }

// sleepNow drops all work and all KV, and at level 2 the weights. While asleep the
// engine answers 503.
func (e *Engine) sleepNow(x *exchange) error {
	e.slumber.mu.Lock()
	defer e.slumber.mu.Unlock()
	e.slumber.weights, e.slumber.kv = true, true
	e.slumber.lost = e.slumber.lost || x.r.URL.Query().Get("level") == "2"
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
	e.slumber.mu.Lock()
	defer e.slumber.mu.Unlock()
	tags := x.r.URL.Query()["tags"]
	if len(tags) == 0 || slices.Contains(tags, "weights") {
		e.slumber.weights = false
	}
	if len(tags) == 0 || slices.Contains(tags, "kv_cache") {
		e.slumber.kv = false
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
	e.slumber.mu.Lock()
	defer e.slumber.mu.Unlock()
	if call.Method != "reload_weights" || e.slumber.weights {
		return &apiError{http.StatusInternalServerError, "InternalServerError", "EngineCore encountered an issue.", ""}
	}
	e.slumber.lost = false
	e.wakeLocked()
	x.w.WriteHeader(http.StatusOK)
	return nil
}

func (e *Engine) wakeLocked() {
	for _, r := range e.ranks {
		r.wakeUp(e.slumber.asleep(), e.slumber.lost)
	}
}

func (e *Engine) isSleeping(x *exchange) error {
	e.slumber.mu.Lock()
	defer e.slumber.mu.Unlock()
	writeJSON(x.w, http.StatusOK, map[string]bool{"is_sleeping": e.slumber.asleep()})
	return nil
}
