package engine

import (
	"encoding/json"
	"fmt"
	"strings"
)

// orcaLoad is the load that an ORCA header reports: vLLM has just these two.
type orcaLoad struct {
	NamedMetrics struct {
		KVCacheUsage float64 `json:"kv_cache_usage_perc"`
		Waiting      float64 `json:"num_requests_waiting"`
	} `json:"named_metrics"`
}

// answerORCA sets the endpoint-load-metrics header, if the request asks for it in a format that vLLM knows.
// As in vLLM 0.32 (entrypoints/serve/utils/orca_metrics.py) TEXT has each name once for every rank, without
// the rank, and JSON, which has no name twice, the last rank's.
func (e *Engine) answerORCA(x *exchange) {
	var report orcaLoad
	var waiting, used strings.Builder
	for _, r := range e.ranks {
		l := r.load()
		report.NamedMetrics.KVCacheUsage, report.NamedMetrics.Waiting = l.kvShare, float64(l.waiting+l.loading)
		fmt.Fprintf(&waiting, ", named_metrics.num_requests_waiting=%v", report.NamedMetrics.Waiting)
		fmt.Fprintf(&used, ", named_metrics.kv_cache_usage_perc=%v", report.NamedMetrics.KVCacheUsage)
	}
	switch x.r.Header.Get("Endpoint-Load-Metrics-Format") {
	case "TEXT":
		x.w.Header().Set("Endpoint-Load-Metrics", "TEXT "+strings.TrimPrefix(waiting.String()+used.String(), ", "))
	case "JSON":
		if body, err := json.Marshal(report); err == nil { // two finite numbers always encode
			x.w.Header().Set("Endpoint-Load-Metrics", "JSON "+string(body))
		}
	}
}
