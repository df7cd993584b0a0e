package engine

import (
	"log/slog"
	"net/http"
)

// errEngineDead is vLLM's EngineDeadError (vllm/v1/engine/exceptions.py), which every
// request of a dead engine is answered with.
var errEngineDead = &apiError{
	http.StatusInternalServerError, "InternalServerError",
	"EngineCore encountered an issue. See stack trace (above) for the root cause.", "",
}

// die ends the engine as a failed assertion in vLLM's EngineCore does: all its requests
// fail with EngineDeadError, health checks fail, and its addresses refuse connections, as
// those of a process that has ended. ClearFaults starts it again.
func (e *Engine) die(why string) {
	slog.Error("EngineCore died", "engine_id", e.ranks[0].id, "reason", why)
	for _, r := range e.ranks {
		r.die()
	}
	for _, l := range e.listeners {
		l.suspend()
	}
}

// failure is what the requests of a rank fail with that ends their work.
func (r *rank) failure() error {
	if r.isDead() {
		return errEngineDead
	}
	return errInternal
}
