package policy

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// Each seed has a trace of its own, of rows as a file could have them, some of whose tokens can
// be reused.
func TestGenerated_EachSeedHasATrace(t *testing.T) {
	if want := []string{"conversations", "documents", "mixed"}; !slices.Equal(GeneratedTraces(), want) {
		t.Errorf("traces %v, want %v", GeneratedTraces(), want)
	}
	for _, name := range GeneratedTraces() {
		l, err := openTrace(name, 0)
		if err != nil {
			t.Fatal(err)
		}
		trace := l.trace(101)
		if reflect.DeepEqual(trace, l.trace(102)) {
			t.Errorf("%s: two seeds have one trace", name)
		}
		again, _ := openTrace(name, 0)
		if !reflect.DeepEqual(trace, again.trace(101)) {
			t.Errorf("%s: one seed has two traces", name)
		}
		tokens, reusable, output, seen := 0, 0, 0, make(map[int32]bool)
		for i := range trace.Requests {
			r := &trace.Requests[i]
			if err := checkRow(r, len(r.Blocks), trace.Requests[:i]); err != nil {
				t.Fatalf("%s: request %d: %v", name, i, err)
			}
			for _, b := range r.whole() {
				if seen[b] {
					reusable += blockTokens
				}
				seen[b] = true
			}
			tokens, output = tokens+r.Prompt, output+r.Output
		}
		n := len(trace.Requests)
		share := float64(reusable) / float64(tokens)
		t.Logf("%s: %d requests in an hour, prompts of %d tokens and answers of %d in the mean, %.0f%% of the prompt tokens reusable", name, n, tokens/n, output/n, 100*share)
		if n < 10_000 || share < 0.4 || share > 0.95 {
			t.Errorf("%s: %d requests, %.2f of their tokens reusable", name, n, share)
		}
	}
}

// Scenarios without a load of their own run on each trace, and say on which; the others run
// once.
func TestCompare_RunsOnEachTrace(t *testing.T) {
	cfg := Config{
		Traces: []string{tracePath, "mixed"}, Limit: 60, Policies: []*Policy{dynamo, lateBinding}, Seeds: 2, FirstSeed: 101, Parallel: 2,
		Scenarios: []*Scenario{scenario(t, "B"), scenario(t, "bimodal"), scenario(t, "F")},
	}
	r, err := Compare(context.Background(), cfg, func(_, _ int, o *Outcome) {
		if o.Seed != 101 && o.Seed != 102 {
			t.Errorf("seed %d ran", o.Seed)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range r.Scenarios {
		names = append(names, s.Name)
	}
	if want := []string{"B", "bimodal", "mixed/B"}; !slices.Equal(names, want) || len(r.Skipped) != 1 {
		t.Errorf("scenarios %v, want %v; skipped %v", names, want, r.Skipped)
	}
	if !slices.ContainsFunc(r.Gates, func(g Gate) bool { return g.Scenario == "mixed/B" && g.Limit == 0.90 }) {
		t.Errorf("no goal for B on the mixed trace among %v", r.Gates)
	}
	var table bytes.Buffer
	if err := r.WriteTable(&table); err != nil || !strings.Contains(table.String(), "seeds 101 to 102") || !strings.Contains(table.String(), "trace mixed") {
		t.Errorf("the table does not say which seeds and trace ran: %v\n%s", err, table.String())
	}
}

// Any file in Mooncake's format will do for every scenario: no request is lost.
func TestRun_ATraceOfSomeoneElse(t *testing.T) {
	var rows strings.Builder
	for i := range 120 {
		prompt := 300 + 977*(i%40)
		var ids []string
		for b := range blocksOf(prompt) {
			ids = append(ids, fmt.Sprint((i%7)*1_000_000+b)) // seven conversations
		}
		fmt.Fprintf(&rows, "{\"timestamp\": %d, \"input_length\": %d, \"output_length\": %d, \"hash_ids\": [%s]}\n", i*400, prompt, 20+i, strings.Join(ids, ","))
	}
	path := filepath.Join(t.TempDir(), "someone.jsonl")
	if err := os.WriteFile(path, []byte(rows.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := openTrace(path, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range Shipped() {
		s := scenario(t, name)
		if s.workload() != nil {
			continue
		}
		for _, p := range []*Policy{dynamo, lateBinding} {
			c, err := newCluster(l.trace(1), s, p, 1)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.run(); err != nil {
				t.Fatalf("%s, %s: %v", name, p.Name, err)
			}
			checkOrder(t, c, p)
		}
	}
}
