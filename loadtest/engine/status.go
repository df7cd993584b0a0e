package engine

import (
	"net/http"
	"time"
)

// The endpoints that say how the engine is and change what it holds, rather than do a
// model's work.

// health is bad once a rank behind the address has died.
func (e *Engine) health(x *exchange) error {
	if err := e.aliveRanks(x.rank); err != nil {
		return err
	}
	x.w.WriteHeader(http.StatusOK)
	return nil
}

// aliveRanks returns an error if the rank has died, or with -1 any of them.
func (e *Engine) aliveRanks(rank int) error {
	for _, r := range e.ranks {
		if (rank < 0 || rank == r.index) && r.isDead() {
			return &apiError{http.StatusServiceUnavailable, "ServiceUnavailableError", "The engine is dead.", ""}
		}
	}
	return nil
}

func (e *Engine) version(x *exchange) error {
	writeJSON(x.w, http.StatusOK, map[string]string{"version": e.cfg.Version})
	return nil
}

// serverLoad counts no probes, nor itself (vLLM's load_aware_call is on the handlers that
// run the model).
func (e *Engine) serverLoad(x *exchange) error {
	writeJSON(x.w, http.StatusOK, map[string]int64{"server_load": e.load.Load()})
	return nil
}

// modelCard is one entry of /v1/models.
type modelCard struct {
	ID          string  `json:"id"`
	Object      string  `json:"object"`
	Created     int64   `json:"created"`
	OwnedBy     string  `json:"owned_by"`
	Root        string  `json:"root"`
	Parent      *string `json:"parent"` // of an adapter: the model
	MaxModelLen *int    `json:"max_model_len"`
}

func (e *Engine) models(x *exchange) error {
	card := modelCard{ID: e.cfg.Model, Object: "model", Created: e.started.Unix(), OwnedBy: e.owner(), Root: e.cfg.Model, MaxModelLen: &e.cfg.MaxModelLen}
	cards := []modelCard{card}
	for _, name := range e.adapters.list() {
		cards = append(cards, modelCard{ID: name, Object: "model", Created: card.Created, OwnedBy: card.OwnedBy, Root: name, Parent: &e.cfg.Model})
	}
	writeJSON(x.w, http.StatusOK, map[string]any{"object": "list", "data": cards})
	return nil
}

// owner is the owner of its models as the connector's engine reports it.
func (e *Engine) owner() string {
	if e.cfg.TransformersServe {
		return "tiny-models" // whoever has published the model
	}
	switch e.cfg.Connector {
	case ConnectorSGLang:
		return "sglang"
	case ConnectorTRTLLM:
		return "tensorrt_llm"
	}
	return "vllm"
}

// adapterRequest is the body of load and unload.
type adapterRequest struct {
	Name    string `json:"lora_name"`
	Path    string `json:"lora_path"`
	InPlace bool   `json:"load_inplace"`
}

func (e *Engine) loadAdapter(x *exchange) error {
	var in adapterRequest
	if err := x.decode(&in); err != nil {
		return err
	}
	loading := time.NewTimer(time.Duration(float64(e.cfg.AdapterLoad) * e.cfg.TimeScale))
	defer loading.Stop()
	select {
	case <-loading.C:
	case <-x.r.Context().Done():
		return errClientGone
	}
	if err := e.adapters.load(in.Name, in.Path, in.InPlace); err != nil {
		return err
	}
	return x.text("Success: LoRA adapter '" + in.Name + "' added successfully.")
}

func (e *Engine) unloadAdapter(x *exchange) error {
	var in adapterRequest
	if err := x.decode(&in); err != nil {
		return err
	}
	if err := e.adapters.unload(in.Name); err != nil {
		return err
	}
	return x.text("Success: LoRA adapter '" + in.Name + "' removed successfully.")
}

// text answers with plain text; a client that is gone needs none.
func (x *exchange) text(s string) error {
	x.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = x.w.Write([]byte(s))
	return nil
}

// resetPrefixCache answers 200 also when blocks in use prevent it, as vLLM does.
func (e *Engine) resetPrefixCache(x *exchange) error {
	for _, r := range e.ranks {
		r.reset()
	}
	x.w.WriteHeader(http.StatusOK)
	return nil
}

// now is the creation time of an answer, in seconds since 1970.
func now() int64 { return time.Now().Unix() }
