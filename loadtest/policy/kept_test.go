package policy

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
)

// A comparison that was interrupted runs what is missing only, and its report is that of one that
// was not; runs of another program, or of another load, are not taken for its own.
func TestCompare_GoesOnWhereItWas(t *testing.T) {
	path := filepath.Join(t.TempDir(), "runs")
	ran := 0
	compare := func(change func(*Config)) string {
		t.Helper()
		cfg := Config{
			Traces: []string{tracePath, "mixed"}, Limit: 80, Policies: []*Policy{dynamo, lateBinding}, Seeds: 2, Parallel: 2,
			Scenarios: []*Scenario{scenario(t, "B"), scenario(t, "siblings")}, KeptRuns: path, Program: "this",
		}
		change(&cfg)
		ran = 0
		r, err := Compare(context.Background(), cfg, func(int, int, *Outcome) { ran++ })
		if err != nil {
			t.Fatal(err)
		}
		for i := range r.Scenarios {
			for k := range r.Scenarios[i].Policies {
				delete(r.Scenarios[i].Policies[k].Metrics, "decision_ns")
				delete(r.Scenarios[i].Policies[k].Metrics, "run_s")
			}
		}
		var text bytes.Buffer
		if err := r.WriteJSON(&text); err != nil {
			t.Fatal(err)
		}
		return text.String()
	}
	same := func(*Config) {}
	whole := compare(same)
	if ran != 12 {
		t.Fatalf("%d runs, want 12", ran)
	}
	if again := compare(same); ran != 0 || again != whole {
		t.Errorf("%d runs though all were there; the same report: %v", ran, again == whole)
	}

	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(text, []byte("\n"))
	cut := append(bytes.Join(lines[:7], nil), lines[7][:len(lines[7])/2]...) // as a kill leaves it
	if err := os.WriteFile(path, cut, 0o600); err != nil {
		t.Fatal(err)
	}
	if again := compare(same); ran != 5 || again != whole {
		t.Errorf("%d runs where 5 were missing; the same report: %v", ran, again == whole)
	}
	if compare(func(cfg *Config) { cfg.FirstSeed = 2 }); ran != 6 {
		t.Errorf("%d runs with seeds 2 and 3 after 1 and 2, want 6", ran)
	}
	if compare(func(cfg *Config) { cfg.Limit = 81 }); ran != 12 {
		t.Errorf("%d runs of other loads, want 12", ran)
	}
	slower := func(cfg *Config) { cfg.Scenarios[0].Hardware.PrefillStep *= 2 }
	if compare(slower); ran != 8 {
		t.Errorf("%d runs of another scenario B on two traces, want 8", ran)
	}
	if compare(func(cfg *Config) { cfg.Program = "other" }); ran != 12 {
		t.Errorf("%d runs of another program, want 12", ran)
	}
}
