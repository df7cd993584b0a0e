package load

import (
	"slices"
	"strconv"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
)

// Adapters is which LoRA adapters an engine has in its batch and which wait for a
// place in one. Known is false until the engine has served an adapter.
type Adapters struct {
	Max     int // adapters that fit into one batch; 0 is unknown
	Running []string
	Waiting []string
	Known   bool
	Asked   time.Time // when the engine was asked: its answer is no older
}

// adapterSeries is vLLM's: its labels hold the names, its value the time at which
// they were true. Old label sets stay exposed beside the newest.
const adapterSeries = "vllm:lora_requests_info"

// parseAdapters reads the newest sample.
func parseAdapters(families map[string]*dto.MetricFamily) Adapters {
	var newest *dto.Metric
	at := -1.0
	for _, m := range family(families, adapterSeries).GetMetric() {
		if v, ok := (Series{}).value(m); ok && v > at {
			newest, at = m, v
		}
	}
	if newest == nil {
		return Adapters{}
	}
	most, err := strconv.Atoi(label(newest, "max_lora"))
	if err != nil || most < 0 {
		most = 0
	}
	return Adapters{
		Max: most, Known: true,
		Running: names(label(newest, "running_lora_adapters")),
		Waiting: names(label(newest, "waiting_lora_adapters")),
	}
}

// names splits a list by commas; each name once, sorted.
func names(list string) []string {
	var all []string
	for name := range strings.SplitSeq(list, ",") {
		if name = strings.TrimSpace(name); name != "" {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
