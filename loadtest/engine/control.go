package engine

import (
	"encoding/json"
	"net/http"
)

// controlHandler serves /sim/: the ground truth, and faults. It is open to anyone who
// reaches it, as a simulator needs no secrets.
//
//	GET    /sim/state               State; ?requests=0 leaves out the recorded requests
//	GET    /sim/blocks              {"blocks": [Block...]}; ?tokens=0 leaves out token ids
//	GET    /sim/faults              [Fault...]
//	POST   /sim/faults              adds one Fault
//	DELETE /sim/faults              removes all
func (e *Engine) controlHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /sim/state", func(w http.ResponseWriter, r *http.Request) {
		state := e.State()
		if r.URL.Query().Get("requests") == "0" {
			state.Requests = []Request{}
		}
		writeJSON(w, http.StatusOK, state)
	})
	mux.HandleFunc("GET /sim/blocks", func(w http.ResponseWriter, r *http.Request) {
		blocks := e.Blocks()
		if r.URL.Query().Get("tokens") == "0" {
			for i := range blocks {
				blocks[i].Tokens = nil
			}
		}
		writeJSON(w, http.StatusOK, map[string][]Block{"blocks": blocks})
	})
	mux.HandleFunc("GET /sim/faults", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, e.faults.list())
	})
	mux.HandleFunc("POST /sim/faults", func(w http.ResponseWriter, r *http.Request) {
		var f Fault
		decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&f); err != nil {
			writeError(w, r.URL.Path, badRequest("", "fault: %v", err))
			return
		}
		if err := e.AddFault(f); err != nil {
			writeError(w, r.URL.Path, badRequest("", "%v", err))
			return
		}
		writeJSON(w, http.StatusOK, e.faults.list())
	})
	mux.HandleFunc("DELETE /sim/faults", func(w http.ResponseWriter, _ *http.Request) {
		if err := e.clearFaults(); err != nil {
			writeError(w, "", &apiError{http.StatusInternalServerError, "InternalServerError", err.Error(), ""})
			return
		}
		writeJSON(w, http.StatusOK, e.faults.list())
	})
	return mux
}
