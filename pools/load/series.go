package load

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
)

// Series names the samples of an exposition that hold a reading: one exact name,
// labels that they must bear, and the label that holds the value where the sample
// itself does not.
type Series struct {
	Name  string
	Where map[string]string
	Label string
}

// ParseSeries reads a series as it is written in a configuration: name, or
// name{label=value,...}, or name[label].
func ParseSeries(text string) (Series, error) {
	bad := fmt.Errorf("series %q: want name, name{label=value} or name[label]", text)
	s := Series{Name: text}
	if name, label, ok := strings.Cut(text, "["); ok {
		label, closed := strings.CutSuffix(label, "]")
		if !closed || label == "" {
			return Series{}, bad
		}
		s = Series{Name: name, Label: label}
	}
	if name, labels, ok := strings.Cut(s.Name, "{"); ok {
		labels, closed := strings.CutSuffix(labels, "}")
		if !closed {
			return Series{}, bad
		}
		s.Name, s.Where = name, make(map[string]string)
		for pair := range strings.SplitSeq(labels, ",") {
			key, value, ok := strings.Cut(pair, "=")
			if !ok || key == "" {
				return Series{}, bad
			}
			s.Where[key] = strings.Trim(value, `"`)
		}
	}
	if s.Name == "" || strings.ContainsAny(s.Name, "}]= ") {
		return Series{}, bad
	}
	return s, nil
}

// rankLabels are what engines call the data-parallel rank: vLLM and SGLang.
var rankLabels = [...]string{"engine", "dp_rank"}

func rankOf(m *dto.Metric) string {
	for _, name := range rankLabels {
		if rank := label(m, name); rank != "" {
			return rank
		}
	}
	return ""
}

// read joins the samples of the series. With a rank only that rank's count.
// Samples of one rank are copies, one for each tensor-parallel rank, so the largest
// counts; over ranks they are joined.
func (s Series) read(families map[string]*dto.MetricFamily, rank *int, join func(a, b float64) float64) Gauge {
	byRank := make(map[string]float64)
	for _, m := range family(families, s.Name).GetMetric() {
		v, ok := s.value(m)
		at := rankOf(m)
		if !ok || !s.matches(m) || rank != nil && at != "" && at != strconv.Itoa(*rank) {
			continue
		}
		byRank[at] = max(byRank[at], v)
	}
	var g Gauge
	for _, v := range byRank {
		if g.Known {
			v = join(g.Value, v)
		}
		g = Gauge{Value: v, Known: usable(v)}
	}
	if !g.Known {
		return Gauge{}
	}
	return g
}

// family returns the samples of a name. Ray has no colons in names.
func family(families map[string]*dto.MetricFamily, name string) *dto.MetricFamily {
	if f := families[name]; f != nil {
		return f
	}
	return families[strings.ReplaceAll(name, ":", "_")]
}

func (s Series) matches(m *dto.Metric) bool {
	for name, value := range s.Where {
		if label(m, name) != value {
			return false
		}
	}
	return true
}

// value is the sample's, or that of the label that holds it. What is no number that
// can be a load is no value.
func (s Series) value(m *dto.Metric) (float64, bool) {
	v := math.NaN()
	switch {
	case s.Label != "":
		text, err := strconv.ParseFloat(label(m, s.Label), 64)
		if err != nil {
			return 0, false
		}
		v = text
	case m.Gauge != nil:
		v = m.Gauge.GetValue()
	case m.Counter != nil:
		v = m.Counter.GetValue()
	case m.Untyped != nil:
		v = m.Untyped.GetValue()
	}
	return v, usable(v)
}

// usable reports whether a number can be a load: not NaN, infinite or negative.
func usable(v float64) bool { return v >= 0 && !math.IsInf(v, 0) }

func label(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}
