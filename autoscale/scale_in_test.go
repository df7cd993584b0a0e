package autoscale

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/tandem-gateway/tandem/autoscale/sizing"
)

// The cases of scaling in: "candidates" is ScaleInCandidates of the units that the lines below it
// name, "scale-in" one decision about them, a quarter of a minute after the one above it.
func TestScaleIn_Golden(t *testing.T) {
	datadriven.Walk(t, "testdata/scale-in", func(t *testing.T, path string) {
		c := newClock()
		var before []DrainingUnit
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			units := readUnits(t, d)
			if d.Cmd == "candidates" {
				var n int
				d.ScanArgs(t, "n", &n)
				var names []string
				for _, u := range ScaleInCandidates(units, n) {
					names = append(names, u.Name)
				}
				return strings.Join(append(names, "none")[:max(len(names), 1)], " ") + "\n"
			}
			passed := "15s"
			d.MaybeScanArgs(t, "passed", &passed)
			span, err := time.ParseDuration(passed)
			if err != nil {
				d.Fatalf(t, "%v", err)
			}
			c.pass(span)
			want := sizing.Want{Reason: sizing.Demand}
			d.ScanArgs(t, "wanted", &want.Servers)
			want, before = scaleIn(want, units, before, c.Now())
			return fmt.Sprintf("wanted %d %s, drains %s\n", want.Servers, want.Reason, readable(before))
		})
	})
}

func readable(draining []DrainingUnit) string {
	if len(draining) == 0 {
		return "none"
	}
	var names []string
	for _, d := range draining {
		if d.Empty {
			d.Unit += " (empty)"
		}
		names = append(names, d.Unit)
	}
	return strings.Join(names, ", ")
}

// readUnits reads lines of NAME kv=N saved=N streams=N ordinal=N draining overdue.
func readUnits(t *testing.T, d *datadriven.TestData) []Unit {
	var units []Unit
	for line := range strings.Lines(d.Input) {
		words := strings.Fields(line)
		u := Unit{Name: words[0], Ordinal: -1}
		for _, word := range words[1:] {
			key, text, _ := strings.Cut(word, "=")
			value, err := strconv.Atoi(text)
			switch {
			case key == "draining":
				u.Draining = true
			case key == "overdue":
				u.Overdue = true
			case err != nil:
				d.Fatalf(t, "%s: %v", word, err)
			case key == "kv":
				u.KV = float64(value)
			case key == "saved":
				u.CacheSavings = float64(value)
			case key == "streams":
				u.Streams = value
			case key == "ordinal":
				u.Ordinal = value
			default:
				d.Fatalf(t, "unknown word %q", word)
			}
		}
		units = append(units, u)
	}
	return units
}
