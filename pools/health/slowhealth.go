package health

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"
)

// How an engine is asked whose /health generates a token.
const (
	// slowHealthEvery is the time between two of its checks while it is well: each makes an
	// idle engine generate.
	slowHealthEvery = 30 * time.Second
	// slowHealthTimeout is longer than the 20 s after which SGLang itself reports that its
	// scheduler gave no sign of life.
	slowHealthTimeout = 25 * time.Second
)

var errSlowHealth = errors.New("waiting for /health, which generates a token")

// slowHealth is the last answer of a server's /health that takes long to answer: that of an
// SGLang without /ready, which answers after 1 s at the earliest and 20 s at the latest,
// since it generates a token (sglang srt/entrypoints/http_server.py, health_generate). It
// is asked beside the probes.
type slowHealth struct {
	due chan struct{} // wakes the goroutine that asks

	mu     sync.Mutex // guards the rest
	life   uint64     // one more than that in which the server was found to have no /ready; 0: never
	asking bool       // the question is due or under way
	asked  time.Time  // when the one was sent that was answered last; zero: none was
	err    error      // and the answer
}

func newSlowHealth() *slowHealth { return &slowHealth{due: make(chan struct{}, 1)} }

// lacksReady reports whether the server has no /ready in this life of it.
func (h *slowHealth) lacksReady(life uint64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.life == life+1
}

func (h *slowHealth) recordNoReady(life uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.life = life + 1
}

// verdict returns the last answer, an error where it was good and is from before a time,
// and has the question asked anew where it is due.
func (h *slowHealth) verdict(after, now time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	known := h.asked.After(after)
	if due := !known || h.err != nil || now.Sub(h.asked) >= slowHealthEvery; due && !h.asking {
		h.asking = true
		h.due <- struct{}{} // no question is under way, so there is room
	}
	if h.err == nil && !known {
		return errSlowHealth
	}
	return h.err
}

// take takes in an answer. One that did not come shows nothing: the probes find out whether
// a server answers at that address. Nor does a question that could not be put.
func (h *slowHealth) take(asked time.Time, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asking = false
	if !isTimeout(err) && !errors.Is(err, context.Canceled) && !outOfDescriptors(err) {
		h.asked, h.err = asked, err
	}
}

// healthy asks whether the server is well: SGLang at /ready, which touches no scheduler,
// and where it has none at /health, rarely; any other engine at /health.
func (h *slowHealth) healthy(ctx context.Context, e engine, log *slog.Logger) error {
	sglang, err := e.isSGLang(ctx, log)
	switch {
	case err != nil:
		return err
	case !sglang:
		_, err := e.get(ctx, "/health")
		return err
	}
	life := e.server.Incarnation()
	if !h.lacksReady(life) {
		_, err := e.get(ctx, "/ready")
		var status statusError
		if !errors.As(err, &status) || status.code != http.StatusNotFound {
			return err
		}
		h.recordNoReady(life)
	}
	return h.verdict(e.server.DownSince(), time.Now())
}

// isSGLang recognises the engine by its models, which it is asked for when none are known yet.
func (e engine) isSGLang(ctx context.Context, log *slog.Logger) (bool, error) {
	models := e.server.Health().Models
	if len(models) == 0 {
		var err error
		if models, err = e.models(ctx, log); err != nil {
			return false, err
		}
	}
	return models[0].Owner == "sglang", nil
}

// run asks /health whenever a probe finds that it is due, until ctx ends. The engine has no
// time limit of its own.
func (h *slowHealth) run(ctx context.Context, e engine) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.due:
			h.ask(ctx, e)
		}
	}
}

// ask asks once. The next probe, which is due at once if the server is down, goes by it.
func (h *slowHealth) ask(ctx context.Context, e engine) {
	ctx, cancel := context.WithTimeout(ctx, slowHealthTimeout)
	defer cancel()
	asked := time.Now()
	_, err := e.get(ctx, "/health")
	h.take(asked, err)
	if err == nil && !e.server.Health().Up {
		e.server.ProbeNow()
	}
}
