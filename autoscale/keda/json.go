package keda

import (
	"encoding/json"
	"net/http"
	"time"
)

// Answer is what the JSON way says of a pool; `replicas` is the trigger's
// valueLocation.
type Answer struct {
	Model              string  `json:"model"`
	Role               string  `json:"role"`
	Variant            string  `json:"variant,omitempty"`
	Replicas           int     `json:"replicas"`
	Size               int     `json:"size,omitempty"` // of each engine, in ranks, where they grow in place
	WaitingForCapacity int     `json:"held"`
	Reason             string  `json:"reason"`
	AgeSeconds         float64 `json:"age_seconds"`
}

// Handler answers GET ?model=M&role=R, and &variant=V for one kind of hardware, with an Answer,
// 400 if that names no pool, or 503 if nothing that counts is known.
func (t *PublishedTargets) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		p := Pool{query.Get("model"), query.Get("role"), query.Get("variant")}
		if err := p.Validate(); err != nil {
			http.Error(w, "want ?model=M&role=R: "+err.Error(), http.StatusBadRequest)
			return
		}
		now := time.Now()
		reading, err := t.Read(p, now)
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(Answer{ // a client that left needs no answer
			p.Model, p.Role, p.Variant, reading.Replicas, reading.Size, reading.WaitingForCapacity, reading.Reason, now.Sub(reading.At).Seconds(),
		})
	})
}
