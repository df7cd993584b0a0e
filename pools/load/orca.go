package load

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	orca "github.com/cncf/xds/go/xds/data/orca/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// ORCA is the Open Request Cost Aggregation of xDS: a server reports its load in a
// header of an answer, if the request asks for it, or in a stream of reports.
const (
	ORCAFormatHeader = "Endpoint-Load-Metrics-Format" // of a request: TEXT, JSON or BIN
	ORCAHeader       = "Endpoint-Load-Metrics"        // of the answer
	orcaBinHeader    = ORCAHeader + "-Bin"            // likewise, in base64
)

// maxORCA bounds a report in a header, in bytes.
const maxORCA = 8 << 10

// orcaReadings are the names under which engines report what we read. vLLM has
// kv_cache_usage_perc and num_requests_waiting, Triton kv_cache_utilization and
// max_token_capacity; the others are what a server of one's own may add.
var orcaReadings = map[string]Reading{
	"kv_cache_usage_perc":  KVUsed,
	"kv_cache_utilization": KVUsed,
	"num_requests_running": Running,
	"num_requests_waiting": Waiting,
	"num_tokens_running":   RunningTokens,
	"num_tokens_waiting":   WaitingTokens,
	"max_token_capacity":   KVTokens,
}

// ParseORCA reads a report as a header carries it: "TEXT a=1, b=2", "JSON {...}",
// "BIN <base64>", or without the prefix, by its looks. Numbers that are no numbers, names
// twice (but for readings in TEXT) and oversized reports are errors.
func ParseORCA(value string) (*orca.OrcaLoadReport, error) {
	if len(value) > maxORCA {
		return nil, errors.New("ORCA report is longer than 8 KiB")
	}
	value = strings.TrimSpace(value)
	format, rest, _ := strings.Cut(value, " ")
	report := new(orca.OrcaLoadReport)
	var err error
	switch {
	case format == "TEXT":
		err = readORCAText(report, rest)
	case format == "JSON":
		err = readORCAJSON(report, rest)
	case format == "BIN":
		err = readORCABinary(report, rest)
	case strings.HasPrefix(value, "{"):
		err = readORCAJSON(report, value)
	default:
		err = readORCAText(report, value)
	}
	if err != nil {
		return nil, fmt.Errorf("ORCA report: %w", err)
	}
	return report, nil
}

func readORCAJSON(report *orca.OrcaLoadReport, text string) error {
	return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal([]byte(text), report)
}

func readORCABinary(report *orca.OrcaLoadReport, text string) error {
	raw, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		raw, err = base64.RawStdEncoding.DecodeString(text) // as gRPC writes it
	}
	if err != nil {
		return err
	}
	return proto.Unmarshal(raw, report)
}

// readORCAText reads pairs with = or :, separated by commas. Names without a prefix
// that are no field of the report are taken for named metrics. A reading that stands there several
// times is that of several data-parallel ranks, each without its number (vLLM 0.32,
// entrypoints/serve/utils/orca_metrics.py): counts are summed, and the fullest KV counts.
func readORCAText(report *orca.OrcaLoadReport, text string) error {
	report.NamedMetrics = make(map[string]float64)
	report.Utilization = make(map[string]float64)
	fields := map[string]*float64{
		"cpu_utilization": &report.CpuUtilization, "mem_utilization": &report.MemUtilization,
		"rps_fractional": &report.RpsFractional, "eps": &report.Eps,
		"application_utilization": &report.ApplicationUtilization,
	}
	seen := make(map[string]bool)
	for pair := range strings.SplitSeq(text, ",") {
		pair = strings.TrimSpace(pair)
		at := strings.IndexAny(pair, "=:")
		if at <= 0 {
			return fmt.Errorf("%q is no pair", pair)
		}
		name := strings.TrimSpace(pair[:at])
		v, err := strconv.ParseFloat(strings.TrimSpace(pair[at+1:]), 64)
		if err != nil {
			return fmt.Errorf("%s is no number", name)
		}
		metric := strings.TrimPrefix(name, "named_metrics.")
		reading, of := orcaReadings[metric]
		if seen[name] && !of {
			return fmt.Errorf("%s stands there twice", name)
		}
		seen[name] = true
		if used, ok := strings.CutPrefix(name, "utilization."); ok {
			report.Utilization[used] = v
		} else if field := fields[name]; field != nil {
			*field = v
		} else if reading == KVUsed {
			report.NamedMetrics[metric] = max(report.NamedMetrics[metric], v)
		} else {
			report.NamedMetrics[metric] += v
		}
	}
	return nil
}

// FromORCA returns the load in a report, false if it has none that we read.
func FromORCA(report *orca.OrcaLoadReport) (Load, bool) {
	var l Load
	gauges := map[Reading]*Gauge{
		Running: &l.Running, Waiting: &l.Waiting, RunningTokens: &l.RunningTokens,
		WaitingTokens: &l.WaitingTokens, KVUsed: &l.KVUsed, KVTokens: &l.KVTokens,
	}
	for _, metrics := range []map[string]float64{report.GetUtilization(), report.GetNamedMetrics()} {
		for name, v := range metrics {
			if reading, ok := orcaReadings[name]; ok && usable(v) {
				*gauges[reading] = Gauge{Value: v, Known: true}
			}
		}
	}
	return l, l.Known()
}

// ORCAOf returns the report that an answer's header carries, nil without one.
func ORCAOf(header http.Header) (*orca.OrcaLoadReport, error) {
	if text := header[ORCAHeader]; len(text) > 0 && text[0] != "" {
		return ParseORCA(text[0])
	}
	if bin := header[orcaBinHeader]; len(bin) > 0 && bin[0] != "" {
		return ParseORCA("BIN " + bin[0])
	}
	return nil, nil
}
