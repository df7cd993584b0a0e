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
	Max     int      // adapters that fit into one batch; 0 is unknown
	Running []string // sorted, as those that wait
	Waiting []string
	Known   bool
	Asked   time.Time // when the engine was asked: its answer is no older
}

// WithoutPlace returns how many adapters no place in the batch is left for. vLLM 0.32 lists every adapter that runs both
// as running and as waiting (LoRARequestStates.update_scheduler_stats in v1/metrics/stats.py), so that of names in both
// lists those wait that are more than a batch has places for.
func (a Adapters) WithoutPlace() int {
	only := 0
	for _, name := range a.Waiting {
		if _, runs := slices.BinarySearch(a.Running, name); !runs {
			only++
		}
	}
	if only < len(a.Waiting) && a.Max > 0 {
		only += max(0, len(a.Running)-a.Max)
	}
	return only
}

// parseAdapters reads the newest sample of the first series that is there. Its labels hold the
// names, its value the time at which they were true; old label sets stay exposed beside the
// newest (vllm/v1/metrics/loggers.py 0.32).
func parseAdapters(families map[string]*dto.MetricFamily, series []Series) Adapters {
	var newest *dto.Metric
	for _, s := range series {
		at := -1.0
		for _, m := range family(families, s.Name).GetMetric() {
			if v, ok := s.value(m); ok && s.matches(m) && v > at {
				newest, at = m, v
			}
		}
		if newest != nil {
			break
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

// maxNames bounds what is known of a list: each request for an adapter looks at it.
const maxNames = 4096

// names splits a list by commas; each name once, sorted. Those beyond the first maxNames are left out.
func names(list string) []string {
	var all []string
	for name := range strings.SplitSeq(list, ",") {
		if len(all) == maxNames {
			break
		}
		if name = strings.TrimSpace(name); name != "" {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
