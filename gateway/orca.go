package gateway

import (
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	orca "github.com/cncf/xds/go/xds/data/orca/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// LoadReport is this gateway's own load, as an Envoy in front of several gateways
// balances on it: utilization is requests, waiting and in flight, of those that may
// be in flight, and above 1 while some must wait. The named metrics are those that
// vLLM reports, over all servers: so one gateway can stand before another.
func (s *Server) LoadReport(now time.Time) *orca.OrcaLoadReport {
	waiting, inFlight := s.pd.Queue.Len()
	report := &orca.OrcaLoadReport{
		ApplicationUtilization: float64(waiting+inFlight) / float64(max(1, s.pd.Queue.MaxInFlight())),
		RpsFractional:          s.requests.perSecond(now),
		Eps:                    s.errors.perSecond(now),
		NamedMetrics: map[string]float64{
			"num_requests_waiting": float64(waiting),
			"num_requests_running": float64(inFlight),
		},
	}
	var tokens, used, known float64
	for _, server := range s.fleet.Servers() {
		waiting, _ := server.Tokens(now)
		tokens += waiting
		if load := server.FreshLoad(now); load.KVUsed.Known {
			used, known = used+load.KVUsed.Value, known+1
		}
	}
	report.NamedMetrics["num_tokens_waiting"] = tokens
	if known > 0 {
		report.NamedMetrics["kv_cache_usage_perc"] = used / known
	}
	return report
}

// orcaHeader returns the report in the format that a client asked for, "" if it is
// none that ORCA has.
func orcaHeader(report *orca.OrcaLoadReport, format string) string {
	switch strings.ToUpper(format) {
	case "TEXT":
		return "TEXT " + orcaText(report)
	case "JSON":
		if body, err := protojson.Marshal(report); err == nil { // numbers always encode
			return "JSON " + string(body)
		}
	case "BIN":
		if body, err := proto.Marshal(report); err == nil {
			return "BIN " + base64.StdEncoding.EncodeToString(body)
		}
	}
	return ""
}

func orcaText(report *orca.OrcaLoadReport) string {
	pairs := []string{
		fmt.Sprintf("application_utilization=%g", report.GetApplicationUtilization()),
		fmt.Sprintf("rps_fractional=%g", report.GetRpsFractional()),
		fmt.Sprintf("eps=%g", report.GetEps()),
	}
	for _, name := range slices.Sorted(maps.Keys(report.GetNamedMetrics())) {
		pairs = append(pairs, fmt.Sprintf("named_metrics.%s=%g", name, report.GetNamedMetrics()[name]))
	}
	return strings.Join(pairs, ", ")
}
