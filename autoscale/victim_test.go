package autoscale

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// The cases of scaling in: "lose" is Victims of the units that the lines below it name,
// "leave" one decision about them, a quarter of a minute after the one above it.
func TestVictims_Golden(t *testing.T) {
	datadriven.Walk(t, "testdata/victims", func(t *testing.T, path string) {
		c := newClock()
		var before []Leaving
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			units := readUnits(t, d)
			if d.Cmd == "lose" {
				var n int
				d.ScanArgs(t, "n", &n)
				var names []string
				for _, u := range Victims(units, n) {
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
			want := Want{Reason: Demand}
			d.ScanArgs(t, "wanted", &want.Servers)
			want, before = leave(want, units, before, c.now())
			return fmt.Sprintf("wanted %d %s, leaving %s\n", want.Servers, want.Reason, readable(before))
		})
	})
}

func readable(leaving []Leaving) string {
	if len(leaving) == 0 {
		return "nobody"
	}
	var names []string
	for _, l := range leaving {
		if l.Empty {
			l.Unit += " (empty)"
		}
		names = append(names, l.Unit)
	}
	return strings.Join(names, ", ")
}

// readUnits reads lines of NAME kv=N hot=N streams=N ordinal=N leaving.
func readUnits(t *testing.T, d *datadriven.TestData) []Unit {
	var units []Unit
	for line := range strings.Lines(d.Input) {
		words := strings.Fields(line)
		u := Unit{Name: words[0], Ordinal: -1}
		for _, word := range words[1:] {
			key, text, _ := strings.Cut(word, "=")
			value, err := strconv.Atoi(text)
			switch {
			case key == "leaving":
				u.Leaving = true
			case err != nil:
				d.Fatalf(t, "%s: %v", word, err)
			case key == "kv":
				u.KV = float64(value)
			case key == "hot":
				u.Hot = float64(value)
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
