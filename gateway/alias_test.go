package gateway

import (
	"math"
	"testing"
)

func TestPick_SharesByWeight(t *testing.T) {
	targets := []Target{{"old", 90}, {"new", 10}}
	counts := make(map[string]int)
	const n = 100_000
	for key := range uint64(n) {
		counts[pick(targets, key)]++
	}
	if share := float64(counts["new"]) / n; math.Abs(share-0.1) > 0.005 {
		t.Errorf("the new model has %.3f of the requests, want 0.1", share)
	}
}

// Raising a share moves keys to the model whose share is raised, and none between
// others: conversations stay where their KV is.
func TestPick_ChangedWeightsMoveWhatMustMove(t *testing.T) {
	before := []Target{{"a", 50}, {"b", 50}, {"new", 5}}
	after := []Target{{"a", 50}, {"b", 50}, {"new", 20}}
	moved := 0
	for key := range uint64(10_000) {
		was, is := pick(before, key), pick(after, key)
		if was != is {
			moved++
			if is != "new" {
				t.Fatalf("a key moved from %s to %s", was, is)
			}
		}
	}
	if moved == 0 {
		t.Error("no key moved")
	}
}

func TestParseAlias(t *testing.T) {
	for text, want := range map[string]int{
		"chat=llama-8b": 1, "chat=a=90|b=10": 2, "chat=meta-llama/L:8b=1|b": 2,
		"chat": 0, "=a": 0, "chat=": 0, "chat=chat": 0, "chat=a=0": 0, "chat=a=-1": 0, "chat=a=x": 0, "chat=a=Inf": 0, "chat=a|": 0,
	} {
		a, err := ParseAlias(text)
		if (err == nil) != (want > 0) || len(a.Targets) != want {
			t.Errorf("%s: %+v, %v", text, a, err)
		}
	}
}
