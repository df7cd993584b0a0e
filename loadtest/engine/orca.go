package engine

import (
	"encoding/json"
	"fmt"
)

// orcaLoad is the load that an ORCA header reports: vLLM has just these two.
type orcaLoad struct {
	NamedMetrics struct {
		KVCacheUsage float64 `json:"kv_cache_usage_perc"`
		Waiting      float64 `json:"num_requests_waiting"`
	} `json:"named_metrics"`
}

// answerORCA sets the endpoint-load-metrics header, if the request asks for it in a
// format that vLLM knows. As there, it tells of the first rank only.
func (e *Engine) answerORCA(x *exchange) {
	l := e.ranks[0].load()
	var report orcaLoad
	report.NamedMetrics.KVCacheUsage = l.kvShare
	report.NamedMetrics.Waiting = float64(l.waiting + l.loading)
	switch x.r.Header.Get("Endpoint-Load-Metrics-Format") {
	case "TEXT":
		x.w.Header().Set("Endpoint-Load-Metrics", fmt.Sprintf("TEXT named_metrics.kv_cache_usage_perc=%v, named_metrics.num_requests_waiting=%v",
			report.NamedMetrics.KVCacheUsage, report.NamedMetrics.Waiting))
	case "JSON":
		if body, err := json.Marshal(report); err == nil { // two finite numbers always encode
			x.w.Header().Set("Endpoint-Load-Metrics", "JSON "+string(body))
		}
	}
}
