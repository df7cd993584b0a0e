package cost

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// What an adapter costs on a server, for people to dispute: testdata/adapter.txt.
func TestAdapterCost(t *testing.T) {
	datadriven.RunTest(t, "testdata/adapter.txt", func(t *testing.T, d *datadriven.TestData) string {
		cost := AdapterCost{Load: time.Second, Swap: 10 * time.Millisecond, Slot: 2 * time.Second}
		var out strings.Builder
		for line := range strings.Lines(d.Input) {
			var v AdapterState
			words := strings.Fields(line)
			for _, word := range words[1:] {
				switch name, value, _ := strings.Cut(word, "="); name {
				case "loaded":
					v.Loaded = true
				case "running":
					v.Loaded, v.Running = true, true
				case "evicts":
					v.Evicts = true
				case "full":
					v.Full = true
				case "waiting":
					fmt.Sscan(value, &v.Waiting)
				case "seen":
					v.Load, _ = time.ParseDuration(value)
				default:
					t.Fatalf("%s: %q is not known", d.Pos, word)
				}
			}
			fmt.Fprintf(&out, "%s: %v\n", words[0], cost.Wait(v))
		}
		return out.String()
	})
}

// Told that loads cost nothing, the choice knows no affinity.
func TestAdapterCost_NothingCostsNothing(t *testing.T) {
	if wait := (AdapterCost{}).Wait(AdapterState{Full: true, Waiting: 3, Load: time.Minute}); wait != 0 {
		t.Errorf("it waits %v", wait)
	}
}
