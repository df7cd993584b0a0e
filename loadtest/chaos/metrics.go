package chaos

import (
	"strconv"
	"strings"
)

// Metrics is a Prometheus exposition.
type Metrics string

// Sum adds up the samples of a metric whose labels contain all that is given, as
// in `outcome="ok"`.
func (m Metrics) Sum(name string, labels ...string) (sum float64) {
	for line := range strings.Lines(string(m)) {
		series, text, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || series != name && !strings.HasPrefix(series, name+"{") {
			continue
		}
		matches := true
		for _, label := range labels {
			matches = matches && strings.Contains(series, label)
		}
		if value, err := strconv.ParseFloat(text, 64); err == nil && matches {
			sum += value
		}
	}
	return sum
}
